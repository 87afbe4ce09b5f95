"""transformers as the zoo of models: the only file that touches that library.

    folder -> read_config -> build_empty / build_small / load -> ZooModel
    ZooModel.paged_logits:  flattened batch [1, num_tokens], attention through our own function
    ZooModel.native_logits: one sequence, the model's own eager attention

Models call our attention function under the name that is registered here; since no mask function
bears that name, transformers makes no mask. It finds its step in a context variable, which also
reaches those models that do not hand keyword arguments down. Which model may be served is not
known here; the gate decides that.
"""

import logging
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
)
from transformers import __version__ as transformers_version
from transformers.distributed.configuration_utils import DistributedConfig

from model_server.engine.distributed import World
from model_server.errors import ArchitectureUnfit, CheckpointBroken, ModelRefused, OutOfMemory
from model_server.model.model_facts import facts_of

# What a layer's attention is asked: the module, query [num_tokens, num_heads, head_dim], key and
# value [num_tokens, num_kv_heads, dim], the mask and all other arguments as they were handed in.
# The answer is [num_tokens, num_heads, value_dim].
Attend: TypeAlias = Callable[
    [nn.Module, Tensor, Tensor, Tensor, Tensor | None, Mapping[str, Any]], Tensor
]

_PAGED = "tandem_paged"
_EAGER = "eager"
_REMOTE_CODE_HINT = " (--trust-remote-code runs the code that the checkpoint brings)"
_log = logging.getLogger(__name__)
_attend: ContextVar[Attend] = ContextVar("attend")


def _paged_attention(
    module: nn.Module,
    query: Tensor,  # [1, num_heads, num_tokens, head_dim]
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    if query.shape[0] != 1:
        raise ArchitectureUnfit(
            f"{type(module).__name__} attends over a batch of {query.shape[0]}, not a flattened one"
        )
    output = _attend.get()(
        module,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        attention_mask,
        options,
    )
    return output.unsqueeze(0), None


AttentionInterface.register(_PAGED, _paged_attention)


class ZooModel:
    """A causal language model of transformers, called on flattened batches.

    Owner of the module. Not for two threads at a time.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.facts = facts_of(module)
        # Older models read the batch back from the device to warn about padding.
        for part in module.modules():
            if hasattr(part, "warn_if_padding_and_no_attention_mask"):
                part.warn_if_padding_and_no_attention_mask = _no_warning

    def paged_logits(
        self, token_ids: Tensor, positions: Tensor, rows: Tensor, attend: Attend
    ) -> Tensor:
        """Logits [len(rows), vocab_size] of a flattened step; `attend` serves each layer.

        token_ids and positions are [num_tokens] int64, rows [num_rows] int64.
        """
        self._use(_PAGED)
        token = _attend.set(attend)
        try:
            return self._logits(token_ids, positions, rows)
        finally:
            _attend.reset(token)

    def native_logits(self, token_ids: Tensor) -> Tensor:
        """Logits [num_tokens, vocab_size] of one whole sequence by the model's own attention."""
        self._use(_EAGER)
        rows = torch.arange(token_ids.shape[0], device=token_ids.device)
        return self._logits(token_ids, rows, rows)

    def num_parameters(self) -> int:
        """The number of parameters; shared ones count once."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def eos_token_ids(self, folder: Path) -> tuple[int, ...]:
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
            eos = getattr(self.module.config.get_text_config(), "eos_token_id", None)
        if eos is None:
            return ()
        token_ids = tuple(eos) if isinstance(eos, list | tuple) else (eos,)
        if not all(isinstance(each, int) for each in token_ids):
            raise CheckpointBroken(
                f"{folder}: eos_token_id {eos!r}: must be the id of a token, or a list of them"
            )
        return token_ids

    def _use(self, implementation: str) -> None:
        if self.module.config._attn_implementation != implementation:
            self.module.set_attn_implementation(implementation)

    def _logits(self, token_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        logits: Tensor = self.module(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=rows,
        ).logits
        return logits[0]


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


def build_empty(config: Any, *, trust_remote_code: bool) -> ZooModel:
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


def build_small(config: Any, *, trust_remote_code: bool) -> ZooModel:
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
    allow_pickle: bool,
    is_sharded: bool,
    world: World,
) -> ZooModel:
    """The model with its weights on `device`; `is_sharded`: with this rank's part of them.

    Raises CheckpointBroken when a weight is missing or misshapen, ModelRefused when transformers
    cannot load it or has no plan to shard it, OutOfMemory when it does not fit.
    """
    options: dict[str, Any] = {}
    if is_sharded:
        options = _tensor_parallel(world)
    elif device.type != "cpu":
        options = {"device_map": {"": device}}
    from_pretrained: Any = AutoModelForCausalLM.from_pretrained
    try:
        module, report = from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            use_safetensors=None if allow_pickle else True,
            local_files_only=True,
            output_loading_info=True,
            attn_implementation=_EAGER,
            **options,
        )
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"{folder}: its weights do not fit on {device}") from error
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelRefused(f"{folder}: cannot be loaded: {_brief(error)}") from error
    _require_whole(folder, report)
    return ZooModel(module.eval())


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


def _from_config(config: Any, *, trust_remote_code: bool) -> ZooModel:
    module = AutoModelForCausalLM.from_config(
        config,
        trust_remote_code=trust_remote_code,
        dtype=torch.float32,
        attn_implementation=_EAGER,
    )
    return ZooModel(module.eval())


def _tensor_parallel(world: World) -> dict[str, Any]:
    # Before it became part of DistributedConfig, the plan was an argument of its own.
    if "tp_plan" in DistributedConfig.__dataclass_fields__:
        return {"distributed_config": DistributedConfig(tp_size=world.world_size, tp_plan="auto")}
    return {"tp_plan": "auto", "tp_size": world.world_size}


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


def _no_warning(*_: object) -> None:
    """Replaces a check of padded batches."""


def _brief(error: BaseException) -> str:
    """An error of the library in one short line."""
    text = " ".join(str(error).split())
    return textwrap.shorten(text, 400, placeholder=" ...") or type(error).__name__
