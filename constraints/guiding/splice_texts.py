"""What a search puts into a text as wholes: hints, and what is left of one that has been begun.

{"a":1,"b":{"c":2},"d":3}
 |     |            +------ ends: wherever an output stands among the members of such an object,
 |     +------------------- and however it came there, one of these completes it
 +-------------------------
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from constraints.guiding.completion import KnownCompletion
from constraints.matcher import Matcher

# Where more bytes than these may follow any text may, such as within a string: JSON as a whole
# stands there as well, and leads nowhere.
_MAX_ALLOWED = 64
# So many bytes ago JSON may have begun.
_MAX_BEGUN = 256
# Ends of one hint, how long it may be to have any, and how long all may be together.
_MAX_ENDS, _MAX_LEN, _MAX_ENDS_LEN = 40, 4_000, 400_000


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of text, spelled in what a search walks over.

    texts:    that may stand anywhere, the best first
    by_start: JSON and its ends by their first byte, the shortest first
    colon:    what a key is followed by
    """

    texts: tuple[Sequence[int], ...]
    by_start: Mapping[int, tuple[Sequence[int], ...]]
    colon: Sequence[int]

    def legal(self, matcher: Matcher, allowed: Collection[int]) -> tuple[KnownCompletion, ...]:
        """Those that may stand next. `allowed`: the bytes that may."""
        values: list[Sequence[int]] = []
        if len(allowed) <= _MAX_ALLOWED:
            for start, pieces in self.by_start.items():
                if start in allowed:
                    values += pieces
        return self._legal_values(values, matcher) + _legal(self.texts, matcher)

    def begun(self, matcher: Matcher, text: bytes) -> tuple[KnownCompletion, ...]:
        """The rest of JSON that these last bytes have begun, the outermost first."""
        found: list[Sequence[int]] = []
        for place in range(max(0, len(text) - _MAX_BEGUN), len(text)):
            begun = text[place:]
            for piece in self.by_start.get(text[place], ()):
                if piece[: len(begun)] == begun and len(piece) > len(begun):
                    found.append(piece[len(begun) :])
        return self._legal_values(dict.fromkeys(found), matcher)

    def _legal_values(
        self, pieces: Iterable[Sequence[int]], matcher: Matcher
    ) -> tuple[KnownCompletion, ...]:
        """Without those that would be keys, which values are expected behind."""
        legal = _legal(pieces, matcher)
        return tuple(
            piece for piece in legal if matcher.num_legal((*piece, *self.colon)) == len(piece)
        )


def _legal(pieces: Iterable[Sequence[int]], matcher: Matcher) -> tuple[KnownCompletion, ...]:
    return tuple(tuple(piece) for piece in pieces if matcher.num_legal(piece) == len(piece))


NO_PIECES = Pieces((), {}, ())


@lru_cache(maxsize=32)
def pieces_of(hints: tuple[bytes, ...]) -> Pieces:
    """The pieces of hints in bytes; as bytes, since there may be many."""
    return spelled_pieces(hints, bytes)


def spelled_pieces(
    hints: Sequence[bytes], spelled: Callable[[bytes], Sequence[int] | None]
) -> Pieces:
    """The pieces of hints, those that can be spelled."""
    plain = [hint for hint in hints if hint and not _is_json(hint)]
    whole = [hint for hint in hints if _is_json(hint)]
    ends = _few(end for hint in whole for end in _ends_of(hint))
    by_start: defaultdict[int, list[Sequence[int]]] = defaultdict(list)
    for text in sorted(dict.fromkeys((*whole, *ends)), key=len):
        piece = spelled(text)
        if piece:
            by_start[text[0]].append(piece)
    texts = [piece for hint in plain if (piece := spelled(hint))]
    values = {start: tuple(found) for start, found in by_start.items()}
    return Pieces(tuple(texts), values, spelled(b":") or ())


def _is_json(hint: bytes) -> bool:
    if hint[:1] not in (b'"', b"{", b"["):
        return False
    try:
        json.loads(hint)
    except (ValueError, RecursionError):
        return False
    return b'"' in hint


def _ends_of(hint: bytes) -> Iterator[bytes]:
    """The text from each member of the outermost object or array on."""
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
    depth, is_quoted, is_escaped = 0, False, False
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


def cuts_of(text: bytes, max_cuts: int) -> Iterable[bytes]:
    """The ends of a text in JSON that begin where a value has just ended; the longest first."""
    places = [0, *(place for place, byte in enumerate(text) if byte in b'",]}')]
    return [text[place:] for place in places[:max_cuts]]
