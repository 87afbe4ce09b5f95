"""Scores of a distribution's support, as probabilities over it."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from client.calls import Scored
from client.query.running.decoding import Choice, HoleAnswer


def choice_of(values: Sequence[str], scored: Sequence[Scored]) -> Choice:
    """How probable each value is among them."""
    by_value = dict(zip(values, scored, strict=True))
    return Choice(
        plain=_shares({value: one.total for value, one in by_value.items()}),
        normalised=_shares({value: one.mean for value, one in by_value.items()}),
    )


def best_of(choice: Choice, *, normalised: bool) -> str:
    """The most probable value, the first of equals.

    normalised: by the mean log-probability per token, so that long values are not at a
                disadvantage; else by that of the whole value.
    """
    shares = choice.normalised if normalised else choice.plain
    return max(shares, key=shares.__getitem__)


def chosen(values: Sequence[str], scored: Sequence[Scored], *, normalised: bool) -> HoleAnswer:
    """The most probable value as a hole's answer."""
    choice = choice_of(values, scored)
    best = best_of(choice, normalised=normalised)
    one = scored[list(values).index(best)]
    return HoleAnswer(text=best, logprob=one.total, num_tokens=len(one.token_ids), choice=choice)


def _shares(scores: Mapping[str, float]) -> Mapping[str, float]:
    """Log-probabilities over these values: a log-softmax."""
    top = max(scores.values())
    if top == -math.inf:
        even = -math.log(len(scores))
        return MappingProxyType(dict.fromkeys(scores, even))
    total = top + math.log(sum(math.exp(score - top) for score in scores.values()))
    return MappingProxyType({value: score - total for value, score in scores.items()})
