"""Generation as the routes see it: a request in, events or a whole answer out.

It knows no scheduler, no shard and no HTTP. Whoever stops reading, for whatever reason, cancels.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from math import inf

from router.batcher import Batcher
from router.errors import ServerStopped
from router.events import Event, Failed, Finished, PromptScored, TokenGenerated
from router.request import GenerateRequest


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer. `prompt` only if its log-probabilities were asked for."""

    prompt: PromptScored | None
    tokens: tuple[TokenGenerated, ...]
    finished: Finished

    @property
    def mean_logprob(self) -> float:
        """Of the generated tokens; minus infinity without any."""
        if not self.tokens:
            return -inf
        return sum(event.token.logprob or 0.0 for event in self.tokens) / len(self.tokens)


class Infer:
    """The facade over the batcher."""

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher

    @property
    def is_alive(self) -> bool:
        """The shards answer."""
        return self._batcher.is_alive

    @property
    def is_draining(self) -> bool:
        """Nothing new is taken any more."""
        return self._batcher.is_draining

    @property
    def is_ready(self) -> bool:
        """A request would be served now."""
        return self.is_alive and not self.is_draining

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Sequence[Event], None]:
        """The events, in bursts: all that is there whenever the reader comes for more.

        The last burst ends with the one Finished or Failed. Closing the generator cancels the
        request. Raises Overloaded, Draining or InvalidRequest before the first burst.
        """
        stream = self._batcher.submit(request)
        try:
            while burst := await stream.take():
                yield burst
        finally:
            self._batcher.cancel(stream)

    async def complete(self, request: GenerateRequest) -> Completion:
        """The whole answer. Raises the RouterError of a request that fails, and `generate`'s."""
        prompt: PromptScored | None = None
        tokens: list[TokenGenerated] = []
        async with aclosing(self.generate(request)) as bursts:
            async for burst in bursts:
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

    async def best_of(self, request: GenerateRequest, num_draws: int) -> list[Completion]:
        """`num_draws` independent answers, the one with the best mean log-probability first.

        Draw i has the seed of the request plus i. Raises as `complete`; if one fails, the others
        are cancelled.
        """
        if num_draws == 1:
            return [await self.complete(request)]
        draws = [
            asyncio.ensure_future(self.complete(request.draw(index))) for index in range(num_draws)
        ]
        try:
            completions = await asyncio.gather(*draws)
        finally:
            for draw in draws:
                draw.cancel()
            await asyncio.gather(*draws, return_exceptions=True)
        return sorted(completions, key=lambda completion: -completion.mean_logprob)
