"""Warm-up makes the pool that was asked for, or one that fits."""

import pytest

from model_server.engine.distributed import World
from model_server.engine.runner import Runner
from model_server.errors import OutOfMemory
from model_server.executor.executor import PagedModel
from tests.model_server.checkpoint import tiny_models
from tests.model_server.engine.driver import load, runner_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    return load(tiny_models.save("llama", tmp_path_factory.mktemp("llama")), World())


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
