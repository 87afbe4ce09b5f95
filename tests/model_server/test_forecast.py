"""What serving a checkpoint would take, said before its weights are read."""

from pathlib import Path
from typing import Any

import pytest

from model_server.checkpoint.check import forecast
from model_server.config import CheckConfig
from model_server.engine import memory
from model_server.engine.distributed import World
from model_server.errors import ConfigRefused, ModelRefused, OutOfMemory
from processes.capacity import Capacity, Pool
from tests.model_server.engine.shards import load
from tests.model_server.model import tiny_models


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"))


def check(folder: Path, **settings: Any) -> Capacity:
    chosen: dict[str, Any] = {"dtype": "float32", "device": "cpu", **settings}
    return forecast(CheckConfig(model_id=str(folder), **chosen))


def test_it_is_what_the_loaded_model_takes(llama: Path) -> None:
    expected = load(llama, World())
    capacity = check(llama, max_batch_size=3)
    assert capacity.dtype == "float32"
    assert capacity.executor == "dense"
    assert capacity.max_total_len == expected.max_position_embeddings
    assert capacity.weights_bytes == 4 * capacity.num_parameters
    num_blocks = 3 * -(-capacity.max_total_len // 16)
    assert capacity.pool == Pool(num_blocks, 16, expected.bytes_per_block)


def test_the_pool_of_a_model_without_a_recipe_is_not_foretold(llama: Path) -> None:
    capacity = check(llama, attention="reference", world_size=2)
    assert capacity.executor == "zoo"
    assert capacity.pool is None
    assert capacity.weights_bytes == 2 * capacity.num_parameters
    assert "on each of 2 shards" in str(capacity)


def test_requests_that_neither_model_nor_pool_holds_are_refused(llama: Path) -> None:
    with pytest.raises(ConfigRefused, match=r"--max-total-tokens 9999: must be at most \d+, for"):
        check(llama, max_total_tokens=9999)
    with pytest.raises(ConfigRefused, match="--max-input-tokens 32: must be at most 31"):
        check(llama, kv_blocks=2, max_input_tokens=32)


def test_heads_that_the_ranks_cannot_share_are_refused(llama: Path) -> None:
    with pytest.raises(ModelRefused, match="is no multiple of 3 shards"):
        check(llama, world_size=3)


def test_weights_and_a_pool_need_memory(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights_bytes = check(llama).weights_bytes
    assert weights_bytes is not None
    for available, said in ((1000, "weights of"), (weights_bytes + 1000, "no memory is left")):
        monkeypatch.setattr(memory, "available_bytes", lambda _, free=available: free)
        with pytest.raises(OutOfMemory, match=said):
            check(llama)


def test_it_is_one_sentence() -> None:
    pool = Pool(num_blocks=2560, block_size=16, bytes_per_block=2**20)
    capacity = Capacity(8_030_000_000, "bfloat16", "dense", 1, 8192, 16 * 2**30, pool)
    assert str(capacity) == (
        "8.03 B parameters in bfloat16 by dense; 16.00 GiB of weights and a KV pool of 2.50 GiB "
        "(2560 blocks of 16 tokens); requests of up to 8192 tokens, 5 at once"
    )
