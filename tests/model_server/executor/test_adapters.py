"""What an executor computes with adapters is what peft computes, whatever else is in the step."""

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from model_server.adapter import Adapter
from model_server.attention.reference import ReferenceAttention
from model_server.checkpoint import gate
from model_server.executor.adapters import AdapterPlaces
from model_server.executor.executor import Executor
from model_server.executor.zoo_executor import ZooExecutor
from model_server.mixers import Memory
from model_server.recipe.recipe import Moe
from model_server.recipe.recording import native_logits
from model_server.zoo import HfModel
from tests.model_server import lora_folders
from tests.model_server.executor.decoders import (
    CPU,
    NUM_BLOCKS,
    Decoder,
    Pool,
    ValuesInMoreBits,
    decoder,
    distance,
    random_tokens,
)
from tests.model_server.recipe.families import WITH_STATES
from tests.native.compiler import needs_compiler

BF16 = torch.bfloat16
PROMPT_LEN = 40
# Unlike in ranks and scales, which are no powers of two, and in what they change.
KINDS: tuple[dict[str, Any], ...] = (
    {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"},
    {"r": 5, "lora_alpha": 7, "use_rslora": True, "target_modules": "all-linear"},
)
SPLIT: dict[str, Any] = {
    "r": 4,
    "lora_alpha": 3,
    "target_modules": r".*\.(v_proj|o_proj|up_proj|down_proj)",
    "alpha_pattern": {"o_proj": 5},
    "rank_pattern": {"down_proj": 12},
}


# Of a model with experts: all but these and what chooses them.
BESIDE_EXPERTS = (
    r".*\.(q_proj|k_proj|v_proj|o_proj|in_proj_\w+|out_proj|shared_expert\.(gate|up|down)_proj)"
)


def save_by_peft(model: Any, folder: Path, seed: int = 0, **config: Any) -> Any:
    """An adapter that peft itself made and saved; returns its model."""
    with warnings.catch_warnings():
        # Of models with experts it says that it found no patterns, which it made itself.
        warnings.simplefilter("ignore", RuntimeWarning)
        settings = LoraConfig(task_type="CAUSAL_LM", **config)
        made = get_peft_model(copy.deepcopy(model), settings).eval()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for name, parameter in made.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.1)
    made.save_pretrained(str(folder))
    return made


def places_of(executor: Executor) -> AdapterPlaces:
    assert executor.adapters is not None
    return executor.adapters


def loaded(executor: Executor, *folders: Path) -> Pool:
    """The adapters in places from the last one down."""
    places = places_of(executor)
    for place, folder in zip((3, 2, 1, 0), folders, strict=False):
        packed = places.pack(Adapter.read(folder, places.adaptable, max_rank=16))
        # 0: there is memory for it already.
        assert packed.num_bytes <= places.bytes_each or places.bytes_each == 0
        places.set(place, packed)
    return Pool(executor)


def prompts(count: int) -> list[Tensor]:
    return list(random_tokens(PROMPT_LEN * count).split(PROMPT_LEN))


def in_chunks(pool: Pool, parts: list[tuple[Tensor, int | None]], *lens: int) -> list[Tensor]:
    """Logits of all tokens of sequences that advance together, each with the adapter of a place."""
    held = [pool.sequence(prompt) for prompt, _ in parts]
    for sequence, (_, place) in zip(held, parts, strict=True):
        sequence.adapter = place
    steps = [pool.run([(sequence, length) for sequence in held]) for length in lens]
    for sequence in held:
        pool.release(sequence)
    return [torch.cat(chunks) for chunks in zip(*steps, strict=True)]


def zoo(own: Decoder) -> ZooExecutor:
    """The model in its own class, with the adapters that its linear layers take."""
    model = HfModel(copy.deepcopy(own.model))
    attention = ReferenceAttention()
    plans = gate.probe_layers(
        model, Memory(), attention, torch.float32, CPU, gate.expected_logits(model, CPU)
    )
    executor = ZooExecutor(model, plans, Memory(), attention, torch.float32, CPU, max_lora_rank=16)
    executor.allocate(NUM_BLOCKS + 1)
    return executor


EXECUTORS: dict[str, Callable[[Decoder], Executor]] = {
    "native": lambda own: own.executor(torch.float32, max_loras=4),
    "torch": lambda own: own.on_device(
        torch.float32, has_adapters=True, new_capture=lambda: lambda run: run
    ),
    "zoo": zoo,
}


def by_night(kind: str, *families: str) -> list[Any]:
    return [pytest.param(kind, family, marks=pytest.mark.nightly) for family in families]


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        pytest.param("native", "llama", marks=needs_compiler),
        pytest.param("native", "phi3-partial", marks=needs_compiler),
        ("torch", "llama"),
        ("zoo", "llama"),
        *by_night("native", "qwen3", "gemma2", "gpt_neox", "glm", "mixtral", "qwen2_moe", "olmo2"),
        # Of Qwen3-Next peft changes the experts, whatever it is asked for.
        *by_night("native", *(each for each in WITH_STATES if each != "qwen3_next")),
        *by_night("torch", "phi3-partial", "gpt_neox", "glm", "qwen2_moe", "qwen3_5", "lfm2-bias"),
        *by_night("zoo", "phi3-partial", "gpt_neox", "qwen2_moe", "starcoder2"),
    ],
)
def test_a_mixed_batch_is_as_near_to_peft_as_the_model_alone(
    kind: str, family: str, tmp_path: Path
) -> None:
    own = decoder(family)
    kinds = [*KINDS, SPLIT] if family == "llama" else list(KINDS)
    models: list[Any] = [own.model]
    for index, settings in enumerate(kinds):
        if any(isinstance(layer.mlp, Moe) for layer in own.recipe.layers):
            settings = {**settings, "target_modules": BESIDE_EXPERTS}
        folder = tmp_path / str(index)
        models.append(save_by_peft(own.model, folder, index, **settings))
    executor = EXECUTORS[kind](own)
    executor.prepare(4, 256, NUM_BLOCKS)
    pool = loaded(executor, *(tmp_path / str(index) for index in range(len(kinds))))
    places = [None, 3, 2, 1][: len(models)]
    parts = list(zip(prompts(len(models)), places, strict=True))

    actual = in_chunks(pool, parts, 13, 6, 1, 20)

    with torch.inference_mode():
        expected = [
            native_logits(model.base_model.model if place is not None else model, prompt).float()
            for model, (prompt, place) in zip(models, parts, strict=True)
        ]
    for one, wanted, (prompt, place) in zip(actual, expected, parts, strict=True):
        assert distance(one, wanted) < (2e-5 if family in WITH_STATES else 1e-5), place
        if place is not None:
            assert distance(own.native(prompt), wanted) > 0.1
    executor.close()


@needs_compiler
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("family", ["llama", pytest.param("qwen3_5", marks=pytest.mark.nightly)])
def test_a_sequence_has_the_same_bits_in_any_batch_and_any_chunks(
    kind: str, family: str, tmp_path: Path
) -> None:
    own = decoder(family)
    quantize = kind if kind in ("int8", "int4") else None
    executor = own.executor(
        BF16 if quantize else getattr(torch, kind), quantize=quantize, max_loras=4
    )
    folders = [
        lora_folders.save(
            tmp_path / str(rank), places_of(executor).adaptable, rank=rank, lora_alpha=alpha
        )
        for rank, alpha in ((8, 16), (5, 3))
    ]
    pool = loaded(executor, *folders)
    parts: list[tuple[Tensor, int | None]] = list(
        zip(prompts(14), (3, 2, None, 3, 3, *(2, None) * 3, *(2, 3, 3)), strict=True)
    )
    together = in_chunks(pool, parts, 13, 6, 1, 1, 19)
    for part, expected in zip(parts[:3], together, strict=False):
        for lens in ((PROMPT_LEN,), (1, 30, 9)):
            (alone,) = in_chunks(pool, [part], *lens)
            assert torch.equal(alone, expected)
    other_way = in_chunks(pool, parts[::-1], 20, 20)
    for actual, expected in zip(other_way[::-1], together, strict=True):
        assert torch.equal(actual, expected)
    pool.executor.close()


@needs_compiler
def test_what_is_packed_apart_gets_its_own_part_of_an_adapter(tmp_path: Path) -> None:
    own = decoder("llama")
    values = ValuesInMoreBits(own)
    plain = replace(own, parameters={name: values[name] for name in values})
    (prompt,) = prompts(1)
    answers = []
    for each in (replace(own, parameters=values), plain):
        executor = each.executor(torch.float32, max_loras=4)
        adaptable = places_of(executor).adaptable
        folder = lora_folders.save(tmp_path / executor.name, adaptable, rank=8, lora_alpha=16)
        pool = loaded(executor, folder)
        answers += in_chunks(pool, [(prompt, 3), (prompt, None)], PROMPT_LEN)
        executor.close()
    actual, without, expected, _ = answers
    assert distance(actual, expected) < 0.15
    assert distance(without, expected) > 0.5


@needs_compiler
def test_steps_without_an_adapter_have_the_bits_of_a_model_that_takes_none(tmp_path: Path) -> None:
    own = decoder("llama")
    (prompt,) = prompts(1)
    plain = Pool(own.executor(BF16))
    executor = own.executor(BF16, max_loras=2)
    assert plain.executor.adapters is None
    places = places_of(executor)
    folder = lora_folders.save(tmp_path / "a", places.adaptable)
    places.set(0, places.pack(Adapter.read(folder, places.adaptable, max_rank=16)))
    pool = Pool(executor)

    (expected,) = in_chunks(plain, [(prompt, None)], PROMPT_LEN)
    (alone,) = in_chunks(pool, [(prompt, None)], PROMPT_LEN)
    beside, with_adapter = in_chunks(pool, [(prompt, None), (prompt, 0)], 20, 20)
    places.set(0, None)
    (unloaded,) = in_chunks(pool, [(prompt, 0)], PROMPT_LEN)

    assert torch.equal(alone, expected)
    assert torch.equal(beside, expected)
    assert torch.equal(unloaded, expected)
    assert distance(with_adapter, expected) > 0.1
    executor.close()
    plain.executor.close()


@needs_compiler
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_narrow_model_adds_what_the_adapter_gives_in_float32(
    quantize: str | None, tmp_path: Path
) -> None:
    """Beside weights of 8 bits as well: it is as near to merged weights as they let it be."""
    own = decoder("llama")
    peft = save_by_peft(own.model, tmp_path / "a", **KINDS[1])
    pool = loaded(own.executor(BF16, quantize=quantize, max_loras=4), tmp_path / "a")
    (prompt,) = prompts(1)
    (actual,) = in_chunks(pool, [(prompt, 3)], PROMPT_LEN)
    with torch.inference_mode():
        expected = native_logits(peft.base_model.model, prompt).float()
    assert distance(actual, expected) < (0.2 if quantize else 0.05)
    assert distance(actual, own.native(prompt)) > 1.0
    pool.executor.close()
