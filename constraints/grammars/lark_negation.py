"""Negated terminals as sets of texts: `~A` is every text that is not `A`.

For the engine `~A` is all bytes except those of `A`, including invalid UTF-8, and it has no `&` in
rules. So `~A` is written `~(A | ~/(?s:.*)/)`: neither `A` nor invalid. Beside a positive part of
the same conjunction, as in `/[a-z]+/ & ~A`, invalid UTF-8 cannot occur.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from constraints.grammars.lark_reader import Word, lines

_BROKEN = "~/(?s:.*)/"
_OPENING = ("(", "[")
_CLOSING = (")", "]")
# Words that end a conjunction, apart from brackets.
_BORDERS = ("|", ":", "->")


def negations_as_texts(
    text: str, found: Sequence[Word], written: Mapping[int, str]
) -> dict[int, str]:
    """By place, the words of `text` that are replaced for the engine.

    written: replacements made before, which ignore negations
    """
    changed = dict(written)
    for line in lines(found):
        for signs, last, lets_in_broken in _negations(line):
            # The engine allows no `~` before a `~`; two of them cancel out.
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
    """The `~` signs in a row, the last word they negate, and whether invalid UTF-8 may match.

    Inner negations come first, so that their brackets are closed first.
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
    """Whether a negation begins here: in `A~2..3` the sign is a repeat."""
    rest = line[index : index + 2]
    return len(rest) == 2 and rest[0].text == "~" and rest[1].kind != "number"


def _behind_signs(line: Sequence[Word], start: int) -> int:
    """The first word from here on that is no sign of a negation, or the line's last."""
    while line[start].text == "~" and start + 1 < len(line):
        start += 1
    return start


def _end_of_atom(line: Sequence[Word], start: int, closed_by: Mapping[int, int]) -> int:
    """The index behind the group, the range of characters or the single word that begins here."""
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
    """The state while reading parts joined by `&`."""

    has_text: bool = False
    part_has_sign: bool = False

    def end_part(self) -> None:
        self.has_text |= not self.part_has_sign
        self.part_has_sign = False


def _groups(line: Sequence[Word]) -> tuple[dict[int, int], list[bool]]:
    """Where each bracket is closed; by word, whether its conjunction has a part without signs."""
    closed_by: dict[int, int] = {}
    of_word: list[_Conjunction] = []
    # For each open bracket: its place, the conjunction around it, whether signs occurred inside.
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
