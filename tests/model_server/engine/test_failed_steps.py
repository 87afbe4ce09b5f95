"""What fails in a step: one row alone, or the step, and what the books are worth afterwards."""

import pytest
import torch
from torch import Tensor

from model_server.engine.distributed import World
from model_server.engine.runner import Runner
from model_server.errors import NoBatch, OutOfMemory
from model_server.executor.executor import PagedModel
from model_server.step import StepInputs
from proto.contract import FinishReason, LogprobParams
from tests.model_server.checkpoint import tiny_models
from tests.model_server.engine.driver import Driver
from tests.model_server.engine.shards import NUM_BLOCKS, driver_of, load, warmed_up
from tests.model_server.engine.test_runner import PROMPT, new, token_ids

# A token whose embedding is not a number: whoever reads it has no logits. Loading tries others.
POISONED_ID = 79


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    poisoned = tiny_models.build("llama")
    poisoned.get_input_embeddings().weight.data[POISONED_ID] = torch.nan
    folder = tmp_path_factory.mktemp("llama")
    poisoned.save_pretrained(folder)
    return load(folder, World())


@pytest.fixture
def runner(model: PagedModel) -> Runner:
    return warmed_up(model)


@pytest.fixture
def driver(model: PagedModel) -> Driver:
    return driver_of(model)


def test_a_row_that_fails_takes_nobody_with_it(model: PagedModel, driver: Driver) -> None:
    alone = driver_of(model)
    alone.add(1, PROMPT, 8)
    alone.run()

    driver.add(1, PROMPT, 8)
    driver.add(2, (*PROMPT, POISONED_ID), 8)
    driver.run(step_tokens=16)
    failed = driver.requests[2]
    assert failed.finish_reason is FinishReason.ERROR
    assert "NaN" in str(failed.generations[-1].error)
    assert failed.output == []
    assert driver.outputs[1] == alone.outputs[1]


def test_a_failed_row_is_logged_by_the_name_that_the_router_logs(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    driver.add(2, (*PROMPT, POISONED_ID), 8)
    driver.run()
    (record,) = caplog.records
    assert record.getMessage().startswith("shard_request_id=2 failed alone: ")
    assert "NaN" in record.getMessage()
    assert vars(record)["shard_request_id"] == 2


@pytest.mark.parametrize("step_tokens", [16, 64])
def test_a_prompt_that_cannot_be_scored_fails_alone(
    model: PagedModel, driver: Driver, step_tokens: int
) -> None:
    alone = driver_of(model)
    alone.add(1, PROMPT, 8)
    alone.run()

    driver.add(1, PROMPT, 8)
    scored = LogprobParams(num_top_tokens=1, prompt=True)
    failed = driver.add(2, (*PROMPT[:5], POISONED_ID, *PROMPT), 8, logprobs=scored)
    good = driver.add(3, PROMPT, 8, logprobs=scored)
    driver.run(step_tokens)
    assert failed.finish_reason is FinishReason.ERROR
    assert "NaN" in str(failed.generations[-1].error)
    # In chunks it fails with the chunk in which the bad token lies, and reports no score of it.
    reported = [score for g in failed.generations for score in g.prompt_logprobs]
    assert all(score <= 0.0 for score in reported)
    assert failed.output == []
    assert driver.outputs[1] == driver.outputs[3] == alone.outputs[1]
    assert sum(len(g.prompt_logprobs) for g in good.generations) == len(PROMPT) - 1


def test_a_failed_forward_leaves_books_that_can_be_cleared(
    model: PagedModel, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = runner.step([new(1)])

    def fail(inputs: object) -> Tensor:
        raise RuntimeError("the device fell off")

    with monkeypatch.context() as broken:
        broken.setattr(model, "forward", fail)
        with pytest.raises(RuntimeError, match="fell off"):
            runner.step([new(2)])
    runner.clear()
    with pytest.raises(NoBatch):
        runner.step()
    assert token_ids(runner.step([new(1)])) == token_ids(first)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
        MemoryError(),
    ],
)
def test_a_request_whose_step_does_not_fit_fails_alone(
    model: PagedModel, driver: Driver, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    forward = model.forward

    def fits_few(inputs: StepInputs) -> Tensor:
        if inputs.num_tokens > 30:
            raise error
        return forward(inputs)

    alone = driver_of(model)
    for each in (driver, alone):
        each.add(1, PROMPT, 8)
    alone.run()
    monkeypatch.setattr(model, "forward", fits_few)
    driver.step()
    failed = driver.add(2, PROMPT * 2, 8)
    driver.run()
    assert failed.finish_reason is FinishReason.ERROR
    assert "tokens does not fit" in str(failed.generations[-1].error)
    assert driver.outputs[1] == alone.outputs[1]


@pytest.mark.parametrize("runs_ahead", [False, True])
def test_of_decodes_that_do_not_fit_the_longest_fail(
    model: PagedModel, monkeypatch: pytest.MonkeyPatch, runs_ahead: bool
) -> None:
    driver = Driver(warmed_up(model, runs_ahead=runs_ahead), NUM_BLOCKS, model.block_size)
    for request_id, length in enumerate((4, 9, 7)):
        driver.add(request_id, PROMPT[:length], 8)
    for _ in range(3):
        driver.step()
    forward = model.forward

    def fits_two(inputs: StepInputs) -> Tensor:
        if inputs.num_seqs > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(inputs)

    monkeypatch.setattr(model, "forward", fits_two)
    driver.run()
    reasons = [request.finish_reason for request in driver.requests.values()]
    assert reasons == [FinishReason.LENGTH, FinishReason.ERROR, FinishReason.LENGTH]


def test_a_step_of_which_nothing_fits_fails_as_a_whole_and_is_outlived(
    model: PagedModel, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = runner.step([new(1)])

    def fail(inputs: object) -> Tensor:
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(model, "forward", fail)
        with pytest.raises(OutOfMemory, match="a step of 21 tokens does not fit"):
            runner.step([new(request_id) for request_id in range(2, 7)])
    runner.clear()
    assert token_ids(runner.step([new(1)])) == token_ids(first)
