"""Single calls of a model without a program: generate and score."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Unpack

from client.calls import Answer, Constraint, GenerateCall, Prompt, ScoreCall, Scored
from client.query.errors import TrimmedTracebacks
from client.query.execution import wait_for
from client.query.running.decoding import Choice, best_of, choice_of
from client.query.running.session import booked
from client.query.serving import ModelLike, opened
from client.sampling import SAMPLING_RULES, Sampling, SamplingOptions


class GenerateOptions(SamplingOptions, total=False):
    """What `generate` takes besides its prompt; see GenerateCall and Sampling."""

    max_tokens: int
    stop: Sequence[str]
    constraint: Constraint
    model: ModelLike
    url: str


@dataclass(frozen=True, slots=True)
class Scoring:
    """The log-probabilities of values as continuations of a prompt.

    totals: the log-probability of each, the sum over its tokens
    means:  the same per token
    """

    values: tuple[str, ...]
    scored: tuple[Scored, ...]

    @property
    def totals(self) -> Mapping[str, float]:
        return self._by_value([one.total for one in self.scored])

    @property
    def means(self) -> Mapping[str, float]:
        return self._by_value([one.mean for one in self.scored])

    @property
    def choice(self) -> Choice:
        """Log-probabilities over these values only, plain and normalised by length."""
        return choice_of(self.values, self.scored)

    def probability(self, value: str, *, normalised: bool = False) -> float:
        """The probability of one value among these, from 0 to 1."""
        choice = self.choice
        return math.exp((choice.normalised if normalised else choice.plain)[value])

    def best(self, *, normalised: bool = False) -> str:
        """The most probable value; on a tie the first."""
        return best_of(self.choice, normalised=normalised)

    def _by_value(self, numbers: Sequence[float]) -> Mapping[str, float]:
        return MappingProxyType(dict(zip(self.values, numbers, strict=True)))


async def generate(prompt: Prompt, **options: Unpack[GenerateOptions]) -> Answer:
    """Generate a continuation of a prompt in one request. Raises TypeError for other options."""
    unknown = options.keys() - GenerateOptions.__optional_keys__
    if unknown:
        raise TypeError(f"generate() has no options {', '.join(map(repr, sorted(unknown)))}")
    with TrimmedTracebacks():
        async with opened(options.get("model"), None, options.get("url")) as answering:
            call = replace(_generate_call(prompt, options), model=answering.name)
            return await booked("generate", call, answering.model.generate(call))


def generate_sync(prompt: Prompt, **options: Unpack[GenerateOptions]) -> Answer:
    """`generate`, where no event loop runs."""
    return wait_for(generate(prompt, **options), "await generate(...)")


async def score(
    prompt: Prompt,
    values: Sequence[str],
    *,
    model: ModelLike | None = None,
    url: str | None = None,
) -> Scoring:
    """Score each of the values as a continuation of the prompt, in one request."""
    wanted = tuple(dict.fromkeys(values))
    if isinstance(values, str) or not wanted or "" in wanted:
        raise ValueError(f"values must be a list of texts, none of them empty. Given: {values!r}")
    with TrimmedTracebacks():
        async with opened(model, None, url) as answering:
            call = ScoreCall(prompt=prompt, values=wanted, model=answering.name)
            scores = await booked("score", call, answering.model.score(call))
            return Scoring(wanted, scores.values)


def score_sync(
    prompt: Prompt,
    values: Sequence[str],
    *,
    model: ModelLike | None = None,
    url: str | None = None,
) -> Scoring:
    """`score`, where no event loop runs."""
    return wait_for(score(prompt, values, model=model, url=url), "await score(...)")


def _generate_call(prompt: Prompt, options: GenerateOptions) -> GenerateCall:
    drawn = {key: value for key, value in options.items() if key in SAMPLING_RULES}
    return GenerateCall(
        prompt=prompt,
        # The TypedDict's fields of these names have the types of Sampling's.
        sampling=Sampling(**drawn),  # type: ignore[arg-type]
        max_tokens=options.get("max_tokens"),
        constraint=options.get("constraint"),
        stop=tuple(options.get("stop", ())),
    )
