"""What a model answers about images is what its class does, however its requests are scheduled.

All is compared with transformers in float32: by the greedy tokens, and by logits in
`tests/model_server/executor/test_seeing.py`.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from model_server.engine.distributed import World
from model_server.errors import ImageRefused, InvalidStep
from model_server.executor.executor import PagedModel
from proto.contract import Image, ImageTensor
from tests.model_server import seeing_models
from tests.model_server.engine.driver import Driver, driver_of, load
from tests.model_server.seeing_models import Prompt

NUM_NEW = 8
# Of no prompt's images.
OTHER_DIGESTS = range(100, 120)
# Rows alone; a decoder that multiplies; three positions; rows behind layers; tokens that see ahead.
BY_DAY = ("llava", "llava_next-granite", "qwen2_5_vl", "qwen3_vl", "gemma3")
# Of these, blocks alone are no prefix: it has states, too.
HYBRID = "qwen3_5"
FAMILIES = (
    *BY_DAY,
    *[
        pytest.param(name, marks=pytest.mark.nightly)
        for name in seeing_models.SEEING
        if name not in (*BY_DAY, HYBRID)
    ],
)
IN_ITS_CLASS = "-in-its-class"
# Tiny models say the same of several prompts, or want to show an image; not behind these tokens.
BEGINS = {"mistral3": 8, "aya_vision": 3, "cohere2_vision": 4, "qwen2_vl": 3, "qwen3_5": 8}
# Of these, in their own class, too.
OF_BLOCKS = (*FAMILIES, "qwen3_vl" + IN_ITS_CLASS, "gemma3" + IN_ITS_CLASS)
MODELS = (*OF_BLOCKS, pytest.param(HYBRID, marks=pytest.mark.nightly))


@dataclass(frozen=True, slots=True)
class Case:
    """A model, prompts of no, one and two images, and the answers of its class."""

    model: PagedModel
    prompts: tuple[Prompt, ...]
    expected: tuple[list[int], ...]

    def driver(self) -> Driver:
        return driver_of(self.model)


@cache
def case(name: str) -> Case:
    """Made once for all tests of a family."""
    family = name.removesuffix(IN_ITS_CLASS)
    one = seeing_models.build(family)
    begin = BEGINS.get(family, 5)
    shown: tuple[tuple[int, ...], ...] = ((0,), (0, 1), (1, 0), (), (1,))
    prompts = tuple(one.prompt(*images, begin=begin) for images in shown)
    expected = tuple(one.greedy(prompt, NUM_NEW) for prompt in prompts)
    attention = "cpu-op" if name.endswith(IN_ITS_CLASS) else "auto"
    with TemporaryDirectory() as folder:
        one.save(Path(folder))
        model = load(Path(folder), World(), attention=attention, noise=one.noise)
    return Case(model, prompts, expected)


def add(driver: Driver, case: Case, *places: int) -> None:
    for place in places:
        prompt = case.prompts[place]
        driver.add(place, prompt.token_ids, NUM_NEW, images=prompt.images, ignore_eos=True)


@pytest.mark.parametrize("name", MODELS)
def test_it_sees_and_says_something_that_a_fault_would_change(name: str) -> None:
    one = case(name)
    assert one.model.blind_reason is None
    assert one.model.sight is not None
    assert (one.model.fallback_reason is not None) is name.endswith(IN_ITS_CLASS)
    assert len({tuple(tokens) for tokens in one.expected}) == len(one.expected)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("step_tokens", [5, 400])
def test_in_mixed_batches_and_chunks(name: str, step_tokens: int) -> None:
    driver = case(name).driver()
    add(driver, case(name), 0, 1, 2, 3, 4)
    driver.run(step_tokens)
    assert tuple(driver.outputs.values()) == case(name).expected


@pytest.mark.parametrize("name", OF_BLOCKS)
def test_on_a_prefix_that_another_request_computed(name: str) -> None:
    """The first image came with it whole, or in part; of one that came whole no pixels are sent."""
    one = case(name)
    prompt = one.prompts[1]
    driver = one.driver()
    first = driver.add(1, prompt.token_ids, NUM_NEW, images=prompt.images, ignore_eos=True)
    driver.step()
    for place, num_blocks in enumerate(range(1, len(prompt.token_ids) // driver.block_size + 1), 2):
        shared = (first.block_ids[:num_blocks], num_blocks * driver.block_size)
        if shared[1] < len(prompt.token_ids):
            driver.add(
                place,
                prompt.token_ids,
                NUM_NEW,
                images=prompt.images,
                shared=shared,
                ignore_eos=True,
            )
    driver.run()
    assert set(map(tuple, driver.outputs.values())) == {tuple(one.expected[1])}


@pytest.mark.parametrize("name", MODELS)
def test_after_preemption(name: str) -> None:
    """Taken off in the middle of its prompt and of its answer, then computed anew in chunks."""
    one = case(name)
    driver = one.driver()
    add(driver, one, 0, 1, 2)
    driver.step(9)
    driver.preempt(0)
    for _ in range(40):
        driver.step(16)
        if driver.outputs[1]:
            break
    driver.preempt(1)
    driver.run(16)
    assert tuple(driver.outputs.values()) == one.expected[:3]


def test_an_image_that_came_before_is_not_looked_at_again() -> None:
    one = case("llava")
    driver = one.driver()
    add(driver, one, 0)
    driver.run()
    # By the digest it is the same.
    again = tuple(map(blank, one.prompts[0].images))
    driver.add(7, one.prompts[0].token_ids, NUM_NEW, images=again, ignore_eos=True)
    driver.run()
    assert driver.outputs[7] == one.expected[0]


def blank(image: Image) -> Image:
    """Without what it shows."""
    return replace(
        image,
        tensors={
            name: ImageTensor(each.dtype, each.shape, bytes(len(each.data)))
            for name, each in image.tensors.items()
        },
    )


@pytest.mark.parametrize("name", ["llava", "qwen3_vl" + IN_ITS_CLASS])
def test_what_was_looked_at_ahead_is_not_looked_at_by_its_step(name: str) -> None:
    one = case(name)
    driver = one.driver()
    prompt = one.prompts[0]
    (image,) = prompt.images
    driver.runner.look_ahead(image, prompt.token_ids[image.start : image.stop])
    shown = (blank(image),)
    driver.add(0, prompt.token_ids, NUM_NEW, images=shown, ignore_eos=True)
    driver.run()
    assert driver.outputs[0] == one.expected[0]


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl" + IN_ITS_CLASS])
def test_beside_a_step_an_image_is_looked_at_by_another_thread(name: str) -> None:
    one = case(name)
    driver = one.driver()
    add(driver, one, 0, 1, 3)
    prompt = one.prompts[4]
    (image,) = prompt.images
    span_ids = prompt.token_ids[image.start : image.stop]
    with ThreadPoolExecutor(1) as thread:
        looks = [
            thread.submit(
                driver.runner.look_ahead, replace(image, digest=bytes(16 * [n])), span_ids
            )
            for n in OTHER_DIGESTS
        ]
        driver.run(5)
    for look in looks:
        look.result()
    driver.add(
        4,
        prompt.token_ids,
        NUM_NEW,
        images=(replace(blank(image), digest=bytes(16 * [OTHER_DIGESTS[-1]])),),
    )
    driver.run()
    assert [driver.outputs[place] for place in (0, 1, 3, 4)] == [
        one.expected[place] for place in (0, 1, 3, 4)
    ]


def test_a_model_that_does_not_see_looks_at_nothing(tmp_path: Path) -> None:
    one = seeing_models.build("llava")
    one.module.save_pretrained(tmp_path)
    runner = driver_of(load(tmp_path, World())).runner
    prompt = one.prompt(0)
    with pytest.raises(ImageRefused, match="images are not served here"):
        runner.look_ahead(prompt.images[0], ())
    driver = Driver(runner, 8, 16)
    driver.add(0, prompt.token_ids, NUM_NEW, images=prompt.images)
    with pytest.raises(InvalidStep, match="request 0: images are not served here"):
        driver.step()


def test_an_image_that_its_class_does_not_take_costs_its_request_alone() -> None:
    one = case("llava")
    driver = one.driver()
    image = one.prompts[0].images[0]
    broken = replace(
        image, digest=b"another", tensors={"pixel_values": ImageTensor("int64", (0,), b"")}
    )
    driver.add(8, one.prompts[0].token_ids, NUM_NEW, images=(broken,))
    add(driver, one, 1)
    driver.run()
    (failed,) = driver.requests[8].generations
    assert failed.error is not None
    assert failed.error.startswith("its image is not seen: its tensors are integers alone")
    assert driver.outputs[1] == one.expected[1]


def test_images_in_another_order_are_another_prompt() -> None:
    one = case("llava")
    first, second = one.prompts[1].images
    swapped = (
        replace(first, digest=second.digest, tensors=second.tensors),
        replace(second, digest=first.digest, tensors=first.tensors),
    )
    driver = one.driver()
    driver.add(1, one.prompts[1].token_ids, NUM_NEW, images=swapped, ignore_eos=True)
    driver.run()
    assert driver.outputs[1] == one.expected[2] != one.expected[1]
