"""What a router does for a shard, in its smallest form: block numbers, chunks and calls.

driver = Driver(runner)
driver.add(request_id, prompt, max_new_tokens)
driver.run(step_tokens=7)      # mixed steps of prompt chunks and decodes, until all have ended
driver.outputs[request_id]
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from model_server.engine.runner import Runner
from model_server.step import StepOutput
from proto.contract import (
    FinishReason,
    Generation,
    LogprobParams,
    NewSequence,
    OutputConstraint,
    RunningUpdate,
    SamplingParams,
    StopParams,
)


@dataclass(slots=True)
class Request:
    """A request and what the driver knows of its life in the shard."""

    request_id: int
    token_ids: list[int]
    prompt_len: int
    stop: StopParams
    sampling: SamplingParams
    logprobs: LogprobParams
    constraint: OutputConstraint | None = None
    block_ids: list[int] = field(default_factory=list)
    computed_len: int = 0
    is_held: bool = False
    is_dropped: bool = False
    finish_reason: FinishReason | None = None
    generations: list[Generation] = field(default_factory=list)

    @property
    def uncomputed_len(self) -> int:
        return len(self.token_ids) - self.computed_len

    @property
    def output(self) -> list[int]:
        return self.token_ids[self.prompt_len :]


class Driver:
    """Drives a runner whose pool is made. Blocks are handed out in random order.

    num_drafts: the most draft tokens of a request in a step
    """

    def __init__(
        self, runner: Runner, num_blocks: int, block_size: int, seed: int = 0, num_drafts: int = 0
    ) -> None:
        self.runner = runner
        self.num_drafts = num_drafts
        self.block_size = block_size
        self.free = list(range(num_blocks))
        random.Random(seed).shuffle(self.free)
        self.requests: dict[int, Request] = {}

    @property
    def outputs(self) -> dict[int, list[int]]:
        """What each request was answered."""
        return {request_id: request.output for request_id, request in self.requests.items()}

    def add(
        self,
        request_id: int,
        prompt: Sequence[int],
        max_new_tokens: int,
        *,
        sampling: SamplingParams | None = None,
        logprobs: LogprobParams | None = None,
        shared: tuple[Sequence[int], int] = ((), 0),
        constraint: OutputConstraint | None = None,
        **stop: Any,
    ) -> Request:
        """Queue a request. `shared`: blocks of its prefix that are computed, and their length."""
        block_ids, cached_len = shared
        request = Request(
            request_id,
            list(prompt),
            len(prompt),
            StopParams(max_new_tokens, **stop),
            sampling or SamplingParams(),
            logprobs or LogprobParams(),
            constraint,
            list(block_ids),
            cached_len,
        )
        self.requests[request_id] = request
        return request

    def preempt(self, request_id: int) -> None:
        """Take a request off the shard; it comes back with its output as part of what it sends."""
        request = self.requests[request_id]
        self.runner.filter([other for other in self.requests if other != request_id])
        self.free += request.block_ids
        request.block_ids, request.computed_len, request.is_held = [], 0, False

    def run(self, step_tokens: int = 1 << 30, max_steps: int = 10_000) -> None:
        """Step until every request has ended."""
        for _ in range(max_steps):
            if all(request.finish_reason for request in self.requests.values()):
                return
            self.step(step_tokens)
        raise AssertionError(f"not done after {max_steps} steps")

    def step(self, step_tokens: int = 1 << 30) -> StepOutput:
        """One step of at most that many tokens: decodes first, then chunks of prompts."""
        live = [request for request in self.requests.values() if request.finish_reason is None]
        # Those that decode have one token to go, and some that a constraint forced.
        live.sort(key=lambda request: (request.uncomputed_len > 1, not request.is_held))
        chunk_lens: dict[int, int] = {}
        for request in live:
            chunk_lens[request.request_id] = min(request.uncomputed_len, step_tokens)
            step_tokens -= chunk_lens[request.request_id]
        updates = [
            RunningUpdate(request.request_id, self._blocks(request, chunk_len), chunk_len)
            for request in live
            if request.is_held
            for chunk_len in [chunk_lens[request.request_id] + self._num_drafts(request)]
        ]
        new = [
            self._new(request, chunk_lens[request.request_id])
            for request in live
            if not request.is_held and chunk_lens[request.request_id]
        ]
        output = self.runner.step(new, updates)
        self._apply(output, chunk_lens)
        return output

    def _new(self, request: Request, chunk_len: int) -> NewSequence:
        self._blocks(request, chunk_len)
        request.is_held = True
        return NewSequence(
            request_id=request.request_id,
            token_ids=tuple(request.token_ids),
            prompt_len=request.prompt_len,
            cached_len=request.computed_len,
            chunk_len=chunk_len,
            block_ids=tuple(request.block_ids),
            sampling=request.sampling,
            stop=request.stop,
            logprobs=request.logprobs,
            constraint=request.constraint,
        )

    def _num_drafts(self, request: Request) -> int:
        decodes = request.is_held and request.output and request.uncomputed_len == 1
        return self.num_drafts if decodes and request.constraint is None else 0

    def _blocks(self, request: Request, chunk_len: int) -> tuple[int, ...]:
        needed = -(-(request.computed_len + chunk_len) // self.block_size)
        num_new = max(0, needed - len(request.block_ids))
        new = tuple(self.free.pop() for _ in range(num_new))
        request.block_ids += new
        return new

    def _apply(self, output: StepOutput, chunk_lens: dict[int, int]) -> None:
        for request_id, chunk_len in chunk_lens.items():
            self.requests[request_id].computed_len += chunk_len
        for generation in output.generations:
            request = self.requests[generation.request_id]
            request.generations.append(generation)
            request.token_ids += [token.token_id for token in generation.tokens]
            request.computed_len += generation.num_accepted - generation.is_late
            request.finish_reason = generation.finish_reason
        held = {r.request_id for r in self.requests.values() if r.is_held and not r.finish_reason}
        assert set(output.request_ids) == held
