"""The runner: steps change the books once and wholly, or not at all.

What fails is one row alone, or the step. Tokens are the same whether or not a step is launched
before the one before it is read, and with draft tokens, which change the number of steps alone.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model_server.engine.distributed import World
from model_server.engine.runner import Runner
from model_server.errors import InvalidStep, NoBatch, OutOfMemory
from model_server.executor.executor import PagedModel
from model_server.mixers import Mixer, MixerCache
from model_server.step import StepInputs, StepOutput
from proto.contract import (
    FinishReason,
    LogprobParams,
    NewSequence,
    RunningUpdate,
    SamplingParams,
    StopParams,
)
from tests.model_server.checkpoint import tiny_models
from tests.model_server.engine.driver import (
    NUM_BLOCKS,
    AheadDriver,
    Driver,
    driver_of,
    load,
    num_states,
    runner_of,
    warmed_up,
)

PROMPT = tuple(range(10, 30))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    return load(tiny_models.save("llama", tmp_path_factory.mktemp("llama")), World())


@pytest.fixture
def runner(model: PagedModel) -> Runner:
    return warmed_up(model)


@pytest.fixture
def driver(model: PagedModel) -> Driver:
    return driver_of(model)


def new(request_id: int, **changes: Any) -> NewSequence:
    """A request of 20 prompt tokens, computed at once."""
    fields: dict[str, Any] = {
        "request_id": request_id,
        "token_ids": PROMPT,
        "prompt_len": 20,
        "cached_len": 0,
        "chunk_len": 20,
        "block_ids": (request_id * 3, request_id * 3 + 1, request_id * 3 + 2),
        "sampling": SamplingParams(),
        "stop": StopParams(max_new_tokens=8),
        "logprobs": LogprobParams(),
        **changes,
    }
    return NewSequence(**fields)


def token_ids(output: StepOutput) -> dict[int, list[int]]:
    return {
        generation.request_id: [token.token_id for token in generation.tokens]
        for generation in output.generations
    }


def test_a_prompt_gives_a_token_and_goes_on(runner: Runner) -> None:
    output = runner.step([new(1)])
    assert output.request_ids == (1,)
    assert len(token_ids(output)[1]) == 1
    assert output.total_ns >= output.forward_ns + output.sample_ns > 0


def test_a_step_in_which_all_sit_out_computes_nothing(runner: Runner) -> None:
    runner.step([new(1)])
    output = runner.step((), [RunningUpdate(1, chunk_len=0)])
    assert output.generations == ()
    assert output.request_ids == (1,)
    assert output.forward_ns == 0


def test_a_prompt_in_chunks_samples_with_its_last_one(runner: Runner) -> None:
    whole = token_ids(runner.step([new(1)]))[1]
    runner.clear()
    first = runner.step([new(2, chunk_len=7)])
    between = runner.step((), [RunningUpdate(2, chunk_len=7)])
    waiting = runner.step()
    last = runner.step((), [RunningUpdate(2, chunk_len=6)])
    assert (first.generations, between.generations, waiting.generations) == ((), (), ())
    assert token_ids(last)[2] == whole


def test_new_requests_join_those_that_run_in_one_step(runner: Runner) -> None:
    runner.step([new(1)])
    output = runner.step([new(2)])
    assert output.request_ids == (1, 2)
    assert set(token_ids(output)) == {1, 2}


def test_a_filter_keeps_the_named(runner: Runner) -> None:
    runner.step([new(1), new(2), new(3)])
    assert runner.filter([3, 1, 99]) == (1, 3)
    assert set(token_ids(runner.step())) == {1, 3}
    assert runner.filter([]) == ()
    assert runner.step().request_ids == ()


def test_before_the_first_request_there_is_no_batch(runner: Runner) -> None:
    for call in (runner.step, lambda: runner.filter([1])):
        with pytest.raises(NoBatch, match="no batch is held here"):
            call()


def test_a_cleared_shard_holds_nothing_and_takes_the_same_requests_again(runner: Runner) -> None:
    before = runner.step([new(1)])
    runner.step([new(2)])
    runner.clear()
    with pytest.raises(NoBatch):
        runner.step()
    after = runner.step([new(1)])
    assert token_ids(after) == token_ids(before)


def test_growth_of_a_request_that_is_gone_is_passed_over(runner: Runner) -> None:
    runner.step([new(1)])
    output = runner.step((), [RunningUpdate(99, (40,))])
    assert set(token_ids(output)) == {1}


@pytest.mark.parametrize(
    ("stop", "reason", "num_tokens"),
    [
        (lambda tokens: StopParams(max_new_tokens=3), FinishReason.LENGTH, 3),
        (
            lambda tokens: StopParams(max_new_tokens=8, stop_token_ids=(tokens[3],)),
            FinishReason.STOP_TOKEN,
            4,
        ),
    ],
)
def test_an_ended_sequence_leaves(
    model: PagedModel,
    driver: Driver,
    stop: Callable[[list[int]], StopParams],
    reason: FinishReason,
    num_tokens: int,
) -> None:
    driver.add(1, PROMPT, 8)
    driver.run()
    answer = driver.outputs[1]
    assert answer[3] not in answer[:3]

    runner = warmed_up(model)
    output = runner.step([new(1, stop=stop(answer))])
    while output.request_ids:
        output = runner.step()
        num_tokens -= 1
    assert num_tokens == 1
    assert output.generations[0].finish_reason is reason
    assert output.request_ids == ()


def test_the_end_token_ends_a_sequence_unless_ignored(model: PagedModel, driver: Driver) -> None:
    driver.add(1, PROMPT, 8)
    driver.run()
    answer = driver.outputs[1]
    model.eos_token_ids = (answer[3],)
    try:
        ending = driver_of(model)
        ending.add(1, PROMPT, 8)
        ending.add(2, PROMPT, 8, ignore_eos=True)
        ending.run()
    finally:
        model.eos_token_ids = ()
    assert ending.requests[1].finish_reason is FinishReason.EOS
    assert ending.outputs[1] == answer[:4]
    assert ending.outputs[2] == answer


def test_a_seed_means_the_same_alone_and_in_company(model: PagedModel, driver: Driver) -> None:
    warm = SamplingParams(do_sample=True, temperature=1.5, seed=3)
    alone = driver_of(model, seed=1)
    alone.add(1, PROMPT, 10, sampling=warm)
    alone.run()
    driver.add(7, PROMPT[:3], 10, sampling=SamplingParams(do_sample=True, seed=4))
    driver.add(1, PROMPT, 10, sampling=warm)
    driver.run(step_tokens=6)
    assert driver.outputs[1] == alone.outputs[1]


def test_a_seed_means_the_same_after_a_preemption(model: PagedModel, driver: Driver) -> None:
    warm = SamplingParams(do_sample=True, temperature=1.5, seed=3, repetition_penalty=1.2)
    alone = driver_of(model)
    alone.add(1, PROMPT, 10, sampling=warm)
    alone.run()
    driver.add(1, PROMPT, 10, sampling=warm)
    for _ in range(5):
        driver.step()
    driver.preempt(1)
    driver.run(step_tokens=9)
    assert driver.outputs[1] == alone.outputs[1]


@pytest.mark.parametrize("step_tokens", [1, 6, 19, 20, 64])
def test_prompt_logprobs_are_those_of_the_model_across_chunks(
    model: PagedModel, driver: Driver, step_tokens: int
) -> None:
    request = driver.add(
        1, PROMPT, 2, logprobs=LogprobParams(num_top_tokens=2, raw=True, prompt=True)
    )
    driver.run(step_tokens)
    scores = [score for g in request.generations for score in g.prompt_logprobs]
    rivals = [tokens for g in request.generations for tokens in g.prompt_top_tokens]

    logits = tiny_models.build("llama")(torch.tensor([PROMPT])).logits[0].detach()
    expected = logits.log_softmax(-1)[torch.arange(19), torch.tensor(PROMPT[1:])]
    assert scores == pytest.approx(expected.tolist(), abs=1e-4)
    best = logits.topk(2).indices[:19].tolist()
    assert [[token.token_id for token in tokens] for tokens in rivals] == best


def test_prompt_logprobs_begin_after_a_cached_prefix(model: PagedModel, driver: Driver) -> None:
    first = driver.add(1, PROMPT, 2)
    driver.step()
    second = driver.add(
        2, PROMPT, 2, logprobs=LogprobParams(prompt=True), shared=(first.block_ids[:1], 16)
    )
    driver.run()
    assert [len(generation.prompt_logprobs) for generation in second.generations] == [3, 0]


def test_scored_prompts_do_not_disturb_those_beside_them(model: PagedModel, driver: Driver) -> None:
    alone = driver_of(model)
    alone.add(1, PROMPT[:7], 5)
    alone.run()
    driver.add(2, PROMPT, 5, logprobs=LogprobParams(prompt=True))
    driver.add(1, PROMPT[:7], 5)
    driver.add(3, PROMPT, 5, logprobs=LogprobParams(prompt=True))
    driver.run(step_tokens=12)
    assert driver.outputs[1] == alone.outputs[1]
    assert driver.outputs[2] == driver.outputs[3]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda r: r.step([new(1)]), "request 1 is held already"),
        (lambda r: r.step([new(2), new(2)]), "comes twice"),
        (lambda r: r.step([new(2, block_ids=(1,))]), "do not cover 20 tokens"),
        (lambda r: r.step([new(2, block_ids=(1, 64))]), "names block 64"),
        (lambda r: r.step([new(2, block_ids=(1, -1))]), "names block -1"),
        (
            lambda r: r.step([new(2, token_ids=(*PROMPT[:19], 160))]),
            r"a token id is not in 0\.\.159",
        ),
        (
            lambda r: r.step([new(2, stop=StopParams(max_new_tokens=493))]),
            "20 . max_new_tokens 493 exceeds 512",
        ),
        (
            # One that is in order comes before it.
            lambda r: r.step([new(2), new(3, sampling=SamplingParams(logit_bias={160: 1}))]),
            "logit_bias",
        ),
        (
            lambda r: r.step((), [RunningUpdate(1), RunningUpdate(1)]),
            "updates name a request twice",
        ),
    ],
)
def test_a_call_that_breaks_the_contract_changes_nothing(
    runner: Runner, call: Callable[[Runner], object], reason: str
) -> None:
    first = runner.step([new(1)])
    with pytest.raises(InvalidStep, match=reason):
        call(runner)
    later = [token_ids(runner.step())[1] for _ in range(3)]
    runner.clear()
    again = runner.step([new(1)])
    assert token_ids(again) == token_ids(first)
    assert [token_ids(runner.step())[1] for _ in range(3)] == later
    assert runner.step([new(2)]).request_ids == (1, 2)


def test_no_step_before_warmup(model: PagedModel) -> None:
    with pytest.raises(InvalidStep, match="Warmup comes first"):
        runner_of(model, World()).step([new(1)])


def test_warmup_forgets_every_sequence(runner: Runner) -> None:
    runner.step([new(1)])
    runner.warmup(32, 4, None, NUM_BLOCKS)
    with pytest.raises(NoBatch):
        runner.step()


def test_a_sampler_belongs_to_rank_0(model: PagedModel) -> None:
    with pytest.raises(ValueError, match="contradict"):
        Runner(model, None, World())


class TestDroppedRequests:
    def test_they_leave_before_the_step(self, runner: Runner) -> None:
        runner.step([new(1), new(2), new(3)])
        output = runner.step(dropped_ids=(1, 3))
        assert (set(token_ids(output)), output.request_ids) == ({2}, (2,))

    def test_their_blocks_belong_to_who_enters_in_the_same_step(self, runner: Runner) -> None:
        alone = token_ids(runner.step([new(1)]))[1]
        heir = new(2, block_ids=(3, 4, 5))
        output = runner.step([heir], dropped_ids=(1,))
        assert (token_ids(output), output.request_ids) == ({2: alone}, (2,))

    def test_one_that_has_ended_is_passed_over(self, runner: Runner) -> None:
        runner.step([new(1), new(2, stop=StopParams(1))])
        assert runner.step(dropped_ids=(2,)).request_ids == (1,)

    def test_a_call_that_is_refused_drops_nobody(self, runner: Runner) -> None:
        runner.step([new(1), new(2)])
        with pytest.raises(InvalidStep, match="twice"):
            runner.step((), [RunningUpdate(2), RunningUpdate(2)], dropped_ids=(1,))
        assert runner.step().request_ids == (1, 2)


class TestWithoutRequests:
    """A step may have been sent before it was known that the last request ended before it."""

    def test_a_decode_computes_nothing(self, runner: Runner) -> None:
        ended = runner.step([new(1, stop=StopParams(1))])
        output = runner.step((), [RunningUpdate(1, (9,))])
        assert ended.generations[0].finish_reason is FinishReason.LENGTH
        assert (output.generations, output.request_ids, output.forward_ns) == ((), (), 0)

    def test_new_requests_come(self, runner: Runner) -> None:
        runner.step([new(1)])
        runner.step(dropped_ids=(1,))
        assert runner.step([new(2)]).request_ids == (2,)


GREEDY = SamplingParams()
DRAWN = SamplingParams(do_sample=True, temperature=1.3)
KINDS = (
    GREEDY,
    DRAWN,
    replace(DRAWN, top_k=9, top_p=0.9),
    replace(GREEDY, logit_bias={7: 3.0}),
    # What such a row draws depends on all that it has drawn: the step in flight has to end first.
    replace(DRAWN, repetition_penalty=1.4),
)


def ahead(model: PagedModel, seed: int = 0) -> AheadDriver:
    return AheadDriver(
        warmed_up(model, runs_ahead=True),
        NUM_BLOCKS,
        model.block_size,
        seed,
        num_states=num_states(model),
    )


def add_requests(driver: Driver, seed: int, num_kinds: int) -> None:
    """Four of them, that stop at some token or after so many."""
    rng = random.Random(seed)
    for request_id in range(4):
        driver.add(
            request_id,
            [rng.randrange(3, 150) for _ in range(rng.choice((1, 5, 15, 40)))],
            rng.randrange(1, 30),
            sampling=replace(KINDS[rng.randrange(num_kinds)], seed=request_id),
            logprobs=LogprobParams(num_top_tokens=rng.choice((0, 0, 2))),
            stop_token_ids=tuple(rng.sample(range(3, 150), 8)),
        )


@pytest.mark.slow
@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    num_kinds=st.sampled_from([4, 5]),
    step_tokens=st.sampled_from([7, 64]),
)
def test_requests_get_the_tokens_that_they_get_without_a_step_in_flight(
    model: PagedModel, seed: int, num_kinds: int, step_tokens: int
) -> None:
    drivers = ahead(model, seed), Driver(warmed_up(model), NUM_BLOCKS, model.block_size, seed)
    for driver in drivers:
        add_requests(driver, seed, num_kinds)
        driver.run(step_tokens)
    expected = drivers[1].outputs
    assert drivers[0].outputs == expected
    for request_id, request in drivers[0].requests.items():
        assert request.generations == drivers[1].requests[request_id].generations


def test_steps_are_launched_behind_one_in_flight(model: PagedModel) -> None:
    driver = ahead(model)
    for request_id in range(3):
        driver.add(request_id, [5 + request_id, 9], 20)
    driver.run()
    assert driver.num_ahead > 15
    assert all(r.finish_reason is FinishReason.LENGTH for r in driver.requests.values())


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_who_stays_does_not_notice_who_is_dropped(
    model: PagedModel, seed: int, data: st.DataObject
) -> None:
    driver = ahead(model, seed)
    alone = Driver(warmed_up(model), NUM_BLOCKS, model.block_size)
    for each in (driver, alone):
        add_requests(each, seed, 4)
    alone.run()
    num_steps = data.draw(st.integers(1, 12))
    for _ in range(num_steps):
        driver._begin(64)
    driver.drop(data.draw(st.integers(0, 3)))
    driver.run()
    for request_id, request in driver.requests.items():
        if not request.is_dropped:
            assert request.output == alone.outputs[request_id]
        else:
            assert request.output == alone.outputs[request_id][: len(request.output)]


def test_a_prompt_that_enters_ends_the_step_in_flight(model: PagedModel) -> None:
    driver = ahead(model)
    alone = Driver(warmed_up(model), NUM_BLOCKS, model.block_size)
    for each in (driver, alone):
        each.add(0, [4, 5, 6], 20)
    for _ in range(5):
        driver._begin(64)
        alone.step()
    for each in (driver, alone):
        each.add(1, list(range(3, 40)), 8)
        each.run(16)
    assert driver.outputs == alone.outputs


def test_a_request_whose_logits_are_broken_fails_alone(model: PagedModel) -> None:
    driver = ahead(model)
    for request_id in range(2):
        driver.add(request_id, [5 + request_id, 9], 12)
    for _ in range(3):
        driver._begin(64)
    forward = model.forward
    calls = list[int]()

    def broken(inputs: object) -> object:
        logits = forward(inputs)  # type: ignore[arg-type]
        if not calls:
            logits[0] = float("nan")
        calls.append(1)
        return logits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "forward", broken)
        driver.run()
    first, second = driver.requests.values()
    assert first.finish_reason is FinishReason.ERROR
    assert (second.finish_reason, len(second.output)) == (FinishReason.LENGTH, 12)
    assert len(first.output) < 12


# A token whose embedding is not a number: whoever reads it has no logits. Loading tries others.
POISONED_ID = 79


@pytest.fixture(scope="module")
def poisoned_model(tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    built = tiny_models.build("llama")
    built.get_input_embeddings().weight.data[POISONED_ID] = torch.nan
    folder = tmp_path_factory.mktemp("llama")
    built.save_pretrained(folder)
    return load(folder, World())


@pytest.fixture
def poisoned_runner(poisoned_model: PagedModel) -> Runner:
    return warmed_up(poisoned_model)


@pytest.fixture
def poisoned_driver(poisoned_model: PagedModel) -> Driver:
    return driver_of(poisoned_model)


def test_a_row_that_fails_takes_nobody_with_it(
    poisoned_model: PagedModel, poisoned_driver: Driver
) -> None:
    alone = driver_of(poisoned_model)
    alone.add(1, PROMPT, 8)
    alone.run()

    poisoned_driver.add(1, PROMPT, 8)
    poisoned_driver.add(2, (*PROMPT, POISONED_ID), 8)
    poisoned_driver.run(step_tokens=16)
    failed = poisoned_driver.requests[2]
    assert failed.finish_reason is FinishReason.ERROR
    assert "NaN" in str(failed.generations[-1].error)
    assert failed.output == []
    assert poisoned_driver.outputs[1] == alone.outputs[1]


def test_a_failed_row_is_logged_by_the_name_that_the_router_logs(
    poisoned_driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    poisoned_driver.add(2, (*PROMPT, POISONED_ID), 8)
    poisoned_driver.run()
    (record,) = caplog.records
    assert record.getMessage().startswith("shard_request_id=2 failed alone: ")
    assert "NaN" in record.getMessage()
    assert vars(record)["shard_request_id"] == 2


@pytest.mark.parametrize("step_tokens", [16, 64])
def test_a_prompt_that_cannot_be_scored_fails_alone(
    poisoned_model: PagedModel, poisoned_driver: Driver, step_tokens: int
) -> None:
    alone = driver_of(poisoned_model)
    alone.add(1, PROMPT, 8)
    alone.run()

    poisoned_driver.add(1, PROMPT, 8)
    scored = LogprobParams(num_top_tokens=1, prompt=True)
    failed = poisoned_driver.add(2, (*PROMPT[:5], POISONED_ID, *PROMPT), 8, logprobs=scored)
    good = poisoned_driver.add(3, PROMPT, 8, logprobs=scored)
    poisoned_driver.run(step_tokens)
    assert failed.finish_reason is FinishReason.ERROR
    assert "NaN" in str(failed.generations[-1].error)
    # In chunks it fails with the chunk in which the bad token lies, and reports no score of it.
    reported = [score for g in failed.generations for score in g.prompt_logprobs]
    assert all(score <= 0.0 for score in reported)
    assert failed.output == []
    assert poisoned_driver.outputs[1] == poisoned_driver.outputs[3] == alone.outputs[1]
    assert sum(len(g.prompt_logprobs) for g in good.generations) == len(PROMPT) - 1


def test_a_failed_forward_leaves_books_that_can_be_cleared(
    poisoned_model: PagedModel, poisoned_runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = poisoned_runner.step([new(1)])

    def fail(inputs: object) -> Tensor:
        raise RuntimeError("the device fell off")

    with monkeypatch.context() as broken:
        broken.setattr(poisoned_model, "forward", fail)
        with pytest.raises(RuntimeError, match="fell off"):
            poisoned_runner.step([new(2)])
    poisoned_runner.clear()
    with pytest.raises(NoBatch):
        poisoned_runner.step()
    assert token_ids(poisoned_runner.step([new(1)])) == token_ids(first)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
def test_a_request_whose_step_does_not_fit_fails_alone(
    poisoned_model: PagedModel,
    poisoned_driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    forward = poisoned_model.forward

    def fits_few(inputs: StepInputs) -> Tensor:
        if inputs.num_tokens > 30:
            raise error
        return forward(inputs)

    alone = driver_of(poisoned_model)
    for each in (poisoned_driver, alone):
        each.add(1, PROMPT, 8)
    alone.run()
    monkeypatch.setattr(poisoned_model, "forward", fits_few)
    poisoned_driver.step()
    failed = poisoned_driver.add(2, PROMPT * 2, 8)
    poisoned_driver.run()
    assert failed.finish_reason is FinishReason.ERROR
    assert "tokens does not fit" in str(failed.generations[-1].error)
    assert poisoned_driver.outputs[1] == alone.outputs[1]


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_of_decodes_that_do_not_fit_the_longest_fail(
    poisoned_model: PagedModel, monkeypatch: pytest.MonkeyPatch, runs_ahead: bool
) -> None:
    poisoned_driver = Driver(
        warmed_up(poisoned_model, runs_ahead=runs_ahead), NUM_BLOCKS, poisoned_model.block_size
    )
    for request_id, length in enumerate((4, 9, 7)):
        poisoned_driver.add(request_id, PROMPT[:length], 8)
    for _ in range(3):
        poisoned_driver.step()
    forward = poisoned_model.forward

    def fits_two(inputs: StepInputs) -> Tensor:
        if inputs.num_seqs > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(inputs)

    monkeypatch.setattr(poisoned_model, "forward", fits_two)
    poisoned_driver.run()
    reasons = [request.finish_reason for request in poisoned_driver.requests.values()]
    assert reasons == [FinishReason.LENGTH, FinishReason.ERROR, FinishReason.LENGTH]


def test_a_step_of_which_nothing_fits_fails_as_a_whole_and_is_outlived(
    poisoned_model: PagedModel, poisoned_runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = poisoned_runner.step([new(1)])

    def fail(inputs: object) -> Tensor:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(poisoned_model, "forward", fail)
        with pytest.raises(OutOfMemory, match="a step of 21 tokens does not fit"):
            poisoned_runner.step([new(request_id) for request_id in range(2, 7)])
    poisoned_runner.clear()
    assert token_ids(poisoned_runner.step([new(1)])) == token_ids(first)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    """In its own class, though a recipe describes it: there a forward may fail in any layer."""
    folder = tiny_models.save("qwen3_5", tmp_path_factory.mktemp("hybrid"))
    return load(folder, World(), attention="cpu")


def test_a_forward_that_fails_in_the_middle_leaves_every_state_as_it_was(
    hybrid: PagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The layers before have written theirs by then."""
    run = MixerCache.run
    num_failed = 0

    def fails(cache: MixerCache, mixer: Mixer, *arguments: Any) -> Any:
        nonlocal num_failed
        num_tokens = cache.get_seq_length(0).shape[0]
        if mixer.name.startswith("model.layers.1.") and num_tokens > 30:
            num_failed += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(cache, mixer, *arguments)

    driver = driver_of(hybrid)
    alone = driver_of(hybrid)
    for each in (driver, alone):
        each.add(1, PROMPT, 8)
        each.add(2, PROMPT[:3], 8)
    alone.run()
    monkeypatch.setattr(MixerCache, "run", fails)
    driver.step()
    # Beside a chunk, whose request fails, tokens are computed a second time.
    for request_id in (3, 4):
        failed = driver.add(request_id, PROMPT * 2, 8)
        driver.step()
        assert failed.finish_reason is FinishReason.ERROR
    driver.run()
    assert num_failed == 2
    assert {i: driver.outputs[i] for i in (1, 2)} == alone.outputs


@pytest.mark.parametrize("seed", [1, 2])
def test_states_are_right_behind_a_step_in_flight(hybrid: PagedModel, seed: int) -> None:
    drivers = ahead(hybrid, seed), driver_of(hybrid, seed=seed)
    for driver in drivers:
        add_requests(driver, seed, 5)
        driver.run(7)
    assert drivers[0].num_ahead > 5
    assert drivers[0].outputs == drivers[1].outputs


def test_a_request_without_slots_is_refused_and_changes_nothing(hybrid: PagedModel) -> None:
    driver = driver_of(hybrid)
    driver.add(1, PROMPT, 4)
    driver.step()
    with pytest.raises(InvalidStep, match=r"request 2: state_ids \[\]"):
        driver.runner.step([new(2)])
    with pytest.raises(InvalidStep, match="request 2: none of its states stands at 16"):
        driver.runner.step([new(2, cached_len=16, chunk_len=4, state_ids=(20, 21))])
    driver.run()
    alone = driver_of(hybrid)
    alone.add(1, PROMPT, 4)
    alone.run()
    assert driver.outputs == alone.outputs


NUM_DRAFTED = 40
# The output has these tokens alone, so that it repeats itself, and not always.
FEW = {5: 40.0, 6: 40.0, 7: 40.0}
FEW_SAMPLED = SamplingParams(do_sample=True, temperature=1.5, seed=11, logit_bias=FEW)
PENALISED = SamplingParams(
    do_sample=True, seed=5, repetition_penalty=1.3, frequency_penalty=0.7, logit_bias=FEW
)
WATERMARKED = SamplingParams(do_sample=True, seed=3, watermark=True, logit_bias=FEW)


@cache
def _drafting_model(name: str) -> PagedModel:
    with TemporaryDirectory() as folder:
        tiny_models.build(name).save_pretrained(folder)
        return load(Path(folder), World())


def answered(
    num_drafts: int,
    sampling: SamplingParams,
    stop: Mapping[str, Any],
    logprobs: LogprobParams,
    name: str = "llama",
) -> tuple[Driver, int]:
    """A driver with the answers to three requests, and the number of its steps."""
    driver = driver_of(_drafting_model(name), num_drafts=num_drafts)
    for request_id, prompt_len in enumerate((3, 20, 9)):
        prompt = [5 + (request_id * 31 + place * 17) % 60 for place in range(prompt_len)]
        driver.add(
            request_id,
            prompt,
            NUM_DRAFTED - request_id,
            sampling=sampling,
            logprobs=logprobs,
            **stop,
        )
    num_steps = 0
    while not all(request.finish_reason for request in driver.requests.values()):
        driver.step()
        num_steps += 1
    return driver, num_steps


def tokens_of(driver: Driver) -> list[list[Any]]:
    return [
        [token for generation in request.generations for token in generation.tokens]
        for request in driver.requests.values()
    ]


@pytest.mark.parametrize("num_drafts", [1, 3, 8])
@pytest.mark.parametrize(
    ("sampling", "stop", "logprobs"),
    [
        pytest.param(SamplingParams(), {}, LogprobParams(), id="greedy"),
        pytest.param(FEW_SAMPLED, {}, LogprobParams(), id="sampled"),
        pytest.param(PENALISED, {}, LogprobParams(), id="penalised"),
        pytest.param(WATERMARKED, {}, LogprobParams(), id="watermarked"),
        pytest.param(FEW_SAMPLED, {}, LogprobParams(num_top_tokens=3, raw=True), id="alternatives"),
        pytest.param(FEW_SAMPLED, {}, LogprobParams(prompt=True), id="scored prompt"),
        pytest.param(
            FEW_SAMPLED, {"stop_token_ids": (7,), "min_new_tokens": 9}, LogprobParams(), id="stops"
        ),
    ],
)
def test_an_answer_is_the_same_with_drafts_in_fewer_steps(
    num_drafts: int, sampling: SamplingParams, stop: Mapping[str, Any], logprobs: LogprobParams
) -> None:
    plain, num_plain_steps = answered(0, sampling, stop, logprobs)
    drafted, num_steps = answered(num_drafts, sampling, stop, logprobs)
    assert tokens_of(drafted) == tokens_of(plain)
    reasons = [request.finish_reason for request in plain.requests.values()]
    assert [request.finish_reason for request in drafted.requests.values()] == reasons
    if not stop:
        assert num_steps < num_plain_steps


def test_drafts_are_accepted_and_refused() -> None:
    """Else the test above would see half of it."""
    driver, _ = answered(3, FEW_SAMPLED, {}, LogprobParams())
    generations = [each for request in driver.requests.values() for each in request.generations]
    assert {each.num_accepted for each in generations} == {0, 1, 2}
    assert any(each.num_accepted < each.num_drafts for each in generations)
    assert all(each.num_accepted in (0, len(each.tokens) - 1) for each in generations)


@pytest.mark.parametrize("num_drafts", [1, 8])
def test_a_state_knows_nothing_of_drafts_that_were_wrong(num_drafts: int) -> None:
    plain, num_plain_steps = answered(0, FEW_SAMPLED, {}, LogprobParams(), "qwen3_5")
    drafted, num_steps = answered(num_drafts, FEW_SAMPLED, {}, LogprobParams(), "qwen3_5")
    assert tokens_of(drafted) == tokens_of(plain)
    assert num_steps < num_plain_steps


@pytest.mark.parametrize("name", ["llama", "qwen3_5"])
def test_without_room_in_a_step_or_after_preemption_the_answer_is_the_same(name: str) -> None:
    plain, _ = answered(0, FEW_SAMPLED, {}, LogprobParams(), name)
    drafted = driver_of(_drafting_model(name), num_drafts=4)
    for request in plain.requests.values():
        drafted.add(
            request.request_id,
            request.token_ids[: request.prompt_len],
            request.stop.max_new_tokens,
            sampling=FEW_SAMPLED,
        )
    chance = random.Random(2)
    while not all(request.finish_reason for request in drafted.requests.values()):
        drafted.num_drafts = chance.choice([0, 1, 4])
        drafted.step(chance.choice([3, 7, 40]))
        running = [r.request_id for r in drafted.requests.values() if r.is_held and r.output]
        running = [each for each in running if not drafted.requests[each].finish_reason]
        if running and chance.random() < 0.2:
            drafted.preempt(chance.choice(running))
    assert drafted.outputs == plain.outputs


def test_a_reason_to_end_is_that_of_the_last_token() -> None:
    driver, _ = answered(
        8, FEW_SAMPLED, {"stop_token_ids": (6,), "min_new_tokens": 20}, LogprobParams()
    )
    for request in driver.requests.values():
        assert request.finish_reason is FinishReason.STOP_TOKEN
        assert request.output[-1] == 6
        assert 6 not in request.output[20:-1]
