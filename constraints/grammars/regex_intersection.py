"""Finds the shortest text that matches several patterns, such as a format's and a client's.

Each pattern becomes an NFA. A best-first search (A*) runs over the sets of states of all patterns
together; the estimate is the number of characters that are left.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import TypeAlias

from constraints.grammars.example_text import LIKED, edges_of, has
from constraints.grammars.patterns import (
    Anchor,
    Chars,
    Choice,
    Concat,
    Empty,
    Pattern,
    Repeat,
    children,
)

_MAX_EFFORT = 50_000
_MAX_STATES = 3_000
_END = 0
# Testing a character of a set is so much faster than visiting a state.
_QUICK = 4
_Places = tuple[frozenset[int], ...]
_Link: TypeAlias = "tuple[_Link, str] | None"


class PatternTooLarge(Exception):
    """The patterns need more effort than is left."""


@dataclass
class Effort:
    """The work left for one schema: states and edges that are created or visited."""

    left: int = _MAX_EFFORT

    def spend(self, amount: int) -> None:
        """Raises TooLarge."""
        self.left -= amount
        if self.left < 0:
            raise PatternTooLarge


class PatternAutomaton:
    """The NFA of one pattern, with epsilon edges."""

    def __init__(self, pattern: Pattern, effort: Effort) -> None:
        """Raises TooLarge."""
        self._effort = effort
        self._chars: list[Chars | None] = [None]
        self._next: list[tuple[int, ...]] = [()]
        self._moves: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._left: dict[frozenset[int], int] = {}
        start = self._before(pattern, _END)
        self.distances = self._measured()
        self.start = self._closed([start])

    def _new(self, chars: Chars | None, following: tuple[int, ...]) -> int:
        self._effort.spend(1 + len(following))
        if len(self._chars) == _MAX_STATES:
            raise PatternTooLarge
        self._chars.append(chars)
        self._next.append(following)
        return len(self._chars) - 1

    def _before(self, pattern: Pattern, following: int) -> int:
        """A state from which `pattern` leads to `following`."""
        match pattern:
            case Empty() | Anchor():
                return following
            case Chars():
                return self._new(pattern, (following,))
            case Choice(options):
                self._effort.spend(len(options))
                return self._new(None, tuple(self._before(each, following) for each in options))
            case Concat(parts):
                self._effort.spend(len(parts))
                for part in reversed(parts):
                    following = self._before(part, following)
                return following
            case Repeat():
                return self._before_repeat(pattern, following)

    def _before_repeat(self, pattern: Repeat, following: int) -> int:
        state = following
        if pattern.max_count is None:
            state = self._new(None, ())
            self._next[state] = (self._before(pattern.part, state), following)
        for _ in range((pattern.max_count or 0) - pattern.min_count):
            state = self._new(None, (self._before(pattern.part, state), following))
        for _ in range(pattern.min_count):
            before = self._before(pattern.part, state)
            if before == state:
                break  # a part without characters
            state = before
        return state

    def _measured(self) -> list[int | None]:
        """By state, the smallest number of characters to the end."""
        leading: list[list[int]] = [[] for _ in self._chars]
        for state, following in enumerate(self._next):
            for each in following:
                leading[each].append(state)
        distances: list[int | None] = [None] * len(leading)
        pending = deque([(_END, 0)])
        while pending:
            state, distance = pending.popleft()
            if distances[state] is not None:
                continue
            distances[state] = distance
            for each in leading[state]:
                if self._chars[each] is None:
                    pending.appendleft((each, distance))
                else:
                    pending.append((each, distance + 1))
        return distances

    def _closed(self, states: list[int]) -> frozenset[int]:
        seen: set[int] = set()
        while states:
            state = states.pop()
            if state not in seen and self.distances[state] is not None:
                seen.add(state)
                self._effort.spend(1 + len(self._next[state]))
                if self._chars[state] is None:
                    states.extend(self._next[state])
        return frozenset(state for state in seen if state == _END or self._chars[state] is not None)

    def after(self, states: frozenset[int], char: str) -> frozenset[int]:
        """The states behind a character; empty if it cannot follow."""
        if (states, char) not in self._moves:
            self._effort.spend(len(states))
            following = [
                each
                for state in states
                if (chars := self._chars[state]) is not None and has(chars, char)
                for each in self._next[state]
            ]
            self._moves[states, char] = self._closed(following)
        return self._moves[states, char]

    def left(self, states: frozenset[int]) -> int:
        """The smallest number of characters that have to follow."""
        if states not in self._left:
            measured = (self.distances[state] for state in states)
            self._left[states] = min(each for each in measured if each is not None)
        return self._left[states]

    def matches(self, text: str) -> bool:
        """Whether the whole text matches. Raises TooLarge."""
        states = self.start
        self._effort.spend(len(text))
        for char in text:
            states = self.after(states, char)
        return _END in states


def common_text(
    patterns: Sequence[Pattern], effort: Effort, min_len: int = 0, max_len: int | None = None
) -> str | None:
    """The shortest text that every pattern matches as a whole. None: there is none.

    Raises PatternTooLarge: unknown."""
    automata = [PatternAutomaton(pattern, effort) for pattern in patterns]
    starts = tuple(each.start for each in automata)
    if not all(starts):
        return None
    return _sought(automata, starts, _alphabet(patterns, effort), (min_len, max_len), effort)


def _sought(
    automata: list[PatternAutomaton],
    starts: _Places,
    alphabet: list[str],
    lengths: tuple[int, int | None],
    effort: Effort,
) -> str | None:
    min_len, max_len = lengths

    def left(places: _Places, length: int) -> int:
        measured = [each.left(states) for each, states in zip(automata, places, strict=True)]
        return max(*measured, min_len - length)

    serial = count()
    # Texts are linked lists: the last character and a link to the rest. Saves memory.
    heap: list[tuple[int, int, int, _Link, _Places]] = [(left(starts, 0), 0, 0, None, starts)]
    seen: set[tuple[_Places, int]] = set()
    while heap:
        total, negated_len, _, text, places = heapq.heappop(heap)
        if max_len is not None and total > max_len:
            return None
        if -negated_len >= min_len and all(_END in states for states in places):
            return _read_back(text)
        if (places, min(-negated_len, min_len)) in seen:
            continue
        seen.add((places, min(-negated_len, min_len)))
        length = 1 - negated_len
        for char in alphabet:
            effort.spend(1)
            after = tuple(
                each.after(states, char) for each, states in zip(automata, places, strict=True)
            )
            if all(after):
                # Among equal lengths, the one that is nearer to its end.
                total = length + left(after, length)
                heapq.heappush(heap, (total, -length, next(serial), (text, char), after))
    return None


def _read_back(text: _Link) -> str:
    chars = []
    while text is not None:
        text, char = text
        chars.append(char)
    return "".join(reversed(chars))


def _alphabet(patterns: Sequence[Pattern], effort: Effort) -> list[str]:
    """One character for each class that the patterns distinguish: the preferred one."""
    sets = list(dict.fromkeys(chars for pattern in patterns for chars in _sets(pattern)))
    # Every set is tested for each of these characters.
    effort.spend(len(sets) * len(LIKED) // _QUICK)
    known: dict[tuple[bool, ...], str] = {}
    liked = [_liked(chars) for chars in sets]
    for char in LIKED:
        known.setdefault(tuple(char in each for each in liked), char)
    others = {char for chars in sets if not _liked(chars) for char in edges_of(chars)}
    effort.spend(len(sets) * len(others) // _QUICK)
    for char in sorted(others):
        known.setdefault(tuple(has(chars, char) for chars in sets), char)
    return [char for verdicts, char in known.items() if any(verdicts)]


def _sets(pattern: Pattern) -> Iterator[Chars]:
    if isinstance(pattern, Chars):
        yield pattern
    for part in children(pattern):
        yield from _sets(part)


@lru_cache(maxsize=1024)
def _liked(chars: Chars) -> frozenset[str]:
    return frozenset(char for char in LIKED if has(chars, char))
