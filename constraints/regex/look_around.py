"""Look-around and word boundaries in a schema's pattern (ECMA 262), which the engine lacks.

^(?=.*[a-z])(?!.*x).{8,}$   ->  three patterns that hold together: conjuncts()
^(?!.*x)                    ->  a pattern of its automaton: without_look_around()

The pattern of an automaton: its states are left out one after the other, the cheapest first.
J. A. Brzozowski and E. J. McCluskey, "Signal flow graph techniques for sequential circuit state
diagrams", 1963.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from constraints.errors import TooManyStates
from constraints.regex.char_sets import NUM_CODE_POINTS, encodable
from constraints.regex.dfa import Automaton, automaton_of, can_reach, refined
from constraints.regex.syntax import (
    ANY,
    EMPTY,
    Chars,
    Choice,
    Concat,
    Empty,
    Pattern,
    Repeat,
    concat,
    options_of,
)

_MAX_LIVE_STATES = 200
# The most sets of characters in what leads from one state to another.
_MAX_SIZE = 2000


@dataclass(frozen=True, slots=True)
class _Part:
    """What leads from one state to another. `size`: its sets of characters."""

    pattern: Pattern
    size: int


_NOTHING = _Part(EMPTY, 0)


def pattern_of(automaton: Automaton) -> Pattern | None:
    """The pattern of the texts that it accepts. None: there are none. Raises OutOfReach."""
    _, kinds = np.unique(automaton.accepts, return_inverse=True)
    blocks = refined(kinds.astype(np.int64), automaton.steps)
    _, first = np.unique(blocks, return_index=True)
    steps = blocks[automaton.steps[first]].astype(np.int32)
    accepts = automaton.accepts[first]
    live = can_reach(steps, accepts)
    if np.count_nonzero(live) > _MAX_LIVE_STATES:
        raise TooManyStates("a pattern of too many states")
    sets = _sets(automaton)
    edges = _Edges(len(first))
    for state in np.flatnonzero(live).tolist():
        for after in np.flatnonzero(live & np.isin(np.arange(len(live)), steps[state])).tolist():
            labels = np.flatnonzero(steps[state] == after).tolist()
            ranges = encodable(tuple(each for label in labels for each in sets[label]))
            if ranges:
                edges.add(state, after, _Part(Chars(ranges), 1))
        if accepts[state]:
            edges.add(state, edges.end, _NOTHING)
    edges.add(edges.start, int(blocks[0]), _NOTHING)
    return edges.eliminated()


class _Edges:
    """Parts between states, and between two more that nothing leads to and from."""

    def __init__(self, num_states: int) -> None:
        self.start = num_states
        self.end = num_states + 1
        self._after: dict[int, dict[int, _Part]] = {each: {} for each in range(num_states + 2)}
        self._before: dict[int, set[int]] = {each: set() for each in range(num_states + 2)}

    def add(self, state: int, after: int, part: _Part) -> None:
        known = self._after[state].get(after)
        self._after[state][after] = part if known is None else _either(known, part)
        self._before[after].add(state)
        if self._after[state][after].size > _MAX_SIZE:
            raise TooManyStates("a pattern of too many parts")

    def eliminated(self) -> Pattern | None:
        """What leads from the start to the end."""
        left = set(range(self.start))
        while left:
            state = min(left, key=self._cost)
            left.remove(state)
            self._eliminate(state)
        whole = self._after[self.start].get(self.end)
        return None if whole is None else whole.pattern

    def _cost(self, state: int) -> int:
        """By how much leaving out a state makes the rest longer."""
        after = {each: part for each, part in self._after[state].items() if each != state}
        before = [self._after[each][state] for each in self._before[state] if each != state]
        loop = self._after[state].get(state, _NOTHING).size
        return (
            sum(part.size for part in before) * len(after)
            + sum(part.size for part in after.values()) * len(before)
            + loop * len(before) * len(after)
        )

    def _eliminate(self, state: int) -> None:
        after = self._after.pop(state)
        loop = after.pop(state, None)
        again = _NOTHING if loop is None else _Part(Repeat(loop.pattern, 0, None), loop.size)
        for each in after:
            self._before[each].remove(state)
        for before in self._before.pop(state) - {state}:
            into = self._after[before].pop(state)
            for each, part in after.items():
                self.add(before, each, _sequence(into, again, part))


def _sequence(*parts: _Part) -> _Part:
    patterns: list[Pattern] = []
    for part in parts:
        patterns += part.pattern.parts if isinstance(part.pattern, Concat) else (part.pattern,)
    return _Part(concat(patterns), sum(part.size for part in parts))


def _either(one: _Part, other: _Part) -> _Part:
    match one.pattern, other.pattern:
        case Empty(), Empty():
            return one
        case Empty(), _:
            return _Part(Repeat(other.pattern, 0, 1), other.size)
        case _, Empty():
            return _Part(Repeat(one.pattern, 0, 1), one.size)
    either = Choice((*options_of(one.pattern), *options_of(other.pattern)))
    return _Part(either, one.size + other.size)


def _sets(automaton: Automaton) -> list[list[tuple[int, int]]]:
    """The characters of each label."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(automaton.steps.shape[1])]
    starts = automaton.partition.starts.tolist()
    for start, end, label in zip(
        starts, [*starts[1:], NUM_CODE_POINTS], automaton.partition.labels.tolist(), strict=True
    ):
        found[label].append((start, end - 1))
    return found


_MAX_STATES = 400
_LOOKS = re.compile(r"\(\?<?[=!]|\\[bB]")
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)


def conjuncts(pattern: str) -> list[str]:
    """Patterns that are all found where this one is: its leading look-aheads, and the rest."""
    found: list[str] = []
    rest = 1
    opened = depth = 0
    for token in _TOKEN.finditer(pattern, rest):
        if token[0] == "(":
            opened = opened if depth else token.start()
            depth += 1
        elif token[0] == ")":
            depth -= 1
            if depth == 0 and opened == rest and pattern.startswith(("(?=", "(?!"), rest):
                kind = ":" if pattern[rest + 2] == "=" else "!"
                found.append(f"^(?{kind}{pattern[rest + 3 : token.start()]})")
                rest = token.end()
        elif token[0] == "|" and depth == 0:
            return [pattern]
    if not found or not pattern.startswith("^") or pattern[rest : rest + 1] in tuple("*+?{"):
        return [pattern]
    return [*found, f"^{pattern[rest:]}"] if pattern[rest:] else found


def opposite(pattern: str) -> str:
    """A pattern that is found where this one is not."""
    return rf"^(?![\s\S]*(?:{pattern}))"


def looks_around(pattern: str) -> bool:
    """Whether a pattern is rewritten by its automaton, which takes up to 0.1 s."""
    return _LOOKS.search(pattern) is not None


@lru_cache(maxsize=64)
def without_look_around(pattern: Pattern) -> Pattern | None:
    """A pattern of the whole texts in which this one is found. None: there are none.

    Raises OutOfReach, NotEnforced.
    """
    whole = Concat((Repeat(ANY, 0, None), pattern, Repeat(ANY, 0, None)))
    return pattern_of(automaton_of(whole, _MAX_STATES))
