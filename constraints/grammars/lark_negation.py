"""Negations of a grammar's terminals, which are about texts: `~A` is every text that is not `A`.

The engine takes `~A` for all bytes but those of `A`, broken UTF-8 among them, and knows no `&` in
rules. So `~A` is written `~(A | ~/(?s:.*)/)`: what is neither `A` nor broken. Beside a positive
part of the same conjunction, as in `/[a-z]+/ & ~A`, nothing broken can be left.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
        for signs, last, lets_in_broken in _negations(line):
            # The engine knows no sign before a sign; two of them say nothing.
            changed.update({sign.start: "" for sign in signs})
            if len(signs) % 2 == 0:
                continue
            changed[signs[0].start] = "~"
            if lets_in_broken:
                changed[signs[0].start] = "~("
                inner = changed.get(last.start, text[last.start : last.end])
                changed[last.start] = f"{inner} | {_BROKEN})"
    return changed


def _negations(line: Sequence[Word]) -> Iterator[tuple[Sequence[Word], Word, bool]]:
    """Signs in a row, the last word of what they negate, whether that may let in what is no text.

    What is inside of another one comes first, so that its bracket is closed first.
    """
    closed_by, is_beside_text = _groups(line)
    for index in range(len(line) - 1, -1, -1):
        if not _negates(line, index) or (index and _negates(line, index - 1)):
            continue
        atom = _behind_signs(line, index)
        end = _end_of_atom(line, atom, closed_by)
        if end <= len(line):
            is_held = is_beside_text[index] and _is_operand(line, index, end)
            yield line[index:atom], line[end - 1], not is_held


def _negates(line: Sequence[Word], index: int) -> bool:
    """Whether a negation begins here: in `A~2..3` the sign repeats."""
    rest = line[index : index + 2]
    return len(rest) == 2 and rest[0].text == "~" and rest[1].kind != "number"


def _behind_signs(line: Sequence[Word], start: int) -> int:
    """The first word from here on that is no sign of a negation, or the line's last."""
    while line[start].text == "~" and start + 1 < len(line):
        start += 1
    return start


def _end_of_atom(line: Sequence[Word], start: int, closed_by: Mapping[int, int]) -> int:
    """Behind the group, the range of characters or the one word that begins here."""
    if line[start].text in _OPENING:
        return closed_by.get(start, len(line)) + 1
    is_range = start + 1 < len(line) and line[start + 1].text == ".."
    return start + (3 if is_range else 1)


def _is_operand(line: Sequence[Word], start: int, end: int) -> bool:
    """Whether line[start:end] is a whole part of a conjunction."""
    is_first = start == 0 or line[start - 1].text in ("&", *_OPENING, *_BORDERS)
    return is_first and (end == len(line) or line[end].text in ("&", *_CLOSING, *_BORDERS))


@dataclass(slots=True)
class _Conjunction:
    """Parts joined by `&`, as they are read."""

    has_text: bool = False
    part_has_sign: bool = False

    def end_part(self) -> None:
        self.has_text |= not self.part_has_sign
        self.part_has_sign = False


def _groups(line: Sequence[Word]) -> tuple[dict[int, int], list[bool]]:
    """Where each bracket is closed; by word, whether its conjunction has a part without signs."""
    closed_by: dict[int, int] = {}
    of_word: list[_Conjunction] = []
    # Of each open bracket its place and the conjunction around it; whether signs came inside.
    around: list[tuple[int, _Conjunction]] = []
    has_sign = [False]
    now = _Conjunction()
    for index, word in enumerate(line):
        if word.text in _CLOSING and around:
            now.end_part()
            opening, now = around.pop()
            closed_by[opening] = index
            inside = has_sign.pop()
            now.part_has_sign |= inside
            has_sign[-1] |= inside
        of_word.append(now)
        if word.text == "~":
            now.part_has_sign = has_sign[-1] = True
        elif word.text == "&":
            now.end_part()
        elif word.text in _BORDERS:
            now.end_part()
            now = _Conjunction()
        elif word.text in _OPENING:
            around.append((index, now))
            has_sign.append(False)
            now = _Conjunction()
    for conjunction in (now, *(outer for _, outer in around)):
        conjunction.end_part()
    return closed_by, [conjunction.has_text for conjunction in of_word]
