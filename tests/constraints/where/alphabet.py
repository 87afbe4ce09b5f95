"""Characters that an expression's atoms do not tell apart, and the bytes that they begin with."""

import codecs
import re
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from functools import cache

from constraints.where.terms import (
    Compare,
    Contains,
    EndsWith,
    Expression,
    IsFloat,
    IsInt,
    Matches,
    Measure,
    OneOf,
    StartsWith,
    StopsAt,
    StopsBefore,
)

SURROGATES = (0xD800, 0xE000)
# After these not every continuation byte may follow.
SPECIAL_LEADS = (b"\xe0", b"\xed", b"\xf0", b"\xf4")


class Alphabet:
    """One character of every kind that the atoms tell apart."""

    def __init__(self, atoms: Sequence[Expression]) -> None:
        bounds = {bound for atom in atoms for char in _named(atom) for bound in _around(char)}
        self._named = sorted(bounds | {0, *SURROGATES})
        self._classes = tuple(dict.fromkeys(name for atom in atoms for name in _classes(atom)))
        starts = {start for name in self._classes for start in _changes(name)}
        self._starts = sorted(starts.union(self._named))
        kinds: dict[Hashable, str] = {}
        self._likes = [kinds.setdefault(self._kind(start), chr(start)) for start in self._starts]
        self._tails: dict[Hashable, bytes] = {}

    def _kind(self, code_point: int) -> Hashable:
        has = [re.match(name, chr(code_point)) is not None for name in self._classes]
        return bisect_right(self._named, code_point), *has

    def like(self, char: str) -> str:
        """The character that stands for this one."""
        return self._likes[bisect_right(self._starts, ord(char)) - 1]

    def beginning_with(self, tail: bytes) -> list[str]:
        """One character of every kind whose UTF-8 begins with these bytes."""
        first, last = code_points(tail)
        low = bisect_right(self._starts, first) - 1
        high = bisect_right(self._starts, last)
        likes = dict.fromkeys(self._likes[low:high])
        return [like for like in likes if not SURROGATES[0] <= ord(like) < SURROGATES[1]]

    def like_tail(self, tail: bytes) -> bytes:
        """The begun character that stands for this one: of one kind, completed by any bytes."""
        likes = self.beginning_with(tail) if tail else []
        if len(likes) != 1 or tail in SPECIAL_LEADS:
            return tail
        return self._tails.setdefault((likes[0], _length(tail[0]) - len(tail)), tail)

    def meaning(self, token: bytes) -> Hashable:
        """Equal for tokens that mean the same where a character begins."""
        split = characters(token)
        return None if split is None else ("".join(map(self.like, split[0])), split[1])


def characters(data: bytes) -> tuple[str, bytes] | None:
    """The complete characters, and the bytes of one that has begun; None for what is no UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(data)
    except UnicodeDecodeError:
        return None
    return text, decoder.getstate()[0]


def code_points(tail: bytes) -> tuple[int, int]:
    """The first and the last code point whose UTF-8 begins with these bytes."""
    if not tail:
        return 0, 0x10FFFF
    lead = tail[0]
    length = _length(lead)
    least, most = {2: (0x80, 0x7FF), 3: (0x800, 0xFFFF), 4: (0x10000, 0x10FFFF)}[length]
    bits = lead & (0xFF >> (length + 1))
    for byte in tail[1:]:
        bits = bits << 6 | byte & 0x3F
    open_bits = 6 * (length - len(tail))
    return max(bits << open_bits, least), min(((bits + 1) << open_bits) - 1, most)


def _length(lead: int) -> int:
    return 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _named(atom: Expression) -> str:
    """The characters that the atom names; ranges in patterns by their bounds."""
    match atom:
        case Compare(Measure.INT) | IsInt() | IsFloat():
            return "-.0123456789"
        case Compare(Measure.SENTENCES):
            return "."
        case Compare():
            return ""
        case Matches(pattern):
            return pattern + "\n\t\r"
        case Contains(phrase):
            return phrase
        case OneOf(texts) | StartsWith(texts) | EndsWith(texts):
            return "".join(texts)
        case StopsAt(texts) | StopsBefore(texts):
            return "".join(texts)
    raise TypeError(atom)


def _classes(atom: Expression) -> tuple[str, ...]:
    """The classes of characters that the atom tells apart."""
    match atom:
        case Compare(Measure.WORDS):
            return (r"\s",)
        case Matches():
            return r"\s", r"\d", r"\w"
    return ()


def _around(char: str) -> tuple[int, int]:
    return ord(char), ord(char) + 1


@cache
def _changes(name: str) -> tuple[int, ...]:
    """The code points at which characters of a class begin or end."""
    everything = "".join(map(chr, range(0x110000)))
    found = re.finditer(f"{name}+", everything)
    return tuple(bound for run in found for bound in run.span() if bound < 0x110000)
