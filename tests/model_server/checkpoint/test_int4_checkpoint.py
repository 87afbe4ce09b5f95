"""Checkpoints in 4 bits are what their numbers say, and are served as such."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.distributed as dist
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from model_server import zoo
from model_server.checkpoint import checkpoint
from model_server.checkpoint.check import ModelSettings, check_checkpoint
from model_server.checkpoint.int4_checkpoint import Int4Format, read_int4
from model_server.engine.distributed import World
from model_server.errors import CheckpointBroken, ModelRefused
from model_server.executor.dense import MAX_GROUPED_ERRORS, load_grouped
from model_server.executor.dense_cpu import DenseCpu
from model_server.executor.dense_cuda import build_dense_cuda
from model_server.executor.device_weights import Partition
from model_server.executor.grouped import GroupedParameters, GroupedWeight
from model_server.executor.int4 import Int4Parameters, Int4Weight, packed, unpacked
from model_server.loading import load_model
from model_server.recipe.dense_torch import Angles, angles_of
from model_server.recipe.reader import read
from model_server.recipe.recipe import Recipe, Unreadable
from model_server.step import SequenceStep, StepInputs
from tests.model_server.checkpoint import tiny_models
from tests.model_server.engine.driver import on_two_ranks
from tests.model_server.recipe.families import FAMILIES, config

Numbers = npt.NDArray[np.int64]

GROUP_LEN = 32


@dataclass(frozen=True, slots=True, eq=False)
class Rounded:
    """A weight as its numbers. `groups`: of each input."""

    numbers: Numbers  # [outputs, inputs], 0 to 15
    scales: Tensor  # [outputs, num_groups] float16
    zeros: Numbers  # [outputs, num_groups]
    groups: Numbers  # [inputs]

    @classmethod
    def of(cls, weight: Tensor, groups: Numbers, *, is_symmetric: bool = False) -> "Rounded":
        """The nearest numbers to a weight [outputs, inputs]."""
        num_groups = int(groups.max()) + 1
        values = weight.double().numpy()
        least = np.stack([values[:, groups == g].min(1) for g in range(num_groups)], 1)
        most = np.stack([values[:, groups == g].max(1) for g in range(num_groups)], 1)
        if is_symmetric:
            most = np.maximum(np.abs(least), np.abs(most))
            least = -most
        scales = torch.from_numpy((most - least) / 15).to(torch.float16)
        zeros = np.clip(np.round(-least / scales.double().numpy()), 1, 15).astype(np.int64)
        if is_symmetric:
            zeros[:] = 8
        places = values / scales.double().numpy()[:, groups] + zeros[:, groups]
        return cls(np.clip(np.round(places), 0, 15).astype(np.int64), scales, zeros, groups)

    @property
    def values(self) -> Tensor:
        """[outputs, inputs] float32."""
        zeros = torch.from_numpy(self.zeros[:, self.groups]).float()
        numbers = torch.from_numpy(self.numbers).float()
        return (numbers - zeros) * self.scales.float()[:, self.groups]


def words(numbers: Numbers, axis: int, places: Sequence[int] = range(8)) -> Tensor:
    """Eight neighbours along an axis to a word: neighbour places[i] in its bits 4 i to 4 i + 3."""
    moved = np.moveaxis(numbers, axis, -1)
    packed = np.zeros((*moved.shape[:-1], moved.shape[-1] // 8), dtype=np.uint32)
    for index, place in enumerate(places):
        packed |= moved[..., place::8].astype(np.uint32) << np.uint32(4 * index)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(packed.view(np.int32), -1, axis)))


def gptq(weight: Rounded, *, subtracts_one: bool = True) -> dict[str, Tensor]:
    return {
        "qweight": words(weight.numbers.T, 0),
        "qzeros": words(weight.zeros.T - subtracts_one, 1),
        "scales": weight.scales.T.contiguous(),
        "g_idx": torch.from_numpy(weight.groups.astype(np.int32)),
    }


def awq(weight: Rounded) -> dict[str, Tensor]:
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {
        "qweight": words(weight.numbers.T, 1, order),
        "qzeros": words(weight.zeros.T, 1, order),
        "scales": weight.scales.T.contiguous(),
    }


def compressed_tensors(weight: Rounded, *, is_symmetric: bool = False) -> dict[str, Tensor]:
    tensors = {
        "weight_packed": words(weight.numbers, 1),
        "weight_scale": weight.scales,
        "weight_shape": torch.tensor(weight.numbers.shape),
    }
    if not is_symmetric:
        tensors["weight_zero_point"] = words(weight.zeros, 0)
    return tensors


@dataclass(frozen=True, slots=True)
class Kind:
    """A format and its settings in a config."""

    write: Callable[[Rounded], dict[str, Tensor]]
    settings: dict[str, Any]
    is_symmetric: bool = False
    is_shuffled: bool = False  # its groups are not runs of inputs


def _compressed(**weights: Any) -> dict[str, Any]:
    group = {"weights": {"num_bits": 4, "type": "int", "strategy": "group", **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
    }


KINDS = {
    "gptq": Kind(gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP_LEN}),
    "gptq in another order": Kind(
        gptq,
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP_LEN, "desc_act": True},
        is_shuffled=True,
    ),
    "gptq_v2": Kind(
        lambda weight: gptq(weight, subtracts_one=False),
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"},
    ),
    "awq": Kind(
        awq,
        {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True},
    ),
    "compressed-tensors": Kind(compressed_tensors, _compressed(symmetric=False)),
    "compressed-tensors, symmetric": Kind(
        lambda weight: compressed_tensors(weight, is_symmetric=True),
        _compressed(symmetric=True),
        is_symmetric=True,
    ),
}


def groups_of(num_inputs: int, kind: Kind) -> Numbers:
    groups = np.arange(num_inputs) // GROUP_LEN
    return np.random.default_rng(0).permutation(groups) if kind.is_shuffled else groups


def quantize(folder: Path, kind: Kind, *, but: str = "no layer") -> dict[str, Tensor]:
    """Write a checkpoint's layers in 4 bits; returns what its parameters are then.

    but: a part of the names of those that stay as they are
    """
    tensors = {}
    values = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        values[name] = tensor
        if not name.endswith("_proj.weight") or but in name:
            tensors[name] = tensor
            continue
        rounded = Rounded.of(
            tensor, groups_of(tensor.shape[1], kind), is_symmetric=kind.is_symmetric
        )
        values[name] = rounded.values
        layer = name.removesuffix(".weight")
        tensors |= {f"{layer}.{part}": each for part, each in kind.write(rounded).items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = kind.settings
    (folder / "config.json").write_text(json.dumps(config))
    return values


CPU = torch.device("cpu")
VOCAB_SIZE = 160
TOKENS = tuple(range(5, 45))


def save(folder: Path, *, is_tied: bool = False, **options: Any) -> Path:
    """A checkpoint of a small Qwen2, whose queries have biases."""
    torch.manual_seed(0)
    model = transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=VOCAB_SIZE,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=is_tied,
            eos_token_id=2,
            **options,
        )
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    return folder


def logits_of(folder: Path, **options: Any) -> Tensor:
    """Of some tokens, by the shard's own loading."""
    model = load_model(ModelSettings(folder, CPU, dtype="float32", **options), World())
    assert model.fallback_reason is None
    model.allocate(8)
    step = SequenceStep(TOKENS, 0, range(4), len(TOKENS))
    inputs = StepInputs.build([step], block_size=16, scratch_block_id=7, device=CPU)
    return model.forward(inputs).clone()


def save_plain(folder: Path, values: Mapping[str, Tensor], *, is_tied: bool = False) -> Path:
    """The same model as of `save`, of such parameters."""
    save(folder, is_tied=is_tied)
    tensors = {name: each.contiguous() for name, each in values.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def distance(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).square().mean().sqrt() / expected.std())


def test_numbers_in_words_come_out_in_their_order() -> None:
    numbers = torch.arange(48, dtype=torch.uint8).reshape(3, 16) % 16
    words = packed(numbers)
    assert words.shape == (3, 2)
    assert torch.equal(unpacked(words), numbers)
    assert int(words[0, 0]) & 0xFFFFFFFF == 0x76543210


@pytest.mark.parametrize("kind", KINDS)
def test_each_format_is_read_as_its_numbers_say(kind: str, tmp_path: Path) -> None:
    expected = quantize(save(tmp_path), KINDS[kind])
    stored = Int4Format.of(KINDS[kind].settings)
    shapes = {name: tuple(values.shape) for name, values in expected.items()}
    tied = {name: name for name in shapes}
    stored_names = {name: name for name in checkpoint.check(tmp_path)}
    parameters = read_int4(
        tmp_path, stored, shapes, tied, stored_names, dtype=torch.float32, device=CPU
    )
    for name, values in expected.items():
        torch.testing.assert_close(parameters[name], values, rtol=0, atol=0)
    # Groups that are no runs of inputs have no place in the one layout.
    assert len(parameters.int4) == (0 if KINDS[kind].is_shuffled else 14)


@pytest.mark.parametrize(("kind", "is_tied"), [*((kind, False) for kind in KINDS), ("gptq", True)])
def test_a_checkpoint_in_4_bits_computes_what_its_values_in_float32_do(
    kind: str, is_tied: bool, tmp_path: Path
) -> None:
    folder = save(tmp_path / "int4", is_tied=is_tied)
    values = quantize(folder, KINDS[kind])
    exact = logits_of(save_plain(tmp_path / "plain", values, is_tied=is_tied))
    actual, in_8_bits = (logits_of(folder, activation_bits=bits) for bits in (16, 8))
    if KINDS[kind].is_shuffled:
        assert torch.equal(actual, exact)
        assert torch.equal(in_8_bits, exact)
    else:
        assert distance(actual, exact) < 1e-3
        assert 1e-3 < distance(in_8_bits, exact) < 0.05


def test_a_checkpoint_in_4_bits_stays_in_4_bits_on_a_cpu(tmp_path: Path) -> None:
    quantize(save(tmp_path), KINDS["awq"])
    model = load_model(ModelSettings(tmp_path, CPU, dtype="float32"), World())
    assert model.executor.startswith("dense, int4+f32, ")


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
def test_4_bits_are_found_by_the_names_that_a_checkpoint_of_more_than_text_has(
    name: str, tmp_path: Path
) -> None:
    folder = tiny_models.save(name, tmp_path / "int4")
    plain = tiny_models.save(name, tmp_path / "plain")
    values = quantize(folder, KINDS["gptq"])
    save_file(values, plain / "model.safetensors", {"format": "pt"})
    recipe = check_checkpoint(ModelSettings(folder, CPU, dtype="float32"), 1).recipe
    assert recipe is not None
    # The class has other names for them.
    assert recipe.layers[0].attention.query.linear.weight not in values
    assert distance(logits_of(folder, activation_bits=16), logits_of(plain)) < 1e-3


def test_a_checkpoint_in_4_bits_may_be_computed_in_8(tmp_path: Path) -> None:
    quantize(save(tmp_path), KINDS["gptq"])
    in_4_bits = logits_of(tmp_path)
    rounded = logits_of(tmp_path, quantize="int8")
    assert 0 < distance(rounded, in_4_bits) < 0.2


def test_what_a_checkpoint_has_not_in_4_bits_may_be_rounded_to_them(tmp_path: Path) -> None:
    quantize(save(tmp_path), KINDS["gptq"])
    model = load_model(ModelSettings(tmp_path, CPU, dtype="float32", quantize="int4"), World())
    assert model.executor.startswith("dense, int4+int8, ")
    assert 0.002 < distance(logits_of(tmp_path, quantize="int4"), logits_of(tmp_path)) < 0.2


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """A checkpoint whose weights are read, and not packed yet."""

    recipe: Recipe
    angles: Sequence[Angles]
    parameters: Int4Parameters

    @classmethod
    def of(cls, folder: Path) -> "Read":
        checked = check_checkpoint(ModelSettings(folder, CPU, dtype="float32"), 1)
        recipe = checked.recipe
        assert recipe is not None
        stored = checked.int4
        assert stored is not None
        rotary = {each.module for each in recipe.rotary}
        module = zoo.build_parts(checked.config, rotary, CPU, trust_remote_code=False)
        shapes = {name: tuple(module.get_parameter(name).shape) for name in recipe.last_uses()}
        parameters = read_int4(
            folder,
            stored,
            shapes,
            {name: name for name in shapes},
            zoo.stored_names(module, checkpoint.check(folder)),
            dtype=torch.float32,
            device=CPU,
        )
        return cls(recipe, angles_of(recipe, module), parameters)

    def load(self, parameters: GroupedParameters, bits: int) -> DenseCpu:
        """Prove it with such weights, for rows of so many bits."""
        build = partial(
            DenseCpu, self.recipe, dtype=torch.float32, num_threads=2, activation_bits=bits
        )
        return load_grouped(
            self.recipe,
            parameters,
            self.angles,
            build,
            num_positions=256,
            quantize=None,
            max_error=MAX_GROUPED_ERRORS[torch.float32],
        )


class Spoiled(GroupedParameters):
    """Others, of which one is packed otherwise than it reads."""

    device = CPU
    has_groups = True

    def __init__(
        self, given: Int4Parameters, name: str, spoil: Callable[[GroupedWeight], GroupedWeight]
    ) -> None:
        self._given = given
        self._name = name
        self._spoil = spoil

    def __getitem__(self, name: str) -> Tensor:
        return self._given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def grouped(self, name: str) -> GroupedWeight | None:
        weight = self._given.grouped(name)
        return self._spoil(weight) if weight is not None and name == self._name else weight

    def release(self, name: str) -> None:
        self._given.release(name)


def blocks_exchanged(weight: GroupedWeight) -> GroupedWeight:
    return replace(
        weight, numbers=torch.cat((weight.numbers[8:16], weight.numbers[:8], weight.numbers[16:]))
    )


def a_scale_eight_times_as_large(weight: GroupedWeight) -> GroupedWeight:
    values = weight.scales.values.clone()
    values[3, 1] *= 8
    return replace(weight, scales=replace(weight.scales, values=values))


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("spoil", [blocks_exchanged, a_scale_eight_times_as_large])
@pytest.mark.parametrize("part", ["self_attn.v_proj", "mlp.gate_proj", "mlp.down_proj"])
def test_one_block_or_one_group_that_is_packed_wrong_is_found_whatever_bits_rows_have(
    part: str, spoil: Callable[[GroupedWeight], GroupedWeight], bits: int, tmp_path: Path
) -> None:
    quantize(save(tmp_path), KINDS["gptq"])
    name = f"model.layers.0.{part}.weight"
    read = Read.of(tmp_path)
    with pytest.raises(Unreadable, match="too far from float32"):
        read.load(Spoiled(read.parameters, name, spoil), bits)
    right = Read.of(tmp_path)
    assert right.load(right.parameters, bits).name.startswith("dense, int4+f32, ")


def logits_on_device(folder: Path, world: World) -> Any:
    """Of the same tokens, by this rank's part of the executor for GPUs in plain torch."""
    read = Read.of(folder)
    group = None if world.world_size == 1 else dist.group.WORLD
    part = Partition(world.rank, world.world_size)
    build = partial(build_dense_cuda, read.recipe, torch.float32, CPU, part, group)
    executor = load_grouped(
        read.recipe,
        read.parameters,
        read.angles,
        build,
        num_positions=256,
        quantize=None,
        max_error=None,
    )
    if read.parameters.int4:
        assert executor.name.startswith("dense, int4, ")
    executor.allocate(8)
    step = SequenceStep(TOKENS, 0, range(4), len(TOKENS))
    inputs = StepInputs.build([step], block_size=16, scratch_block_id=7, device=CPU)
    # As no tensor, which another process could not get.
    return executor.forward(inputs).numpy()


@pytest.mark.parametrize("kind", ["gptq in another order", "awq", "compressed-tensors"])
def test_the_executor_for_gpus_computes_the_same(kind: str, tmp_path: Path) -> None:
    values = quantize(save(tmp_path / "int4"), KINDS[kind])
    actual = torch.from_numpy(logits_on_device(tmp_path / "int4", World()))
    exact = logits_of(save_plain(tmp_path / "plain", values))
    torch.testing.assert_close(actual, exact, rtol=1e-4, atol=1e-4)


@pytest.mark.nightly
@pytest.mark.parametrize("sees", [False, True])
def test_two_ranks_have_each_a_part_of_the_4_bits(sees: bool, tmp_path: Path) -> None:
    folder = tmp_path / "int4"
    quantize(tiny_models.save("llava", folder) if sees else save(folder), KINDS["gptq"])
    alone = torch.from_numpy(logits_on_device(folder, World()))
    first, _ = on_two_ranks(partial(logits_on_device, folder))
    assert not isinstance(first, str), first
    torch.testing.assert_close(torch.from_numpy(first), alone, rtol=1e-4, atol=1e-4)


GPTQ = KINDS["gptq"].settings
COMPRESSED = KINDS["compressed-tensors"].settings


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"quant_method": "fbgemm_fp8"}, "by fbgemm_fp8"),
        ({**GPTQ, "bits": 8}, "by gptq with bits 8: 4 is read"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "with checkpoint_format 'marlin'"),
        ({**GPTQ, "dynamic": {"-:lm_head": {}}}, "with dynamic"),
        ({**KINDS["awq"].settings, "version": "gemv"}, "by awq with version 'gemv': 'gemm' is"),
        ({**COMPRESSED, "format": "float-quantized"}, "with format 'float-quantized'"),
        ({**COMPRESSED, "config_groups": {}}, "with the number of config_groups 0"),
    ],
)
def test_other_formats_are_named(settings: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(Unreadable, match="its checkpoint is quantized") as refused:
        Int4Format.of(settings)
    assert reason in str(refused.value)


def test_what_is_not_read_here_is_left_to_transformers(tmp_path: Path) -> None:
    folder = save(tmp_path)
    content = json.loads((folder / "config.json").read_text())
    content["quantization_config"] = {"quant_method": "gptq", "bits": 8}
    (folder / "config.json").write_text(json.dumps(content))
    reason = r"quantized by gptq with bits 8: 4 is read, and transformers .* requires optimum"
    with pytest.raises(ModelRefused, match=reason):
        check_checkpoint(ModelSettings(folder, CPU, dtype="float32"), 1)


@pytest.mark.parametrize("name", ["qweight", "qzeros", "scales"])
def test_a_tensor_of_another_shape_is_named(name: str, tmp_path: Path) -> None:
    quantize(save(tmp_path), KINDS["gptq"])
    tensors = load_file(tmp_path / "model.safetensors")
    broken = f"model.layers.1.mlp.up_proj.{name}"
    tensors[broken] = tensors[broken][:, :-1].contiguous()
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointBroken, match=f"{broken} has the shape"):
        logits_of(tmp_path)


@pytest.mark.parametrize(
    ("name", "error", "reason"),
    [
        ("model.layers.0.self_attn.q_proj.qzeros", CheckpointBroken, "has no {}"),
        ("model.norm.weight", ModelRefused, "quantized by awq and lacks {}, and transformers"),
    ],
)
def test_a_tensor_that_is_missing_is_named(
    name: str, error: type[Exception], reason: str, tmp_path: Path
) -> None:
    quantize(save(tmp_path), KINDS["awq"])
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(error, match=reason.format(name)):
        load_model(ModelSettings(tmp_path, CPU, dtype="float32"), World())


@pytest.mark.parametrize("group", [-1, 99])
def test_an_input_of_a_group_that_is_not_there_is_refused(group: int, tmp_path: Path) -> None:
    quantize(save(tmp_path), KINDS["gptq"])
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.g_idx"][3] = group
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointBroken, match=r"up_proj\.g_idx: names others than its \d+ groups"):
        logits_of(tmp_path)


@pytest.mark.parametrize("family", ["llama-dynamic", "phi3-longrope", "olmo3", "gpt_neox", "glm"])
def test_angles_need_no_weights(family: str) -> None:
    """A checkpoint in 4 bits takes them from a model that has none."""
    kind, own = FAMILIES[family]
    settings = config(kind, **own)
    whole = zoo.build_small(settings, trust_remote_code=False).module
    recipe = read(whole)
    names = {rotary.module for rotary in recipe.rotary}
    bare = zoo.build_parts(settings, names, CPU, trust_remote_code=False)
    positions = torch.arange(64)
    for ours, theirs in zip(angles_of(recipe, bare), angles_of(recipe, whole), strict=True):
        assert all(map(torch.equal, ours(positions), theirs(positions)))


def test_rows_and_inputs_of_a_weight_are_taken_in_its_layout() -> None:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 16, (6, 64), generator=generator, dtype=torch.uint8)
    weight = Int4Weight(
        packed(numbers),
        torch.rand((6, 2), generator=generator),
        torch.randint(0, 17, (6, 2), generator=generator, dtype=torch.uint8),
    )
    rows = torch.tensor([4, 0])
    dense = weight.dense(torch.float32)
    assert torch.equal(weight.rows(rows).dense(torch.float32), dense[rows])
    assert torch.equal(weight.narrow(range(32, 64)).dense(torch.float32), dense[:, 32:])
    assert not weight.can_narrow(range(16, 48))
