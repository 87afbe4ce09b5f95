"""A shard without its wire, and what a router does for it: block numbers, chunks and calls.

driver = driver_of(load(folder, World()))
driver.add(request_id, prompt, max_new_tokens)
driver.run(step_tokens=7)      # mixed steps of prompt chunks and decodes, until all have ended
driver.outputs[request_id]
"""

import os
import random
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from model_server.checkpoint.check import ModelSettings
from model_server.engine.distributed import World
from model_server.engine.first_rank import StepInFlight
from model_server.engine.runner import Runner
from model_server.executor.executor import PagedModel
from model_server.loading import load_model, new_sampler
from model_server.step import StepOutput
from processes.addresses import free_port
from processes.image_processor import ProcessedImage
from proto.contract import (
    FinishReason,
    Generation,
    Image,
    KeptState,
    LogprobParams,
    ModelInfo,
    NewSequence,
    OutputConstraint,
    RunningUpdate,
    SamplingParams,
    StopParams,
)
from tests.model_server import forked

_MAX_DRAFTS = 8


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
    is_decoding: bool = False
    is_dropped: bool = False
    finish_reason: FinishReason | None = None
    generations: list[Generation] = field(default_factory=list)
    state_ids: tuple[int, ...] = ()
    from_state: int | None = None
    kept_states: tuple[KeptState, ...] = ()
    adapter_id: int | None = None
    images: tuple[Image, ...] = ()

    @property
    def uncomputed_len(self) -> int:
        return len(self.token_ids) - self.computed_len

    @property
    def output(self) -> list[int]:
        return self.token_ids[self.prompt_len :]


class Driver:
    """Drives a runner whose pool is made. Blocks are handed out in random order.

    num_drafts: the most draft tokens of a request in a step
    sees_ahead: no chunk may end inside of an image
    """

    def __init__(
        self,
        runner: Runner,
        num_blocks: int,
        block_size: int,
        seed: int = 0,
        num_drafts: int = 0,
        num_states: int = 0,
        *,
        sees_ahead: bool = False,
    ) -> None:
        self.runner = runner
        self.sees_ahead = sees_ahead
        self.num_drafts = num_drafts
        self.block_size = block_size
        self.free = list(range(num_blocks))
        self.free_states = list(range(num_states))
        random.Random(seed).shuffle(self.free)
        random.Random(seed).shuffle(self.free_states)
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
        from_state: int | None = None,
        kept_states: tuple[KeptState, ...] = (),
        adapter_id: int | None = None,
        images: tuple[Image, ...] = (),
        **stop: Any,
    ) -> Request:
        """Queue a request. `shared`: blocks of its prefix that are computed, and their length.

        from_state: the slot that stands behind them
        """
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
            from_state=from_state,
            kept_states=kept_states,
            adapter_id=adapter_id,
            images=images,
        )
        self.requests[request_id] = request
        return request

    def preempt(self, request_id: int) -> None:
        """Take a request off the shard; it comes back with its output as part of what it sends."""
        request = self.requests[request_id]
        self.runner.filter([other for other in self.requests if other != request_id])
        self._free(request)
        request.computed_len = 0
        request.from_state = None

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
            chunk_lens[request.request_id] = self._chunk_len(request, step_tokens)
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

    def _chunk_len(self, request: Request, room: int) -> int:
        chunk_len = min(request.uncomputed_len, room)
        for image in request.images if self.sees_ahead else ():
            if image.start < request.computed_len + chunk_len < image.stop:
                chunk_len = max(0, image.start - request.computed_len)
        return chunk_len

    def _free(self, request: Request) -> None:
        self.free += request.block_ids
        request.block_ids = []
        self.free_states += request.state_ids
        request.state_ids = ()
        request.is_held = request.is_decoding = False

    def _new(self, request: Request, chunk_len: int) -> NewSequence:
        self._blocks(request, chunk_len)
        if self.free_states:
            request.state_ids = (self.free_states.pop(), self.free_states.pop())
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
            state_ids=request.state_ids,
            from_state=request.from_state,
            kept_states=request.kept_states,
            adapter_id=request.adapter_id,
            max_drafts=_MAX_DRAFTS,
            images=tuple(_without_pixels(each, request) for each in request.images),
        )

    def _num_drafts(self, request: Request) -> int:
        return self.num_drafts if request.is_decoding else 0

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
            request.is_decoding = request.is_decoding or bool(generation.tokens)
            request.token_ids += [token.token_id for token in generation.tokens]
            request.computed_len += generation.num_accepted - generation.is_late
            request.finish_reason = generation.finish_reason
        held = {r.request_id for r in self.requests.values() if r.is_held and not r.finish_reason}
        assert set(output.request_ids) == held


def _without_pixels(image: Image, request: Request) -> Image:
    """As a router sends it: of what is computed already, no pixels."""
    if image.stop > request.computed_len:
        return image
    integers = {name: each for name, each in image.tensors.items() if not each.is_float}
    return replace(image, tensors=integers)


NUM_BLOCKS = 64
_NUM_STATES = 24


def load(
    folder: Path,
    world: World,
    dtype: str = "float32",
    device: str = "cpu",
    attention: str = "auto",
    max_loras: int = 0,
    activation_bits: int = 8,
    noise: ProcessedImage | None = None,
) -> PagedModel:
    """The model of a checkpoint; by an attention that is named, in its own class.

    noise: an image of it, where it sees
    """
    settings = ModelSettings(
        folder,
        torch.device(device),
        dtype=dtype,
        attention=attention,
        max_loras=max_loras,
        activation_bits=activation_bits,
    )
    return load_model(settings, world, noise)


def num_states(model: PagedModel) -> int:
    """Slots that tests use for states."""
    return _NUM_STATES if model.state_bytes else 0


def runner_of(model: PagedModel, world: World, *, runs_ahead: bool | None = None) -> Runner:
    """A runner, with a sampler where there has to be one."""
    sampler = None
    if world.is_first:
        sampler = new_sampler(model, max_rows=8)
    return Runner(model, sampler, world, runs_ahead=runs_ahead)


def warmed_up(
    model: PagedModel, world: World | None = None, *, runs_ahead: bool | None = None
) -> Runner:
    """A runner whose pool is made."""
    runner = runner_of(model, world or World(), runs_ahead=runs_ahead)
    runner.warmup(
        max_step_tokens=32,
        max_batch_size=4,
        max_total_len=None,
        num_blocks=NUM_BLOCKS,
        num_states=num_states(model),
    )
    return runner


def driver_of(
    model: PagedModel, world: World | None = None, seed: int = 0, num_drafts: int = 0
) -> Driver:
    """A driver of such a runner."""
    runner = warmed_up(model, world)
    return Driver(
        runner,
        NUM_BLOCKS,
        model.block_size,
        seed,
        num_drafts,
        num_states(model),
        sees_ahead=model.sight is not None and model.sight.sees_ahead,
    )


class AheadDriver(Driver):
    """Holds one step in flight, and plans the next one as if nothing in it ended that need not."""

    num_ahead = 0  # steps that were launched behind one in flight
    num_redrawn = 0  # tokens that were not those that the step behind was launched with
    _in_flight: StepInFlight | None = None
    _chunk_lens: dict[int, int] = {}  # noqa: RUF012 -- replaced, never changed

    def drop(self, request_id: int) -> None:
        """Take a request off with the next step; what it still answers is ignored."""
        self.requests[request_id].is_dropped = True

    def run(self, step_tokens: int = 1 << 30, max_steps: int = 10_000) -> None:
        """Step until every request has ended or is dropped."""
        for _ in count():
            if not self._begin(step_tokens):
                if self._in_flight is None:
                    return
                self._end(self._in_flight, self._chunk_lens)
                self._in_flight = None
                self._chunk_lens = {}

    def _begin(self, step_tokens: int) -> bool:
        """Begin a step, and end the one before; False: there is nothing to compute yet."""
        dropped = tuple(r.request_id for r in self.requests.values() if r.is_dropped and r.is_held)
        chunk_lens: dict[int, int] = {}
        updates: list[RunningUpdate] = []
        new: list[NewSequence] = []
        for request in self._live():
            chunk_len = min(self._num_left(request), step_tokens)
            step_tokens -= chunk_len
            if not chunk_len:
                if request.is_held:
                    updates.append(RunningUpdate(request.request_id, (), 0))
                continue
            chunk_lens[request.request_id] = chunk_len
            if request.is_held:
                blocks = self._blocks_until(request, self._start(request) + chunk_len)
                updates.append(RunningUpdate(request.request_id, blocks, chunk_len))
            else:
                new.append(self._new(request, chunk_len))
        if not chunk_lens:
            return False
        step = self.runner.begin(new, updates, dropped)
        self.runner.launch(step)
        self.num_ahead += step.is_behind
        for request_id in dropped:
            self._free(self.requests[request_id])
        if self._in_flight is not None:
            self._end(self._in_flight, self._chunk_lens)
        self._in_flight = step
        self._chunk_lens = chunk_lens
        return True

    def _live(self) -> list[Request]:
        live = [r for r in self.requests.values() if not r.finish_reason and not r.is_dropped]
        return sorted(live, key=lambda request: (not request.is_held, request.request_id))

    def _start(self, request: Request) -> int:
        return request.computed_len + self._chunk_lens.get(request.request_id, 0)

    def _num_left(self, request: Request) -> int:
        """Tokens that the next step may compute, one that is being drawn included."""
        left = len(request.token_ids) - self._start(request)
        if left or request.request_id not in self._chunk_lens:
            return left
        return int(len(request.output) + 1 < request.stop.max_new_tokens)

    def _blocks_until(self, request: Request, end: int) -> tuple[int, ...]:
        new = tuple(
            self.free.pop() for _ in range(-(-end // self.block_size) - len(request.block_ids))
        )
        request.block_ids += new
        return new

    def _end(self, step: StepInFlight, chunk_lens: dict[int, int]) -> None:
        output = self.runner.finish(step)
        self.num_redrawn += len(step.redrawn)
        for request_id, chunk_len in chunk_lens.items():
            self.requests[request_id].computed_len += chunk_len
        for generation in output.generations:
            request = self.requests[generation.request_id]
            if request.is_dropped:
                continue
            assert request.finish_reason is None
            request.generations.append(generation)
            request.token_ids += [token.token_id for token in generation.tokens]
            request.computed_len -= generation.is_late
            request.finish_reason = generation.finish_reason
            if generation.finish_reason is not None:
                self._free(request)


WORLD_SIZE = 2
TIMEOUT_S = 120.0

Work = Callable[[World], Any]


def _rank(rank: int, port: int, work: Work, answer: Connection) -> None:
    """The life of one rank's process."""
    try:
        torch.set_num_threads(1)
        world = World.connect(
            rank=rank,
            world_size=WORLD_SIZE,
            master_addr="127.0.0.1",
            master_port=port,
            device=torch.device("cpu"),
            load_timeout_s=60.0,
            step_timeout_s=20.0,
        )
        answer.send(work(world))
        # As a shard does: the process group's own clean-up waits for its peers.
        os._exit(0)
    except BaseException:
        answer.send(traceback.format_exc())
        raise


def info_of(model: PagedModel) -> ModelInfo:
    """What a shard says of a model that a test has loaded."""
    return ModelInfo(
        model_id="tiny",
        model_type=model.model_type,
        dtype="float32",
        device_type="cpu",
        executor=model.executor,
        block_size=model.block_size,
        vocab_size=model.vocab_size,
        max_position_embeddings=model.max_position_embeddings,
        window_len=model.window_len,
        eos_token_ids=model.eos_token_ids,
        world_size=1,
        rank=0,
    )


def on_two_ranks(work: Work) -> list[Any]:
    """Run `work` on both ranks, each in a process of its own; answers what each returned."""
    context = forked.context()
    port = free_port()
    pipes = [context.Pipe(duplex=False) for _ in range(WORLD_SIZE)]
    processes = [
        context.Process(target=_rank, args=(rank, port, work, sender))
        for rank, (_, sender) in enumerate(pipes)
    ]
    try:
        for process in processes:
            process.start()
        answers = []
        for receiver, _ in pipes:
            assert receiver.poll(TIMEOUT_S), "a rank did not answer"
            answers.append(receiver.recv())
        for process in processes:
            process.join(TIMEOUT_S)
        return answers
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
