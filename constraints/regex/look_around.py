"""Look-around and word boundaries in a schema's pattern (ECMA 262), which the engine lacks.

^(?=.*[a-z])(?!.*x).{8,}$   ->  three patterns that hold together: conjuncts()
^(?!.*x)                    ->  a pattern of its automaton: without_look_around()

The pattern of an automaton: its states are left out one after the other, the cheapest first.
J. A. Brzozowski and E. J. McCluskey, "Signal flow graph techniques for sequential circuit state
diagrams", 1963.
"""

import re
import sys
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from constraints.errors import NotEnforced
from constraints.regex.automaton import Automaton, can_reach, refined
from constraints.regex.char_sets import NUM_CODE_POINTS, SURROGATES, Ranges, complement, united
from constraints.regex.dfa import matches
from constraints.regex.limits import TooManyStates
from constraints.regex.syntax import (
    EMPTY,
    Chars,
    Choice,
    Concat,
    Dialect,
    Empty,
    Pattern,
    PatternParser,
    Repeat,
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
            ranges = tuple(sorted(each for label in labels for each in sets[label]))
            if ranges:
                edges.add(state, after, _Part(Chars(_joined(ranges)), 1))
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
        match part.pattern:
            case Concat(inner):
                patterns.extend(inner)
            case Empty():
                pass
            case _:
                patterns.append(part.pattern)
    size = sum(part.size for part in parts)
    whole = Concat(tuple(patterns)) if len(patterns) > 1 else [*patterns, EMPTY][0]
    return _Part(whole, size)


def _either(one: _Part, other: _Part) -> _Part:
    match one.pattern, other.pattern:
        case Empty(), Empty():
            return one
        case Empty(), _:
            return _Part(Repeat(other.pattern, 0, 1), other.size)
        case _, Empty():
            return _Part(Repeat(one.pattern, 0, 1), one.size)
    return _Part(Choice((*_options(one.pattern), *_options(other.pattern))), one.size + other.size)


def _options(pattern: Pattern) -> tuple[Pattern, ...]:
    return pattern.options if isinstance(pattern, Choice) else (pattern,)


def _sets(automaton: Automaton) -> list[list[tuple[int, int]]]:
    """The characters of each label, without surrogates."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(automaton.steps.shape[1])]
    starts = automaton.partition.starts.tolist()
    ends = [*starts[1:], NUM_CODE_POINTS]
    low, high = SURROGATES
    for start, end, label in zip(starts, ends, automaton.partition.labels.tolist(), strict=True):
        pieces = [(start, min(end - 1, low - 1)), (max(start, high + 1), end - 1)]
        found[label] += [(first, last) for first, last in pieces if first <= last]
    return found


def _joined(ranges: Ranges) -> Ranges:
    """The same sorted ranges, those that touch as one; so are those around surrogates."""
    joined = [ranges[0]]
    for first, last in ranges[1:]:
        if first == joined[-1][1] + 1 or (joined[-1][1], first) == (0xD7FF, 0xE000):
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return tuple(joined)


_MAX_STATES = 400
_LOOKS = re.compile(r"\(\?<?[=!]|\\[bB]")
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_GROUP = re.compile(r"\(\?<(?![=!])(?P<name>[^>]*)>|\((?:\?(?:<?[=!]|[a-z-]*[:)]))?")
_REFERENCE = re.compile(r"\\(?:k<(?P<name>[^>]*)>|(?P<number>[1-9][0-9]*))")


def conjuncts(pattern: str) -> list[str]:
    """Patterns that are all found where this one is: its leading look-aheads, and the rest."""
    ahead, rest = _leading(pattern)
    found = [f"^(?{sign}{inner})" if sign == "!" else f"^(?:{inner})" for sign, inner in ahead]
    return [*found, rest] if rest != "^" or not found else found


def opposites(pattern: str) -> list[str]:
    """Patterns of which at least one is found where this one is not."""
    ahead, rest = _leading(pattern)
    missed = [inner if sign == "!" else f"(?!{inner})" for sign, inner in ahead]
    found = [f"^(?:{each})" for each in missed]
    return [*found, rf"^(?![\s\S]*(?:{rest}))"] if rest != "^" or not found else found


def _leading(pattern: str) -> tuple[list[tuple[str, str]], str]:
    """The leading look-aheads, `=` or `!` with what is inside, and the pattern without them."""
    found = []
    rest = 1
    opened = depth = 0
    for token in _TOKEN.finditer(pattern, rest):
        if token[0] == "(":
            opened = opened if depth else token.start()
            depth += 1
        elif token[0] == ")":
            depth -= 1
            if depth == 0 and opened == rest and pattern[rest : rest + 3] in ("(?=", "(?!"):
                found.append((pattern[rest + 2], pattern[rest + 3 : token.start()]))
                rest = token.end()
        elif token[0] == "|" and depth == 0:
            return [], pattern
    is_split = pattern.startswith("^") and not pattern.startswith(("*", "+", "?", "{"), rest)
    return (found, f"^{pattern[rest:]}") if is_split else ([], pattern)


def looks_around(pattern: str) -> bool:
    """Whether a pattern is rewritten by its automaton, which takes up to 0.1 s."""
    return _LOOKS.search(pattern) is not None


@lru_cache(maxsize=64)
def without_look_around(pattern: str) -> Pattern | None:
    """A pattern of the whole texts in which this one is found. None: there are none.

    Raises OutOfReach, NotEnforced.
    """
    return pattern_of(matches(rf"(?s:.*)(?:{for_python(pattern)})(?s:.*)", _MAX_STATES))


def for_python(pattern: str) -> str:
    """The same pattern for `re.search`. Raises Malformed, NotEnforced."""
    return _Rewriter(pattern, Dialect.ECMA).rewritten()


class _Rewriter(PatternParser):
    """Rewrites a pattern of ECMA 262 in Python's syntax, item by item."""

    def rewritten(self) -> str:
        """The same pattern for `re.search`. Raises Malformed, NotEnforced."""
        pieces = []
        while self._at < len(self._text):
            pieces.append(self._item())
        return "".join(pieces)

    def _item(self) -> str:
        start = self._at
        if self._repeat_bounds(start) is not None:
            return self._text[start : self._at]
        char = self._peek()
        if char == "(":
            return self._opening()
        found = _REFERENCE.match(self._text, start)
        if found:
            self._at = found.end()
            name = found["name"] or found["number"]
            # A group that has not matched yet counts as empty.
            return f"(?({name})(?P={name}))" if found["name"] else rf"(?({name})\{name})"
        self._at += 1
        match char:
            case "|" | ")":
                return char
            case "^" | "$":
                return r"\A" if char == "^" else r"\Z"
            case "\\" if self._peek() in ("b", "B"):
                self._at += 1
                return rf"(?a:\{self._text[self._at - 1]})"
            case "\\":
                read = self._class_or_code(start)
                return _written(read if isinstance(read, Chars) else Chars(((read, read),)))
            case "[":
                return _written(self._set(start))
            case ".":
                return _written(self._dot())
        return _written(Chars(((ord(char), ord(char)),)))

    def _opening(self) -> str:
        found = _GROUP.match(self._text, self._at)
        assert found is not None, "a parenthesis is a group by itself"
        self._at = found.end()
        return found[0] if found["name"] is None else f"(?P<{found['name']}>"

    def _add_class(self, chars: Chars, ranges: list[tuple[int, int]], named: list[str]) -> None:
        ranges.extend(_ranges(chars))


def _written(chars: Chars) -> str:
    inner = "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in _ranges(chars))
    return f"[{inner}]" if inner else "(?!)"


def _ranges(chars: Chars) -> Ranges:
    """The characters of a set, in order."""
    names = (name.removeprefix(r"\p{").removesuffix("}") for name in chars.named)
    members = united([chars.ranges, *map(_category, names)])
    return complement(members) if chars.negated else members


@lru_cache(maxsize=32)
def _category(name: str) -> Ranges:
    """The characters of one of Unicode's general categories, such as L and Lu."""
    ranges: list[tuple[int, int]] = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)).startswith(name):
            first = ranges.pop()[0] if ranges and ranges[-1][1] == code - 1 else code
            ranges.append((first, code))
    if not ranges:
        raise NotEnforced(f"`\\p{{{name}}}` is not known beside what looks around")
    return tuple(ranges)
