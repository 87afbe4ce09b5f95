"""A LoRA adapter in PEFT's format: read from its folder, and refused by name where it does more
than low-rank products beside the model's linear layers.

    adapter_config.json        what peft made it by; it scales each product
    adapter_model.safetensors  base_model.model.<linear layer>.lora_A.weight, and its lora_B.weight
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from model_server.errors import AdapterRefused

CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"

# Outputs and inputs of linear layers, by the names that the model's class has for them.
LinearShapes: TypeAlias = Mapping[str, tuple[int, int]]

_KEY = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_NOTHING: tuple[object, ...] = (None, False, [], {})
# What changes the answer, by the values with which it does not. Other ways to begin than these of
# `init_lora_weights` change the model's own weights.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "init_lora_weights": (*_NOTHING, True, "gaussian", "eva", "orthogonal"),
    **dict.fromkeys(
        (
            "modules_to_save trainable_token_indices target_parameters layer_replication use_dora"
            " lora_bias use_qalora use_bdlora alora_invocation_tokens arrow_config kasa_config"
            " monteclora_config"
        ).split(),
        _NOTHING,
    ),
}
# What has no say once it is trained, or shows in the tensors.
_FREE = frozenset(
    (
        "r lora_alpha rank_pattern alpha_pattern use_rslora target_modules exclude_modules"
        " layers_to_transform layers_pattern lora_dropout fan_in_fan_out loftq_config eva_config"
        " corda_config lora_ga_config velora_config qalora_group_size runtime_config"
        " megatron_config megatron_core ensure_weight_tying task_type auto_mapping peft_version"
        " base_model_name_or_path revision inference_mode"
    ).split()
)


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """What is added to a linear layer of x: x @ a.T @ b.T.

    a: [rank, inputs]
    b: [outputs, rank] float32, times the layer's scale
    """

    a: Tensor
    b: Tensor

    @property
    def rank(self) -> int:
        """Of both."""
        return self.a.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """What is added to the model's linear layers, by their names."""

    layers: Mapping[str, LowRank]

    @property
    def rank(self) -> int:
        """The largest."""
        return max(each.rank for each in self.layers.values())

    @classmethod
    def read(cls, folder: Path, adaptable: LinearShapes, max_rank: int) -> "Adapter":
        """Every tensor of the folder is used. Raises AdapterRefused.

        adaptable: the linear layers that may be changed
        """
        config = _read_config(folder)
        path = folder / WEIGHTS_NAME
        pairs: dict[str, dict[str, Tensor]] = {}
        for key, tensor in _read_tensors(path).items():
            match = _KEY.fullmatch(key)
            if match is None:
                raise AdapterRefused(f"{path}: {key} is no lora_A or lora_B of a linear layer")
            pairs.setdefault(_name_of_class(match[1], adaptable), {})[match[2]] = tensor
        if not pairs:
            raise AdapterRefused(f"{path}: it holds no tensors")
        layers = {}
        for name, pair in pairs.items():
            if name not in adaptable:
                raise AdapterRefused(
                    f"{path}: it changes {name}, which is not served with adapters"
                )
            if pair.keys() != {"A", "B"}:
                raise AdapterRefused(f"{path}: {name} has no lora_{'AB'.strip(*pair)}")
            rank = config.rank(name)
            outputs, inputs = adaptable[name]
            _require_shape(path, f"{name}.lora_A", pair["A"], (rank, inputs))
            _require_shape(path, f"{name}.lora_B", pair["B"], (outputs, rank))
            if rank > max_rank:
                raise AdapterRefused(
                    f"{path}: {name} has rank {rank}, and --max-lora-rank is {max_rank}"
                )
            scale = config.scale(name)
            b = pair["B"].float() * scale
            if not bool(b.isfinite().all()):
                raise AdapterRefused(
                    f"{path}: {name}.lora_B times its scale of {scale:g} holds other than finite"
                    " numbers"
                )
            layers[name] = LowRank(pair["A"], b)
        return cls(layers)


def _name_of_class(name: str, adaptable: LinearShapes) -> str:
    """A layer's, where an adapter was made for the class for text alone of what also sees."""
    end = f".{name.removeprefix('model.')}"
    longer = [each for each in adaptable if each.endswith(end)]
    return longer[0] if name not in adaptable and len(longer) == 1 else name


def _require_shape(path: Path, name: str, tensor: Tensor, shape: tuple[int, int]) -> None:
    """Raises AdapterRefused; also for what is no number."""
    if tuple(tensor.shape) != shape:
        raise AdapterRefused(
            f"{path}: {name} has the shape {list(tensor.shape)}, and by {CONFIG_NAME} and the model"
            f" it is {list(shape)}"
        )
    is_served = tensor.is_floating_point() and tensor.itemsize > 1
    if not is_served or not bool(tensor.float().isfinite().all()):
        raise AdapterRefused(
            f"{path}: {name} holds other than finite numbers of 16 bits and more, in float32"
        )


@dataclass(frozen=True, slots=True)
class _Config:
    """What peft's config says of ranks and scales; patterns by the end of a layer's name."""

    r: int
    lora_alpha: float
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    use_rslora: bool

    def rank(self, name: str) -> int:
        """Of a layer's matrices."""
        return int(self._of_pattern(self.rank_pattern, name, self.r))

    def scale(self, name: str) -> float:
        """Of a layer's product."""
        alpha = self._of_pattern(self.alpha_pattern, name, self.lora_alpha)
        rank = self.rank(name)
        return float(alpha / rank**0.5 if self.use_rslora else alpha / rank)

    @staticmethod
    def _of_pattern(patterns: Mapping[str, float], name: str, default: float) -> float:
        """As peft looks it up: the first that is the end of the name."""
        for pattern, value in patterns.items():
            if re.match(rf"(.*\.)?({pattern})$", name):
                return value
        return default


def _read_config(folder: Path) -> _Config:
    path = folder / CONFIG_NAME
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterRefused(f"{path}: cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise AdapterRefused(f"{path}: it holds no object")
    for name, value in found.items():
        if name in _NEUTRAL and not _is_among(value, _NEUTRAL[name]):
            raise AdapterRefused(f"{path}: {name} is {value!r}, which is not served")
        if name not in _NEUTRAL and name not in _FREE and not _is_among(value, _NOTHING):
            raise AdapterRefused(f"{path}: {name} is {value!r}, which is not known here")
    try:
        return _config_of(found)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, re.error) as error:
        raise AdapterRefused(f"{path}: its ranks and scales cannot be read: {error!r}") from error


def _is_among(value: object, values: tuple[object, ...]) -> bool:
    """1 is not True."""
    return any(value == each and type(value) is type(each) for each in values)


def _config_of(found: Mapping[str, Any]) -> _Config:
    ranks = {pattern: int(rank) for pattern, rank in (found.get("rank_pattern") or {}).items()}
    alphas = {pattern: float(each) for pattern, each in (found.get("alpha_pattern") or {}).items()}
    for pattern in (*ranks, *alphas):
        re.compile(pattern)
    r = int(found["r"])
    if min([r, *ranks.values()]) < 1:
        raise ValueError("a rank is below 1")
    return _Config(r, float(found["lora_alpha"]), ranks, alphas, bool(found.get("use_rslora")))


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if path.exists() and not path.is_file():
        # A pipe would be waited for.
        raise AdapterRefused(f"{path}: it is no file")
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise AdapterRefused(f"{path}: cannot be read: {error}") from error
