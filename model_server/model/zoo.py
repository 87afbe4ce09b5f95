"""Models of transformers: configs read, classes built without weights or small, checkpoints loaded.

    folder -> read_config -> build_empty / build_small / load -> HfModel

Which model may be served is not known here; the gate decides that.
"""

import logging
import textwrap
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers import __version__ as transformers_version
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.quantizers.auto import AutoHfQuantizer

from model_server.errors import ArchitectureUnfit, CheckpointBroken, ModelRefused, OutOfMemory
from model_server.model.hf_model import EAGER, HfModel

_REMOTE_CODE_HINT = " (--trust-remote-code runs the code that the checkpoint brings)"
_log = logging.getLogger(__name__)


def read_config(folder: Path, *, trust_remote_code: bool) -> Any:
    """The checkpoint's config. Raises ModelRefused for an unknown kind of model."""
    try:
        config = AutoConfig.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    # A config class checks its fields in whatever way it likes.
    except Exception as error:
        raise ModelRefused(
            f"{folder / 'config.json'}: transformers {transformers_version} cannot read it:"
            f" {_brief(error)}{_REMOTE_CODE_HINT if 'custom code' in str(error) else ''}"
        ) from error
    if config.is_encoder_decoder:
        raise ArchitectureUnfit(
            f"{config.model_type} is an encoder and a decoder, no causal language model"
        )
    auto_map = getattr(config, "auto_map", None) or {}
    is_ours = type(config) in AutoModelForCausalLM._model_mapping
    if not is_ours and not (trust_remote_code and "AutoModelForCausalLM" in auto_map):
        hint = _REMOTE_CODE_HINT if auto_map else ""
        raise ArchitectureUnfit(f"{config.model_type} is no causal language model{hint}")
    return config


def build_empty(config: Any, *, trust_remote_code: bool) -> HfModel:
    """The model without weights, for its facts. Raises ModelRefused if it has no class."""
    try:
        with torch.device("meta"):
            return _from_config(config, trust_remote_code=trust_remote_code)
    # A config that contradicts itself fails in every way there is.
    except Exception as error:
        raise ModelRefused(
            f"a {config.model_type} model cannot be built of this config:"
            f" {type(error).__name__}: {_brief(error)}"
        ) from error


def check_quantization(folder: Path, config: Any, device: torch.device, reason: str) -> None:
    """Raise ModelRefused where what the checkpoint was quantized with is not installed, or its
    weights cannot be used on `device`.

    reason: why transformers has to load it
    """
    quantization = getattr(config, "quantization_config", None)
    if quantization is None:
        return
    try:
        quantizer = AutoHfQuantizer.from_config(quantization, pre_quantized=True)
        quantizer.validate_environment(device_map=_device_map(device), weights_only=True)
    # Each quantizer looks for its packages in its own way.
    except Exception as error:
        raise ModelRefused(
            f"{folder / 'config.json'}: quantization_config: {reason}, and transformers"
            f" {transformers_version} cannot load such weights here: {_brief(error)}"
        ) from error


def _device_map(device: torch.device) -> dict[str, torch.device] | None:
    return None if device.type == "cpu" else {"": device}


def build_parts(
    config: Any, names: Collection[str], device: torch.device, *, trust_remote_code: bool
) -> Any:
    """The model without weights, but for these modules: they hold none, and are on `device`.

    Raises ModelRefused if it has no class.
    """
    module = build_empty(config, trust_remote_code=trust_remote_code).module
    for name in names:
        # A module that is made without memory gets its numbers as those do that no file holds.
        module._init_weights(module.get_submodule(name).to_empty(device=device))
    return module


def build_small(config: Any, *, trust_remote_code: bool) -> HfModel:
    """A model of random float32 weights on the CPU, the same at each call.

    Raises whatever the model's class raises when it cannot be built of this config.
    """
    with torch.random.fork_rng(devices=()), torch.device("cpu"):
        torch.manual_seed(0)
        return _from_config(config, trust_remote_code=trust_remote_code)


def load(
    folder: Path,
    config: Any,
    *,
    dtype: torch.dtype,
    device: torch.device,
    trust_remote_code: bool,
    num_shards: int,
) -> HfModel:
    """The model with its weights on `device`: this rank's of `num_shards` parts of them.

    Raises CheckpointBroken when a weight is missing or misshapen, ModelRefused when transformers
    cannot load it or has no plan to shard it, OutOfMemory when it does not fit.
    """
    options: dict[str, Any] = {}
    if num_shards > 1:
        options = _tensor_parallel(num_shards)
    else:
        options = {"device_map": _device_map(device)}
    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    try:
        module, report = from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            attn_implementation=EAGER,
            **options,
        )
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"{folder}: its weights do not fit on {device}") from error
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelRefused(f"{folder}: cannot be loaded: {_brief(error)}") from error
    _require_whole(folder, report)
    return HfModel(module.eval())


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the library's messages about a small model out of the log."""
    library = logging.getLogger("transformers")
    level = library.level
    library.setLevel(logging.ERROR)
    try:
        yield
    finally:
        library.setLevel(level)


def eos_token_ids(folder: Path, config: Any) -> tuple[int, ...]:
    """The tokens that end an output, as generate() finds them for this checkpoint."""
    eos = None
    if (folder / "generation_config.json").is_file():
        try:
            eos = GenerationConfig.from_pretrained(folder).eos_token_id
        except (OSError, ValueError) as error:
            raise CheckpointBroken(
                f"{folder / 'generation_config.json'}: {_brief(error)}"
            ) from error
    if eos is None:
        eos = getattr(config.get_text_config(), "eos_token_id", None)
    if eos is None:
        return ()
    token_ids = tuple(eos) if isinstance(eos, list | tuple) else (eos,)
    if not all(isinstance(each, int) for each in token_ids):
        raise CheckpointBroken(
            f"{folder}: eos_token_id {eos!r}: must be the id of a token, or a list of them"
        )
    return token_ids


def _from_config(config: Any, *, trust_remote_code: bool) -> HfModel:
    module = AutoModelForCausalLM.from_config(
        config,
        trust_remote_code=trust_remote_code,
        dtype=torch.float32,
        attn_implementation=EAGER,
    )
    return HfModel(module.eval())


def _tensor_parallel(num_shards: int) -> dict[str, Any]:
    # Before it became part of DistributedConfig, the plan was an argument of its own.
    if "tp_plan" in DistributedConfig.__dataclass_fields__:
        return {"distributed_config": DistributedConfig(tp_size=num_shards, tp_plan="auto")}
    return {"tp_plan": "auto", "tp_size": num_shards}


def _require_whole(folder: Path, report: Mapping[str, Any]) -> None:
    for kind, fault in (
        ("missing_keys", "lacks weights that the model needs"),
        ("mismatched_keys", "has weights of another shape than the model's"),
        ("error_msgs", "has weights that could not be converted"),
        ("conversion_errors", "has weights that could not be converted"),
    ):
        names = sorted(str(name) for name in report.get(kind) or ())
        if names:
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise CheckpointBroken(f"{folder}: {fault} ({len(names)}): {shown}")
    if unexpected := sorted(report.get("unexpected_keys") or ()):
        _log.info("%s: %d weights are of no use, %s", folder, len(unexpected), unexpected[0])


def _brief(error: BaseException) -> str:
    """An error of the library in one short line."""
    text = " ".join(str(error).split())
    return textwrap.shorten(text, 400, placeholder=" ...") or type(error).__name__
