"""A shard's adapters: their places, and what its requests are computed with, whatever happens."""

from pathlib import Path

import pytest

from model_server.adapter import LinearShapes
from model_server.engine.adapters import AdapterBook
from model_server.engine.distributed import World
from model_server.engine.runner import Runner
from model_server.errors import AdapterRefused, NoAdapter, OutOfMemory
from model_server.executor.executor import PagedModel
from tests.model_server import lora_folders
from tests.model_server.checkpoint import tiny_models
from tests.model_server.engine.driver import Driver, driver_of, load
from tests.native.compiler import needs_compiler

PROMPT = list(range(10, 30))
MAX_NEW = 12
# Of every tiny model.
SHAPES: LinearShapes = {
    f"model.layers.{layer}.{name}": shape
    for layer in range(2)
    for name, shape in (
        ("self_attn.q_proj", (64, 64)),
        ("self_attn.o_proj", (64, 64)),
        ("mlp.down_proj", (64, 96)),
    )
}


def test_a_place_is_free_again_once_its_adapter_has_left() -> None:
    book = AdapterBook(2)
    assert [book.enter(7), book.enter(9), book.num_free] == [0, 1, 0]
    with pytest.raises(OutOfMemory, match="--max-loras is 2, and so many adapters are"):
        book.enter(10)
    assert book.leave(7) == 0
    assert [book.enter(10), book.place_of(9)] == [0, 1]
    with pytest.raises(NoAdapter, match="adapter 7 is not loaded"):
        book.place_of(7)


def test_an_adapter_that_is_loaded_anew_keeps_its_place() -> None:
    book = AdapterBook(1)
    assert [book.enter(7), book.enter(7)] == [0, 0]
    assert book.clear() == [0]
    assert book.num_free == 1


def test_where_no_memory_is_kept_every_adapter_is_refused() -> None:
    with pytest.raises(AdapterRefused, match="--max-loras is 0"):
        AdapterBook(0).enter(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def model(folder: Path) -> PagedModel:
    return load(folder, World(), max_loras=2)


def load_adapter(runner: Runner, adapter_id: int, folder: Path) -> None:
    runner.load_adapter(adapter_id, runner.read_adapter(adapter_id, folder))


@pytest.fixture
def driver(model: PagedModel, tmp_path: Path) -> Driver:
    """With adapters 5 and 6."""
    driver = driver_of(model, num_drafts=3)
    driver.runner.unload_adapters()
    for adapter_id in (5, 6):
        folder = lora_folders.save(tmp_path / str(adapter_id), SHAPES, seed=adapter_id)
        load_adapter(driver.runner, adapter_id, folder)
    return driver


def alone(driver: Driver, adapter_id: int | None, request_id: int) -> list[int]:
    """The answer of a request that was by itself."""
    driver.add(request_id, PROMPT, MAX_NEW, adapter_id=adapter_id)
    driver.run()
    return driver.requests.pop(request_id).output


pytestmark = needs_compiler


def test_each_request_has_its_adapter_in_mixed_steps_chunks_drafts_and_after_preemption(
    driver: Driver,
) -> None:
    expected = [alone(driver, each, 90) for each in (None, 5, 6)]
    assert len({tuple(each) for each in expected}) == 3
    for request_id, adapter_id in enumerate((None, 5, 6, 5)):
        driver.add(request_id, PROMPT, MAX_NEW, adapter_id=adapter_id)
    for _ in range(8):
        driver.step(step_tokens=17)
    driver.preempt(1)
    driver.preempt(2)
    driver.run(step_tokens=13)
    assert list(driver.outputs.values()) == [*expected, expected[1]]


def test_a_step_with_an_adapter_that_is_gone_is_refused(driver: Driver) -> None:
    driver.add(1, PROMPT, MAX_NEW, adapter_id=5)
    driver.step()
    driver.runner.unload_adapter(5)
    with pytest.raises(NoAdapter, match="adapter 5 is not loaded"):
        driver.step()
    driver.runner.clear()
    driver.requests.clear()
    driver.add(2, PROMPT, MAX_NEW, adapter_id=5)
    with pytest.raises(NoAdapter, match="adapter 5 is not loaded"):
        driver.step()
    with pytest.raises(NoAdapter):
        driver.runner.unload_adapter(5)


def test_an_adapter_that_is_replaced_computes_what_the_new_one_does(
    driver: Driver, tmp_path: Path
) -> None:
    six = alone(driver, 6, 1)
    load_adapter(driver.runner, 5, tmp_path / "6")
    assert alone(driver, 5, 2) == six
    with pytest.raises(OutOfMemory):
        driver.runner.read_adapter(7, tmp_path / "6")


def test_adapters_outlive_a_warm_up_and_their_memory_is_no_pool_s(driver: Driver) -> None:
    five = alone(driver, 5, 1)
    driver.runner.warmup(32, 4, None, 64)
    again = Driver(driver.runner, 64, driver.block_size)
    assert alone(again, 5, 2) == five


def test_a_model_in_its_own_class_answers_as_its_recipe_does(
    driver: Driver, folder: Path, tmp_path: Path
) -> None:
    zoo = driver_of(load(folder, World(), attention="reference", max_loras=1))
    load_adapter(zoo.runner, 1, tmp_path / "6")
    for request_id, adapter_id in enumerate((None, 1, 1)):
        zoo.add(request_id, PROMPT, MAX_NEW, adapter_id=adapter_id)
    zoo.run(step_tokens=13)
    plain = alone(driver, None, 1)
    six = alone(driver, 6, 2)
    assert list(zoo.outputs.values()) == [plain, six, six]
