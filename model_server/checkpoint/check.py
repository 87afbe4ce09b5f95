"""The check of a checkpoint before its weights are read: whether it can be served, and how.

    preflight         --device -> a device of this machine
                      MODEL_ID -> a folder, its files, a class, how it is computed
                      lengths  -> within the model's context
    check_checkpoint  files, headers -> config -> class without weights
                      -> recipe, or gate's rule and self-test -> dtype, bytes
    unfit_reason      what recipes the dense executors do not serve, and why not
    forecast          the check, and the pool that would be left by the rules of warm-up; on CUDA
                      without what the largest step takes, which only a trial shows

Loading begins with it, on every rank by itself. It takes a few seconds, where weights may take
minutes, reads no weights and keeps nothing.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch

from constraints.errors import NotEnforced
from constraints.special_tokens import EndTokens
from constraints.vocabulary import Vocabulary
from model_server import zoo
from model_server.adapter import CONFIG_NAME, WEIGHTS_NAME, Adapter
from model_server.attention.base import DEFAULT_BLOCK_SIZE
from model_server.checkpoint import checkpoint, gate
from model_server.checkpoint.checkpoint import find_checkpoint
from model_server.checkpoint.gguf_file import GGUF_INDEX_NAME, GgufFile
from model_server.checkpoint.gguf_parameters import packed_bytes
from model_server.checkpoint.int4_checkpoint import Int4Format
from model_server.checkpoint.sampling_defaults import read_sampling_defaults
from model_server.config import CheckConfig, ServeConfig, num_gpus
from model_server.engine import memory
from model_server.engine.adapters import AdapterBook
from model_server.errors import (
    AdapterRefused,
    ArchitectureUnfit,
    CheckpointBroken,
    ConfigRefused,
    ModelRefused,
    OutOfMemory,
)
from model_server.executor.adapters import adaptable_layers, most_bytes, product_shapes
from model_server.executor.device_weights import Partition
from model_server.executor.weights import ELEMENT_NAMES, MAX_TAPS
from model_server.eyes import Blind
from model_server.recipe.proof import read_recipe
from model_server.recipe.recipe import (
    Attention,
    Delta,
    Head,
    Layer,
    Mamba2,
    Mixer,
    Mlp,
    Moe,
    Norm,
    Recipe,
    ShortConv,
    Unreadable,
)
from model_server.zoo import HfModel, ModelFacts
from processes.capacity import Capacity, Pool
from processes.model_folders import PROCESSOR_FILES, HubError, find_folder, has_processor

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
    `tokenizer_folder` None: `folder`. `max_loras` adapters of `max_lora_rank` may be loaded.
    `kept_evidence`: a file that shards leave to the next one; None: nothing is left.
    """

    folder: Path
    device: torch.device
    dtype: str = "auto"
    attention: str = "auto"
    quantize: str | None = None
    activation_bits: int = 8
    trust_remote_code: bool = False
    tokenizer_folder: Path | None = None
    max_loras: int = 0
    max_lora_rank: int = 16
    kept_evidence: Path | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CheckedCheckpoint:
    """A checkpoint that may be loaded.

    num_shards:      each rank has one of so many parts of the weights
    num_parameters:  of the whole model, but for what is left out
    weights_dtype:   in which they are read and, unless they are quantized then, kept
    weights_bytes:   of the whole model in it; None for a quantized model, where it is unknown
    facts:           of the model's class and config
    eos_token_ids:   that end an answer
    sampling_defaults: of requests, as its makers recommend
    recipe:          what the model computes; None: it runs in its own class
    fallback_reason: why there is no recipe; None: there is one
    int4:            how the weights of the recipe are stored in 4 bits; None: they are not
    packs_gguf:      whether those of a GGUF file are packed in their own kinds
    left_out:        names of parts that text never passes; they are loaded if the model may see
    takes_more_than_text: by its config, as images
    image_token_id:  in the place of images; None: they are not served
    blind_reason:    why not, where its class takes them
    """

    config: Any
    dtype: torch.dtype
    weights_dtype: torch.dtype
    num_shards: int
    num_parameters: int
    weights_bytes: int | None
    facts: ModelFacts
    eos_token_ids: tuple[int, ...]
    sampling_defaults: Mapping[str, float]
    recipe: Recipe | None
    fallback_reason: str | None
    int4: Int4Format | None = None
    packs_gguf: bool = False
    left_out: tuple[str, ...] = ()
    takes_more_than_text: bool = False
    image_token_id: int | None = None
    blind_reason: str | None = None

    @property
    def vocab_size(self) -> int:
        """Columns of its logits."""
        return self.facts.vocab_size if self.recipe is None else self.recipe.head.rows.count

    @property
    def bytes_of_rank(self) -> int:
        """The least bytes of one rank's weights; 0 where that is unknown."""
        return (self.weights_bytes or 0) // self.num_shards


class Preflight(NamedTuple):
    """What was checked, and `files`, which are others where a check may find something else."""

    of_model: ModelSettings
    checked: CheckedCheckpoint
    files: str


def files_of(folder: Path) -> str:
    """Names the files of a checkpoint as they are now: sizes, and when each was written.

    Raises CheckpointBroken where there is no such folder any more.
    """
    try:
        files = [path for path in folder.iterdir() if path.is_file()]
        gguf = GgufFile.of_folder(folder)
        if gguf is not None:
            files += gguf.paths
        stats = [(path.name, path.stat()) for path in sorted(files)]
    except OSError as error:
        raise CheckpointBroken(f"{folder}: {error.strerror}") from error
    return repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])


_DRIVER = Path("/proc/driver/nvidia/version")


def preflight(settings: ServeConfig) -> Preflight:
    """Check all that can be checked before weights are read, and without other ranks.

    Raises ConfigRefused and whatever `check_checkpoint` raises.
    """
    local_rank = settings.rank if settings.local_rank is None else settings.local_rank
    device = device_of(settings.device, local_rank, num_gpus())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    of_model = ModelSettings(
        folder=_folder(settings),
        dtype=settings.dtype,
        device=device,
        trust_remote_code=settings.trust_remote_code,
        attention=settings.attention,
        quantize=settings.quantize,
        activation_bits=settings.activation_bits,
        tokenizer_folder=settings.tokenizer_folder,
        max_loras=settings.max_loras,
        max_lora_rank=settings.max_lora_rank,
        kept_evidence=settings.kept_evidence,
    )
    files = files_of(of_model.folder)
    checked = check_checkpoint(of_model, settings.world_size)
    max_len = checked.facts.max_position_embeddings
    if max_len is not None:
        _require_lengths(settings, max_len)
    return Preflight(of_model, checked, files)


def _folder(settings: ServeConfig) -> Path:
    """What the launcher has made of a GGUF file is the folder of model and tokenizer."""
    made = settings.tokenizer_folder
    if made is not None and (made / GGUF_INDEX_NAME).is_file():
        return made
    found = find_checkpoint(settings.model_id, settings.revision)
    if found.suffix == ".gguf":
        raise ModelRefused(
            f"{found}: a GGUF file is read by `launcher serve`, not by a shard alone"
        )
    return found


def _require_lengths(settings: ServeConfig, max_len: int) -> None:
    """Raises ConfigRefused for requests that are longer than the model's context."""
    for flag, asked_len, most in (
        ("--max-total-tokens", settings.max_total_tokens, max_len),
        # An answer has a token at least.
        ("--max-input-tokens", settings.max_input_tokens, max_len - 1),
    ):
        if asked_len is not None and asked_len > most:
            raise ConfigRefused(
                f"{flag} {asked_len}: must be at most {most}, for the model's longest context is"
                f" {max_len}"
            )


def device_of(name: str, local_rank: int, num_gpus: int) -> torch.device:
    """The device of a rank, by --device: the GPU of its number on this machine.

    num_gpus: that the machine has. Where it has some and torch finds none, nothing is computed on
    the CPU unless that was asked for. Raises ConfigRefused.
    """
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if name == "auto" and num_gpus == 0:
            return torch.device("cpu")
        raise ConfigRefused(
            f"--device {name}: torch {torch.__version__} (CUDA {torch.version.cuda}) finds no CUDA"
            f" device, and the machine has {num_gpus} (driver: {driver_version()}); install torch"
            " for CUDA and a driver that it knows, or serve with --device cpu"
        )
    if local_rank >= torch.cuda.device_count():
        raise ConfigRefused(
            f"LOCAL_RANK {local_rank} has no GPU: torch finds {torch.cuda.device_count()} on this"
            f" machine, which has {num_gpus}"
        )
    return torch.device("cuda", local_rank)


def driver_version() -> str:
    """NVIDIA's driver, or that there is none."""
    try:
        words = _DRIVER.read_text().split()
    except OSError:
        return "none"
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")


def check_checkpoint(settings: ModelSettings, world_size: int) -> CheckedCheckpoint:
    """Raises CheckpointBroken (files), ArchitectureUnfit (the gate) or another ModelRefused."""
    trust = settings.trust_remote_code
    stored = checkpoint.check(settings.folder)
    config = zoo.read_config(settings.folder, trust_remote_code=trust)
    empty = zoo.build_empty(config, trust_remote_code=trust)
    eos_token_ids = _eos_token_ids(settings, empty.facts.vocab_size)
    sampling_defaults = read_sampling_defaults(settings.folder)
    if _quantization(config) is None:
        _require_shapes(settings.folder, empty, stored)
    dtype = _resolve_dtype(settings.dtype, config, settings.device)
    recipe = None
    fallback_reason = _not_dense(settings, world_size, config, dtype)
    if fallback_reason is None:
        try:
            recipe = _dense_recipe(settings, world_size, config, dtype, empty)
        except Unreadable as error:
            fallback_reason = str(error)
    if fallback_reason is not None:
        zoo.check_quantization(settings.folder, config, settings.device, fallback_reason)
        check_zoo(settings, config, empty.facts, fallback_reason)
    takes_more_than_text = zoo.takes_more_than_text(config)
    image_token_id = None
    blind_reason = None
    if takes_more_than_text:
        try:
            image_token_id = _image_token_id(
                settings, config, empty.facts.vocab_size, in_its_class=recipe is None
            )
        except Blind as reason:
            blind_reason = str(reason)
            _log.info(
                "%s: images are not served, text alone is: %s; not loaded: %s",
                settings.folder,
                reason,
                ", ".join(empty.left_out) or "none of its parts",
            )
    is_sharded = recipe is not None or _can_shard(empty, world_size)
    num_shards = world_size if is_sharded else 1
    quantization = _quantization(config)
    whole = empty
    if image_token_id is not None:
        whole = zoo.build_empty(config, trust_remote_code=trust, sees=True)
    num_parameters = whole.num_parameters()
    weights_dtype = dtype
    weights_bytes = None
    gguf = None
    if recipe is not None and settings.device.type == "cpu":
        weights_dtype = _weights_dtype(dtype, stored)
        # In 8 bits all of it is rounded anew.
        gguf = None if settings.quantize == "int8" else GgufFile.of_folder(settings.folder)
    if gguf is not None and recipe is not None:
        is_tied = recipe.embedding == recipe.head.weight
        weights_bytes = packed_bytes(gguf, dtype, None if is_tied else recipe.embedding)
    elif quantization is None:
        weights_bytes = num_parameters * weights_dtype.itemsize
    return CheckedCheckpoint(
        config=config,
        dtype=dtype,
        weights_dtype=weights_dtype,
        num_shards=num_shards,
        num_parameters=num_parameters,
        weights_bytes=weights_bytes,
        facts=empty.facts,
        eos_token_ids=eos_token_ids,
        sampling_defaults=sampling_defaults,
        recipe=recipe,
        fallback_reason=fallback_reason,
        int4=None if recipe is None or quantization is None else Int4Format.of(quantization),
        packs_gguf=gguf is not None,
        left_out=empty.left_out,
        takes_more_than_text=takes_more_than_text,
        image_token_id=image_token_id,
        blind_reason=blind_reason,
    )


def _image_token_id(
    settings: ModelSettings, config: Any, vocab_size: int, *, in_its_class: bool
) -> int:
    """The token in whose place images go. Raises Blind for a model whose images are not served."""
    if not zoo.takes_images(config):
        raise Blind(
            f"transformers has no class for {config.model_type} that takes images and texts"
        )
    if in_its_class and _quantization(config) is not None:
        raise Blind("its checkpoint is quantized, and runs in its own class")
    if GgufFile.of_folder(settings.folder) is not None:
        raise Blind("a GGUF file has nothing that sees")
    if not has_processor(settings.folder):
        raise Blind(f"its checkpoint has no processor: {' or '.join(PROCESSOR_FILES)}")
    if find_spec("PIL") is None:
        raise Blind("pillow is not installed: pip install 'tandem[vision]'")
    for name in ("image_token_id", "image_token_index"):
        token_id = getattr(config, name, None)
        if isinstance(token_id, int):
            if token_id >= vocab_size:
                raise Blind(f"{name} {token_id} is none of its {vocab_size} tokens")
            return token_id
    raise Blind("its config.json names no image_token_id")


def _eos_token_ids(settings: ModelSettings, vocab_size: int) -> tuple[int, ...]:
    """The tokens that end an answer, by the files of model and tokenizer.

    Raises CheckpointBroken.
    """
    folder = settings.folder
    tokenizer_path = (settings.tokenizer_folder or folder) / "tokenizer.json"
    try:
        ends = EndTokens.read(folder, tokenizer_path)
    except (OSError, ValueError) as error:
        raise CheckpointBroken(str(error)) from error
    if ends.contradiction is not None:
        _log.warning(
            "%s: its files name different end tokens, and each ends an answer: %s",
            folder,
            ends.contradiction,
        )
    beyond = [token_id for token_id in ends.ids if not 0 <= token_id < vocab_size]
    if beyond:
        _log.warning(
            "%s: end tokens %s cannot be sampled: the model has %d", folder, beyond, vocab_size
        )
    return tuple(token_id for token_id in ends.ids if token_id not in beyond)


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
    trust = settings.trust_remote_code
    recipe = read_recipe(config, trust_remote_code=trust)
    reaches = gate.find_reaches(config, partial(zoo.build_small, trust_remote_code=trust))
    if reaches:
        recipe = read_recipe(config, trust_remote_code=trust, reaches=reaches)
    if settings.device.type == "cpu":
        unfit = unfit_reason(recipe, dtype, settings.quantize)
    else:
        lens = tuple(_inner_lens(layer.mlp, empty) for layer in recipe.layers)
        unfit = unfit_reason_on_cuda(recipe, lens, world_size, settings.quantize)
    if unfit is not None:
        raise Unreadable(unfit)
    return recipe


def _inner_lens(mlp: Mlp | Moe | None, empty: HfModel) -> tuple[int, ...]:
    """Of what the last products of an MLP read; experts have one length."""
    if mlp is None:
        return ()
    if isinstance(mlp, Moe):
        shape = empty.module.get_parameter(mlp.down).shape
        shared = () if mlp.shared is None else _inner_lens(mlp.shared, empty)
        return (int(shape[1 if mlp.transposed else 2]), *shared)
    shape = empty.module.get_parameter(mlp.out.weight).shape
    return (int(shape[0 if mlp.out.transposed else 1]),)


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


_VECTOR_LEN = 16
# Of each layer's MLP, what its last product reads, or its last products.
InnerLens: TypeAlias = tuple[tuple[int, ...], ...]


def unfit_reason(recipe: Recipe, dtype: torch.dtype, quantize: str | None = None) -> str | None:
    """Why DenseCpu cannot compute this recipe in `dtype`, or None when it can."""
    return next(_reasons(recipe, dtype, quantize), None)


def _reasons(recipe: Recipe, dtype: torch.dtype, quantize: str | None) -> Iterator[str]:
    if dtype not in ELEMENT_NAMES:
        yield f"it computes in float32 and bfloat16, not in {dtype}"
    if quantize not in (None, "int8", "int4"):
        yield f"it quantizes weights to int8 and int4, not to {quantize}"
    yield from _layer_reasons(recipe)


def _layer_reasons(recipe: Recipe) -> Iterator[str]:
    for index, layer in enumerate(recipe.layers):
        for reason in (*_mixer_reasons(layer.mixer), *_norm_reasons(layer)):
            yield f"layer {index}: {reason}"
    if not any(recipe.attentions()):
        yield "none of its layers attends: a model of states alone has no blocks of keys and values"


def unfit_reason_on_cuda(
    recipe: Recipe, inner_lens: InnerLens, num_ranks: int, quantize: str | None = None
) -> str | None:
    """Why DenseCuda cannot compute this recipe on so many ranks, or None when it can."""
    reason = next(_cuda_reasons(recipe, quantize), None)
    if reason is None and quantize is not None:
        reason = next(_float8_reasons(recipe, inner_lens, num_ranks), None)
    return reason or _undivided_reason(recipe, inner_lens, num_ranks)


def _cuda_reasons(recipe: Recipe, quantize: str | None) -> Iterator[str]:
    if quantize not in (None, "fp8"):
        yield f"weights are quantized to fp8 on CUDA, not to {quantize}"
    for index, layer in enumerate(recipe.layers):
        if isinstance(layer.mlp, Moe) and quantize is not None:
            yield f"layer {index}: its MLP has experts, which are not multiplied in {quantize}"
        if isinstance(layer.mixer, Mamba2):
            yield f"layer {index}: its selective state space is computed on a CPU alone"
        for reason in _mlp_reasons(layer.mlp):
            yield f"layer {index}: {reason}"
    yield from _layer_reasons(recipe)


def _float8_reasons(recipe: Recipe, inner_lens: InnerLens, num_ranks: int) -> Iterator[str]:
    for index, (layer, lens) in enumerate(zip(recipe.layers, inner_lens, strict=True)):
        of_all = [*lens]
        if isinstance(layer.mixer, Delta):
            of_all.append(2 * layer.mixer.num_heads)  # betas and alphas; the others fit
        elif isinstance(layer.mixer, ShortConv):
            of_all.append(layer.mixer.value.rows.count)
        parts = (width // num_ranks for width in of_all)
        for width in (layer.mixer.output.rows.count, *parts):
            if width % _VECTOR_LEN:
                yield f"layer {index}: a product of {width} numbers is none in fp8"


def _undivided_reason(recipe: Recipe, inner_lens: InnerLens, num_ranks: int) -> str | None:
    """Why the recipe cannot be divided, or None when it can."""
    if num_ranks == 1:
        return None
    for index, (layer, lens) in enumerate(zip(recipe.layers, inner_lens, strict=True)):
        for reason in _undivided_reasons(layer, lens, num_ranks):
            return f"layer {index}: {reason}"
    return None


def _undivided_reasons(layer: Layer, inner_lens: tuple[int, ...], num_ranks: int) -> Iterator[str]:
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        yield from _undivided_heads(mixer, num_ranks)
    elif isinstance(mixer, Delta) and mixer.num_key_heads % num_ranks:
        yield (
            f"{mixer.num_key_heads} key heads of its gated delta rule cannot be divided among"
            f" {num_ranks} ranks"
        )
    elif isinstance(mixer, ShortConv) and mixer.value.rows.count % num_ranks:
        yield f"{mixer.value.rows.count} channels cannot be divided among {num_ranks} ranks"
    for inner_len in inner_lens:
        if inner_len % num_ranks:
            yield f"an MLP of {inner_len} numbers cannot be divided among {num_ranks} ranks"


def _undivided_heads(attention: Attention, num_ranks: int) -> Iterator[str]:
    num_heads = attention.num_heads
    num_kv_heads = attention.num_kv_heads
    if num_heads % num_ranks:
        yield f"{num_heads} heads cannot be divided among {num_ranks} ranks"
    if num_kv_heads % num_ranks and num_ranks % num_kv_heads:
        yield (
            f"{num_kv_heads} key heads can neither be divided among {num_ranks} ranks, nor held"
            " by as many ranks each"
        )
    for head in (attention.query, attention.key):
        if head.norm is not None and head.norm.width != attention.head_dim:
            yield "a norm over all heads needs those of every rank"


def _mixer_reasons(mixer: Mixer) -> Iterator[str]:
    if isinstance(mixer, Delta | Mamba2):
        yield from _recurrence_reasons(mixer)
    elif isinstance(mixer, ShortConv):
        yield from _short_conv_reasons(mixer)
    else:
        yield from _attention_reasons(mixer)


def _short_conv_reasons(conv: ShortConv) -> Iterator[str]:
    if conv.value.rows.count % _VECTOR_LEN:
        yield (
            f"its short convolution has {conv.value.rows.count} channels, no multiple of"
            f" {_VECTOR_LEN}"
        )


def _recurrence_reasons(mixer: Delta | Mamba2) -> Iterator[str]:
    if isinstance(mixer, Delta):
        kind = "gated delta rule"
        widths = {"key_dim": mixer.key_dim, "value_dim": mixer.value_dim}
        shared = (mixer.num_key_heads, "key heads")
    else:
        kind = "selective state space"
        widths = {"state_size": mixer.state_size, "head_dim": mixer.head_dim}
        shared = (mixer.num_groups, "groups")
    for name, width in widths.items():
        if width % _VECTOR_LEN:
            yield f"{name} {width} of its {kind} is not a multiple of {_VECTOR_LEN}"
    if mixer.num_heads % shared[0]:
        yield f"{shared[0]} {shared[1]} do not divide {mixer.num_heads} heads"
    if mixer.conv.num_taps > MAX_TAPS:
        yield f"its convolution reads {mixer.conv.num_taps} tokens, more than {MAX_TAPS}"
    if mixer.norm.kind != "rms" or mixer.norm.biases:
        yield f"what its {kind} gives is normalised by more than a root mean square"


def _attention_reasons(attention: Attention) -> Iterator[str]:
    head_dim = attention.head_dim
    query = attention.query
    key = attention.key
    if head_dim % _VECTOR_LEN:
        yield f"head_dim {head_dim} is not a multiple of {_VECTOR_LEN}"
    if attention.num_heads % attention.num_kv_heads:
        yield f"{attention.num_kv_heads} key heads do not divide {attention.num_heads} heads"
    if attention.value.rows.count != attention.num_kv_heads * head_dim:
        yield "values are not as wide as keys"
    if query.rope != key.rope:
        yield "queries and keys are rotated in different ways"
    if query.norm and key.norm and query.norm_after_rope != key.norm_after_rope:
        yield "queries are normalised before they are rotated, keys after, or the other way round"
    yield from _head_norm_reasons(query, head_dim)
    yield from _head_norm_reasons(key, head_dim)


def _head_norm_reasons(head: Head, head_dim: int) -> Iterator[str]:
    if head.norm is None or head.norm.width == head_dim:
        return
    if head.norm.width != head.linear.rows.count:
        yield f"a norm of {head.norm.width} numbers is neither of a head nor of all heads"
    elif head.norm_after_rope:
        yield "all heads together are normalised after they are rotated"


def _mlp_reasons(mlp: Mlp | Moe | None) -> Iterator[str]:
    if mlp is None:
        yield "it has no MLP, which is computed on a CPU alone"
    elif isinstance(mlp, Moe) and mlp.layout == "plain":
        yield "its experts have no gate, which is computed on a CPU alone"


def _norm_reasons(layer: Layer) -> Iterator[str]:
    hidden_size = layer.mixer.output.rows.count
    norms: tuple[Norm | None, ...] = (
        layer.attention_norm,
        layer.attention_post_norm,
        layer.mlp_norm,
        layer.mlp_post_norm,
    )
    for norm in norms:
        if norm is not None and norm.width != hidden_size:
            yield f"a norm of {norm.width} numbers is not of a row of {hidden_size}"


def bytes_of_rank(settings: ServeConfig, checked: CheckedCheckpoint) -> int | None:
    """Of one rank's weights; None where they are quantized, since that is unknown."""
    is_known = checked.weights_bytes is not None and settings.quantize is None
    return checked.bytes_of_rank if is_known else None


def forecast(settings: CheckConfig) -> Capacity:
    """Check a checkpoint and this machine as `serve` does before it reads weights.

    Raises what `preflight` raises, OutOfMemory where weights or pool do not fit, and ConfigRefused
    for limits that the pool cannot hold.
    """
    for rank in range(settings.world_size):
        # One rank stands for all but in this.
        device_of(settings.device, rank, num_gpus())
    of_model, checked, _ = preflight(settings)
    _require_names(of_model, checked)
    device = of_model.device
    num_ranks = settings.world_size
    available = memory.available_bytes(device)
    needed = memory.weights_of_all(device, checked.bytes_of_rank, num_ranks)
    memory.require_weights_fit(device, needed, available)
    _check_vocabulary(of_model, checked)
    max_len = settings.max_total_tokens or checked.facts.max_position_embeddings or 0
    pool = _pool(settings, of_model, checked, max_len)
    _require_adapters(settings, of_model, checked)
    if pool is not None:
        reason = pool.too_long(settings.max_input_tokens, settings.max_total_tokens)
        if reason is not None:
            raise ConfigRefused(reason)
        max_len = min(max_len, pool.num_blocks * pool.block_size)
    return Capacity(
        num_parameters=checked.num_parameters,
        dtype=str(checked.dtype).removeprefix("torch."),
        executor="dense" if checked.fallback_reason is None else "zoo",
        num_shards=num_ranks,
        max_total_len=max_len,
        weights_bytes=bytes_of_rank(settings, checked),
        pool=pool,
    )


def _check_vocabulary(settings: ModelSettings, checked: CheckedCheckpoint) -> None:
    """Without constraints a model is served all the same, so this only says so."""
    path = (settings.tokenizer_folder or settings.folder) / "tokenizer.json"
    try:
        Vocabulary.load(path, checked.facts.vocab_size, checked.eos_token_ids)
    except NotEnforced as error:
        _log.warning("constraints and tools cannot be served: %s", error)


def _require_names(of_model: ModelSettings, checked: CheckedCheckpoint) -> None:
    """Raises CheckpointBroken where `serve` would as it reads the weights.

    Those of a quantized checkpoint have other names and shapes.
    """
    if _quantization(checked.config) is not None:
        return
    stored = checkpoint.check(of_model.folder)
    empty = zoo.build_empty(
        checked.config,
        trust_remote_code=of_model.trust_remote_code,
        sees=checked.image_token_id is not None,
    )
    zoo.require_names(of_model.folder, empty, {name: each.shape for name, each in stored.items()})


def _pool(
    settings: CheckConfig, of_model: ModelSettings, checked: CheckedCheckpoint, max_len: int
) -> Pool | None:
    """None for a model without a recipe: the shapes of its keys show when it is loaded."""
    if checked.recipe is None:
        return None
    device = of_model.device
    part = Partition(settings.rank, settings.world_size)
    bytes_per_block = sum(
        2 * DEFAULT_BLOCK_SIZE * checked.dtype.itemsize * each.head_dim
        * len(part.kv_heads(each.num_kv_heads))
        for each in checked.recipe.attentions()
    )  # fmt: skip
    num_blocks = settings.kv_blocks
    state_bytes = checked.recipe.state_bytes // settings.world_size
    num_states = 0
    left = 0
    if num_blocks is None or state_bytes:
        reserved_bytes = settings.max_loras and settings.max_loras * most_bytes(
            checked.recipe,
            _product_shapes(of_model, checked.config, checked.recipe),
            of_model.max_lora_rank,
        )
        left = _bytes_left(settings, checked, device, reserved_bytes)
    if state_bytes:
        num_states = memory.states_that_fit(
            device,
            state_bytes,
            left,
            max_batch_size=settings.max_batch_size,
            keeps_states=True,
        )
        left -= num_states * state_bytes
    if num_blocks is None:
        # One of them is the scratch block.
        num_blocks = left // bytes_per_block - 1
        if device.type == "cpu":
            longest = -(-max_len // DEFAULT_BLOCK_SIZE)
            num_blocks = min(num_blocks, settings.max_batch_size * longest)
    if num_blocks < 1:
        raise OutOfMemory(f"no memory is left on {device} for a KV pool beside the weights")
    return Pool(num_blocks, DEFAULT_BLOCK_SIZE, bytes_per_block, num_states, state_bytes)


def _require_adapters(
    settings: CheckConfig, of_model: ModelSettings, checked: CheckedCheckpoint
) -> None:
    """Raises ModelRefused where `serve` would as it loads them.

    What adapters may change of a model without a recipe shows when it is loaded.
    """
    if checked.recipe is None or not settings.lora_adapters:
        return
    shapes = _product_shapes(of_model, checked.config, checked.recipe)
    adaptable = adaptable_layers(checked.recipe, shapes)
    book = AdapterBook(settings.max_loras)
    for adapter_id, (name, path) in enumerate(settings.lora_adapters):
        try:
            folder = find_folder(path, None, (CONFIG_NAME, WEIGHTS_NAME), noun="adapter")
        except HubError:
            # The router looks for it, too, and says so.
            continue
        try:
            Adapter.read(folder, adaptable, of_model.max_lora_rank)
            book.enter(adapter_id)
        except (AdapterRefused, OutOfMemory) as error:
            raise ModelRefused(f"--lora-adapters {name}={folder}: {error}") from error


def _product_shapes(
    of_model: ModelSettings, config: Any, recipe: Recipe
) -> dict[str, tuple[int, int]]:
    empty = zoo.build_empty(config, trust_remote_code=of_model.trust_remote_code)
    parameters = dict(empty.module.named_parameters(remove_duplicate=False))
    return product_shapes(recipe, parameters, {})


def _bytes_left(
    settings: CheckConfig, checked: CheckedCheckpoint, device: torch.device, reserved_bytes: int
) -> int:
    """For a rank's pool, once the weights are loaded and adapters have their share."""
    of_rank = checked.bytes_of_rank
    if device.type == "cuda":
        return memory.pool_bytes(
            device,
            peak_bytes=of_rank,
            memory_fraction=settings.cuda_memory_fraction,
            num_ranks=settings.world_size,
            reserved_bytes=reserved_bytes,
        )
    available = memory.available_bytes(device)
    if available is not None:
        available -= memory.weights_of_all(device, of_rank, settings.world_size)
        available -= reserved_bytes * settings.world_size
    return memory.host_pool_bytes(available, settings.world_size)
