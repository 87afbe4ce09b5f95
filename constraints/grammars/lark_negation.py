"""Negations of a grammar's terminals, which are about texts: `~A` is every text that is not `A`.

The engine takes `~A` for all bytes but those of `A`, broken UTF-8 among them, and knows no `&` in
rules. So `~A` is written `~(A | ~/(?s:.*)/)`: what is neither `A` nor broken. Beside a positive
part of the same conjunction, as in `/[a-z]+/ & ~A`, nothing broken can be left.
"""

from collections.abc import Iterator, Mapping, Sequence

from constraints.grammars.lark_reader import Word, lines

_BROKEN = "~/(?s:.*)/"
_OPENING = ("(", "[")
_CLOSING = (")", "]")
# What ends a conjunction, where no bracket does.
_BORDERS = ("|", ":", "->")


def about_texts(text: str, found: Sequence[Word], written: Mapping[int, str]) -> dict[int, str]:
    """By place, the words that the engine gets otherwise than they stand in `text`.

    written: the same without regard to negations
    """
    changed = dict(written)
    for line in lines(found):
        for sign, last in _negations(line):
            changed[sign.start] = "~("
            inner = changed.get(last.start, text[last.start : last.end])
            changed[last.start] = f"{inner} | {_BROKEN})"
    return changed


def _negations(line: Sequence[Word]) -> Iterator[tuple[Word, Word]]:
    """The signs of negations that may let in what is no text, and the last word of each."""
    # What is inside of another one comes first, so that its bracket is closed first.
    for index in range(len(line) - 1, -1, -1):
        if not _negates(line, index):
            continue
        end = _end_of_atom(line, index + 1)
        if end <= len(line) and not _is_beside_text(line, index, end):
            yield line[index], line[end - 1]


def _negates(line: Sequence[Word], index: int) -> bool:
    """Whether a negation begins here: in `A~2..3` the sign repeats."""
    rest = line[index : index + 2]
    return len(rest) == 2 and rest[0].text == "~" and rest[1].kind != "number"


def _end_of_atom(line: Sequence[Word], start: int) -> int:
    """Behind the group, the range of characters or the one word that begins here, or is negated."""
    while line[start].text == "~" and start + 1 < len(line):
        start += 1
    if line[start].text in _OPENING:
        return _matching(line, start, 1) + 1
    is_range = start + 1 < len(line) and line[start + 1].text == ".."
    return start + (3 if is_range else 1)


def _matching(line: Sequence[Word], start: int, step: int) -> int:
    """The bracket that belongs to this one, to the right or the left; the line's end without."""
    depth = 0
    at = start
    while 0 <= at < len(line):
        depth += (line[at].text in _OPENING) - (line[at].text in _CLOSING)
        if depth == 0:
            return at
        at += step
    return at


def _is_beside_text(line: Sequence[Word], index: int, end: int) -> bool:
    """Whether the negation is a whole part of a conjunction that has a part without negations."""
    before = [] if index == 0 else _operands(line, index - 1, -1)
    after = [] if end == len(line) else _operands(line, end, 1)
    if before[:1] not in ([], [[]]) or after[:1] not in ([], [[]]):
        return False
    others = before[1:] + after[1:]
    return any(not any(word.text == "~" for word in other) for other in others)


def _operands(line: Sequence[Word], start: int, step: int) -> list[list[Word]]:
    """Parts of the conjunction from here to its border, the first of them what is at hand."""
    found: list[list[Word]] = [[]]
    ends = _CLOSING if step > 0 else _OPENING
    at = start
    while 0 <= at < len(line) and line[at].text not in (*ends, *_BORDERS):
        if line[at].text == "&":
            found.append([])
            at += step
            continue
        behind = at + step
        if line[at].text in (*_OPENING, *_CLOSING):
            behind = _matching(line, at, step) + step
        found[-1] += line[min(at, behind - step) : max(at, behind - step) + 1]
        at = behind
    return found
