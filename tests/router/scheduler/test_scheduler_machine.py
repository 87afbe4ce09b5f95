"""The scheduler against a shard that checks all that it reads, under any order of events.

What a request gets must be what it would get alone, however it was chunked, preempted, resumed,
served from the cache or run ahead of, and nobody passes one of its key that came before it.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from os.path import commonprefix

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proto.contract import Batch, FinishReason, Generation
from router.request.request import ApiKey, GenerateRequest
from router.scheduler.allocator import Allocator
from router.scheduler.scheduler import Scheduler, SchedulerLimits
from router.scheduler.states import StateSlots
from tests.hypothesis_profiles import more_examples
from tests.router.scheduler.kv_shard import KvShard, RunStep, expected_output
from tests.strategies import make_request, requests, token_ids

KEYS = (ApiKey("one"), ApiKey("two"), ApiKey("heavy", weight=3.0))


@dataclass(slots=True)
class Tracked:
    """What the outside saw of a request."""

    request: GenerateRequest
    outputs: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    end: FinishReason | str | None = None
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class World:
    """A pool and a shard."""

    num_blocks: int
    block_size: int
    limits: SchedulerLimits
    prefix_caching: bool
    runs_late: bool
    seed: int
    keys: tuple[ApiKey, ...]
    num_states: int = 0


class SchedulerMachine(RuleBasedStateMachine):
    """Everything that the batcher may do, in any order."""

    @initialize(
        world=st.builds(
            World,
            num_blocks=st.integers(4, 16),
            block_size=st.integers(1, 4),
            limits=st.builds(
                SchedulerLimits,
                max_step_tokens=st.integers(1, 16),
                max_batch_size=st.integers(1, 5),
                max_steps_in_flight=st.integers(1, 3),
                max_drafts=st.sampled_from([0, 0, 1, 3]),
            ),
            prefix_caching=st.sampled_from([True, True, True, False]),
            runs_late=st.booleans(),
            seed=st.integers(0, 2**32 - 1),
            keys=st.sampled_from([KEYS[:1], KEYS[:2], KEYS]),
        )
    )
    def begin(self, world: World) -> None:
        self.world = world
        self.limits = world.limits
        self.seed = world.seed
        self.keys = world.keys
        self.max_total_len = world.num_blocks * world.block_size
        states = StateSlots(world.num_states) if world.num_states else None
        allocator = Allocator(world.num_blocks, world.block_size, world.prefix_caching, states)
        self.scheduler = Scheduler(world.limits, allocator)
        self.shard = KvShard(
            world.num_blocks,
            world.block_size,
            world.seed,
            is_ahead=world.limits.max_steps_in_flight > 1,
            runs_late=world.runs_late,
            max_drafts=world.limits.max_drafts,
            num_states=world.num_states,
        )
        self.in_flight: deque[RunStep] = deque()
        self.tracked: dict[int, Tracked] = {}
        self.resident: set[int] = set()
        self.now_s = 0.0

    @rule(
        data=st.data(),
        fault=st.sampled_from([None, None, None, None, 0, 1, 2]),
        is_ready=st.sampled_from([True, True, True, False]),
    )
    def add(self, data: st.DataObject, fault: int | None, is_ready: bool) -> None:
        self.submit(self.drawn_request(data), fault, is_ready=is_ready)

    def drawn_request(self, data: st.DataObject) -> GenerateRequest:
        return data.draw(requests(self.max_total_len, self.keys))

    def submit(self, request: GenerateRequest, fault: int | None, *, is_ready: bool) -> None:
        request_id = len(self.tracked)
        self.tracked[request_id] = Tracked(request, is_held=not is_ready)
        if fault is not None:
            self.shard.faults[request_id] = fault
        self.scheduler.add(request_id, request, self.now_s, is_ready=is_ready)

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """What one of them needed is ready."""
        held_ids = [key for key, tracked in self.tracked.items() if tracked.is_held]
        self.release_all([data.draw(st.sampled_from([*held_ids, len(self.tracked)]))])

    def release_all(self, request_ids: Iterable[int]) -> None:
        for request_id in request_ids:
            self.scheduler.release(request_id)
            if request_id in self.tracked:
                self.tracked[request_id].is_held = False

    @rule()
    def schedule(self) -> None:
        batch = self.scheduler.schedule(self.now_s)
        if batch is not None:
            self.check_budgets(batch)
            self.check_order(batch)
            self.in_flight.append(self.shard.run(batch))
            assert len(self.in_flight) <= self.limits.max_steps_in_flight

    @precondition(lambda self: self.in_flight)
    @rule()
    def apply(self) -> None:
        result = self.shard.answer(self.in_flight.popleft())
        plain, others = self.scheduler.apply(result, self.now_s)
        for generation in (*map(Generation.of_plain, plain), *others):
            self.record(generation)

    @rule(num_steps=st.integers(1, 6))
    def go_on(self, num_steps: int) -> None:
        """As the batcher does when nothing else happens."""
        for _ in range(num_steps):
            self.schedule()
            if self.in_flight:
                self.apply()

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """A live one, mostly; now and then one that ended or never was."""
        request_id = data.draw(st.sampled_from([*self.live_ids(), len(self.tracked) // 2]))
        self.scheduler.finish(request_id)
        if request_id in self.live_ids():
            self.tracked[request_id].end = "cancelled"

    @rule(data=st.data(), is_paused=st.booleans())
    def pause(self, data: st.DataObject, is_paused: bool) -> None:
        """Its reader does not keep up, or does again."""
        request_id = data.draw(st.sampled_from([*self.live_ids(), len(self.tracked)]))
        self.scheduler.pause(request_id, is_paused)

    @rule(elapsed_s=st.integers(1, 9))
    def expire(self, elapsed_s: int) -> None:
        self.now_s += elapsed_s
        late_ids = [
            request_id
            for request_id in self.live_ids()
            if (deadline_s := self.tracked[request_id].request.deadline_s) is not None
            and deadline_s <= self.now_s
        ]
        assert sorted(self.scheduler.expired(self.now_s)) == late_ids
        for request_id in late_ids:
            self.scheduler.finish(request_id)
            self.tracked[request_id].end = "expired"

    @rule(certainty=st.integers(0, 9))
    def fail(self, certainty: int) -> None:
        if certainty < 9:
            return
        failed_ids = self.scheduler.fail()
        assert set(failed_ids) <= set(self.live_ids())
        for request_id in failed_ids:
            self.tracked[request_id].end = "failed"
        self.in_flight.clear()
        self.resident.clear()
        self.shard.lose_everything()
        assert self.scheduler.stats().num_blocks_used == 0
        assert self.scheduler.stats().num_blocks_cached == 0
        assert self.scheduler.stats().num_states_used == 0
        assert self.scheduler.stats().num_states_kept == 0

    @invariant()
    def books_agree(self) -> None:
        self.scheduler.check_invariants()
        stats = self.scheduler.stats()
        assert stats.num_waiting + stats.num_running == len(self.live_ids())
        assert stats.num_cached_tokens <= stats.num_prompt_tokens

    def teardown(self) -> None:
        """Left alone, every request ends once, and all comes back."""
        if not hasattr(self, "tracked"):
            return
        for request_id in self.live_ids():
            self.scheduler.pause(request_id, False)
        self.release_all(self.tracked)
        lives = [self.tracked[request_id].request for request_id in self.live_ids()]
        num_tokens = sum(len(life.prompt_ids) + life.stop.max_new_tokens for life in lives)
        num_rounds = 10 + 3 * (len(lives) + 1) * num_tokens
        while self.scheduler.has_work:
            self.schedule()
            if self.in_flight:
                self.apply()
            self.books_agree()
            num_rounds -= 1
            assert num_rounds > 0, f"{self.live_ids()} starve"
        assert not self.live_ids()
        assert not self.shard.held_ids
        assert self.scheduler.stats().num_blocks_used == 0
        assert self.scheduler.stats().num_states_used == 0

    def live_ids(self) -> list[int]:
        return [key for key, tracked in self.tracked.items() if tracked.end is None]

    def check_budgets(self, batch: Batch) -> None:
        assert batch.num_tokens <= self.limits.max_step_tokens
        assert len(batch.running_ids) + len(batch.new) <= self.limits.max_batch_size
        assert batch.has_work or batch.dropped_ids
        new_ids = [new.request_id for new in batch.new]
        assert not set(new_ids) & (set(batch.dropped_ids) | set(batch.running_ids))

    def check_order(self, batch: Batch) -> None:
        """Of a key's that are in no batch the oldest enters, save those that await a prefix."""
        self.resident -= set(batch.dropped_ids)
        for new in batch.new:
            assert not self.tracked[new.request_id].is_held
            for request_id in self.live_ids():
                is_passed = request_id < new.request_id and request_id not in self.resident
                is_passed &= self.key_of(request_id) == self.key_of(new.request_id)
                if is_passed and not self.tracked[request_id].is_held:
                    assert self.may_be_passed(request_id), "one that came before was passed"
            self.resident.add(new.request_id)

    def may_be_passed(self, request_id: int) -> bool:
        """It begins as one that is in a batch, with blocks enough to be worth a step."""
        tokens = self.tokens_of(request_id)
        return self.world.prefix_caching and any(
            len(commonprefix([tokens, self.tokens_of(other)])) >= 4 * self.world.block_size
            for other in self.resident
        )

    def key_of(self, request_id: int) -> ApiKey:
        return self.tracked[request_id].request.key

    def tokens_of(self, request_id: int) -> tuple[int, ...]:
        tracked = self.tracked[request_id]
        return (*tracked.request.prompt_ids, *tracked.request.output_ids, *tracked.outputs)

    def record(self, generation: Generation) -> None:
        tracked = self.tracked[generation.request_id]
        assert tracked.end is None, "a generation after the end"
        tracked.outputs += [token.token_id for token in generation.tokens]
        tracked.logprobs += generation.prompt_logprobs
        expected, reason = expected_output(tracked.request, self.seed)
        assert tuple(tracked.outputs) == expected[: len(tracked.outputs)]
        if tracked.request.logprobs.prompt and tracked.outputs:
            # A prompt's positions, each once.
            first = tracked.request.logprobs.first_scored
            positions = range(first, len(tracked.request.prompt_ids))
            assert tracked.logprobs == [float(position) for position in positions]
        if generation.error is not None:
            tracked.end = generation.error
            num_outputs = len(tracked.request.output_ids) + len(tracked.outputs)
            assert self.shard.faults[generation.request_id] == num_outputs
        elif generation.finish_reason is not None:
            tracked.end = generation.finish_reason
            assert (tuple(tracked.outputs), generation.finish_reason) == (expected, reason)


class StatesMachine(SchedulerMachine):
    """Of a model with states: prompts that begin alike, and fewer slots than blocks."""

    @initialize(
        world=st.builds(
            World,
            num_blocks=st.integers(8, 40),
            block_size=st.integers(1, 2),
            limits=st.builds(
                SchedulerLimits,
                max_step_tokens=st.integers(4, 16),
                max_batch_size=st.integers(1, 5),
                max_steps_in_flight=st.integers(1, 3),
                max_drafts=st.sampled_from([0, 0, 3]),
            ),
            prefix_caching=st.sampled_from([True, True, True, True, True, False]),
            runs_late=st.booleans(),
            seed=st.integers(0, 2**32 - 1),
            keys=st.sampled_from([KEYS[:1], KEYS[:1], KEYS[:2]]),
            num_states=st.integers(2, 9),
        )
    )
    def begin(self, world: World) -> None:
        super().begin(world)
        self.max_total_len = min(16, self.max_total_len)

    @precondition(lambda self: self.tracked)
    @rule(data=st.data(), num_turns=st.integers(1, 8))
    def go_on_with(self, data: st.DataObject, num_turns: int) -> None:
        """Further turns of chats, the same again, or what leaves their beginning."""
        for _ in range(num_turns):
            before = self.tokens_of(data.draw(st.integers(0, len(self.tracked) - 1)))
            most = self.max_total_len - 1
            shared_len = data.draw(st.one_of(st.just(most), st.integers(1, len(before))))
            prompt_ids = (before[:shared_len] + data.draw(token_ids(0, 3)))[:most]
            room = self.max_total_len - len(prompt_ids)
            request = make_request(
                prompt_ids,
                data.draw(st.integers(1, room)),
                is_constrained=data.draw(st.booleans()),
                key=data.draw(st.sampled_from(self.keys)),
            )
            fault = data.draw(st.sampled_from([None, None, None, None, None, 0, 1]))
            self.submit(request, fault, is_ready=True)
            self.go_on(data.draw(st.integers(0, 6)))


class ImagesMachine(SchedulerMachine):
    """Prompts with images, few of which are new."""

    @initialize(
        world=st.builds(
            World,
            num_blocks=st.integers(8, 24),
            block_size=st.integers(1, 3),
            limits=st.builds(
                SchedulerLimits,
                max_step_tokens=st.integers(12, 20),
                max_batch_size=st.integers(1, 5),
                max_steps_in_flight=st.integers(1, 3),
                max_drafts=st.sampled_from([0, 0, 3]),
                images_see_ahead=st.booleans(),
            ),
            prefix_caching=st.sampled_from([True, True, True, False]),
            runs_late=st.booleans(),
            seed=st.integers(0, 2**32 - 1),
            keys=st.sampled_from([KEYS[:1], KEYS[:2]]),
        )
    )
    def begin(self, world: World) -> None:
        super().begin(world)
        self.max_total_len = min(32, self.max_total_len)
        # How much of each is computed, or is as soon as the steps in flight are.
        self.sent_lens: dict[int, int] = {}

    def drawn_request(self, data: st.DataObject) -> GenerateRequest:
        max_span_len = self.limits.max_step_tokens - self.limits.max_batch_size
        return data.draw(requests(self.max_total_len, self.keys, max_span_len))

    def check_budgets(self, batch: Batch) -> None:
        super().check_budgets(batch)
        chunks = {update.request_id: update.chunk_len or 0 for update in batch.updates}
        for new in batch.new:
            self.sent_lens[new.request_id] = new.cached_len
            chunks[new.request_id] = new.chunk_len
            request = self.tracked[new.request_id].request
            assert new.token_ids[: new.prompt_len] == request.prompt_ids
            assert new.images == request.images
        for request_id, chunk_len in chunks.items():
            start = self.sent_lens[request_id]
            stop = self.sent_lens[request_id] = start + chunk_len
            for image in self.tracked[request_id].request.images:
                if chunk_len and image.start < stop and start < image.stop:
                    cuts = stop < image.stop and self.limits.images_see_ahead
                    assert not cuts, "a chunk ends inside of an image that sees ahead"


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    more_examples(3),
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestImages = ImagesMachine.TestCase
# Beside what all of them share: where chunks may end, and what is given back with an image.
TestImages.settings = settings(TestScheduler.settings, max_examples=more_examples(1).max_examples)
TestStates = StatesMachine.TestCase
TestStates.settings = settings(TestScheduler.settings, max_examples=more_examples(2).max_examples)
