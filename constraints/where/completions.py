"""Completions found from distances, token by token.

Distances may be known along some places only (routes): then they give a sufficient number of
tokens, which need not be the smallest.
"""

from collections.abc import Callable
from typing import Protocol

from constraints.where.counter_grid import Slacks
from constraints.where.distances import Distances
from constraints.where.token_transitions import TokenTransitions

# The most tokens that complete a character: one for each byte that it may lack.
_MAX_INSIDE = 3


class MatcherState(Protocol):
    """The state of a matcher that counts tokens."""

    counts: list[int]
    made_len: int

    @property
    def is_inside(self) -> bool:
        """Whether a character has begun and is not complete."""

    def transitions(self) -> TokenTransitions:
        """The transitions of its place."""

    def is_alive(self, slacks: Slacks) -> bool:
        """Whether the counts are within the slacks of its place."""

    def advance(self, token_id: int) -> None:
        """Accept a token."""

    def fork(self) -> "MatcherState":
        """A copy."""


def shortest_by_distances(
    state: MatcherState, distances: Distances, max_len: int
) -> tuple[int, ...] | None:
    """The fewest tokens that complete the text, plain tokens first; None: more than `max_len`."""
    needed = _smallest(
        lambda length: state.is_alive(distances.within(state.made_len, length)), max_len
    )
    if needed is None:
        return None
    tokens: list[int] = []
    ahead = state.fork()
    for left in range(needed - 1, -1, -1):
        token_id = _next(ahead, distances.within(ahead.made_len + 1, left))
        assert token_id is not None, "a text that can be completed has a next token"
        ahead.advance(token_id)
        tokens.append(token_id)
    return tuple(tokens)


def shortest_along_routes(
    state: MatcherState, routes: Distances, coaccessible_slacks: Slacks, max_len: int
) -> tuple[int, ...] | None:
    """Few tokens that complete the text; None: more than `max_len`, or no route is near.

    Routes begin between two characters, so a character that has begun is completed first.
    """
    tokens: list[int] = []
    ahead = state.fork()
    for _ in range(1 + min(_MAX_INSIDE, max_len)):
        rest = shortest_by_distances(ahead, routes, max_len - len(tokens))
        if rest is not None:
            return (*tokens, *rest)
        token_id = (
            _next_towards_route(ahead, routes, coaccessible_slacks, max_len - len(tokens))
            if ahead.is_inside
            else None
        )
        if token_id is None:
            return None
        ahead.advance(token_id)
        tokens.append(token_id)
    return None


def _next_towards_route(
    state: MatcherState, routes: Distances, coaccessible_slacks: Slacks, max_len: int
) -> int | None:
    """The token that leads to the shortest route, or else further into the character."""
    after = state.made_len + 1

    def leads_on(length: int) -> bool:
        return _next(state, routes.within(after, length)) is not None

    length = _smallest(leads_on, max_len - 1)
    return _next(state, coaccessible_slacks if length is None else routes.within(after, length))


def _next(state: MatcherState, slacks: Slacks) -> int | None:
    """The plainest token behind which the counts are within the slacks."""
    transitions = state.transitions()
    return transitions.first_token(transitions.legal(slacks, state.counts))


def _smallest(is_enough: Callable[[int], bool], limit: int) -> int | None:
    """The smallest number that is enough (as all above it are); None: `limit` is not enough."""
    if limit < 0:
        return None
    # Short completions are common.
    low = -1
    high = 0
    while high < limit and not is_enough(high):
        low = high
        high = high * 2 + 1
    high = min(high, limit)
    if not is_enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
