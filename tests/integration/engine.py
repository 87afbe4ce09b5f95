"""Both tiers in one process: the router below HTTP, wired to a real shard on the CPU."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client import CollectorRegistry

from model_server.engine.distributed import World
from model_server.engine.runner import Runner
from model_server.errors import ShardError
from model_server.executor.executor import PagedModel
from model_server.loading import new_sampler
from model_server.masking.constraint_cache import ConstraintCache
from model_server.masking.mask_scheduler import MaskScheduler
from model_server.service.device_thread import DeviceThread
from model_server.service.server import listening
from model_server.service.service import TextGenerationService
from router.engine.batcher import Batcher
from router.engine.infer import Infer
from router.engine.observer import StepObserver
from router.request.request import Finished, GenerateRequest, PromptScored, TokenGenerated
from router.scheduler.allocator import Allocator
from router.scheduler.scheduler import Scheduler, SchedulerLimits
from router.shards.shards import Shards
from router.telemetry.metrics import Metrics
from router.text.tokenizer import Tokenizer
from tests.checks import FakeChecks
from tests.model_server.engine.driver import info_of, load
from tests.router.rig import PATIENT, RESTLESS, end_of, events_of


@dataclass(frozen=True)
class Told:
    """All that a client was told of one request."""

    prompt: PromptScored | None
    tokens: tuple[TokenGenerated, ...]
    end: Finished

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(event.token.token_id for event in self.tokens)

    @property
    def logprobs(self) -> tuple[float | None, ...]:
        return tuple(event.token.logprob for event in self.tokens)

    @property
    def pieces(self) -> tuple[str, ...]:
        """What each token let the client see."""
        return tuple(event.text for event in self.tokens)


@dataclass
class Engine:
    """A running router, and what a test may look at."""

    model: PagedModel
    tokenizer: Tokenizer
    batcher: Batcher
    infer: Infer
    scheduler: Scheduler
    registry: CollectorRegistry

    async def told(self, request: GenerateRequest) -> Told:
        """The whole answer to a request. A Failed one is the test's failure."""
        return (await self.told_all([request]))[0]

    async def told_all(self, requests: Sequence[GenerateRequest]) -> list[Told]:
        """The answers to requests that run together."""
        streams = self.batcher.submit_all(requests)
        return [_told(await events_of(stream)) for stream in streams]


def _told(events: Sequence[object]) -> Told:
    scored = [event for event in events if isinstance(event, PromptScored)]
    tokens = tuple(event for event in events if isinstance(event, TokenGenerated))
    return Told(scored[0] if scored else None, tokens, end_of(events))  # type: ignore[arg-type]


@asynccontextmanager
async def running_engine(
    folder: Path,
    *,
    max_step_tokens: int = 512,
    max_batch_size: int = 16,
    num_blocks: int = 256,
    prefix_caching: bool = True,
    max_steps_in_flight: int = 2,
    max_drafts: int = 0,
    followed: Callable[[ConstraintCache], ConstraintCache] = lambda languages: languages,
) -> AsyncIterator[Engine]:
    """A router over a shard that loads `folder` in float32; in the end every block is back.

    `followed` are the languages by which masks are made, of those that are compiled.
    """
    with DeviceThread() as device, TemporaryDirectory() as sockets:
        address = Path(sockets) / "shard"
        model = device.submit(load, folder, World()).result()
        languages = ConstraintCache(folder, model.vocab_size, model.eos_token_ids)
        guides = MaskScheduler(
            followed(languages), model.vocab_size, model.eos_token_ids, num_threads=1
        )
        sampler = new_sampler(model, max_rows=16)
        runner = Runner(model, sampler, World(), guides=guides, num_blocks=num_blocks)
        urls = (f"unix://{address}",)
        service = TextGenerationService(runner, info_of(model), urls, device, constraints=languages)
        async with listening(service, address, _unexpected):
            shards = await Shards.connect(urls[0], PATIENT, first_epoch=1)
            pool = await shards.warmup(max_step_tokens, max_batch_size, None)
            allocator = Allocator(pool.num_blocks, pool.block_size, prefix_caching)
            limits = SchedulerLimits(
                max_step_tokens, max_batch_size, max_steps_in_flight, max_drafts=max_drafts
            )
            scheduler = Scheduler(limits, allocator)
            tokenizer = Tokenizer.load(folder)
            registry = CollectorRegistry()
            metrics = Metrics(registry, max_input_len=512, max_total_len=1024)
            observer = StepObserver(metrics, pool.block_size)
            batcher = Batcher(scheduler, shards, tokenizer, observer, RESTLESS)
            running = asyncio.ensure_future(batcher.run())
            infer = Infer(batcher, FakeChecks())
            try:
                yield Engine(model, tokenizer, batcher, infer, scheduler, registry)
            finally:
                await batcher.drain(0.0)
                await asyncio.wait_for(running, 30)
                scheduler.check_invariants()
                await shards.close()
                tokenizer.close()


def _unexpected(error: ShardError) -> None:
    raise AssertionError(f"the shard is unfit: {error}")
