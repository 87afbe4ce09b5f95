"""Every architecture answers as generate() does, in float32, however it is scheduled."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from model_server.engine.distributed import World
from model_server.executor.executor import PagedModel
from proto.contract import KeptState
from tests.model_server import census
from tests.model_server.checkpoint import tiny_models
from tests.model_server.engine.driver import Driver, driver_of, load, runner_of

# What also sees: positions of three axes, and names that differ from the checkpoint's.
SEEING_BY_DAY = ("qwen2_5_vl", "llava")
SEEING_HYBRID = "qwen3_5_vl"
SEEING_BY_NIGHT = tuple(
    pytest.param(name, marks=pytest.mark.nightly)
    for name in tiny_models.SEEING
    if name not in (*SEEING_BY_DAY, SEEING_HYBRID)
)
# Those that a recipe describes, too.
IN_ITS_CLASS = "-in-its-class"
# A delta rule, a state space beside an MLP without attention.
HYBRIDS_BY_DAY = ("qwen3_5", "nemotron_h", "nemotron_h" + IN_ITS_CLASS)
HYBRIDS_BY_NIGHT = tuple(
    pytest.param(name, marks=pytest.mark.nightly)
    for name in (
        *[name for name in (*tiny_models.HYBRIDS, SEEING_HYBRID) if name not in HYBRIDS_BY_DAY],
        *[
            name + IN_ITS_CLASS
            for name in (
                *("qwen3_5", "qwen3_5_moe", "qwen3_next", "olmo_hybrid", "lfm2"),
                "granitemoehybrid",
            )
        ],
    )
)
# Hybrids that recipes describe.
DESCRIBED = (
    "qwen3_5",
    "nemotron_h",
    *[
        pytest.param(name, marks=pytest.mark.nightly)
        for name in (
            *("qwen3_5_moe", "qwen3_next", "olmo_hybrid", "lfm2", "lfm2_moe"),
            *("granitemoehybrid", "bamba"),
        )
    ],
)
# One of them by day.
EXPERTS = (
    "glm4_moe",
    *(
        pytest.param(name, marks=pytest.mark.nightly)
        for name in tiny_models.EXPERT_CONFIGS
        if name != "glm4_moe"
    ),
)
NUM_NEW = 12
# Shorter and longer than window and block, and one of a single token.
PROMPT_LENS = (5, 41, 1, 18)


@dataclass(frozen=True, slots=True)
class Case:
    """A model, prompts and the answers of generate()."""

    model: PagedModel
    prompts: tuple[tuple[int, ...], ...]
    expected: tuple[list[int], ...]

    def driver(self, seed: int = 0) -> Driver:
        return driver_of(self.model, seed=seed)


def prompt(index: int, length: int) -> tuple[int, ...]:
    """Tokens that look like no other prompt's."""
    return tuple((index * 31 + position * 17 + 7) % 150 + 3 for position in range(length))


@cache
def case(name: str, device: str) -> Case:
    """Made once for all tests of an architecture."""
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    attention = "cpu" if name.endswith(IN_ITS_CLASS) else "auto"
    reference = tiny_models.build(name.removesuffix(IN_ITS_CLASS)).to(device)
    prompts = tuple(prompt(index, length) for index, length in enumerate(PROMPT_LENS))
    expected = tuple(tiny_models.greedy(reference, list(p), NUM_NEW) for p in prompts)
    with TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        model = load(Path(folder), World(), device=device, attention=attention)
        return Case(model, prompts, expected)


ON_DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
# Of these, blocks alone are a prefix; hybrids would need its state.
PLAIN = (*tiny_models.ARCHITECTURES, *EXPERTS, *SEEING_BY_DAY, *SEEING_BY_NIGHT)


def architectures(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test with each architecture on each device."""
    names = (*PLAIN, *HYBRIDS_BY_DAY, *HYBRIDS_BY_NIGHT)
    decorated: Callable[..., None] = ON_DEVICES(pytest.mark.parametrize("name", names)(test))
    return decorated


@architectures
def test_generate_says_something_that_a_fault_would_change(name: str, device: str) -> None:
    """A model that repeats itself, or ignores its prompt, would make the other tests blind."""
    expected = case(name, device).expected
    assert all(len(tokens) == NUM_NEW for tokens in expected)
    assert len({tuple(tokens) for tokens in expected}) == len(expected)
    assert sum(len(set(tokens)) for tokens in expected) >= 2 * NUM_NEW


@pytest.mark.parametrize("name", [*EXPERTS, *DESCRIBED])
def test_they_are_computed_by_recipe(name: str) -> None:
    assert case(name, "cpu").model.fallback_reason is None


@architectures
@pytest.mark.parametrize("step_tokens", [7, 64])
def test_in_mixed_batches_and_chunks(name: str, device: str, step_tokens: int) -> None:
    driver = case(name, device).driver()
    for index, prompt_ids in enumerate(case(name, device).prompts):
        driver.add(index, prompt_ids, NUM_NEW)
    driver.run(step_tokens)
    assert tuple(driver.outputs.values()) == case(name, device).expected


@ON_DEVICES
@pytest.mark.parametrize("name", PLAIN)
def test_on_a_prefix_that_another_request_computed(name: str, device: str) -> None:
    """Two full blocks are shared; the first request still decodes when the second comes."""
    driver = case(name, device).driver()
    prompt_ids = case(name, device).prompts[1]
    first = driver.add(1, prompt_ids, NUM_NEW)
    driver.step()
    cached_len = len(prompt_ids) // driver.block_size * driver.block_size
    num_shared = cached_len // driver.block_size
    assert num_shared == 2
    driver.add(2, prompt_ids, NUM_NEW, shared=(first.block_ids[:num_shared], cached_len))
    driver.run()
    assert driver.outputs[1] == driver.outputs[2] == case(name, device).expected[1]


@pytest.mark.parametrize("name", DESCRIBED)
def test_on_a_prefix_whose_state_another_request_kept(name: str) -> None:
    driver = case(name, "cpu").driver()
    prompt_ids = case(name, "cpu").prompts[1]
    state_id = driver.free_states.pop()
    first = driver.add(1, prompt_ids, NUM_NEW, kept_states=(KeptState(32, state_id),))
    driver.step(20)
    driver.step(20)
    for index in (2, 3):
        shared = (first.block_ids[:2], 32)
        driver.add(index, prompt_ids, NUM_NEW, shared=shared, from_state=state_id)
    driver.run()
    assert list(driver.outputs.values()) == [case(name, "cpu").expected[1]] * 3


@architectures
def test_after_preemption(name: str, device: str) -> None:
    """Taken off the shard in the middle of its answer, then computed anew in chunks."""
    driver = case(name, device).driver()
    for index, prompt_ids in enumerate(case(name, device).prompts):
        driver.add(index, prompt_ids, NUM_NEW)
    for _ in range(10):
        driver.step(16)
    for index in (1, 3):
        driver.preempt(index)
    assert 0 < len(driver.outputs[3]) < NUM_NEW
    driver.run(16)
    assert tuple(driver.outputs.values()) == case(name, device).expected


@pytest.mark.slow
@architectures
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 8))]
)
def test_under_any_schedule(name: str, device: str, seed: int) -> None:
    """Budgets, arrivals and preemptions at random; every answer is still generate()'s."""
    rng = random.Random(seed)
    driver = case(name, device).driver(seed)
    waiting = list(enumerate(case(name, device).prompts)) * 2
    rng.shuffle(waiting)
    expected: dict[int, list[int]] = {}
    while waiting or not all(request.finish_reason for request in driver.requests.values()):
        if waiting and (rng.random() < 0.3 or not driver.runner.holds_requests):
            index, prompt_ids = waiting.pop()
            expected[len(expected)] = case(name, device).expected[index]
            driver.add(len(expected) - 1, prompt_ids, NUM_NEW)
        held = [r.request_id for r in driver.requests.values() if r.is_held and not r.finish_reason]
        if held and rng.random() < 0.1:
            driver.preempt(rng.choice(held))
        driver.step(rng.choice((3, 8, 20, 64)))
    assert driver.outputs == expected


CONTEXT_LEN = 1152
# By night all others that are served, which compute nothing far out that they do not near by.
FAR_BY_DAY = ("ministral3", "llama4", "llama-yarn", "gpt_oss", "gpt2")


@pytest.mark.parametrize(
    "name",
    [
        name if name in FAR_BY_DAY else pytest.param(name, marks=pytest.mark.nightly)
        for name in census.SERVED
    ],
)
def test_up_to_the_last_position_of_the_context(name: str, tmp_path: Path) -> None:
    """Two prompts of more than a thousand tokens, in chunks beside each other."""
    reference = tiny_models.of_config(census.SERVED[name](), context_len=CONTEXT_LEN)
    prompts = (prompt(1, CONTEXT_LEN - NUM_NEW), prompt(2, CONTEXT_LEN - 5 * NUM_NEW))
    expected = {
        index: tiny_models.greedy(reference, list(prompt_ids), NUM_NEW)
        for index, prompt_ids in enumerate(prompts)
    }
    reference.save_pretrained(tmp_path)
    model = load(tmp_path, World())
    runner = runner_of(model, World())
    num_blocks = len(prompts) * (CONTEXT_LEN // model.block_size + 1)
    limits = runner.warmup(
        max_step_tokens=200, max_batch_size=4, max_total_len=None, num_blocks=num_blocks
    )
    driver = Driver(runner, num_blocks, model.block_size, num_states=limits.num_states)

    for index, prompt_ids in enumerate(prompts):
        driver.add(index, prompt_ids, NUM_NEW)
    driver.run(step_tokens=200)

    assert driver.outputs == expected
