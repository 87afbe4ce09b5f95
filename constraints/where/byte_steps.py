"""Steps of single bytes from a place with its counts: where they lead, and which are alive.

packed, counts --byte--> packed, counts      place 0 is dead
"""

from collections.abc import Iterator

from constraints.token_trie import PLACE_MASK
from constraints.where.byte_table import ByteTable
from constraints.where.counter_grid import CounterGrid, Slacks
from constraints.where.distances import is_within


class ByteSteps:
    """Immutable; shared by threads."""

    def __init__(self, table: ByteTable, counter_grid: CounterGrid) -> None:
        self._table = table
        self._counter_grid = counter_grid
        self._entries = table.entries.data
        self._classes: list[int] = table.utf8.classes.tolist()
        self._letters = _letters(self._classes)

    def read(self, text: bytes, packed: int, counts: list[int]) -> tuple[int, list[int]]:
        """The place and the counts behind some bytes; place 0 if they are illegal."""
        entries = self._entries
        classes = self._classes
        state = packed
        for byte in text:
            place = state & PLACE_MASK
            step = entries[place + classes[byte]]
            if not step & PLACE_MASK:
                return 0, counts
            state = step + (state - place)
        gains = self._table.gains_of(state)
        held = [
            min(count + gain, counter.cap)
            for count, gain, counter in zip(counts, gains, self._counter_grid.counters, strict=True)
        ]
        return state & PLACE_MASK, held

    def is_alive(self, slacks: Slacks, packed: int, counts: list[int]) -> bool:
        """Whether the slacks of a place cover the counts."""
        return is_within(self._counter_grid, slacks, packed // self._table.width, counts)

    def only_byte(self, slacks: Slacks, packed: int, counts: list[int]) -> int | None:
        """The only byte that leads to a live place; None: there are several or none."""
        only: int | None = None
        for letter, has_equals in self._alive(slacks, packed, counts):
            if has_equals or only is not None:
                return None
            only = letter
        return only

    def goes_on(self, slacks: Slacks, packed: int, counts: list[int]) -> bool:
        """Whether any byte leads to a live place."""
        return any(True for _ in self._alive(slacks, packed, counts))

    def _alive(self, slacks: Slacks, packed: int, counts: list[int]) -> Iterator[tuple[int, bool]]:
        """The representative bytes that lead to a live place, and whether each has equals."""
        for letter, has_equals in self._letters:
            after, counted = self.read(letter, packed, counts)
            if after and self.is_alive(slacks, after, counted):
                yield letter[0], has_equals


def _letters(classes: list[int]) -> list[tuple[bytes, bool]]:
    """A representative of each class of bytes, and whether it has equals; large classes first."""
    likes: dict[int, list[int]] = {}
    for byte, kind in enumerate(classes):
        likes.setdefault(kind, []).append(byte)
    largest_first = sorted(likes.values(), key=len, reverse=True)
    return [(bytes(each[:1]), len(each) > 1) for each in largest_first]
