"""Generation as the routes use it: a request in, events or a whole answer out.

It knows no scheduler, no shard and no HTTP. A reader that stops, for whatever reason, cancels.

A schema that masks enforce only in part is checked once more when the text is finished: the last
event waits for that, and has the violation.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf

from router.engine.batcher import Batcher
from router.engine.beam_search import BeamGroup, BeamRun, OutputTexts
from router.engine.stream import Stream
from router.request.errors import RouterError, ServerStopped
from router.request.request import (
    Constraint,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    PromptScored,
    TokenGenerated,
)

# What a finished text breaks of its constraint, in words; None: nothing.
Verify = Callable[[Constraint, str], Awaitable[str | None]]


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


class Accepted:
    """A submitted request. The reader of `events` owns it: closing them cancels the request."""

    def __init__(self, batcher: Batcher, stream: Stream, verify: Verify) -> None:
        self._batcher = batcher
        self._stream = stream
        self._verify = verify

    @property
    def place(self) -> int | None:
        """Where it waits for its first step, 1 for the next one; None once that has begun."""
        return self._batcher.place(self._stream)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that were found in the prefix cache, once it has begun."""
        return self._stream.cached_len

    async def events(self) -> AsyncGenerator[Sequence[Event], None]:
        """The events, in bursts: all that is there whenever the reader comes for more.

        The last burst ends with the one Finished or Failed.
        """
        try:
            while burst := await _next_burst(self._stream, self._verify):
                yield burst
        finally:
            self._batcher.cancel(self._stream)


class Infer:
    """The facade over the batcher."""

    def __init__(self, batcher: Batcher, verify: Verify) -> None:
        self._batcher = batcher
        self._verify = verify

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

    def accept(self, request: GenerateRequest) -> Accepted:
        """Submits a request whose events are read at once. Raises Refused, InvalidRequest."""
        return Accepted(self._batcher, self._batcher.submit(request), self._verify)

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Sequence[Event], None]:
        """The events, as of `Accepted`, of a request that is submitted when the first is read.

        Raises Refused or InvalidRequest before the first burst.
        """
        return self.generate_all([request])[0]

    def generate_all(
        self, requests: Sequence[GenerateRequest]
    ) -> list[AsyncGenerator[Sequence[Event], None]]:
        """The events of sequences that are accepted together or not at all, each as by `generate`.

        The first generator to start submits all; one that closes before its end cancels those that
        have not started.
        """
        group = _Group(self._batcher, requests, self._verify)
        return [group.events(index) for index in range(len(requests))]

    def search_beams(self, group: BeamGroup, texts: OutputTexts, report_s: float | None) -> BeamRun:
        """Starts a search; the caller awaits its end, and closes it. Raises as `accept`."""
        return BeamRun(group, texts, self._batcher, report_s)

    async def complete_all(self, requests: Sequence[GenerateRequest]) -> list[Completion]:
        """Whole answers to sequences that are accepted together or not at all, in their order.

        Raises the RouterError of the first that fails, and `generate`'s; if one fails, the others
        are cancelled.
        """
        streams = self._batcher.submit_all(requests)
        readers = [asyncio.ensure_future(_completion(stream, self._verify)) for stream in streams]
        try:
            return await asyncio.gather(*readers)
        finally:
            for stream, reader in zip(streams, readers, strict=True):
                self._batcher.cancel(stream)
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def best_of_each(
        self, draws: Sequence[tuple[GenerateRequest, int]]
    ) -> list[list[Completion]]:
        """So many independent answers to each, the best by its mean log-probability first.

        Draw i has the seed of the request plus i. All are accepted together or not at all. Raises
        as `complete_all`.
        """
        completions = iter(
            await self.complete_all([one.draw(index) for one, n in draws for index in range(n)])
        )
        return [ranked(islice(completions, n)) for _, n in draws]


def ranked(completions: Iterable[Completion]) -> list[Completion]:
    """The completions by their mean log-probability, the best first."""
    return sorted(completions, key=lambda completion: -completion.mean_logprob)


class _Group:
    """Sequences that are submitted together when the first of their readers begins."""

    def __init__(
        self, batcher: Batcher, requests: Sequence[GenerateRequest], verify: Verify
    ) -> None:
        self._batcher = batcher
        self._verify = verify
        self._requests = requests
        self._refusal: RouterError | None = None
        # Those without a reader yet; None before they are submitted.
        self._unread: dict[int, Stream] | None = None

    async def events(self, index: int) -> AsyncGenerator[Sequence[Event], None]:
        """The events of one of them. Raises Refused or InvalidRequest before the first burst."""
        unread = self._submitted()
        stream = unread.pop(index)
        try:
            while burst := await _next_burst(stream, self._verify):
                yield burst
        finally:
            others = () if stream.end is not None else unread.values()
            for each in (stream, *others):
                self._batcher.cancel(each)

    def _submitted(self) -> dict[int, Stream]:
        """Submits all once; raises the same refusal for each."""
        if self._refusal is not None:
            raise self._refusal
        if self._unread is None:
            try:
                self._unread = dict(enumerate(self._batcher.submit_all(self._requests)))
            except RouterError as error:
                self._refusal = error
                raise
        return self._unread


async def _next_burst(stream: Stream, verify: Verify) -> Sequence[Event]:
    """The next burst; an end whose constraint masks enforce only in part is checked before."""
    burst = await stream.take()
    end, constraint = burst[-1] if burst else None, stream.request.constraint
    if constraint is None or not constraint.is_judged_at_end or not isinstance(end, Finished):
        return burst
    if not end.constraint_satisfied:
        return burst
    violation = await verify(constraint, stream.text_before + end.text)
    return [*burst[:-1], replace(end, constraint_satisfied=violation is None, violation=violation)]


async def _completion(stream: Stream, verify: Verify) -> Completion:
    prompt: PromptScored | None = None
    tokens: list[TokenGenerated] = []
    while burst := await _next_burst(stream, verify):
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
