"""A scheduler stepped by hand: the test says what the shard answers."""

from proto.contract import Batch, FinishReason, Generation, SampledToken, StepResult
from router.scheduler.allocator import Allocator
from router.scheduler.scheduler import Scheduler, SchedulerLimits
from router.scheduler.states import StateSlots
from tests.strategies import make_request


def make_scheduler(
    num_blocks: int = 16,
    block_size: int = 2,
    *,
    max_step_tokens: int = 16,
    max_batch_size: int = 8,
    max_steps_in_flight: int = 1,
    prefix_caching: bool = True,
    max_drafts: int = 0,
    num_states: int = 0,
    images_see_ahead: bool = False,
) -> Scheduler:
    limits = SchedulerLimits(
        max_step_tokens, max_batch_size, max_steps_in_flight, max_drafts, images_see_ahead
    )
    states = StateSlots(num_states) if num_states else None
    return Scheduler(limits, Allocator(num_blocks, block_size, prefix_caching, states))


def step(scheduler: Scheduler) -> Batch:
    batch = scheduler.schedule(now_s=0.0)
    assert batch is not None
    return batch


def token(request_id: int, token_id: int, reason: FinishReason | None = None) -> Generation:
    return Generation(request_id, (SampledToken(token_id, -0.5),), reason)


def answer(scheduler: Scheduler, batch: Batch, *generations: Generation) -> tuple[Generation, ...]:
    """The shard holds afterwards what it held before and what was new, less what ended."""
    ended = {g.request_id for g in generations if g.finish_reason or g.error}
    held = {*batch.running_ids, *(new.request_id for new in batch.new)}
    result = StepResult(batch.step_id, generations, tuple(held - ended))
    _, counted = scheduler.apply(result, now_s=0.0)
    return tuple(counted)


def run(scheduler: Scheduler, *generations: Generation) -> Batch:
    batch = step(scheduler)
    answer(scheduler, batch, *generations)
    scheduler.check_invariants()
    return batch


def chunks(batch: Batch) -> dict[int, int | None]:
    """Tokens to compute of the requests that the batch names; it need not name a decode."""
    said = {new.request_id: new.chunk_len for new in batch.new}
    return said | {update.request_id: update.chunk_len for update in batch.updates}


def fill_pool(num_requests: int, max_steps_in_flight: int = 1) -> tuple[Scheduler, Batch]:
    """Requests of one prompt token that decode; their pool is full after the step returned."""
    scheduler = make_scheduler(
        num_blocks=2 * num_requests, block_size=1, max_steps_in_flight=max_steps_in_flight
    )
    for request_id in range(num_requests):
        scheduler.add(request_id, make_request((request_id,), max_new_tokens=4), 0.0)
    first = step(scheduler)
    if max_steps_in_flight == 1:
        answer(scheduler, first, *tokens(num_requests, 10))
        return scheduler, step(scheduler)
    second = step(scheduler)
    answer(scheduler, first, *tokens(num_requests, 10))
    return scheduler, second


def tokens(num_requests: int, first_token_id: int) -> list[Generation]:
    return [token(request_id, first_token_id + request_id) for request_id in range(num_requests)]
