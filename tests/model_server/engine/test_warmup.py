"""Warm-up makes the pool that was asked for, or one that fits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model_server.engine import memory, warmup
from model_server.engine.distributed import World
from model_server.engine.runner import Runner
from model_server.errors import OutOfMemory
from model_server.executor.executor import PagedModel
from model_server.eyes import Eyes, Sight
from model_server.images import MAX_GALLERY_BYTES
from model_server.step import StepInputs
from tests import seeing_checkpoint
from tests.model_server.checkpoint import tiny_models
from tests.model_server.engine.driver import load, runner_of


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    return load(tiny_models.save("llama", tmp_path_factory.mktemp("llama")), World())


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    """In its own class, which keeps no states for later requests."""
    folder = tiny_models.save("lfm2", tmp_path_factory.mktemp("lfm2"))
    return load(folder, World(), attention="cpu")


def test_warmup_answers_what_was_asked_for(model: PagedModel) -> None:
    limits = runner_of(model, World()).warmup(64, 4, None, 100)
    assert (limits.num_blocks, limits.block_size) == (100, model.block_size)
    assert limits.max_total_len == 512


def test_a_pool_of_a_known_size_is_made_without_a_step(
    model: PagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    forward = PagedModel.forward

    def counting(self: PagedModel, inputs: StepInputs) -> Tensor:
        steps.append(inputs)
        return forward(self, inputs)

    monkeypatch.setattr(PagedModel, "forward", counting)
    runner = runner_of(model, World())
    runner.warmup(64, 4, None, 100)
    assert not steps
    runner.warmup(64, 4, None, None)
    assert steps


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


def test_each_sequence_of_a_hybrid_has_two_states_beside_its_blocks(hybrid: PagedModel) -> None:
    limits = runner_of(hybrid, World()).warmup(64, 3, 100, None)
    assert limits.num_states == 6
    assert limits.num_blocks == 3 * -(-100 // hybrid.block_size)
    assert runner_of(hybrid, World()).warmup(64, 3, 100, 9, 4).num_states == 4


@pytest.mark.parametrize(("num_bytes", "num_states"), [(20, 6), (10, 5)])
def test_states_take_half_of_the_room_at_most_and_blocks_what_they_leave(
    hybrid: PagedModel, num_bytes: int, num_states: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    room_bytes = num_bytes * hybrid.state_bytes
    monkeypatch.setattr(memory, "pool_bytes", lambda *_, **__: room_bytes)
    limits = runner_of(hybrid, World()).warmup(64, 3, None, None)
    assert limits.num_states == num_states
    left_bytes = room_bytes - num_states * hybrid.state_bytes
    assert limits.num_blocks == left_bytes // hybrid.bytes_per_block - 1


def test_a_host_without_room_for_the_states_of_one_sequence_is_refused(
    hybrid: PagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "pool_bytes", lambda *_, **__: 3 * hybrid.state_bytes)
    with pytest.raises(OutOfMemory, match=f"two states of {hybrid.state_bytes}"):
        runner_of(hybrid, World()).warmup(64, 3, None, None)


def test_a_model_without_states_has_no_slots(model: PagedModel) -> None:
    assert runner_of(model, World()).warmup(64, 3, 100, None, 4).num_states == 0


def test_a_pool_beyond_the_memory_is_refused_with_the_numbers(model: PagedModel) -> None:
    with pytest.raises(OutOfMemory, match=r"KV pool of .* GiB does not fit"):
        runner_of(model, World()).warmup(64, 4, None, 1 << 40)


def test_what_looks_at_the_largest_image_and_what_is_kept_of_images_have_their_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = seeing_checkpoint.save("qwen2_5_vl", tmp_path)
    sight = load(folder, World()).sight
    assert sight is not None
    seen: list[Sight] = []
    look = Eyes.look

    def looking(*given: Any) -> Sight:
        seen.append(look(*given))
        return seen[-1]

    def peak_of(_: torch.device, run: Callable[[], object]) -> int:
        run()
        return 1000 * (1 + len(seen))

    monkeypatch.setattr(Eyes, "look", looking)
    monkeypatch.setattr(memory, "peak_of", peak_of)
    found = warmup.bytes_of_images(torch.device("cpu"), sight, max_len=2048)
    assert found == 1000 + MAX_GALLERY_BYTES
    (largest,) = seen
    # It takes at most 3000 pixels, in squares of 64.
    assert 36 <= len(largest.places) <= 46


def test_an_encoder_that_has_no_room_for_the_largest_image_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = seeing_checkpoint.save("llava", tmp_path)
    sight = load(folder, World()).sight
    assert sight is not None

    def look(*_: object) -> Sight:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Eyes, "look", look)
    with pytest.raises(OutOfMemory, match="of which a prompt of 99 tokens has room does not fit"):
        warmup.bytes_of_images(torch.device("cpu"), sight, max_len=99)
