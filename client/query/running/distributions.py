"""Converts scores of a distribution's support to probabilities."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from client.calls import Scored
from client.query.running.decoding import Choice, HoleAnswer


def choice_of(values: Sequence[str], scored: Sequence[Scored]) -> Choice:
    """The probability of each value among these."""
    by_value = dict(zip(values, scored, strict=True))
    return Choice(
        plain=_shares({value: one.total for value, one in by_value.items()}),
        normalised=_shares({value: one.mean for value, one in by_value.items()}),
    )


def best_of(choice: Choice, *, normalised: bool) -> str:
    """The most probable value; on a tie the first.

    normalised: by the mean log-probability per token, which does not penalise long values; else by
                that of the whole value
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
    """The log-softmax of the scores."""
    top = max(scores.values())
    if top == -math.inf:
        even = -math.log(len(scores))
        return MappingProxyType(dict.fromkeys(scores, even))
    total = top + math.log(sum(math.exp(score - top) for score in scores.values()))
    return MappingProxyType({value: score - total for value, score in scores.items()})
