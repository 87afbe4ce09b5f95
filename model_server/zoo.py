"""Models of transformers: configs read, classes built without weights or small, checkpoints loaded.

    folder -> read_config -> build_empty / build_small / load -> HfModel
    HfModel.paged_logits:  flattened batch [1, num_tokens], attention through our own function
    HfModel.native_logits: one sequence, the model's own eager attention

Models call our attention function under the name that is registered here; since no mask function
bears that name, transformers makes no mask. It finds its step in a context variable, which also
reaches those models that do not hand keyword arguments down.

It knows no request, no sampling and no RPC, and not which model may be served: the gate decides
that.

Of a model that also sees, and whose images are not served, the language model alone is built and
loaded: what a pass over text never calls is left out, so that no image can be given to it.
"""

import inspect
import logging
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
)
from transformers import __version__ as transformers_version
from transformers.cache_utils import Cache
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.models.auto.auto_factory import _get_model_class
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.quantizers.auto import AutoHfQuantizer
from transformers.utils.logging import (
    disable_progress_bar,
    enable_progress_bar,
    is_progress_bar_enabled,
)

from model_server.errors import ArchitectureUnfit, CheckpointBroken, ModelRefused, OutOfMemory
from processes.json_file import read_object

# What a layer's attention is asked: the module, query [num_tokens, num_heads, head_dim], key and
# value [num_tokens, num_kv_heads, dim], the mask and all other arguments as they were handed in.
# The answer is [num_tokens, num_heads, value_dim].
Attend: TypeAlias = Callable[
    [nn.Module, Tensor, Tensor, Tensor, Tensor | None, Mapping[str, Any]], Tensor
]


_PAGED = "tandem_paged"


# Of the argument by which a model takes its cache, in releases of transformers; the newest first.
_CACHE_NAMES = ("cache", "past_key_values")


EAGER = "eager"


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


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts of a model that loading and the gate need.

    `layer_types` is empty when the config gives none; `config_window_len` is the config's sliding
    window, whether or not any layer uses it. `max_position_embeddings` None: there
    is no such limit in the config.
    """

    model_type: str
    class_name: str
    vocab_size: int
    num_layers: int
    max_position_embeddings: int | None
    layer_types: tuple[str, ...]
    config_window_len: int | None
    chunk_len: int | None
    routes_attention: bool
    keeps_chosen_logits: bool


def facts_of(module: Any) -> ModelFacts:
    """The facts of a model of transformers."""
    config = module.config.get_text_config()
    return ModelFacts(
        model_type=module.config.model_type,
        class_name=type(module).__name__,
        vocab_size=int(config.vocab_size),
        num_layers=int(config.num_hidden_layers),
        max_position_embeddings=_max_position_embeddings(config),
        layer_types=tuple(getattr(config, "layer_types", None) or ()),
        config_window_len=_config_window_len(config),
        chunk_len=getattr(config, "attention_chunk_size", None),
        routes_attention=bool(module._supports_attention_backend),
        keeps_chosen_logits="logits_to_keep" in inspect.signature(module.forward).parameters,
    )


def _config_window_len(config: Any) -> int | None:
    if getattr(config, "use_sliding_window", True) is False:
        return None
    return getattr(config, "sliding_window", None)


def _max_position_embeddings(config: Any) -> int | None:
    """The positions that a model distinguishes, whatever its batch mates.

    LongRoPE takes other frequencies for the whole batch as soon as one position lies past the
    original length, and dynamic RoPE does past the maximum. Up to there both stand still.
    """
    limit = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    for kind in (rope, *(kind for kind in rope.values() if isinstance(kind, Mapping))):
        original = kind.get("original_max_position_embeddings")
        if kind.get("rope_type") in ("longrope", "dynamic") and original:
            limit = min(limit or original, original)
    return None if limit is None else int(limit)


class HfModel:
    """A causal language model of transformers, called on flattened batches.

    Owner of the module. Not for two threads at a time.

    left_out: names of the parts that it was made without, since text never passes them
    """

    def __init__(self, module: Any, left_out: tuple[str, ...] = ()) -> None:
        self.module = module
        self.left_out = left_out
        self.facts = facts_of(module)
        names = inspect.signature(module.forward).parameters
        self._cache_name = next((name for name in _CACHE_NAMES if name in names), None)
        # Older models read the batch back from the device to warn about padding.
        for part in module.modules():
            if hasattr(part, "warn_if_padding_and_no_attention_mask"):
                part.warn_if_padding_and_no_attention_mask = _no_warning

    def paged_logits(
        self,
        token_ids: Tensor,
        positions: Tensor,
        rows: Tensor,
        attend: Attend,
        cache: "StepCache | None" = None,
    ) -> Tensor:
        """Logits [len(rows), vocab_size] of a flattened step; `attend` serves each layer.

        token_ids and positions are [num_tokens] int64, rows [num_rows] int64.
        cache: what layers see as theirs, where it is more than a StepCache
        """
        self.use(_PAGED)
        options: dict[str, Any] = {}
        if self._cache_name is not None:
            options[self._cache_name] = StepCache(positions) if cache is None else cache
        token = _attend.set(attend)
        try:
            return self._logits(token_ids, positions, rows, **options)
        finally:
            _attend.reset(token)

    def native_logits(self, token_ids: Tensor) -> Tensor:
        """Logits [num_tokens, vocab_size] of one whole sequence by the model's own attention."""
        self.use(EAGER)
        rows = torch.arange(token_ids.shape[0], device=token_ids.device)
        return self._logits(token_ids, rows, rows)

    def num_parameters(self) -> int:
        """The number of parameters; shared ones count once."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    def use(self, implementation: str) -> None:
        """Attend in this way from here on, as transformers calls it."""
        if self.module.config._attn_implementation != implementation:
            self.module.set_attn_implementation(implementation)

    def _logits(self, token_ids: Tensor, positions: Tensor, rows: Tensor, **options: Any) -> Tensor:
        logits: Tensor = self.module(
            input_ids=token_ids.unsqueeze(0),
            position_ids=positions.unsqueeze(0),
            use_cache=False,
            logits_to_keep=rows,
            **options,
        ).logits
        return logits[0]


class StepCache(Cache):
    """What layers see as their cache in a flattened step: it keeps nothing, as attention does that.

    It says how many tokens come before.

    Some layers (Llama 4's) count positions from there, whatever `position_ids` says: each row gets
    the number that its own sequence would give.
    """

    def __init__(self, positions: Tensor) -> None:
        super().__init__(layers=[])
        self._lens = positions - torch.arange(positions.shape[0], device=positions.device)

    def get_seq_length(self, layer_idx: int | None = None) -> Any:
        """[num_tokens] for a layer that asks; 0 for the model, whose positions are given."""
        return 0 if layer_idx is None else self._lens

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """What is attended to beyond these is the attention function's business."""
        return key_states, value_states


def _no_warning(*_: object) -> None:
    """Replaces a check of padded batches."""


_REMOTE_CODE_HINT = " (--trust-remote-code runs the code that the checkpoint brings)"


_log = logging.getLogger(__name__)


def read_config(folder: Path, *, trust_remote_code: bool) -> Any:
    """The checkpoint's config. Raises ModelRefused for an unknown kind of model."""
    _require_known(folder)
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
    is_known = _auto_class(config) is not None
    if not is_known and not (trust_remote_code and "AutoModelForCausalLM" in auto_map):
        hint = _REMOTE_CODE_HINT if auto_map else ""
        raise ArchitectureUnfit(f"{config.model_type} is no causal language model{hint}")
    return config


def _auto_class(config: Any) -> Any:
    """Of transformers: what makes a model of this config that writes text, and sees if it can.

    None: nothing does.
    """
    kind: Any = type(config)
    seeing = AutoModelForImageTextToText._model_mapping
    writing = AutoModelForCausalLM._model_mapping
    if kind not in writing:
        return AutoModelForImageTextToText if kind in seeing else None
    # Some are one class under both names.
    is_text_alone = kind not in seeing or seeing[kind] is writing[kind]
    if is_text_alone or not _reads_text(kind):
        return AutoModelForCausalLM
    return AutoModelForImageTextToText


@cache
def _reads_text(config_class: Any) -> bool:
    """Whether the class that also sees takes a text without an image; Llama 4's does not."""
    config = config_class()
    _leave_out_layers(config)
    rows = torch.arange(2, device="meta")
    try:
        with quiet(), torch.device("meta"), torch.inference_mode():
            module: Any = AutoModelForImageTextToText.from_config(config)
            HfModel(module).paged_logits(rows, rows, rows, _attend_nothing)
    # The classes of other people fail in every way there is.
    except Exception as error:  # noqa: BLE001
        _log.debug("%s: %s", config_class.__name__, _brief(error))
        return False
    return True


def _leave_out_layers(config: Any) -> None:
    text = config.get_text_config()
    text.num_hidden_layers = 0
    for name in ("layer_types", "mlp_layer_types"):
        if getattr(text, name, None):
            setattr(text, name, [])


def takes_more_than_text(config: Any) -> bool:
    """Whether the config has models for images or sound, of which nothing is served."""
    text = config.get_text_config()
    parts = (getattr(config, name, None) for name in config.sub_configs)
    # Some configs sort their own numbers into parts, which are of no kind.
    return any(part is not text and getattr(part, "model_type", None) for part in parts)


def _require_known(folder: Path) -> None:
    """Raises ModelRefused for a kind of model that no class is for, by its name."""
    path = folder / "config.json"
    try:
        content = read_object(path)
    except (OSError, ValueError):
        return  # transformers says what is wrong with it
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind in CONFIG_MAPPING or "auto_map" in content:
        return
    near = get_close_matches(kind, CONFIG_MAPPING.keys(), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ModelRefused(
        f"{path}: model_type {kind!r}: transformers {transformers_version} knows no such"
        f" model{hint}"
    )


def takes_images(config: Any) -> bool:
    """Whether the class that is made of this config is one for images and text."""
    mapping = AutoModelForImageTextToText._model_mapping
    return type(config) in mapping and mapping[type(config)] is _get_model_class(
        config, _auto_class(config)._model_mapping
    )


def build_empty(config: Any, *, trust_remote_code: bool, sees: bool = False) -> HfModel:
    """The model without weights, for its facts. Raises ModelRefused if it has no class.

    What a pass over text never calls is left out, unless it `sees`.
    """
    try:
        with torch.device("meta"):
            model = _from_config(config, trust_remote_code=trust_remote_code)
    # A config that contradicts itself fails in every way there is.
    except Exception as error:
        raise ModelRefused(
            f"a {config.model_type} model cannot be built of this config:"
            f" {type(error).__name__}: {_brief(error)}"
        ) from error
    if sees or not takes_more_than_text(model.module.config) or _auto_class(config) is None:
        return model
    left_out = _never_called(model)
    leave_out(model.module, left_out)
    return HfModel(model.module, left_out)


def _never_called(model: HfModel) -> tuple[str, ...]:
    """Names of the parts that a pass over text does not call; the model is on `meta`.

    All that lies beside the embeddings is for text. Its layers are not run: which of their experts
    are called depends on data.
    """
    module = model.module
    names: dict[nn.Module, str] = {part: name for name, part in module.named_modules()}
    text = module.get_submodule(names[module.get_input_embeddings()].rpartition(".")[0])
    lists = [part for part in text.modules() if isinstance(part, nn.ModuleList)]
    called: set[nn.Module] = set()
    handles = [part.register_forward_pre_hook(lambda part, _: called.add(part)) for part in names]
    for layer in (layer for each in lists for layer in each):
        layer.forward = _unchanged
    rows = torch.arange(2, device="meta")
    try:
        with torch.inference_mode():
            model.paged_logits(rows, rows, rows, _attend_nothing)
    # The classes of other people fail in every way there is.
    except Exception as error:  # noqa: BLE001
        _log.info("all of %s is loaded: %s", model.facts.class_name, _brief(error))
        return ()
    finally:
        for handle in handles:
            handle.remove()
        for layer in (layer for each in lists for layer in each):
            layer.__dict__.pop("forward", None)
        model.module.set_attn_implementation(EAGER)
    called |= set(text.modules())
    return tuple(names[part] for part in _outermost_without(called, module))


def _outermost_without(called: Collection[nn.Module], parent: nn.Module) -> Iterator[nn.Module]:
    """Parts with weights in which nothing is called."""
    for part in parent.children():
        if any(each in called for each in part.modules()):
            yield from _outermost_without(called, part)
        elif any(True for _ in part.parameters()):
            yield part


def _unchanged(hidden_states: Tensor, *_: object, **__: object) -> Tensor:
    return hidden_states


def _attend_nothing(*_: object) -> Tensor:
    raise AssertionError("a layer ran that was replaced")


def leave_out(module: Any, names: Collection[str]) -> None:
    """Put parts in the places of these that have no weights and cannot be called."""
    for name in names:
        module.set_submodule(name, nn.Module())


@cache
def _class_without(model_class: Any, names: tuple[str, ...]) -> Any:
    """A class whose models are made without these parts, which it does not miss in a checkpoint."""

    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        model_class.__init__(self, *arguments, **options)
        leave_out(self, names)

    ignored = (f"^{re.escape(name)}\\." for name in names)
    members = {
        "__init__": __init__,
        # By its name and module transformers knows how the weights of its checkpoints are called.
        "__module__": model_class.__module__,
        "_keys_to_ignore_on_load_unexpected": [
            *(model_class._keys_to_ignore_on_load_unexpected or ()),
            *ignored,
        ],
    }
    return type(model_class.__name__, (model_class,), members)


def stored_names(module: Any, names: Collection[str]) -> dict[str, str]:
    """Names of a checkpoint's tensors, by those that `module` has for them."""
    conversions = get_model_conversion_mapping(module)
    renamings = [each for each in conversions if isinstance(each, WeightRenaming)]
    return {rename_source_key(name, renamings, [])[0]: name for name in names}


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
        if not takes_more_than_text(config):
            return _from_config(config, trust_remote_code=trust_remote_code)
        # What sees is not small: it is never made.
        model = build_empty(config, trust_remote_code=trust_remote_code)
        model.module.to_empty(device="cpu").init_weights()
        return model


def load(
    folder: Path,
    config: Any,
    *,
    dtype: torch.dtype,
    device: torch.device,
    trust_remote_code: bool,
    num_shards: int,
    left_out: tuple[str, ...] = (),
    tensors: Mapping[str, Tensor] | None = None,
    has_layers: bool = True,
) -> HfModel:
    """The model with its weights on `device`: this rank's of `num_shards` parts of them.

    left_out: names of parts that are not loaded, as `build_empty` found them
    tensors:  in place of the files of `folder`, by the class's names
    has_layers: False: by its config, which says nothing of those in the files

    Raises CheckpointBroken when a weight is missing or misshapen, ModelRefused when transformers
    cannot load it or has no plan to shard it, OutOfMemory when it does not fit.
    """
    options: dict[str, Any] = {}
    if num_shards > 1:
        options = _tensor_parallel(num_shards)
    else:
        options = {"device_map": _device_map(device)}
    model_class: Any = _auto_class(config) or AutoModelForCausalLM
    if left_out or tensors is not None:
        # One that is made with `trust_remote_code` wants files.
        model_class = _class_without(_get_model_class(config, model_class._model_mapping), left_out)
    else:
        options["trust_remote_code"] = trust_remote_code
    try:
        with _refusing(folder):
            module, report = model_class.from_pretrained(
                folder if tensors is None else None,
                config=config,
                state_dict=tensors,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # the report names them
                attn_implementation=EAGER,
                **options,
            )
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"{folder}: its weights do not fit on {device}") from error
    _require_whole(folder, report)
    unexpected = sorted(report.get("unexpected_keys") or ())
    if unexpected and has_layers:
        _log.info("%s: %d weights are of no use, %s", folder, len(unexpected), unexpected[0])
    return HfModel(module.eval(), left_out)


def load_without_layers(
    folder: Path, config: Any, *, dtype: torch.dtype, device: torch.device, trust_remote_code: bool
) -> HfModel:
    """The model without the layers for text, whose weights are in some form of their own.

    Raises as `load`.
    """
    config = deepcopy(config)
    _leave_out_layers(config)
    for part in (config, config.get_text_config()):
        part.__dict__.pop("quantization_config", None)
    with quiet():
        return load(
            folder,
            config,
            dtype=dtype,
            device=device,
            trust_remote_code=trust_remote_code,
            num_shards=1,
            has_layers=False,
        )


def with_layers(
    model: HfModel, config: Any, parameters: Mapping[str, Tensor], *, trust_remote_code: bool
) -> HfModel:
    """The whole of such a model: what it calls has its weights for as long as the call takes."""
    whole = build_empty(config, trust_remote_code=trust_remote_code, sees=True)
    for name, part in model.module.named_modules():
        own = whole.module.get_submodule(name)
        own._parameters |= part._parameters
        own._buffers |= part._buffers
    dtype = model.module.get_input_embeddings().weight.dtype

    def lend(part: nn.Module, _: object, *, names: Mapping[str, str]) -> None:
        for own, name in names.items():
            part._parameters[own] = nn.Parameter(parameters[name].to(dtype), requires_grad=False)

    def take_back(part: nn.Module, *_: object, names: Mapping[str, str]) -> None:
        for own in names:
            part._parameters[own] = None

    for place, part in whole.module.named_modules():
        names = {
            own: f"{place}.{own}"
            for own, parameter in part.named_parameters(recurse=False)
            if parameter.is_meta
        }
        if names:
            part.register_forward_pre_hook(partial(lend, names=names))
            part.register_forward_hook(partial(take_back, names=names))
        elif any(buffer.is_meta for buffer in part.buffers(recurse=False)):
            # As in build_parts.
            whole.module._init_weights(part.to_empty(device=model.module.device, recurse=False))
    return whole


def require_names(folder: Path, empty: HfModel, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raise CheckpointBroken as `load` for weights that are missing, or have another shape.

    empty:  the model without weights
    shapes: of the checkpoint's tensors, by which all is decided: none is read
    """
    module = empty.module
    tensors = {name: torch.empty(*shape, device="meta") for name, shape in shapes.items()}
    with quiet(), _refusing(folder):
        model_class: Any = type(module)
        _, report = _class_without(model_class, empty.left_out).from_pretrained(
            None,
            config=module.config,
            state_dict=tensors,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # the report names them
            attn_implementation=EAGER,
            device_map={"": "meta"},
        )
    _require_whole(folder, report)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the library's messages and bars about a small or an empty model out of the log."""
    library = logging.getLogger("transformers")
    level = library.level
    has_bars = is_progress_bar_enabled()
    library.setLevel(logging.ERROR)
    disable_progress_bar()
    try:
        yield
    finally:
        library.setLevel(level)
        if has_bars:
            enable_progress_bar()


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """What transformers raises for a checkpoint that it cannot load, as ModelRefused."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise ModelRefused(f"{folder}: cannot be loaded: {_brief(error)}") from error


def _from_config(config: Any, *, trust_remote_code: bool) -> HfModel:
    module = (_auto_class(config) or AutoModelForCausalLM).from_config(
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
        names = sorted(
            f"{each[0]} {list(each[1])}, not {list(each[2])}"
            if kind == "mismatched_keys"
            else str(each)
            for each in report.get(kind) or ()
        )
        if names:
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            raise CheckpointBroken(f"{folder}: {fault} ({len(names)}): {shown}")


def _brief(error: BaseException) -> str:
    """An error of the library in one short line."""
    text = " ".join(str(error).split())
    return textwrap.shorten(text, 400, placeholder=" ...") or type(error).__name__
