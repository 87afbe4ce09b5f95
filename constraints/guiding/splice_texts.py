"""Texts that a search inserts as a whole: hints, and the rest of a hint that has begun.

{"a":1,"b":{"c":2},"d":3}
 |     |            +------ ends: wherever an output is among the members of such an object,
 |     +------------------- and however it got there, one of these completes it
 +-------------------------
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from constraints.guiding.completion import KnownCompletion
from constraints.matcher import Matcher

# Where more bytes may follow, any text may, such as within a string: JSON is legal there, too, and
# completes nothing.
_MAX_ALLOWED = 64
# The most bytes before the end at which JSON may have begun.
_MAX_BEGUN = 256
# The most ends of one hint, the longest hint that has ends, and the most bytes of all ends.
_MAX_ENDS = 40
_MAX_LEN = 4_000
_MAX_ENDS_LEN = 400_000


@dataclass(frozen=True, slots=True)
class SpliceTexts:
    """Texts in the tokens that a search uses.

    texts:    plain texts, the best first
    by_start: JSON and its ends by their first byte, the shortest first
    colon:    the tokens behind a key
    """

    texts: tuple[Sequence[int], ...]
    by_start: Mapping[int, tuple[Sequence[int], ...]]
    colon: Sequence[int]

    def legal(self, matcher: Matcher, allowed: Collection[int]) -> tuple[KnownCompletion, ...]:
        """The texts that may follow. `allowed`: the bytes that may follow."""
        values: list[Sequence[int]] = []
        if len(allowed) <= _MAX_ALLOWED:
            for start, splices in self.by_start.items():
                if start in allowed:
                    values += splices
        return self._legal_values(values, matcher) + _legal(self.texts, matcher)

    def begun(self, matcher: Matcher, text: bytes) -> tuple[KnownCompletion, ...]:
        """The rests of JSON texts that these last bytes begin, the outermost first."""
        found: list[Sequence[int]] = []
        for place in range(max(0, len(text) - _MAX_BEGUN), len(text)):
            begun = text[place:]
            for splice in self.by_start.get(text[place], ()):
                if splice[: len(begun)] == begun and len(splice) > len(begun):
                    found.append(splice[len(begun) :])
        return self._legal_values(dict.fromkeys(found), matcher)

    def _legal_values(
        self, splices: Iterable[Sequence[int]], matcher: Matcher
    ) -> tuple[KnownCompletion, ...]:
        """The legal ones that are no keys: a key would need a value behind it."""
        legal = _legal(splices, matcher)
        return tuple(
            splice for splice in legal if matcher.num_legal((*splice, *self.colon)) == len(splice)
        )


def _legal(splices: Iterable[Sequence[int]], matcher: Matcher) -> tuple[KnownCompletion, ...]:
    return tuple(tuple(splice) for splice in splices if matcher.num_legal(splice) == len(splice))


NO_SPLICE_TEXTS = SpliceTexts((), {}, ())


@lru_cache(maxsize=32)
def splice_texts_of(hints: tuple[bytes, ...]) -> SpliceTexts:
    """The splice texts of hints, in tokens of one byte."""
    return spelled_splice_texts(hints, bytes)


def spelled_splice_texts(
    hints: Sequence[bytes], spelled: Callable[[bytes], Sequence[int] | None]
) -> SpliceTexts:
    """The splice texts of those hints that can be spelled."""
    plain = [hint for hint in hints if hint and not _is_json(hint)]
    whole = [hint for hint in hints if _is_json(hint)]
    ends = _few(end for hint in whole for end in _ends_of(hint))
    by_start: defaultdict[int, list[Sequence[int]]] = defaultdict(list)
    for text in sorted(dict.fromkeys((*whole, *ends)), key=len):
        splice = spelled(text)
        if splice:
            by_start[text[0]].append(splice)
    texts = [splice for hint in plain if (splice := spelled(hint))]
    values = {start: tuple(found) for start, found in by_start.items()}
    return SpliceTexts(tuple(texts), values, spelled(b":") or ())


def _is_json(hint: bytes) -> bool:
    if hint[:1] not in (b'"', b"{", b"["):
        return False
    try:
        json.loads(hint)
    except (ValueError, RecursionError):
        return False
    return b'"' in hint


def _ends_of(hint: bytes) -> Iterator[bytes]:
    """The text from each member of the outermost object or array to the end."""
    if len(hint) > _MAX_LEN or hint[:1] == b'"':
        return
    for count, place in enumerate(_members(hint)):
        if count == _MAX_ENDS:
            return
        yield hint[place:]


def _few(ends: Iterable[bytes]) -> Iterator[bytes]:
    left = _MAX_ENDS_LEN
    for end in ends:
        left -= len(end)
        if left < 0:
            return
        yield end


def _members(hint: bytes) -> Iterator[int]:
    """Where each member begins."""
    depth = 0
    is_quoted = False
    is_escaped = False
    for place, byte in enumerate(hint):
        if is_quoted:
            is_quoted = is_escaped or byte != ord('"')
            is_escaped = not is_escaped and byte == ord("\\")
        elif byte == ord('"'):
            is_quoted = True
        elif byte in b"{[":
            depth += 1
            if depth == 1:
                yield _beyond_blanks(hint, place + 1)
        elif byte in b"}]":
            depth -= 1
        elif byte == ord(",") and depth == 1:
            yield _beyond_blanks(hint, place + 1)


def _beyond_blanks(hint: bytes, place: int) -> int:
    while hint[place : place + 1] == b" ":
        place += 1
    return place


def ends_of(text: bytes, max_ends: int) -> Iterable[bytes]:
    """The ends of a text in JSON that begin where a value has just ended; the longest first."""
    places = [0, *(place for place, byte in enumerate(text) if byte in b'",]}')]
    return [text[place:] for place in places[:max_ends]]
