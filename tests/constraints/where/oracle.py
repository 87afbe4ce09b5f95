"""Which tokens are legal, found by searching: the judge of the engine's masks.

    oracle = Oracle(expression, tokens, end_ids)
    oracle.legal(prefix)             ids that may follow the ids in `prefix`, end tokens included
    oracle.legal(prefix, max_len=5)  of these, what can be completed within so many tokens
    oracle.is_complete(prefix)  | oracle.shortest_len(prefix, at_most)

A place in an output is the state of every atom's character machine, the bytes of a character that
has only begun, and how many tokens there were. Characters which no atom tells apart are tried only
once. From each place completions are searched for: by characters, and where tokens are counted,
some byte is none or there is a budget by tokens, of what can be completed by characters at all.
Written as simply as possible, for vocabularies of a few hundred tokens and bounds of a few dozen.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from constraints.where.terms import (
    And,
    Compare,
    Constant,
    Expression,
    Measure,
    Not,
    Or,
    StopsBefore,
)
from tests.constraints.where.alphabet import Alphabet, characters
from tests.constraints.where.machines import longest_beginning, machine_of, related

_BYTES = frozenset(bytes([byte]) for byte in (*range(0xC0), *range(0xC2, 0xF5)))


@dataclass(frozen=True)
class Joint:
    """The machines side by side, and how far a phrase of stops_before has come.

    states:   of the machines, in their order, after the whole text
    begun:    the longest end of the text that begins a phrase
    earlier:  the states before each character of `begun`
    is_ended: a phrase ended the text; `states` are those before the phrase
    """

    states: tuple[Hashable, ...]
    begun: str = ""
    earlier: tuple[tuple[Hashable, ...], ...] = ()
    is_ended: bool = False


@dataclass(frozen=True)
class Place:
    """Where an output stands.

    joint:      None where a text that was ended goes on
    tail:       the first bytes of a character that is not complete
    num_tokens: up to just beyond the largest bound
    """

    joint: Joint | None
    tail: bytes
    num_tokens: int


class Oracle:
    def __init__(
        self, expression: Expression, tokens: Sequence[bytes], end_ids: Sequence[int]
    ) -> None:
        self._expression = expression
        atoms = tuple(dict.fromkeys(_atoms(expression)))
        stops = [atom for atom in atoms if isinstance(atom, StopsBefore)]
        self._phrases = tuple(phrase for stop in stops for phrase in stop.phrases)
        self._atoms = [atom for atom in atoms if atom not in stops]
        self._machines = [machine_of(atom) for atom in self._atoms]
        self._alphabet = Alphabet(atoms)
        self._tokens = tokens
        self._end_ids = tuple(end_ids)
        bounds = list(_token_bounds(expression))
        self._most_tokens = max([0, *bounds]) + 1
        # Where every byte is a token, what characters can complete tokens can, too.
        self._follows_tokens = bool(bounds) or not set(tokens) >= _BYTES
        self._steps: dict[tuple[Joint, str], Joint | None] = {}
        self._within: dict[tuple[Place, int], bool] = {}
        self._moves: dict[Place, tuple[Place, ...]] = {}
        self._by_characters = Search(self._ways_by_character, self._accepts_for_some_count)
        self._by_tokens = Search(self._ways_by_token, self._accepts)
        # Tokens that mean the same to this expression are tried only once.
        self._distinct = list({self._alphabet.meaning(token): token for token in tokens}.values())
        self._continuing = [token for token in tokens if token and 0x80 <= token[0] < 0xC0]

    def legal(self, prefix: Sequence[int], max_len: int | None = None) -> frozenset[int]:
        """The tokens that may follow."""
        place = self.place(prefix)
        ends = self._end_ids if self._accepts(place) else ()
        verdicts: dict[Place | None, bool] = {None: False}
        legal = set(ends)
        for token_id, token in enumerate(self._tokens):
            if not token or token_id in self._end_ids:
                continue
            after = self._after(place, token)
            if after not in verdicts and after is not None:
                verdicts[after] = self._can_be_completed(after, max_len)
            if verdicts[after]:
                legal.add(token_id)
        return frozenset(legal)

    def is_complete(self, prefix: Sequence[int]) -> bool:
        """What was made so far satisfies the expression."""
        return self._accepts(self.place(prefix))

    def shortest_len(self, prefix: Sequence[int], at_most: int) -> int | None:
        """The fewest further tokens that satisfy the expression; None: more than `at_most`."""
        place = self.place(prefix)
        return next((n for n in range(at_most + 1) if self._completes_within(place, n)), None)

    def place(self, prefix: Sequence[int]) -> Place:
        """Where an output of these tokens stands; they must be legal UTF-8 so far."""
        place = Place(Joint(tuple(machine.start for machine in self._machines)), b"", 0)
        for token_id in prefix:
            after = self._after(place, self._tokens[token_id])
            assert after is not None, "the prefix is no UTF-8"
            place = after
        return place

    def _can_be_completed(self, after: Place, max_len: int | None) -> bool:
        if max_len is not None:
            return max_len >= 1 and self._completes_within(after, max_len - 1)
        if not self._by_characters.is_live(after):
            return False
        return not self._follows_tokens or self._by_tokens.is_live(after)

    def _after(self, place: Place, token: bytes) -> Place | None:
        """The place after a token; None where its bytes cannot be part of a text."""
        split = characters(place.tail + token)
        if split is None:
            return None
        text, tail = split
        joint = place.joint
        for char in text:
            joint = self._step(joint, self._alphabet.like(char))
        num_tokens = min(place.num_tokens + 1, self._most_tokens)
        return Place(joint, self._alphabet.like_tail(tail), num_tokens)

    def _step(self, joint: Joint | None, char: str) -> Joint | None:
        if joint is None or joint.is_ended:
            return None
        key = (joint, char)
        if key not in self._steps:
            self._steps[key] = self._stepped(joint, char)
        return self._steps[key]

    def _stepped(self, joint: Joint, char: str) -> Joint:
        text, earlier = joint.begun + char, (*joint.earlier, joint.states)
        ended = [phrase for phrase in self._phrases if text.endswith(phrase)]
        if ended:
            return Joint(earlier[len(text) - max(map(len, ended))], is_ended=True)
        states = tuple(
            machine.step(state, char)
            for machine, state in zip(self._machines, joint.states, strict=True)
        )
        begun = longest_beginning(text, self._phrases)
        return Joint(states, begun, earlier[len(text) - len(begun) :])

    def _accepts(self, place: Place) -> bool:
        if place.tail or place.joint is None:
            return False
        return self._value(self._expression, place.joint.states, place.num_tokens)

    def _value(self, expression: Expression, states: tuple[Hashable, ...], num_tokens: int) -> bool:
        match expression:
            case And(parts):
                return all(self._value(part, states, num_tokens) for part in parts)
            case Or(parts):
                return any(self._value(part, states, num_tokens) for part in parts)
            case Not(part):
                return not self._value(part, states, num_tokens)
            case Constant(value):
                return value
            case StopsBefore():
                return True
            case Compare(Measure.TOKENS, relation, bound):
                return related(num_tokens, relation, bound)
        index = self._atoms.index(expression)
        return self._machines[index].accepts(states[index])

    def _accepts_for_some_count(self, place: Place) -> bool:
        counts = range(self._most_tokens + 1)
        return any(self._accepts(replace(place, num_tokens=count)) for count in counts)

    def _completes_within(self, place: Place, max_len: int) -> bool:
        """Whether at most so many tokens satisfy the expression."""
        key = (place, max_len)
        if key not in self._within:
            self._within[key] = self._accepts(place) or (
                max_len > 0
                and any(
                    self._completes_within(further, max_len - 1)
                    for further in self._ways_by_token(place)
                )
            )
        return self._within[key]

    def _ways_by_character(self, place: Place) -> Iterator[Place]:
        for char in self._alphabet.beginning_with(place.tail):
            yield Place(self._step(place.joint, char), b"", 0)

    def _ways_by_token(self, place: Place) -> tuple[Place, ...]:
        if place not in self._moves:
            tokens = self._continuing if place.tail else self._distinct
            ways = (self._after(place, token) for token in tokens if token)
            self._moves[place] = tuple(
                way
                for way in dict.fromkeys(ways)
                if way is not None and self._by_characters.is_live(way)
            )
        return self._moves[place]


class Search:
    """Whether some place that is accepted can be reached: a search in breadth that remembers."""

    def __init__(
        self, ways: Callable[[Place], Iterable[Place]], accepts: Callable[[Place], bool]
    ) -> None:
        self._ways = ways
        self._accepts = accepts
        self._live: dict[Place, bool] = {}

    def is_live(self, start: Place) -> bool:
        if start in self._live:
            return self._live[start]
        came_from: dict[Place, Place | None] = {start: None}
        queue = deque([start])
        while queue:
            place = queue.popleft()
            if self._live.get(place) or self._accepts(place):
                self._mark_live(place, came_from)
                return True
            for further in self._ways(place) if place not in self._live else ():
                if further not in came_from:
                    came_from[further] = place
                    queue.append(further)
        self._live.update(dict.fromkeys(came_from, False))
        return False

    def _mark_live(self, place: Place, came_from: dict[Place, Place | None]) -> None:
        back: Place | None = place
        while back is not None:
            self._live[back] = True
            back = came_from[back]


def _leaves(expression: Expression) -> Iterator[Expression]:
    match expression:
        case And(parts) | Or(parts):
            for part in parts:
                yield from _leaves(part)
        case Not(part):
            yield from _leaves(part)
        case Constant():
            return
        case _:
            yield expression


def _atoms(expression: Expression) -> Iterator[Expression]:
    """The leaves that need a machine."""
    return (leaf for leaf in _leaves(expression) if not _counts_tokens(leaf))


def _token_bounds(expression: Expression) -> Iterator[int]:
    for leaf in _leaves(expression):
        if isinstance(leaf, Compare) and leaf.measure is Measure.TOKENS:
            yield leaf.bound


def _counts_tokens(leaf: Expression) -> bool:
    return isinstance(leaf, Compare) and leaf.measure is Measure.TOKENS
