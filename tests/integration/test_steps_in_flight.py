"""Scheduler and shard with one step in flight and with two: every request gets the same tokens.

So it does of a model with states, whether it begins with kept ones or not.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_server.engine.distributed import World
from model_server.executor.executor import PagedModel
from proto.contract import (
    Batch,
    FinishReason,
    Generation,
    LogprobParams,
    SamplingParams,
    StepResult,
    StopParams,
)
from router.request.request import GenerateRequest
from router.scheduler.allocator import Allocator
from router.scheduler.scheduler import Scheduler, SchedulerLimits
from router.scheduler.states import StateSlots
from tests.hypothesis_profiles import fewer_examples
from tests.model_server.checkpoint import tiny_models
from tests.model_server.engine.driver import load, runner_of
from tests.model_server.executor.decoders import decoder
from tests.model_server.executor.test_dense_cuda import run_again

_POOL_BLOCKS = 6
_POOL_STATES = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    return load(tiny_models.save("llama", tmp_path_factory.mktemp("llama")), World())


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    return load(tiny_models.save("qwen3_5", tmp_path_factory.mktemp("qwen3_5")), World())


@pytest.fixture(scope="module")
def on_device() -> PagedModel:
    """As GPUs compute it, in plain torch; decode steps over the tensors that graphs read."""
    own = decoder("qwen3_5", num_hidden_layers=2, layer_types=None, full_attention_interval=2)
    return PagedModel(
        own.on_device(torch.float32, new_capture=lambda: run_again),
        model_type="qwen3_5_text",
        dtype=torch.float32,
        device=torch.device("cpu"),
        vocab_size=own.recipe.head.rows.count,
        max_position_embeddings=256,
        window_len=None,
        eos_token_ids=(),
    )


@dataclass(frozen=True)
class Client:
    """A request, the step before which it comes, and its end by the router.

    `stops_at`: tokens of output after which the router ends it, for a stop string or a client that
    left. `is_slow`: its reader misses every third step.
    """

    request: GenerateRequest
    arrival: int
    stops_at: int | None
    is_slow: bool


@st.composite
def clients(draw: st.DrawFn) -> Client:
    """Few prompts, so that they share beginnings; few blocks, so that they preempt each other."""
    first = draw(st.sampled_from([5, 40]))
    prompt_ids = tuple(range(first, first + draw(st.integers(1, 40))))
    sampling = SamplingParams(do_sample=draw(st.booleans()), seed=draw(st.integers(0, 3)))
    stop = StopParams(draw(st.integers(1, 24)), stop_token_ids=tuple(range(8)))
    logprobs = LogprobParams(prompt=draw(st.booleans()))
    return Client(
        GenerateRequest(prompt_ids, "", sampling, stop, logprobs),
        arrival=draw(st.integers(0, 20)),
        stops_at=draw(st.sampled_from([None, None, 1, 5])),
        is_slow=draw(st.booleans()),
    )


@dataclass(slots=True)
class Answer:
    """What a request got."""

    token_ids: tuple[int, ...] = ()
    num_scores: int = 0
    reason: FinishReason | None = None


class Loop:
    """The router's loop around a shard, without text and without a wire."""

    def __init__(
        self,
        model: PagedModel,
        clients: Sequence[Client],
        num_in_flight: int,
        *,
        prefix_caching: bool = True,
    ) -> None:
        self._runner = runner_of(model, World())
        self._runner.warmup(
            max_step_tokens=32,
            max_batch_size=4,
            max_total_len=None,
            num_blocks=_POOL_BLOCKS,
            num_states=_POOL_STATES,
        )
        limits = SchedulerLimits(24, 4, num_in_flight)
        states = StateSlots(_POOL_STATES) if model.state_bytes else None
        allocator = Allocator(_POOL_BLOCKS, model.block_size, prefix_caching, states)
        self._scheduler = Scheduler(limits, allocator)
        self._clients = clients
        self._num_in_flight = num_in_flight
        self.answers = [Answer() for _ in clients]
        self.num_preemptions = 0
        self.num_cached_tokens = 0

    def run(self) -> None:
        """Until all requests have ended."""
        in_flight: deque[StepResult] = deque()
        turn = 0
        last = max(client.arrival for client in self._clients)
        while self._scheduler.has_work or turn <= last:
            self._arrive(turn)
            while (batch := self._scheduler.schedule(0.0)) is not None:
                in_flight.append(self._computed(batch))
            assert len(in_flight) <= self._num_in_flight
            if in_flight:
                self._apply(in_flight.popleft())
            self._scheduler.check_invariants()
            turn += 1
            assert turn < 3000, "requests starve"
        self.num_preemptions = self._scheduler.stats().num_preemptions
        self.num_cached_tokens = self._scheduler.stats().num_cached_tokens
        assert self._scheduler.stats().num_blocks_used == 0

    def _arrive(self, turn: int) -> None:
        for request_id, client in enumerate(self._clients):
            if client.arrival == turn:
                self._scheduler.add(request_id, client.request, 0.0)
            if client.is_slow:
                self._scheduler.pause(request_id, turn % 3 == 0)

    def _computed(self, batch: Batch) -> StepResult:
        """The step's result. It runs when it is sent, as the shard runs steps in their order."""
        output = self._runner.step(batch.new, batch.updates, batch.dropped_ids)
        plain = list(zip(*output.plain, strict=True))
        return StepResult(batch.step_id, output.others, output.request_ids, plain=plain)

    def _apply(self, result: StepResult) -> None:
        plain, others = self._scheduler.apply(result, 0.0)
        for generation in (*map(Generation.of_plain, plain), *others):
            answer = self.answers[generation.request_id]
            client = self._clients[generation.request_id]
            assert answer.reason is None, "a generation after the end"
            assert generation.error is None
            answer.token_ids += tuple(token.token_id for token in generation.tokens)
            answer.num_scores += len(generation.prompt_logprobs)
            answer.reason = generation.finish_reason
            if answer.reason is None and len(answer.token_ids) == client.stops_at:
                answer.reason = FinishReason.STOP_STRING
                self._scheduler.finish(generation.request_id)


def _answers(
    model: PagedModel, each: Sequence[Client], num_in_flight: int, *, prefix_caching: bool = True
) -> Loop:
    loop = Loop(model, each, num_in_flight, prefix_caching=prefix_caching)
    loop.run()
    return loop


@given(st.lists(clients(), min_size=1, max_size=6))
@settings(
    max_examples=25,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_leavers_stops_pauses_and_preemption_change_no_token(
    model: PagedModel, each: Sequence[Client]
) -> None:
    one, two = (_answers(model, each, num_in_flight) for num_in_flight in (1, 2))
    assert one.answers == two.answers


@given(st.lists(clients(), min_size=1, max_size=6))
@settings(
    fewer_examples(5),
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_nor_do_states_that_are_kept_and_begun_with(
    hybrid: PagedModel, each: Sequence[Client]
) -> None:
    one = _answers(hybrid, each, 1, prefix_caching=False)
    two = _answers(hybrid, each, 2)
    assert one.answers == two.answers


@pytest.mark.parametrize("executor", ["hybrid", "on_device"])
def test_kept_states_are_begun_with(executor: str, request: pytest.FixtureRequest) -> None:
    hybrid: PagedModel = request.getfixturevalue(executor)
    assert hybrid.keeps_states
    stop = StopParams(6, ignore_eos=True)
    each = [
        Client(GenerateRequest((9,) * num_tokens, "", SamplingParams(), stop), turn, None, False)
        for turn, num_tokens in ((0, 40), (20, 40), (20, 50), (40, 60))
    ]
    whole = _answers(hybrid, each, 1, prefix_caching=False)
    kept = _answers(hybrid, each, 2)
    assert kept.answers == whole.answers
    assert kept.num_cached_tokens >= 32 * 3


def test_the_pool_of_these_tests_preempts(model: PagedModel) -> None:
    stop = StopParams(24, ignore_eos=True)
    each = [
        Client(GenerateRequest((index + 9,) * 12, "", SamplingParams(), stop), 0, None, False)
        for index in range(4)
    ]
    one, two = (_answers(model, each, num_in_flight) for num_in_flight in (1, 2))
    preempted: Mapping[int, int] = {1: one.num_preemptions, 2: two.num_preemptions}
    assert min(preempted.values()) > 0
    assert one.answers == two.answers
