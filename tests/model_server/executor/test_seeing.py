"""By an image of noise a shard finds out whether it sees; what it sees is what the class sees."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForImageTextToText, AutoProcessor
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

from model_server import loading
from model_server.attention.reference import ReferenceAttention
from model_server.checkpoint.check import CheckedCheckpoint, ModelSettings, check_checkpoint
from model_server.engine.distributed import World
from model_server.errors import InvalidStep
from model_server.executor import seeing
from model_server.executor.dense import Build, logits_in_chunks
from model_server.executor.dense_cuda import DenseCuda, build_dense_cuda
from model_server.executor.device_weights import Partition
from model_server.executor.executor import PagedModel
from model_server.eyes import Eyes, Layout, Sight
from model_server.images import Gallery, SequenceImages, tensors_of
from model_server.loading import load_model
from model_server.recipe.proof import relative_error
from model_server.recipe.recipe import Recipe
from model_server.step import SequenceStep, StepInputs
from processes.image_processor import ImageProcessor, ProcessedImage, without_videos
from proto.contract import Image, ImageTensor
from tests import seeing_checkpoint
from tests.byte_tokenizer import byte_ids
from tests.model_server import seeing_models
from tests.model_server.checkpoint.test_int4_checkpoint import KINDS, quantize
from tests.model_server.engine.driver import load, on_two_ranks
from tests.model_server.seeing_models import IMAGE_ID, Prompt, SeeingModel

BY_DAY = ("llava", "qwen3_vl", "gemma3")
FAMILIES = pytest.mark.parametrize(
    "name",
    [
        name if name in BY_DAY else pytest.param(name, marks=pytest.mark.nightly)
        for name in seeing_models.SEEING
    ],
)


def loaded(one: SeeingModel, folder: Path, **options: Any) -> PagedModel:
    one.save(folder)
    return load(folder, World(), **{"noise": one.noise, **options})


def build_for_gpus(
    _: object, checked: CheckedCheckpoint, recipe: Recipe, world: World
) -> Build[DenseCuda]:
    """Makes of a checkpoint's parameters what a GPU computes with, in plain torch on a CPU."""
    part = Partition(world.rank, world.world_size)
    group = dist.group.WORLD if world.world_size > 1 else None
    return partial(build_dense_cuda, recipe, checked.dtype, torch.device("cpu"), part, group)


def for_gpus(one: SeeingModel, folder: Path) -> PagedModel:
    """As a shard with a GPU loads it, but in plain torch on a CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "_build_of", build_for_gpus)
        return loaded(one, folder)


def logits_of(model: PagedModel, prompt: Prompt) -> torch.Tensor:
    """In chunks that end inside of images, if these may be cut, and then token by token."""
    assert model.sight is not None, model.blind_reason
    num_tokens = len(prompt.token_ids)
    ends = [image.stop for image in prompt.images]
    if not model.sight.sees_ahead:
        ends = [5, 9]
    images = SequenceImages(prompt.images, prompt.token_ids, model.sight.is_turned)
    images.see(0, num_tokens, Gallery(model.sight.eyes))
    ends = [0, *ends, *range(num_tokens - 4, num_tokens + 1)]
    lens = [end - start for start, end in pairwise(ends)]
    token_ids = torch.tensor(prompt.token_ids, device=model.device)
    with torch.inference_mode():
        return logits_in_chunks(model._executor, token_ids, lens, images)


@FAMILIES
@pytest.mark.parametrize(("attention", "executor"), [("auto", "dense"), ("cpu-op", "zoo")])
def test_logits_of_two_images_are_those_of_the_class(
    name: str, attention: str, executor: str, tmp_path: Path
) -> None:
    one = seeing_models.build(name)
    prompts = [one.prompt(0, 1), one.prompt(1, 0), one.prompt(1, 1)]
    expected = [one.logits(prompt) for prompt in prompts]
    model = loaded(one, tmp_path, attention=attention)
    assert model.executor.startswith(executor)
    for prompt, logits in zip(prompts, expected, strict=True):
        actual = logits_of(model, prompt)
        assert relative_error(actual, logits) < 1e-5
        assert float((actual - logits).abs().max()) < 1e-4


@pytest.mark.parametrize("attention", ["sdpa", "cpu", "gpu"])
def test_tokens_of_an_image_attend_to_later_ones_of_it_by_every_attention(
    attention: str, tmp_path: Path
) -> None:
    one = seeing_models.build("gemma3")
    prompt = one.prompt(0, 1)
    expected = one.logits(prompt)
    if attention == "gpu":
        model = for_gpus(one, tmp_path)
    else:
        model = loaded(one, tmp_path, attention=attention)
    assert relative_error(logits_of(model, prompt), expected) < 1e-5


@FAMILIES
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_on_a_gpu_logits_are_those_of_the_class(name: str, device: str, tmp_path: Path) -> None:
    if device != "cpu" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    one = seeing_models.build(name)
    prompts = [one.prompt(0, 1), one.prompt(1, 1)]
    expected = [one.logits(prompt) for prompt in prompts]
    model = for_gpus(one, tmp_path) if device == "cpu" else loaded(one, tmp_path, device=device)
    for prompt, logits in zip(prompts, expected, strict=True):
        actual = logits_of(model, prompt).cpu()
        assert relative_error(actual, logits) < 1e-5
        assert float((actual - logits).abs().max()) < 1e-4


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl", "qwen3_vl"])
def test_on_a_gpu_a_graph_decodes_behind_an_image_and_never_within(
    name: str, tmp_path: Path
) -> None:
    one = seeing_models.build(name)
    prompts = [one.prompt(0), one.prompt(begin=8)]
    expected = [one.logits(prompt) for prompt in prompts]
    replayed: list[int] = []

    def capture(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def replay() -> Tensor:
            replayed.append(step)
            return run()

        return replay

    model = for_gpus(one, tmp_path)
    assert model.sight is not None, model.blind_reason
    assert isinstance(model._executor, DenseCuda)
    model._executor._new_capture = lambda: capture
    # The other one plans by what is on the host, which graphs do not see.
    model._executor._attention = ReferenceAttention()
    model.allocate(num_blocks=8)
    model.prepare(max_batch_size=2, max_total_len=64)
    images = SequenceImages(prompts[0].images, prompts[0].token_ids, model.sight.is_turned)
    num_tokens = len(prompts[0].token_ids)
    images.see(0, num_tokens, Gallery(model.sight.eyes))
    # The second step is one token of the image. Beside all of them is a text, token by token.
    lens = [4, 1, num_tokens - 8, 1, 1, 1]
    found: list[list[Tensor]] = [[], []]
    for step, (start, stop) in enumerate(pairwise(accumulate(lens, initial=0))):
        inputs = StepInputs.build(
            [
                SequenceStep(
                    prompts[0].token_ids[start:stop],
                    start,
                    [5, 2, 7, 1],
                    stop - start,
                    images=images.part(start, stop),
                ),
                SequenceStep(prompts[1].token_ids[step : step + 1], step, [3]),
            ],
            block_size=model.block_size,
            scratch_block_id=model.scratch_block_id,
            device=model.device,
        )
        logits = model.forward(inputs).split([stop - start, 1])
        for rows, own in zip(found, logits, strict=True):
            rows.append(own.clone())
    assert replayed == [3, 4, 5]
    for rows, whole in zip(found, expected, strict=True):
        assert float((torch.cat(rows) - whole).abs().max()) < 1e-4


@pytest.mark.parametrize("name", ["llava", "idefics3", "qwen2_5_vl"])
def test_with_its_own_processor_a_prompt_is_what_transformers_makes_of_it(
    name: str, tmp_path: Path
) -> None:
    folder = seeing_checkpoint.save(name, tmp_path)
    sizes = ((40, 60, 3), (70, 33, 3))
    images = [np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8) for size in sizes]
    processor = ImageProcessor(folder, trust_remote_code=False)
    with without_videos():
        of_whole: Any = AutoProcessor.from_pretrained(folder)
    text = f"see {processor.marker} and {processor.marker}, then say"
    whole = of_whole(text=text, images=images, return_tensors="pt", return_mm_token_type_ids=True)
    whole = {name: whole[name] for name in of_whole.model_input_names if name in whole}
    reference: Any = AutoModelForImageTextToText.from_pretrained(folder)
    with torch.inference_mode():
        expected = reference(**whole).logits[0]

    token_ids: list[int] = []
    spans: list[Image] = []
    for words, image in zip(text.split(processor.marker), (*images, None), strict=True):
        token_ids += byte_ids(words)
        if image is not None:
            made = processor.process(image)
            tensors = {
                key: ImageTensor(each.dtype.name, each.shape, each.tobytes())
                for key, each in made.tensors.items()
            }
            spans.append(Image(b"%d" % len(spans), len(token_ids), len(made.span_ids), tensors))
            token_ids += made.span_ids
    assert token_ids == whole["input_ids"][0].tolist()
    actual = logits_of(load(folder, World()), Prompt(tuple(token_ids), tuple(spans), {}))
    assert relative_error(actual, expected) < 1e-5


def test_in_16_bits_it_is_as_near_as_its_class(tmp_path: Path) -> None:
    one = seeing_models.build("qwen2_5_vl")
    prompt = one.prompt(0, 1)
    exact = one.logits(prompt)
    model = loaded(one, tmp_path, dtype="bfloat16")
    one.module.bfloat16()
    inputs = {
        name: each.bfloat16() if each.is_floating_point() else each
        for name, each in prompt.inputs.items()
    }
    native = one.logits(replace(prompt, inputs=inputs))
    error = relative_error(logits_of(model, prompt), exact)
    assert 1e-4 < error < 1.3 * relative_error(native, exact)


@pytest.mark.parametrize("name", ["llava", "llava_next-granite", "qwen3_vl", "gemma3"])
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_beside_layers_in_4_bits_logits_are_those_of_the_class_with_the_same_weights(
    name: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = seeing_models.build(name)
    folder = tmp_path / "int4"
    one.save(folder)
    values = quantize(folder, KINDS["awq"], but="vis")
    one.save(tmp_path / "plain")
    save_file(values, tmp_path / "plain" / "model.safetensors", {"format": "pt"})
    module: Any = AutoModelForImageTextToText.from_pretrained(
        tmp_path / "plain", attn_implementation="eager"
    )
    exact = replace(one, module=module)
    if device == "gpu":
        monkeypatch.setattr(loading, "_build_of", build_for_gpus)
    model = load(folder, World(), activation_bits=16, noise=one.noise)
    assert model.executor.startswith("dense, int4")
    prompt = one.prompt(0, 1)
    max_error = 1e-5 if device == "gpu" else 1e-3
    assert relative_error(logits_of(model, prompt), exact.logits(prompt)) < max_error


def test_beside_layers_in_4_bits_a_mistake_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = seeing_models.build("qwen3_vl")
    one.save(tmp_path)
    quantize(tmp_path, KINDS["gptq"], but="vis")
    look = Eyes.look
    monkeypatch.setattr(Eyes, "look", lambda *given: flat(look(*given)))
    model = load(tmp_path, World(), noise=one.noise)
    assert str(model.blind_reason).startswith("with an image its logits are not those")


def test_where_what_sees_is_in_4_bits_too_images_are_not_served(tmp_path: Path) -> None:
    one = seeing_models.build("llava")
    one.save(tmp_path)
    quantize(tmp_path, KINDS["gptq"])
    reason = load(tmp_path, World(), noise=one.noise).blind_reason
    assert str(reason).startswith("beside weights in 4 bits what sees cannot be read: ")


def shifted(sight: Sight) -> Sight:
    return replace(sight, rows=sight.rows.roll(1, 1))


def swapped(sight: Sight) -> Sight:
    return replace(sight, rows=sight.rows.roll(sight.rows.shape[1] // 2, 1))


def in_a_line(sight: Sight) -> Sight:
    assert sight.layout.turns is not None
    return replace(sight, layout=Layout(None, sight.layout.reach))


def flat(sight: Sight) -> Sight:
    assert len(sight.rows) > 1
    return replace(sight, rows=sight.rows[:1])


def causal(sight: Sight) -> Sight:
    assert sight.key_ends is not None
    return replace(sight, key_ends=None)


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("llava", shifted),
        ("llava", swapped),
        ("qwen2_5_vl", shifted),
        ("qwen2_5_vl", in_a_line),
        ("qwen3_vl", in_a_line),
        ("qwen3_vl", flat),
        ("gemma3", causal),
    ],
)
@pytest.mark.parametrize("attention", ["auto", "cpu-op", "gpu"])
def test_a_mistake_is_found_and_text_is_served_all_the_same(
    name: str, mistake: Any, attention: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Eyes.look
    monkeypatch.setattr(Eyes, "look", lambda *given: mistake(look(*given)))
    one = seeing_models.build(name)
    if attention == "gpu":
        model = for_gpus(one, tmp_path)
    else:
        model = loaded(one, tmp_path, attention=attention)
    assert model.sight is None
    assert model.blind_reason is not None
    assert model.blind_reason.startswith("with an image its logits are not those of transformers")


def test_a_decoder_that_scales_what_it_is_handed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seeing, "_row_scale", lambda *_: 1.0)
    model = loaded(seeing_models.build("llava_next-granite"), tmp_path)
    assert str(model.blind_reason).startswith("with an image its logits")


@pytest.mark.parametrize(
    ("noise", "reason"),
    [
        (ProcessedImage((3, 4), {}), f"its processor writes no image_token_id, {IMAGE_ID}"),
        (ProcessedImage((IMAGE_ID,), {}), "an image of noise is not seen"),
    ],
)
def test_what_its_processor_makes_and_its_class_does_not_take_is_told(
    noise: ProcessedImage, reason: str, tmp_path: Path
) -> None:
    model = loaded(seeing_models.build("llava"), tmp_path, noise=noise)
    assert model.sight is None
    assert str(model.blind_reason).startswith(reason)


def test_the_next_shard_need_not_make_the_image_nor_compute_of_it_in_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = seeing_checkpoint.save("llava", tmp_path / "model")
    kept = ModelSettings(
        folder, torch.device("cpu"), dtype="float32", kept_evidence=tmp_path / "kept.safetensors"
    )
    assert load_model(kept, World()).sight is not None
    monkeypatch.delattr(seeing, "_native_logits")
    monkeypatch.delattr(seeing, "_noise")
    assert load_model(kept, World()).sight is not None
    # It is held to what was left all the same.
    look = Eyes.look
    monkeypatch.setattr(Eyes, "look", lambda *given: shifted(look(*given)))
    assert str(load_model(kept, World()).blind_reason).startswith("with an image its logits")


def test_whatever_goes_wrong_with_the_image_text_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SequenceImages, "rows", lambda *_: 1 / 0)
    model = loaded(seeing_models.build("llava"), tmp_path)
    assert model.blind_reason == "with an image it fails: ZeroDivisionError: division by zero"


def _on_rank(name: str, folder: Path, world: World, *, by_recipe: bool) -> tuple[Any, Any]:
    """The logits of a prompt, and what the rank sees of its first image."""
    one = seeing_models.build(name)
    prompt = one.prompt(0, 1)
    if by_recipe:
        settings = ModelSettings(folder, torch.device("cpu"), dtype="float32")
        # On a CPU a recipe is for one rank.
        pytest.MonkeyPatch().setattr(loading, "_build_of", build_for_gpus)
        checked = check_checkpoint(settings, 1)
        model = loading.load_checked(settings, checked, world, one.noise)
        assert model.executor == "dense, float32, sdpa attention"
    else:
        model = load(folder, world, noise=one.noise)
        assert model.executor.startswith("zoo, ")
    assert model.sight is not None, model.blind_reason
    image = prompt.images[0]
    span_ids = torch.tensor(prompt.token_ids[image.start : image.stop])
    # One looks again, while the other does something else.
    for _ in range(1 + world.rank):
        sight = model.sight.eyes.look(span_ids, tensors_of(image))
    return logits_of(model, prompt).numpy(), sight.rows.numpy()


@pytest.mark.parametrize("by_recipe", [True, False])
@pytest.mark.parametrize("name", ["llava", "qwen3_vl", "gemma3"])
def test_over_two_ranks_each_sees_the_same_and_logits_are_those_of_the_class(
    name: str, by_recipe: bool, tmp_path: Path
) -> None:
    one = seeing_models.build(name)
    one.save(tmp_path)
    expected = one.logits(one.prompt(0, 1))
    first, second = on_two_ranks(partial(_on_rank, name, tmp_path, by_recipe=by_recipe))
    assert relative_error(torch.from_numpy(first[0]), expected) < 1e-5
    assert np.array_equal(first[1], second[1])


def _blind_on_one(name: str, folder: Path, world: World) -> str | None:
    """Why it does not see, if one of its ranks has no processor."""
    one = seeing_models.build(name)
    noise = one.noise if world.is_first else None
    return load(folder, world, attention="cpu-op", noise=noise).blind_reason


def test_where_one_rank_does_not_see_none_does(tmp_path: Path) -> None:
    seeing_models.build("llava").save(tmp_path)
    first, second = on_two_ranks(partial(_blind_on_one, "llava", tmp_path))
    assert first == "another rank does not see"
    assert second.startswith("its processor cannot be used: ")


def test_positions_that_text_of_its_length_would_not_reach_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = Qwen2_5_VLModel.get_rope_index

    def far(*given: Any, **named: Any) -> tuple[Tensor, Tensor]:
        positions, delta = find(*given, **named)
        return positions + 9, delta

    monkeypatch.setattr(Qwen2_5_VLModel, "get_rope_index", far)
    model = loaded(seeing_models.build("qwen2_5_vl"), tmp_path)
    assert str(model.blind_reason).endswith("its positions reach 12, of 6 tokens")


def test_an_image_that_sees_ahead_is_never_cut(tmp_path: Path) -> None:
    one = seeing_models.build("gemma3")
    prompt = one.prompt(0)
    model = loaded(one, tmp_path)
    assert model.sight is not None
    images = SequenceImages(prompt.images, prompt.token_ids, is_turned=False)
    images.see(0, len(prompt.token_ids), Gallery(model.sight.eyes))
    start, stop = prompt.images[0].start, prompt.images[0].stop
    assert images.key_ends(0, start) is None
    assert images.key_ends(start + 1, stop + 1).tolist() == [stop] * 3 + [stop + 1]  # type: ignore[union-attr]
    with pytest.raises(InvalidStep, match=f"a chunk ends at {stop - 1}, within an image"):
        images.key_ends(0, stop - 1)


def test_a_checkpoint_whose_processor_cannot_be_opened_is_served_for_text(tmp_path: Path) -> None:
    model = loaded(seeing_models.build("llava"), tmp_path, noise=None)
    assert model.sight is None
    assert str(model.blind_reason).startswith("its processor cannot be used: ")
