"""Completions that are read off distances, token by token.

Distances may be those of some places alone, from which routes lead to an end: what they say is then
enough tokens, and perhaps not the fewest.
"""

from collections.abc import Callable
from typing import Protocol

from constraints.where.counter_grid import Reserves
from constraints.where.distances import Distances
from constraints.where.token_transitions import TokenTransitions

# Tokens that are taken until a character is complete: one for each byte that it may lack.
_MAX_INSIDE = 3


class Standing(Protocol):
    """Where an output stands."""

    counts: list[int]
    made_len: int

    @property
    def is_inside(self) -> bool:
        """A character has begun and is not complete."""

    def transitions(self) -> TokenTransitions:
        """What tokens lead to from there."""

    def is_alive(self, reserves: Reserves) -> bool:
        """Whether the reserves of the place cover the counts."""

    def advance(self, token_id: int) -> None:
        """Accept a token."""

    def fork(self) -> "Standing":
        """Another one at the same place."""


def fewest(standing: Standing, distances: Distances, max_len: int) -> tuple[int, ...] | None:
    """The fewest tokens that complete the text, plain ones first; None: more than `max_len`."""
    needed = _least(
        lambda length: standing.is_alive(distances.within(standing.made_len, length)), max_len
    )
    if needed is None:
        return None
    tokens: list[int] = []
    ahead = standing.fork()
    for left in range(needed - 1, -1, -1):
        token_id = _next(ahead, distances.within(ahead.made_len + 1, left))
        assert token_id is not None, "a text that can be completed has a next token"
        ahead.advance(token_id)
        tokens.append(token_id)
    return tuple(tokens)


def along(
    standing: Standing, routes: Distances, live: Reserves, max_len: int
) -> tuple[int, ...] | None:
    """Few tokens that complete the text; None: more than `max_len`, or no route is near.

    routes lead on from between two characters, not from inside of every one: that is completed
    first.
    """
    tokens: list[int] = []
    ahead = standing.fork()
    for _ in range(1 + min(_MAX_INSIDE, max_len)):
        rest = fewest(ahead, routes, max_len - len(tokens))
        if rest is not None:
            return (*tokens, *rest)
        token_id = _towards(ahead, routes, live, max_len - len(tokens)) if ahead.is_inside else None
        if token_id is None:
            return None
        ahead.advance(token_id)
        tokens.append(token_id)
    return None


def _towards(standing: Standing, routes: Distances, live: Reserves, max_len: int) -> int | None:
    """The token that leads onto the shortest route, or else further into the character."""
    after = standing.made_len + 1

    def leads_on(length: int) -> bool:
        return _next(standing, routes.within(after, length)) is not None

    length = _least(leads_on, max_len - 1)
    return _next(standing, live if length is None else routes.within(after, length))


def _next(standing: Standing, reserves: Reserves) -> int | None:
    """The plainest token that leads to where the reserves cover the counts."""
    transitions = standing.transitions()
    return transitions.first_token(transitions.legal(reserves, standing.counts))


def _least(is_enough: Callable[[int], bool], most: int) -> int | None:
    """The least number that is enough, as all above it are; None where `most` is not."""
    if most < 0:
        return None
    # Short completions are common.
    low, high = -1, 0
    while high < most and not is_enough(high):
        low, high = high, high * 2 + 1
    high = min(high, most)
    if not is_enough(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
