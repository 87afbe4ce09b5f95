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
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
Row = npt.NDArray[np.int64]


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
    starts = np.union1d(partition.starts, [SURROGATES[0], SURROGATES[1] + 1, NUM_CODE_POINTS])
    labels = partition.labels[np.searchsorted(partition.starts, starts, side="right") - 1]
    if is_used is not None:
        labels = np.where(is_used[labels], labels, _NOTHING)
    is_surrogate = (starts >= SURROGATES[0]) & (starts <= SURROGATES[1])
    labels = np.where(is_surrogate | (starts >= NUM_CODE_POINTS), _NOTHING, labels)
    build = _Build(starts, labels)
    first = np.full((2, 256), _NOTHING)
    first[0, :0x80] = build.labels_from(0, 0x80)
    for num_left, leads, lowest in _LEADS:
        for lead in leads:
            begin = (lead & (0x3F >> num_left)) << 6 * num_left
            first[1, lead] = build.place(begin, num_left, lowest)
    rows = np.array([first, *build.rows])
    num_labels = partition.num_labels
    complete = np.zeros((len(rows), num_labels), dtype=np.bool_)
    for place in (*range(1, len(rows)), 0):  # inner places come before those that lead to them
        found, inner = rows[place]
        complete[place, found[found != _NOTHING]] = True
        complete[place] |= complete[inner[inner != _NOTHING]].any(axis=0)
    both, classes = np.unique(rows.reshape(-1, 256), axis=1, return_inverse=True)
    return Utf8(both[::2], both[1::2], classes.reshape(-1).astype(np.uint8), complete)


# How many bytes follow, the bytes that say so, and the lowest character that is written so.
_LEADS = (
    (1, range(0xC2, 0xE0), 0x80),
    (2, range(0xE0, 0xF0), 0x800),
    (3, range(0xF0, 0xF5), 0x10000),
)


class _Build:
    """Builds the places inside of characters. rows: the labels and the places behind each byte."""

    def __init__(self, starts: npt.NDArray[np.int64], labels: npt.NDArray[np.int32]) -> None:
        self._starts = [*starts.tolist(), 2 * NUM_CODE_POINTS]
        self._labels = labels.tolist()
        self.rows: list[Row] = []
        self._known: dict[tuple[int, bytes], int] = {}
        self._uniform: dict[tuple[int, int], int] = {}

    def labels_from(self, first: int, length: int) -> list[int]:
        """The labels of so many code points."""
        at = bisect_right(self._starts, first) - 1
        found: list[int] = []
        while len(found) < length:
            num_more = self._starts[at + 1] - first - len(found)
            found += [self._labels[at]] * min(num_more, length - len(found))
            at += 1
        return found

    def place(self, first: int, num_left: int, lowest: int = 0) -> int:
        """The place before the last bytes of the characters from `first` on, -1: there are none."""
        at = bisect_right(self._starts, first) - 1
        is_uniform = first >= lowest and first + 64**num_left <= self._starts[at + 1]
        # Most places have one label.
        known = self._uniform.get((self._labels[at], num_left)) if is_uniform else None
        if known is not None:
            return known
        if num_left == 1:
            row = self.labels_from(first, 64)
        else:
            step = 64 ** (num_left - 1)
            row = [
                _NOTHING if begin < lowest else self.place(begin, num_left - 1)
                for begin in range(first, first + 64 * step, step)
            ]
        place = self._placed(num_left, row)
        if is_uniform:
            self._uniform[self._labels[at], num_left] = place
        return place

    def _placed(self, num_left: int, row: list[int]) -> int:
        if max(row) == _NOTHING:
            return _NOTHING
        values = np.full((2, 256), _NOTHING)
        values[int(num_left > 1), 0x80:0xC0] = row
        key = int(num_left > 1), values.tobytes()
        if key not in self._known:
            self.rows.append(values)
            self._known[key] = len(self.rows)
        return self._known[key]


def plain_places(utf8: Utf8) -> npt.NDArray[np.bool_]:
    """The places on the way to the first character of each label, and place 0. [num_places]

    Every completable text can be completed in these characters.
    """
    is_plain = np.zeros(utf8.num_places, dtype=np.bool_)
    is_plain[0] = True
    for label, completes in enumerate(utf8.complete.T):
        place = 0
        while completes[place] and label not in utf8.labels[place]:
            deeper = utf8.places[place, utf8.classes]  # by byte
            place = int(deeper[np.argmax((deeper > 0) & completes[deeper])])
            is_plain[place] = True
    return is_plain


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
