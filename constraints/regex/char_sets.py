"""Sets of code points, the classes of characters that automata distinguish, and these over UTF-8.

set:        sorted ranges (first, last), both included
partition:  every code point has one label; those in no set have label 0

The byte automaton of a partition:

    place 0      between two characters
    other places inside a character; merged if the same bytes lead to the same labels

It accepts only well-formed UTF-8: no surrogates, no overlong forms, nothing above U+10FFFF.

The rules for upper and lower case are taken from `re` itself.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import regex

Ranges = tuple[tuple[int, int], ...]

NUM_CODE_POINTS = 0x110000
SURROGATES = (0xD800, 0xDFFF)
# What str.split() splits at.
WHITESPACE: Ranges = (
    (0x09, 0x0D),
    (0x1C, 0x20),
    (0x85, 0x85),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
)


@lru_cache(maxsize=4096)
def first_bytes(ranges: Ranges) -> int:
    """The bytes with which characters of a set without surrogates begin in UTF-8, as bits."""
    found = 0
    for first, last in ranges:
        low = chr(first).encode()[0]
        high = chr(last).encode()[0]
        found |= (1 << high + 1) - (1 << low)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Labels of code points: from `starts[i]` on, up to the next start, all have `labels[i]`."""

    starts: npt.NDArray[np.int64]  # [num_ranges], ascending, the first is 0
    labels: npt.NDArray[np.int32]  # [num_ranges]

    @classmethod
    def of_sets(cls, sets: Sequence[Ranges]) -> "Partition":
        """Label i + 1 for the set i, 0 for the rest; the sets are disjoint."""
        bounds = {0: 0}
        pieces = [
            (first, last, label + 1) for label, ranges in enumerate(sets) for first, last in ranges
        ]
        for first, last, label in sorted(pieces):
            bounds[first] = label
            bounds.setdefault(last + 1, 0)
        starts = sorted(start for start in bounds if start < NUM_CODE_POINTS)
        return cls(
            np.array(starts, dtype=np.int64),
            np.array([bounds[start] for start in starts], dtype=np.int32),
        )

    @classmethod
    def of_chars(cls, chars: Iterable[str]) -> "Partition":
        """Label i + 1 for the i-th distinct character in order of code points."""
        return cls.of_sets([((ord(char), ord(char)),) for char in sorted(set(chars))])

    @property
    def num_labels(self) -> int:
        """Labels are 0 .. num_labels - 1; no code point may have label 0."""
        return int(self.labels.max()) + 1

    def label_of(self, code_point: int) -> int:
        return int(self.labels[np.searchsorted(self.starts, code_point, side="right") - 1])


def join(
    partitions: Sequence[Partition],
) -> tuple[Partition, npt.NDArray[np.int32]]:
    """The coarsest common refinement, and the label in each partition.

    Returns the partition and [num_partitions, num_labels].
    """
    if not partitions:
        return Partition.of_sets([]), np.zeros((0, 1), dtype=np.int32)
    starts = np.unique(np.concatenate([partition.starts for partition in partitions]))
    stacked = np.stack(
        [
            partition.labels[np.searchsorted(partition.starts, starts, side="right") - 1]
            for partition in partitions
        ]
    )
    columns, labels = np.unique(stacked, axis=1, return_inverse=True)
    return Partition(starts, labels.reshape(-1).astype(np.int32)), columns


_NOTHING = -1
_FIRST_SURROGATE = 0xD800
_AFTER_SURROGATES = 0xE000
_SURROGATES = range(_FIRST_SURROGATE >> 6, _AFTER_SURROGATES >> 6)
Row = npt.NDArray[np.int64]  # [64], the result of each continuation byte


@dataclass(frozen=True, slots=True, eq=False)
class Utf8:
    """By place and class of bytes; -1: no step.

    labels:   [num_places, num_classes] the label of the character that the byte completes
    places:   [num_places, num_classes] the next place inside a character
    classes:  [256] the class of each byte
    complete: [num_places, num_labels] whether a character of the label may be completed
    """

    labels: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    classes: npt.NDArray[np.uint8]
    complete: npt.NDArray[np.bool_]

    @property
    def num_places(self) -> int:
        """Including place 0."""
        return len(self.labels)


def utf8_of(partition: Partition, is_used: npt.NDArray[np.bool_] | None = None) -> Utf8:
    """The bytes of a partition's characters; is_used: [num_labels], None for all."""
    num_labels = partition.num_labels
    if is_used is not None:
        used = np.where(is_used[partition.labels], partition.labels, _NOTHING)
        partition = replace(partition, labels=used.astype(partition.labels.dtype))
    build = _Build(partition)
    labels = np.full((1, 256), _NOTHING)
    places = np.full((1, 256), _NOTHING)
    labels[0, :0x80] = build.ascii
    for lead in range(0xC2, 0xE0):
        places[0, lead] = build.last_of(lead & 0x1F)
    for lead in range(0xE0, 0xF0):
        row = build.middle(lead & 0x0F)
        if lead == 0xE0:
            row[: 0x800 >> 6] = _NOTHING
        places[0, lead] = build.place(row, completes=False)
    for lead in range(0xF0, 0xF5):
        places[0, lead] = build.first(lead & 0x07)
    labels, places = _reached(
        np.vstack([labels, *build.labels]), np.vstack([places, *build.places])
    )
    both, classes = np.unique(np.vstack([labels, places]), axis=1, return_inverse=True)
    places = both[len(labels) :]
    labels = both[: len(labels)]
    return Utf8(
        labels,
        places,
        classes.reshape(-1).astype(np.uint8),
        _completed(labels, places, num_labels),
    )


def plain_places(utf8: Utf8, partition: Partition) -> npt.NDArray[np.bool_]:
    """The places on the way to the first character of each label, and place 0. [num_places]

    Every completable text can be completed in these characters.
    """
    is_plain = np.zeros(utf8.num_places, dtype=np.bool_)
    is_plain[0] = True
    for character in _first_characters(partition):
        place = 0
        for byte in character.encode()[:-1]:
            place = int(utf8.places[place, utf8.classes[byte]])
            if place == _NOTHING:
                break
            is_plain[place] = True
    return is_plain


def _first_characters(partition: Partition) -> list[str]:
    """The first character of each label, without surrogates."""
    firsts: dict[int, str] = {}
    ends = [*partition.starts[1:].tolist(), NUM_CODE_POINTS]
    starts = partition.starts.tolist()
    labels = partition.labels.tolist()
    for start, end, label in zip(starts, ends, labels, strict=True):
        is_surrogate = _FIRST_SURROGATE <= start < _AFTER_SURROGATES
        first = _AFTER_SURROGATES if is_surrogate else start
        if first < end:
            firsts.setdefault(label, chr(first))
    return list(firsts.values())


def _reached(labels: Row, places: Row) -> tuple[Row, Row]:
    """Without unreachable places, such as those of overlong ASCII."""
    reached = np.zeros(len(labels), dtype=np.bool_)
    wave = np.array([0])
    while len(wave):
        reached[wave] = True
        inner = np.unique(places[wave])
        wave = inner[(inner != _NOTHING) & ~reached[inner]]
    numbers = np.append(np.cumsum(reached) - 1, _NOTHING)
    return labels[reached], numbers[places[reached]]


def _completed(labels: Row, places: Row, num_labels: int) -> npt.NDArray[np.bool_]:
    complete = np.zeros((len(labels), num_labels), dtype=np.bool_)
    for _ in range(4):
        for place in range(len(labels)):
            complete[place, labels[place][labels[place] >= 0]] = True
            inner = places[place][places[place] >= 0]
            complete[place] |= complete[inner].any(axis=0)
    return complete


class _Build:
    """Builds the places, the innermost first."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.labels: list[Row] = []
        self.places: list[Row] = []
        self._known: dict[tuple[bool, bytes], int] = {}
        block_labels = _labels_at(partition, np.arange(0, NUM_CODE_POINTS, 64))
        # Most blocks of 64 code points have one label; only the others are expanded.
        mixed = np.unique(partition.starts[partition.starts % 64 != 0] // 64)
        uniform = {
            int(label): self.place(np.full(64, label), completes=True)
            for label in np.unique(block_labels)
        }
        self._last = np.array([uniform[int(label)] for label in np.unique(block_labels)])[
            np.searchsorted(np.unique(block_labels), block_labels)
        ]
        for block in mixed.tolist():
            self._last[block] = self.place(self._block(block), completes=True)
        self._last[_SURROGATES] = _NOTHING
        self.ascii = np.concatenate([self._block(0), self._block(1)])

    def _block(self, block: int) -> Row:
        return _labels_at(self._partition, np.arange(block * 64, block * 64 + 64))

    def last_of(self, block: int) -> int:
        """The place before the last byte of a block's characters."""
        return int(self._last[block])

    def middle(self, lead: int) -> Row:
        """The row two bytes before the end of a character, for 4096 code points."""
        return self._last[lead * 64 : lead * 64 + 64].copy()

    def first(self, lead: int) -> int:
        """The place after the first of four bytes."""
        row = np.full(64, _NOTHING)
        for index in range(64):
            block = lead * 64 + index
            if 0x10 <= block <= 0x10F:
                row[index] = self.place(self.middle(block), completes=False)
        return self.place(row, completes=False)

    def place(self, row: Row, *, completes: bool) -> int:
        """The place before these 64 continuation bytes, -1 if none leads anywhere."""
        if (row == _NOTHING).all():
            return _NOTHING
        key = completes, row.astype(np.int64).tobytes()
        place = self._known.get(key)
        if place is None:
            place = self._known[key] = len(self.labels) + 1
            whole = np.full((1, 256), _NOTHING)
            whole[0, 0x80:0xC0] = row
            nothing = np.full((1, 256), _NOTHING)
            self.labels.append(whole if completes else nothing)
            self.places.append(nothing if completes else whole)
        return place


def _labels_at(partition: Partition, code_points: Row) -> Row:
    found = np.searchsorted(partition.starts, code_points, side="right") - 1
    return partition.labels[found].astype(np.int64)


@cache
def class_of(name: str) -> Ranges:
    r"""The code points of a class: \d and \w in this Python, a property such as \p{L}.

    Raises regex.error: there is no such property.
    """
    engine = regex if name.startswith(r"\p") else re
    code_points = np.arange(NUM_CODE_POINTS, dtype="<u4")
    everything = code_points.tobytes().decode("utf-32-le", "surrogatepass")
    return tuple((run.start(), run.end() - 1) for run in engine.finditer(f"{name}+", everything))


# Behind these no code point has another case.
_MAX_CASED = 0x1F000


@cache
def _cased() -> str:
    """The characters that have another case."""
    every = map(chr, range(_MAX_CASED))
    return "".join(c for c in every if not c.lower() == c.upper() == c.casefold() == c)


@lru_cache(maxsize=4096)
def in_any_case(ranges: Ranges, is_ascii: bool) -> Ranges:
    """All characters that match one of these when case is ignored; at least one is given."""
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1] and chr(ranges[0][0]) not in _cased():
        return ranges
    members = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)
    flags = re.IGNORECASE | (re.ASCII if is_ascii else re.UNICODE)
    others = re.findall(f"[{members}]", _cased(), flags)
    return united([ranges, *(((ord(each), ord(each)),) for each in others)])


def united(several: Iterable[Ranges]) -> Ranges:
    """The union, sorted, with adjacent ranges joined."""
    united: list[tuple[int, int]] = []
    for first, last in sorted(piece for ranges in several for piece in ranges):
        if united and first <= united[-1][1] + 1:
            united[-1] = united[-1][0], max(last, united[-1][1])
        else:
            united.append((first, last))
    return tuple(united)


def complement(ranges: Ranges) -> Ranges:
    """All other code points; of sorted ranges that do not overlap."""
    bounds = ((0, -1), *ranges, (NUM_CODE_POINTS, NUM_CODE_POINTS))
    pieces = ((before[1] + 1, after[0] - 1) for before, after in pairwise(bounds))
    return tuple((first, last) for first, last in pieces if first <= last)


def encodable(ranges: Ranges) -> Ranges:
    """The same characters without surrogates, which have no UTF-8."""
    return complement(united([complement(united([ranges])), (SURROGATES,)]))
