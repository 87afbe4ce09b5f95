"""The runner: steps change the books once and wholly, or not at all."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from model_server.engine.distributed import World
from model_server.engine.runner import Runner
from model_server.errors import InvalidStep, NoBatch, OutOfMemory
from model_server.executor.executor import PagedModel
from model_server.step import StepOutput
from proto.contract import (
    FinishReason,
    LogprobParams,
    NewSequence,
    RunningUpdate,
    SamplingParams,
    StopParams,
)
from tests.model_server.checkpoint import tiny_models
from tests.model_server.engine.driver import Driver
from tests.model_server.engine.shards import NUM_BLOCKS, driver_of, load, runner_of, warmed_up

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
            lambda r: r.step([new(2, sampling=SamplingParams(logit_bias={160: 1}))]),
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


def test_no_step_before_warmup(model: PagedModel) -> None:
    with pytest.raises(InvalidStep, match="Warmup comes first"):
        runner_of(model, World()).step([new(1)])


def test_warmup_answers_what_was_asked_for(model: PagedModel) -> None:
    limits = runner_of(model, World()).warmup(64, 4, None, 100)
    assert (limits.num_blocks, limits.block_size) == (100, model.block_size)
    assert limits.max_total_len == 512


def test_a_small_pool_bounds_the_longest_sequence(model: PagedModel) -> None:
    assert runner_of(model, World()).warmup(64, 4, 300, 5).max_total_len == 5 * model.block_size
    assert runner_of(model, World()).warmup(64, 4, 30, 5).max_total_len == 30


def test_a_pool_of_its_own_choice_holds_the_largest_batch_and_no_more(model: PagedModel) -> None:
    limits = runner_of(model, World()).warmup(64, 3, 100, None)
    assert limits.num_blocks == 3 * -(-100 // model.block_size)


def test_the_size_that_the_shard_was_started_with_holds(model: PagedModel) -> None:
    runner = Runner(model, runner_of(model, World())._sampler, World(), num_blocks=17)
    assert runner.warmup(64, 4, None, None).num_blocks == 17
    assert runner.warmup(64, 4, None, 18).num_blocks == 18


def test_a_pool_beyond_the_memory_is_refused_with_the_numbers(model: PagedModel) -> None:
    with pytest.raises(OutOfMemory, match=r"KV pool of .* GiB does not fit"):
        runner_of(model, World()).warmup(64, 4, None, 1 << 40)


def test_warmup_forgets_every_sequence(runner: Runner) -> None:
    runner.step([new(1)])
    runner.warmup(32, 4, None, NUM_BLOCKS)
    with pytest.raises(NoBatch):
        runner.step()


def test_a_sampler_belongs_to_rank_0(model: PagedModel) -> None:
    with pytest.raises(ValueError, match="contradict"):
        Runner(model, None, World())
