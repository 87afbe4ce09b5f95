"""Generation as the routes use it: requests in, events or whole answers out.

    submit -> Accepted -> bursts of events -> closed: what has not ended is cancelled

It knows no scheduler, no shard and no HTTP.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from typing import Self

from router.engine.batcher import Batcher
from router.engine.beam_search import BeamGroup, BeamRun, OutputTexts
from router.engine.constraints import ConstraintCheck
from router.engine.stream import Sink, Stream
from router.request.errors import ServerStopped
from router.request.request import (
    ApiKey,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    PromptScored,
    TokenGenerated,
)
from router.text.thought_span import answer_in


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. `prompt` only if its log-probabilities were requested."""

    prompt: PromptScored | None
    tokens: tuple[TokenGenerated, ...]
    finished: Finished

    @property
    def mean_logprob(self) -> float:
        """Of the generated tokens; minus infinity without any."""
        if not self.tokens:
            return -inf
        return sum(event.token.logprob or 0.0 for event in self.tokens) / len(self.tokens)


def ranked(completions: Iterable[Completion]) -> list[Completion]:
    """The completions by their mean log-probability, the best first."""
    return sorted(completions, key=lambda completion: -completion.mean_logprob)


class Accepted:
    """An accepted request: an iterator of its events, in bursts.

    A burst is all that is there when the reader comes for more. The last one ends with the one
    Finished or Failed. The reader owns it, and closes it: that cancels what has not ended.

    A schema that masks enforce only in part is checked once more when the text is finished: the
    last burst waits for that, and has the violation.
    """

    def __init__(self, stream: Stream, batcher: Batcher, checks: ConstraintCheck) -> None:
        self._stream = stream
        self._batcher = batcher
        self._checks = checks

    @property
    def place(self) -> int | None:
        """Where it waits for its first step, 1 for the next one; None once that has begun."""
        return self._batcher.place(self._stream)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that were found in the prefix cache, once it has begun."""
        return self._stream.cached_len

    @property
    def text_before(self) -> str:
        """What was shown of the tokens that were made before."""
        return self._stream.text_before

    def push_to(self, sink: Sink) -> None:
        """See Stream: bursts go to the sink while its reader waits, but for the last."""
        self._stream.sink = sink

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Sequence[Event]:
        burst = await self._stream.take()
        if not burst:
            raise StopAsyncIteration
        end = burst[-1]
        constraint = self._stream.request.constraint
        if constraint is None or not constraint.is_judged_at_end or not isinstance(end, Finished):
            return burst
        if not end.constraint_satisfied:
            return burst
        text = self._stream.text_before + end.text
        thought = self._stream.request.thought
        if thought is not None and constraint.parts is None:
            text = answer_in(text, thought)
        violation = await self._checks.violation(constraint, text)
        end = replace(end, constraint_satisfied=violation is None, violation=violation)
        return [*burst[:-1], end]

    def cancel(self) -> None:
        """The reader leaves; nothing happens if the request has ended."""
        self._batcher.cancel(self._stream)

    async def aclose(self) -> None:
        """As `cancel`."""
        self.cancel()

    async def completion(self) -> Completion:
        """The whole answer. Raises the RouterError of a failure."""
        prompt: PromptScored | None = None
        tokens: list[TokenGenerated] = []
        async for burst in self:
            for event in burst:
                if isinstance(event, TokenGenerated):
                    tokens.append(event)
                elif isinstance(event, PromptScored):
                    prompt = event
                elif isinstance(event, Failed):
                    raise event.error
                else:
                    return Completion(prompt, tuple(tokens), event)
        raise ServerStopped("the stream ended without an end")


class Infer:
    """The engine behind the routes. `checks` judges the finished texts of lenient schemas."""

    def __init__(self, batcher: Batcher, checks: ConstraintCheck) -> None:
        self._batcher = batcher
        self._checks = checks

    @property
    def is_draining(self) -> bool:
        """True once nothing new is accepted."""
        return self._batcher.is_draining

    @property
    def is_ready(self) -> bool:
        """True while a request would be served."""
        return self._batcher.is_alive and not self.is_draining

    @property
    def trouble(self) -> str | None:
        """Why there is no progress although there is work; None: there is, or there is no work."""
        return self._batcher.trouble

    def check_admitted(self, key: ApiKey) -> None:
        """Raises as `submit` would for one more sequence of this key, which takes no slot here."""
        self._batcher.check_admitted(key)

    def submit(self, requests: Sequence[GenerateRequest]) -> list[Accepted]:
        """Sequences that are accepted together or not at all, in their order.

        Raises Refused, InvalidRequest.
        """
        streams = self._batcher.submit_all(requests)
        return [Accepted(stream, self._batcher, self._checks) for stream in streams]

    async def complete_all(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """The whole answers of sequences that are accepted together or not at all.

        Raises the RouterError of the first that fails, and `submit`'s; if one fails, the others
        are cancelled.
        """
        accepted = self.submit(requests)
        if len(accepted) == 1:
            async with aclosing(accepted[0]) as one:
                return [await one.completion()]
        readers = [asyncio.ensure_future(one.completion()) for one in accepted]
        try:
            return await asyncio.gather(*readers)
        finally:
            for one, reader in zip(accepted, readers, strict=True):
                one.cancel()
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def best_of_each(
        self, draws: Sequence[tuple[GenerateRequest, int]]
    ) -> list[list[Completion]]:
        """So many independent answers to each, the best by its mean log-probability first.

        Draw i has the seed of the request plus i. All are accepted together or not at all. Raises
        as `complete_all`.
        """
        requests = [request.draw(index) for request, num in draws for index in range(num)]
        completions = iter(await self.complete_all(requests))
        return [ranked(islice(completions, num)) for _, num in draws]

    def search_beams(self, group: BeamGroup, texts: OutputTexts, report_s: float | None) -> BeamRun:
        """Starts a search; the caller awaits its end, and closes it. Raises as `submit`."""
        return BeamRun(group, texts, self._batcher, report_s)
