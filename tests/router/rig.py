"""A whole router below HTTP, wired to fake shards over real gRPC, for tests.

The limits of the server whose validation is tested, and the seed that it draws.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from prometheus_client import CollectorRegistry

from constraints.spec import ConstraintSpec, Kind
from proto.contract import LogprobParams, SamplingParams, StopParams
from router.engine.adapters import Adapters
from router.engine.batcher import NO_LAUNCHER, Batcher, BatcherLimits
from router.engine.constraints import ConstraintCheck
from router.engine.infer import Infer
from router.engine.launcher import Launcher
from router.engine.observer import StepObserver
from router.engine.stream import Stream
from router.engine.validation import Limits
from router.request.request import (
    Constraint,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    TokenGenerated,
)
from router.scheduler.allocator import Allocator
from router.scheduler.scheduler import Scheduler, SchedulerLimits
from router.scheduler.states import StateSlots
from router.shards.shards import Shards, ShardTimeouts
from router.telemetry.metrics import Metrics
from router.telemetry.tracing import NO_TRACES, Tracer
from router.text.tokenizer import Tokenizer
from tests.byte_tokenizer import byte_ids, save_byte_tokenizer
from tests.checks import FakeChecks
from tests.fake_script import CAPITAL, letters, saying
from tests.fakes import FakeShard, serving

PLAIN = SamplingParams()
NO_LOGPROBS = LogprobParams()
RESTLESS = BatcherLimits(retry_s=0.05, tick_s=0.02)
# A step may be late by what a busy machine stands still for once in seven thousand tests.
QUICK = ShardTimeouts(connect_s=5.0, warmup_s=5.0, step_s=3.0, control_s=3.0, lockstep_s=0.2)
ANY_TEXT = Constraint(ConstraintSpec(Kind.REGEX, "(?s:.*)"))
# For tests that keep the machine busy: a late step is no fault there.
PATIENT = ShardTimeouts(connect_s=20.0, warmup_s=20.0, step_s=20.0, control_s=20.0)
PROMPT = "Once upon"
MODEL_NAMES = ("fake/model", "model")


@cache
def byte_tokenizer() -> Tokenizer:
    """One for all tests; its threads start when first needed, which is never here."""
    with TemporaryDirectory() as folder:
        return Tokenizer.load(save_byte_tokenizer(Path(folder)))


@dataclass
class Rig:
    """What a test may look at."""

    batcher: Batcher
    infer: Infer
    scheduler: Scheduler
    shards: Shards
    metrics: Metrics
    running: "asyncio.Future[None]"
    adapters: Adapters


def asking(
    prompt: str = PROMPT,
    max_new_tokens: int = 6,
    *,
    stop: tuple[str, ...] = (),
    keep_stop_string: bool = True,
    stop_token_ids: tuple[int, ...] = (),
    ignore_eos: bool = False,
    deadline_s: float | None = None,
    logprobs: LogprobParams = NO_LOGPROBS,
    sampling: SamplingParams = PLAIN,
    skip_special_tokens: bool = True,
    constraint: Constraint | None = None,
    adapter_id: int | None = None,
) -> GenerateRequest:
    """A request as validation would make it."""
    return GenerateRequest(
        tuple(byte_ids(prompt)),
        prompt,
        sampling,
        StopParams(
            max_new_tokens,
            ignore_eos=ignore_eos,
            stop_strings=stop,
            stop_token_ids=stop_token_ids,
            keep_stop_string=keep_stop_string,
        ),
        logprobs,
        constraint,
        skip_special_tokens=skip_special_tokens,
        deadline_s=deadline_s,
        cache_salt=b"" if adapter_id is None else b"%d" % adapter_id,
        adapter_id=adapter_id,
    )


def adapter_folder(parent: Path, name: str) -> str:
    """A LoRA adapter, as far as a fake shard looks."""
    folder = parent / name
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    return str(folder)


@asynccontextmanager
async def routing(
    *ranks: FakeShard,
    max_step_tokens: int = 64,
    max_batch_size: int = 8,
    timeouts: ShardTimeouts = QUICK,
    limits: BatcherLimits = RESTLESS,
    clock: Callable[[], float] = monotonic,
    prefix_caching: bool = True,
    scheduler_class: type[Scheduler] = Scheduler,
    tracer: Tracer = NO_TRACES,
    checks: ConstraintCheck | None = None,
    launcher: Launcher = NO_LAUNCHER,
    states: StateSlots | None = None,
) -> AsyncIterator[Rig]:
    """A router that runs; in the end all blocks must be back and none may have been misused."""
    async with serving(*ranks) as address:
        shards = await Shards.connect(address, timeouts, first_epoch=1, tracer=tracer)
        pool = await shards.warmup(max_step_tokens, max_batch_size, None)
        allocator = Allocator(pool.num_blocks, pool.block_size, prefix_caching, states)
        scheduler = scheduler_class(SchedulerLimits(max_step_tokens, max_batch_size), allocator)
        metrics = Metrics(CollectorRegistry(), max_input_len=64, max_total_len=128)
        observer = StepObserver(metrics, pool.block_size, tracer)
        adapters = Adapters(shards, ranks[0].max_loras, MODEL_NAMES)
        batcher = Batcher(
            scheduler,
            shards,
            byte_tokenizer(),
            observer,
            limits,
            clock,
            launcher,
            adapters=adapters,
        )
        running = asyncio.ensure_future(batcher.run())
        rig = Rig(
            batcher,
            Infer(batcher, checks or FakeChecks()),
            scheduler,
            shards,
            metrics,
            running,
            adapters,
        )
        try:
            yield rig
        finally:
            await batcher.drain(0.0)
            await asyncio.wait_for(rig.running, 20.0)
            scheduler.check_invariants()
            await shards.close()
    assert [rank.violations for rank in ranks] == [[] for _ in ranks]


def an_hour_ahead(shard: FakeShard, num_steps: int = 8) -> Callable[[], float]:
    """A clock that jumps once the shard has answered so many steps: deadlines pass then."""
    num_answered = 0

    def count(_: object) -> None:
        nonlocal num_answered
        num_answered += 1

    shard.faults.spoil = count
    return lambda: monotonic() + (3600.0 if num_answered >= num_steps else 0.0)


async def settled(rig: Rig) -> None:
    """Until nothing waits, runs or is to be dropped."""
    deadline_s = monotonic() + 20.0
    while rig.scheduler.has_work or rig.batcher.num_streams:
        assert monotonic() < deadline_s, "the router did not come to rest"
        await asyncio.sleep(0.002)


async def until(holds: Callable[[], bool]) -> None:
    """Until it does, within a few seconds."""
    deadline_s = monotonic() + 20.0
    while not holds():
        assert monotonic() < deadline_s, "it never came to pass"
        await asyncio.sleep(0.005)


async def events_of(stream: Stream) -> list[Event]:
    """All events, to the end; the end must come once and last."""
    events: list[Event] = []
    while burst := await asyncio.wait_for(stream.take(), 20.0):
        events += burst
    ends = [event for event in events if isinstance(event, Finished | Failed)]
    assert len(ends) == 1
    assert events[-1] is ends[0]
    return events


def end_of(events: Sequence[Event]) -> Finished:
    """The good end."""
    end = events[-1]
    assert isinstance(end, Finished), end
    return end


def error_of(events: Sequence[Event]) -> Exception:
    """The error of the bad end."""
    end = events[-1]
    assert isinstance(end, Failed), end
    return end.error


def texts_of(events: Sequence[Event]) -> list[str]:
    """What each token let the client see."""
    return [event.text for event in events if isinstance(event, TokenGenerated)]


def expected_text(prompt: str, num_tokens: int, *, with_adapter: bool = False) -> str:
    """What a FakeShard of letters says after this prompt."""
    token_ids = byte_ids(prompt)
    for _ in range(num_tokens):
        token_ids.append(letters(token_ids) + (CAPITAL if with_adapter else 0))
    return bytes(token_id - 2 for token_id in token_ids[len(prompt) :]).decode()


def says(text: str, prompt: str = PROMPT) -> FakeShard:
    """A shard that says this after the prompt, and ends."""
    return FakeShard(script=saying(text, len(byte_ids(prompt))))


def methods(shard: FakeShard) -> list[str]:
    """What the shard was called for."""
    return [method for method, _ in shard.calls]


VALIDATION_LIMITS = Limits(max_input_len=24, max_total_len=32, vocab_size=500)
SEED = 17
