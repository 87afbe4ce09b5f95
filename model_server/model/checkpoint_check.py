"""The check of a checkpoint before its weights are read: whether it can be served, and how.

    files, headers -> config -> class without weights -> recipe, or gate's rule and self-test
    -> dtype, bytes

Loading begins with it. It reads no weights and keeps nothing.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from model_server.errors import ArchitectureUnfit, CheckpointBroken, ModelRefused
from model_server.executor.int4 import Int4Format
from model_server.executor.unfit import unfit_reason, unfit_reason_on_cuda
from model_server.model import checkpoint, gate, zoo
from model_server.model.hf_model import HfModel, ModelFacts
from model_server.recipe.proof import read_recipe
from model_server.recipe.recipe import Mlp, Moe, Recipe, Unreadable

_log = logging.getLogger(__name__)

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
# Of CUDA devices: before, bfloat16 is emulated.
_BFLOAT16_CAPABILITY = (8, 0)
_FLOAT8_CAPABILITY = (8, 9)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The checkpoint to serve, and how.

    `dtype` "auto": bfloat16 where the processor computes in it, else float32, or float16 on CUDA; a
    float16 checkpoint stays float16 there. `attention` names a backend, or "auto".
    """

    folder: Path
    device: torch.device
    dtype: str = "auto"
    attention: str = "auto"
    quantize: str | None = None
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class CheckedCheckpoint:
    """A checkpoint that may be loaded.

    num_shards:      each rank has one of so many parts of the weights
    num_parameters:  of the whole model
    weights_dtype:   in which they are read and, unless they are quantized then, kept
    weights_bytes:   of the whole model in it; None for a quantized model, where it is unknown
    facts:           of the model's class and config
    recipe:          what the model computes; None: it runs in its own class
    fallback_reason: why there is no recipe; None: there is one
    int4:            how the weights of the recipe are stored in 4 bits; None: they are not
    """

    config: Any
    dtype: torch.dtype
    weights_dtype: torch.dtype
    num_shards: int
    num_parameters: int
    weights_bytes: int | None
    facts: ModelFacts
    recipe: Recipe | None
    fallback_reason: str | None
    int4: Int4Format | None = None

    @property
    def bytes_of_rank(self) -> int:
        """The least bytes of one rank's weights; 0 where that is unknown."""
        return (self.weights_bytes or 0) // self.num_shards


def check_checkpoint(settings: ModelSettings, world_size: int) -> CheckedCheckpoint:
    """Raises CheckpointBroken (files), ArchitectureUnfit (the gate) or another ModelRefused."""
    trust = settings.trust_remote_code
    stored = checkpoint.check(settings.folder)
    config = zoo.read_config(settings.folder, trust_remote_code=trust)
    empty = zoo.build_empty(config, trust_remote_code=trust)
    zoo.eos_token_ids(settings.folder, config)
    if _quantization(config) is None:
        _require_shapes(settings.folder, empty, stored)
    dtype = _resolve_dtype(settings.dtype, config, settings.device)
    recipe, fallback_reason = None, _not_dense(settings, world_size, config, dtype)
    if fallback_reason is None:
        try:
            recipe = _dense_recipe(settings, world_size, config, dtype, empty)
        except Unreadable as error:
            fallback_reason = str(error)
    if fallback_reason is not None:
        zoo.check_quantization(settings.folder, config, settings.device, fallback_reason)
        check_zoo(settings, config, empty.facts, fallback_reason)
    is_sharded = recipe is not None or _can_shard(empty, world_size)
    num_shards = world_size if is_sharded else 1
    quantization = _quantization(config)
    num_parameters = empty.num_parameters()
    weights_dtype = dtype
    if recipe is not None and settings.device.type == "cpu":
        weights_dtype = _weights_dtype(dtype, stored)
    return CheckedCheckpoint(
        config=config,
        dtype=dtype,
        weights_dtype=weights_dtype,
        num_shards=num_shards,
        num_parameters=num_parameters,
        weights_bytes=num_parameters * weights_dtype.itemsize if quantization is None else None,
        facts=empty.facts,
        recipe=recipe,
        fallback_reason=fallback_reason,
        int4=None if recipe is None or quantization is None else Int4Format.of(quantization),
    )


def _weights_dtype(
    dtype: torch.dtype, stored: Mapping[str, checkpoint.StoredTensor]
) -> torch.dtype:
    """Where float32 is computed, weights of bfloat16 are widened as they are multiplied."""
    is_narrow = all(tensor.dtype == "BF16" for tensor in stored.values())
    return torch.bfloat16 if is_narrow and dtype == torch.float32 else dtype


def _require_shapes(
    folder: Path, empty: HfModel, tensors: Mapping[str, checkpoint.StoredTensor]
) -> None:
    """Raises CheckpointBroken for weights of another shape than the config asks for.

    Some are turned when they are loaded, and some go by other names there.
    """
    for name, parameter in empty.module.named_parameters():
        stored = tensors.get(name)
        if stored is not None and sorted(stored.shape) != sorted(parameter.shape):
            raise CheckpointBroken(
                f"{folder}: {name!r} has the shape {list(stored.shape)}, and by config.json the"
                f" model's is {list(parameter.shape)}"
            )


def _quantization(config: Any) -> Mapping[str, Any] | None:
    """How its checkpoint is quantized; None: it is not."""
    settings = getattr(config, "quantization_config", None)
    if settings is None or isinstance(settings, Mapping):
        return settings
    return dict(settings.to_dict())


def _not_dense(
    settings: ModelSettings, world_size: int, config: Any, dtype: torch.dtype
) -> str | None:
    """Why no recipe is looked for; None: one is."""
    if settings.attention != "auto":
        return f"--attention {settings.attention}"
    if settings.quantize == "fp8" and settings.device.type == "cuda":
        capability = torch.cuda.get_device_capability(settings.device)
        if capability < _FLOAT8_CAPABILITY:
            return (
                f"compute capability {capability[0]}.{capability[1]} has no fp8: it came with 8.9"
            )
    if settings.device.type == "cpu" and world_size > 1:
        return "there is no dense executor for several ranks on CPUs"
    if settings.device.type == "cpu" and dtype not in (torch.bfloat16, torch.float32):
        return f"{str(dtype).removeprefix('torch.')} on a CPU"
    quantization = _quantization(config)
    if quantization is not None and settings.quantize == "fp8":
        return "its checkpoint is quantized already"
    if quantization is not None:
        try:
            Int4Format.of(quantization)
        except Unreadable as error:
            return str(error)
    return None


def _dense_recipe(
    settings: ModelSettings, world_size: int, config: Any, dtype: torch.dtype, empty: HfModel
) -> Recipe:
    """Raises Unreadable for a model that no dense executor of the device can run."""
    recipe = read_recipe(config, trust_remote_code=settings.trust_remote_code)
    if settings.device.type == "cpu":
        unfit = unfit_reason(recipe, dtype, settings.quantize)
    else:
        lens = tuple(_inner_len(layer.mlp, empty) for layer in recipe.layers)
        unfit = unfit_reason_on_cuda(recipe, lens, world_size, settings.quantize)
    if unfit is not None:
        raise Unreadable(unfit)
    return recipe


def _inner_len(mlp: Mlp | Moe, empty: HfModel) -> int:
    """Of what the last product of an MLP reads; 0 where there are several."""
    if isinstance(mlp, Moe):
        return 0
    shape = empty.module.get_parameter(mlp.out.weight).shape
    return int(shape[0 if mlp.out.transposed else 1])


def check_zoo(settings: ModelSettings, config: Any, facts: ModelFacts, reason: str) -> None:
    """Raise ArchitectureUnfit for a model that cannot run in its own class.

    reason: why it has to
    """
    if settings.quantize is not None:
        raise ModelRefused(f"--quantize {settings.quantize} cannot be served: {reason}")
    gate.check_class(facts)
    build = partial(zoo.build_small, trust_remote_code=settings.trust_remote_code)
    untried = gate.self_test(config, build)
    if untried is None:
        return
    if facts.config_window_len is not None or facts.chunk_len is not None:
        raise ArchitectureUnfit(
            f"{facts.class_name} cannot be served: its attention is bounded, and no small model of"
            f" it could be made to verify that ({untried})"
        )
    _log.warning(
        "%s: no small model could be tried (%s); the loaded one is probed alone",
        facts.class_name,
        untried,
    )


def _resolve_dtype(name: str, config: Any, device: torch.device) -> torch.dtype:
    if name not in ("auto", *_DTYPES):
        raise ModelRefused(f"dtype {name!r}: must be auto or one of {', '.join(_DTYPES)}")
    if device.type != "cuda":
        # Elsewhere bfloat16 is emulated, at several times the cost of float32.
        has_bfloat16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
        fastest = torch.bfloat16 if has_bfloat16 else torch.float32
        return _DTYPES.get(name, fastest)
    capability = torch.cuda.get_device_capability(device)
    if name == "bfloat16" and capability < _BFLOAT16_CAPABILITY:
        raise ModelRefused(
            f"dtype bfloat16: {torch.cuda.get_device_name(device)} has compute capability"
            f" {capability[0]}.{capability[1]}, and computes in bfloat16 from 8.0 on; try float16"
        )
    is_half = getattr(config.get_text_config(), "dtype", None) == torch.float16
    if is_half or capability < _BFLOAT16_CAPABILITY:
        return _DTYPES.get(name, torch.float16)
    return _DTYPES.get(name, torch.bfloat16)


def _can_shard(model: HfModel, world_size: int) -> bool:
    """Whether the ranks shard the model; False: each of them computes all of it.

    Raises ModelRefused when its heads cannot be divided by the number of ranks.
    """
    if world_size == 1:
        return False
    plan: Mapping[str, str] = model.module.tp_plan or {}
    if not plan:
        _log.warning(
            "%s has no plan for tensor parallelism: each of %d ranks holds and computes all of it",
            model.facts.class_name,
            world_size,
        )
        return False
    attention = ("q_proj", "k_proj", "v_proj", "qkv_proj", "query_key_value")
    if not any(
        name.rpartition(".")[2] in attention and style == "colwise" for name, style in plan.items()
    ):
        return True
    config = model.module.config.get_text_config()
    is_mixed = getattr(config, "is_heterogeneous", False)
    for layer in config.per_layer_config if is_mixed else (config,):
        _require_divisible(model.facts.class_name, layer, world_size)
    return True


def _require_divisible(class_name: str, config: Any, world_size: int) -> None:
    num_heads = config.num_attention_heads
    for name, count in (
        ("num_attention_heads", num_heads),
        ("num_key_value_heads", getattr(config, "num_key_value_heads", None) or num_heads),
    ):
        if count % world_size:
            raise ModelRefused(
                f"{name} {count} is no multiple of {world_size} shards;"
                f" serve {class_name} with another --num-shard"
            )
