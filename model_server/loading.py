"""Loading: from a configuration to the runner with its ranks, model, sampler and guides.

check:  settings, device, files, class, limits     a few seconds, of each rank by itself
load:   check -> ranks meet -> weights -> proof
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from constraints.compiler import MIB
from model_server import zoo
from model_server.attention.reference import ReferenceAttention
from model_server.attention.select import select_backend
from model_server.checkpoint import checkpoint, gate
from model_server.checkpoint.check import (
    CheckedCheckpoint,
    ModelSettings,
    Preflight,
    bytes_of_rank,
    check_checkpoint,
    check_zoo,
    files_of,
    preflight,
)
from model_server.checkpoint.gguf_file import GgufFile
from model_server.checkpoint.gguf_parameters import GgufParameters
from model_server.checkpoint.int4_checkpoint import read_int4
from model_server.checkpoint.tensor_files import TensorFiles
from model_server.config import ServeConfig
from model_server.engine.distributed import World
from model_server.engine.memory import (
    available_bytes,
    keep_freed_memory,
    require_weights_fit,
    weights_of_all,
)
from model_server.engine.runner import Runner
from model_server.errors import CheckpointBroken, ModelRefused, RanksLost
from model_server.executor.dense import (
    MAX_GROUPED_ERRORS,
    MAX_QUANTIZED_ERROR,
    Build,
    load_dense,
    load_grouped,
    load_unproven,
)
from model_server.executor.dense_cpu import DenseCpu
from model_server.executor.dense_cuda import DenseCuda, build_dense_cuda
from model_server.executor.device_weights import Partition
from model_server.executor.evidence import KeptEvidence
from model_server.executor.executor import Executor, PagedModel
from model_server.executor.grouped import GroupedParameters
from model_server.executor.seeing import Seeing
from model_server.executor.zoo_executor import ZooExecutor
from model_server.masking.constraint_cache import ConstraintCache
from model_server.masking.mask_scheduler import MaskScheduler
from model_server.recipe.dense_torch import angles_of
from model_server.recipe.proof import MAX_ERRORS
from model_server.recipe.recipe import Recipe, Unreadable
from model_server.sampling.choosing import sampling_ways
from model_server.sampling.sampler import Sampler
from model_server.zoo import HfModel
from native.library import NativeUnavailable
from processes.image_processor import ProcessedImage
from proto.contract import ModelInfo

_log = logging.getLogger(__name__)

# Masks are made while the forward runs; on a CPU both share the cores.
_MAX_MASK_THREADS = 8
_COMPUTING = ("tandem", "torch", "transformers")
_WEIGHTS = (".safetensors", ".gguf")
# More than any device has: stands for an unknown number where ranks agree on the least.
_UNKNOWN = 1 << 62


class Prepared(NamedTuple):
    """What needs neither weights nor other ranks. `constraints` None: the first rank has them."""

    found: Preflight
    constraints: ConstraintCache | None


def prepare(settings: ServeConfig) -> Prepared:
    """Check, and begin to read the vocabulary beside. Raises whatever `preflight` raises."""
    found = preflight(settings)
    if settings.rank:
        return Prepared(found, None)
    constraints = ConstraintCache(
        settings.tokenizer_folder or found.of_model.folder,
        found.checked.vocab_size,
        found.checked.eos_token_ids,
        max_bytes=settings.constraint_cache_mib * MIB,
    )
    return Prepared(found, constraints)


class Loaded(NamedTuple):
    """Everything that serves. `addresses`: where the router reaches each rank."""

    runner: Runner
    info: ModelInfo
    constraints: ConstraintCache | None
    addresses: tuple[str, ...]


def load(
    settings: ServeConfig,
    on_lost: Callable[[RanksLost], None],
    prepared: Prepared | None = None,
) -> Loaded:
    """Load everything that serves, on the thread that will run the steps.

    `on_lost` is called, from another thread, once ranks of other machines are gone. What was
    `prepared` is not done again, if the checkpoint's files are the same.
    """
    started_s = time.monotonic()
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    # Before the ranks meet: what cannot be served is known without them.
    if prepared is None or prepared.found.files != files_of(prepared.found.of_model.folder):
        prepared = prepare(settings)
    constraints = prepared.constraints
    of_model, checked, _ = prepared.found
    device = of_model.device
    setup = _setup(settings, of_model.folder)
    world = World.connect(
        rank=settings.rank,
        world_size=settings.world_size,
        master_addr=settings.master_addr,
        master_port=settings.master_port,
        device=device,
        address=settings.url,
        setup=setup,
        on_lost=on_lost if settings.spans_machines else None,
    )
    _log.info("reading the weights on %s", device)
    model = load_checked(of_model, checked, world)
    if model.vocab_size != checked.vocab_size:
        raise CheckpointBroken(
            f"{of_model.folder}: the model has {model.vocab_size} tokens, and by config.json"
            f" {checked.vocab_size}"
        )
    sampler = None
    if world.is_first:
        sampler = new_sampler(
            model,
            max_rows=64,
            watermark_gamma=settings.watermark_gamma,
            watermark_delta=settings.watermark_delta,
        )
    runner = Runner(
        model,
        sampler,
        world,
        guides=None if constraints is None else _guides(model, constraints),
        num_blocks=settings.kv_blocks,
        memory_fraction=settings.cuda_memory_fraction,
    )
    if constraints is not None:
        constraints.wait_read()
    if device.type == "cpu":
        keep_freed_memory()
    _log.info(
        "loaded in %.1f s: %s by %s",
        time.monotonic() - started_s,
        str(model.dtype).removeprefix("torch."),
        model.executor,
    )
    return Loaded(runner, _info(settings, checked, model, setup), constraints, world.addresses)


def _setup(settings: ServeConfig, folder: Path) -> dict[str, str]:
    """What all ranks must have alike: versions, checkpoint and flags."""
    found = {f"the version of {name}": version(name) for name in _COMPUTING}
    weights = sorted(path for path in folder.iterdir() if path.suffix in _WEIGHTS)
    sizes = [(path.name, path.stat().st_size) for path in weights]
    config = (folder / "config.json").read_bytes()
    found["the checkpoint"] = sha256(config + repr(sizes).encode()).hexdigest()[:16]
    return found | settings.shared


def load_model(
    settings: ModelSettings, world: World, noise: ProcessedImage | None = None
) -> PagedModel:
    """Check and load a checkpoint: see `check_checkpoint` and `load_checked`."""
    return load_checked(settings, check_checkpoint(settings, world.world_size), world, noise)


def load_checked(
    settings: ModelSettings,
    checked: CheckedCheckpoint,
    world: World,
    noise: ProcessedImage | None = None,
) -> PagedModel:
    """Read a checkpoint, or this rank's part of it, and prove that it can be served.

    noise: an image by which it is proven that it sees; None: its processor makes one

    Raises CheckpointBroken (files), ArchitectureUnfit (the gate) or another ModelRefused, each
    with the reason, and OutOfMemory when the weights do not fit.
    """
    _require_room(settings.device, checked.bytes_of_rank, world)
    seeing = Seeing(
        settings.folder,
        checked.image_token_id,
        checked.left_out,
        checked.blind_reason,
        _kept_evidence(settings, checked),
        trust_remote_code=settings.trust_remote_code,
    )
    seeing.take(noise)
    _see_alike(seeing, world)
    if checked.recipe is None:
        return _load_zoo(settings, checked, world, checked.fallback_reason, seeing)
    try:
        return _load_dense(settings, checked, checked.recipe, world, seeing)
    except (Unreadable, NativeUnavailable) as error:
        zoo.check_quantization(settings.folder, checked.config, settings.device, str(error))
        check_zoo(settings, checked.config, checked.facts, str(error))
        return _load_zoo(settings, checked, world, str(error), seeing)


def _see_alike(seeing: Seeing, world: World) -> None:
    """All ranks see, or none does."""
    if not world.smallest(int(seeing.may_see)) and seeing.may_see:
        seeing.be_blind("another rank does not see")


def _load_dense(
    settings: ModelSettings,
    checked: CheckedCheckpoint,
    recipe: Recipe,
    world: World,
    seeing: Seeing,
) -> PagedModel:
    facts = checked.facts
    limit = facts.max_position_embeddings
    if limit is None:
        raise Unreadable("its config names no max_position_embeddings")
    build = _build_of(settings, checked, recipe, world)
    # Several ranks take each its part of the files, which are mapped.
    device = settings.device if world.world_size == 1 else torch.device("cpu")
    executor: Executor
    if checked.int4 is not None or checked.packs_gguf:
        executor = _load_grouped(settings, checked, recipe, build, device, limit, seeing)
    else:
        model = _read_weights(
            settings, checked, checked.weights_dtype, device, num_shards=1, sees=seeing.may_see
        )
        widen(model.module, recipe.wide_names(), settings.folder)
        if world.world_size > 1:
            seeing.begin(model, recipe, proves=False)
            executor = load_unproven(model, recipe, build)
            seeing.end(executor, settings.device)
        else:
            seeing.begin(model, recipe)
            executor = load_dense(
                model,
                recipe,
                build,
                dtype=checked.dtype,
                quantize=settings.quantize,
                kept=_kept_evidence(settings, checked),
            )
            rounded = None if settings.quantize is None else MAX_QUANTIZED_ERROR
            seeing.end(executor, settings.device, rounded)
    _see_alike(seeing, world)
    windows = [attention.window_len for attention in recipe.attentions()]
    return PagedModel(
        executor,
        model_type=facts.model_type,
        dtype=checked.dtype,
        device=settings.device,
        vocab_size=recipe.head.rows.count,
        max_position_embeddings=limit,
        window_len=min((window for window in windows if window is not None), default=None),
        eos_token_ids=checked.eos_token_ids,
        max_loras=settings.max_loras,
        max_lora_rank=settings.max_lora_rank,
        sight=seeing.sight,
        blind_reason=seeing.blind_reason,
    )


def _load_grouped(
    settings: ModelSettings,
    checked: CheckedCheckpoint,
    recipe: Recipe,
    build: Build[DenseCpu] | Build[DenseCuda],
    device: torch.device,
    num_positions: int,
    seeing: Seeing,
) -> Executor:
    names = {rotary.module for rotary in recipe.rotary}
    trust = settings.trust_remote_code
    module = zoo.build_parts(checked.config, names, device, trust_remote_code=trust)
    held = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
    used = {name: held[name] for name in recipe.last_uses()}
    first_names = {id(tensor): name for name, tensor in reversed(held.items())}
    tied = {name: first_names[id(tensor)] for name, tensor in used.items()}
    parameters: GroupedParameters
    if checked.int4 is None:
        parameters = GgufParameters.of_folder(settings.folder, tied)
    else:
        parameters = read_int4(
            settings.folder,
            checked.int4,
            {name: tuple(tensor.shape) for name, tensor in used.items()},
            tied,
            zoo.stored_names(module, checkpoint.check(settings.folder)),
            dtype=checked.dtype,
            device=device,
        )
    max_error = None
    if device == settings.device:
        max_error = MAX_QUANTIZED_ERROR
        if settings.quantize is None:
            max_error = MAX_ERRORS[checked.dtype]
            # On CPUs what is in groups stays so.
            if device.type == "cpu" and parameters.has_groups:
                max_error = MAX_GROUPED_ERRORS[checked.dtype]
    if seeing.may_see:
        _begin_seeing(settings, checked, recipe, parameters, device, seeing)
    executor = load_grouped(
        recipe,
        parameters,
        angles_of(recipe, module),
        build,
        num_positions=num_positions,
        quantize=settings.quantize,
        max_error=max_error,
        kept=_kept_evidence(settings, checked),
    )
    if max_error is not None:
        # What an image's logits are held to was computed in the weights' dtype.
        max_error = max(max_error, MAX_ERRORS[checked.dtype])
    seeing.end(executor, settings.device, max_error)
    return executor


def _begin_seeing(
    settings: ModelSettings,
    checked: CheckedCheckpoint,
    recipe: Recipe,
    parameters: GroupedParameters,
    device: torch.device,
    seeing: Seeing,
) -> None:
    """What sees is as in any checkpoint, beside layers in groups."""
    trust = settings.trust_remote_code
    try:
        eyes = zoo.load_without_layers(
            settings.folder,
            checked.config,
            dtype=checked.dtype,
            device=device,
            trust_remote_code=trust,
        )
    except ModelRefused as error:
        seeing.be_blind(f"beside weights in 4 bits what sees cannot be read: {error}")
        return
    whole = zoo.with_layers(eyes, checked.config, parameters, trust_remote_code=trust)
    seeing.begin(eyes, recipe, proves=device == settings.device, whole=whole)
    for name in recipe.last_uses().keys() & dict(eyes.module.named_parameters()).keys():
        parameter = eyes.module.get_parameter(name)
        parameter.data = parameter.new_empty(0)


def _kept_evidence(settings: ModelSettings, checked: CheckedCheckpoint) -> KeptEvidence:
    how = (str(checked.weights_dtype), settings.quantize, checked.packs_gguf)
    versions = [version(name) for name in _COMPUTING]
    return KeptEvidence(settings.kept_evidence, repr((versions, how, files_of(settings.folder))))


def _build_of(
    settings: ModelSettings, checked: CheckedCheckpoint, recipe: Recipe, world: World
) -> Build[DenseCpu] | Build[DenseCuda]:
    if settings.device.type == "cpu":
        return partial(
            DenseCpu,
            recipe,
            dtype=checked.dtype,
            num_threads=torch.get_num_threads(),
            quantize=settings.quantize,
            activation_bits=settings.activation_bits,
            max_loras=settings.max_loras,
            max_lora_rank=settings.max_lora_rank,
        )
    return partial(
        build_dense_cuda,
        recipe,
        checked.dtype,
        settings.device,
        Partition(world.rank, world.world_size),
        dist.group.WORLD if world.world_size > 1 else None,
        quantize=settings.quantize,
        max_loras=settings.max_loras,
        max_lora_rank=settings.max_lora_rank,
    )


def _read_weights(
    settings: ModelSettings,
    checked: CheckedCheckpoint,
    dtype: torch.dtype,
    device: torch.device,
    num_shards: int,
    *,
    sees: bool,
) -> HfModel:
    gguf = GgufFile.of_folder(settings.folder)
    return zoo.load(
        settings.folder,
        checked.config,
        dtype=dtype,
        device=device,
        trust_remote_code=settings.trust_remote_code,
        num_shards=num_shards,
        left_out=() if sees else checked.left_out,
        tensors=None if gguf is None else gguf.read(dtype),
    )


def widen(module: nn.Module, names: Collection[str], folder: Path) -> None:
    """Read these parameters again, in float32: the checkpoint has digits that others do without.

    Raises Unreadable where its files know none of such a name.
    """
    narrow = {name: module.get_parameter(name) for name in names}
    narrow = {name: each for name, each in narrow.items() if each.dtype != torch.float32}
    if not narrow:
        return
    stored_names = zoo.stored_names(module, checkpoint.check(folder))
    with ExitStack() as stack:
        files = TensorFiles.open(folder, stored_names, torch.device("cpu"), stack)
        for name, parameter in narrow.items():
            if name not in files:
                raise Unreadable(f"its files have no {name} that could be read in float32")
            wide = files.tensor(name, tuple(parameter.shape)).float()
            parameter.data = wide.to(parameter.device)


def _load_zoo(
    settings: ModelSettings,
    checked: CheckedCheckpoint,
    world: World,
    reason: str | None,
    seeing: Seeing,
) -> PagedModel:
    if world.is_first:
        _log.info("the model runs in its own class, not by a recipe: %s", reason)
    dtype = checked.dtype
    device = settings.device
    model = _read_weights(settings, checked, dtype, device, checked.num_shards, sees=seeing.may_see)
    seeing.begin(model)
    expected = gate.expected_logits(model, device)
    memory = gate.learn_memory(model, device)
    plans = gate.probe_layers(model, memory, ReferenceAttention(), dtype, device, expected)
    geometries = [plan.geometry for plan in plans if plan is not None]
    backend = select_backend(settings.attention, device, dtype, geometries)
    plans = gate.probe_layers(model, memory, backend, dtype, device, expected)
    if world.is_first:
        _log.info("proven: in batches, from a paged cache, its logits are its own")
    limit = model.facts.max_position_embeddings
    if limit is None:
        raise AssertionError("the gate lets no model without a limit pass")
    windows = [plan.options.window_len for plan in plans if plan is not None]
    executor = ZooExecutor(
        model,
        plans,
        memory,
        backend,
        dtype,
        device,
        max_lora_rank=settings.max_lora_rank if settings.max_loras else None,
    )
    seeing.end(executor, device)
    _see_alike(seeing, world)
    return PagedModel(
        executor,
        model_type=model.facts.model_type,
        dtype=dtype,
        device=device,
        vocab_size=expected[0].shape[1],
        max_position_embeddings=limit,
        window_len=min((window for window in windows if window is not None), default=None),
        eos_token_ids=checked.eos_token_ids,
        fallback_reason=reason,
        max_loras=settings.max_loras,
        max_lora_rank=settings.max_lora_rank,
        sight=seeing.sight,
        blind_reason=seeing.blind_reason,
    )


def new_sampler(
    model: PagedModel,
    max_rows: int,
    *,
    watermark_gamma: float = 0.5,
    watermark_delta: float = 2.0,
) -> Sampler:
    """The sampler of a model's logits, with the fastest ways of its device; see Sampler."""
    ways = sampling_ways(model.vocab_size, model.device, max_rows, lambda: model.threads)
    return Sampler(
        model.vocab_size,
        model.device,
        model.eos_token_ids,
        max_rows,
        choose=ways.choose,
        edits=ways.edits,
        watermark_gamma=watermark_gamma,
        watermark_delta=watermark_delta,
    )


def _require_room(device: torch.device, rank_bytes: int, world: World) -> None:
    """Raises OutOfMemory, on all ranks or on none: none reads weights before all have measured."""
    available = available_bytes(device)
    least = world.smallest(_UNKNOWN if available is None else available)
    needed = weights_of_all(device, rank_bytes, world.world_size)
    require_weights_fit(device, needed, None if least == _UNKNOWN else least)


def _guides(model: PagedModel, constraints: ConstraintCache) -> MaskScheduler:
    return MaskScheduler(
        constraints,
        model.vocab_size,
        model.eos_token_ids,
        num_threads=min(_MAX_MASK_THREADS, os.cpu_count() or 1),
        is_pinned=model.device.type == "cuda",
    )


def _info(
    settings: ServeConfig, checked: CheckedCheckpoint, model: PagedModel, setup: Mapping[str, str]
) -> ModelInfo:
    device = model.device
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return ModelInfo(
        model_id=settings.model_id,
        model_type=model.model_type,
        dtype=str(model.dtype).removeprefix("torch."),
        device_type=model.device.type,
        executor=model.executor,
        block_size=model.block_size,
        vocab_size=model.vocab_size,
        max_position_embeddings=model.max_position_embeddings,
        window_len=model.window_len,
        eos_token_ids=model.eos_token_ids,
        world_size=settings.world_size,
        rank=settings.rank,
        is_invariant=model.is_invariant,
        fallback_reason=model.fallback_reason,
        num_parameters=checked.num_parameters,
        weights_bytes=bytes_of_rank(settings, checked),
        bytes_per_block=model.bytes_per_block,
        sampling_defaults=checked.sampling_defaults,
        language_model_only=checked.takes_more_than_text and model.sight is None,
        state_bytes=model.state_bytes,
        keeps_states=model.keeps_states,
        max_loras=model.max_loras,
        sees_images=model.sight is not None,
        blind_reason=model.blind_reason,
        images_see_ahead=model.sight is not None and model.sight.sees_ahead,
        setup=sha256(repr((sorted(setup.items()), gpu)).encode()).hexdigest()[:16],
    )
