"""Loading: from a configuration to the runner with its ranks, model, sampler and guides."""

import logging
import os
import time
from pathlib import Path

import torch

from model_server.attention.reference import ReferenceAttention
from model_server.attention.select import select_backend
from model_server.config import ServeConfig
from model_server.engine.distributed import World
from model_server.engine.memory import (
    available_bytes,
    keep_freed_memory,
    require_weights_fit,
    weights_of_all,
)
from model_server.engine.runner import Runner
from model_server.engine.threads import ThreadCount, bound, own_cores
from model_server.errors import ConfigRefused
from model_server.masking.constraint_cache import ConstraintCache
from model_server.masking.mask_scheduler import MaskScheduler
from model_server.model import gate, patches, zoo
from model_server.model.checkpoint import find_checkpoint
from model_server.model.checkpoint_check import ModelSettings, check_checkpoint
from model_server.model.model import PagedModel
from model_server.sampling.sampler import Sampler
from proto.contract import ModelInfo

_log = logging.getLogger(__name__)

# Masks are made while the forward runs; on a CPU both share the cores.
_MAX_MASK_THREADS = 8
# More than any device has: stands for an unknown number where ranks agree on the least.
_UNKNOWN = 1 << 62


def load(settings: ServeConfig) -> tuple[Runner, ModelInfo, ConstraintCache | None]:
    """Load everything that serves, on the thread that will run the steps."""
    started_s = time.monotonic()
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    device = device_of(settings.device, settings.rank)
    folder = find_checkpoint(settings.model_id, settings.revision)
    world = World.connect(
        rank=settings.rank,
        world_size=settings.world_size,
        master_addr=settings.master_addr,
        master_port=settings.master_port,
        device=device,
    )
    _log.info("loading %s on %s", settings.model_id, device)
    model = load_model(model_settings(settings, folder, device), world)
    sampler = _sampler(settings, model) if world.is_first else None
    constraints = (
        ConstraintCache(folder, model.vocab_size, model.eos_token_ids) if world.is_first else None
    )
    runner = Runner(
        model,
        sampler,
        world,
        guides=None if constraints is None else _guides(model, constraints),
        num_blocks=settings.kv_blocks,
        memory_fraction=settings.cuda_memory_fraction,
        threads=_threads(model, settings),
    )
    if device.type == "cpu":
        keep_freed_memory()
    _log.info(
        "loaded %s in %.1f s: %s, %s attention",
        *(settings.model_id, time.monotonic() - started_s, model.dtype, model.attention_backend),
    )
    return runner, _info(settings, model), constraints


def load_model(settings: ModelSettings, world: World) -> PagedModel:
    """Read a checkpoint, or this rank's part of it, and prove that it can be served.

    Raises CheckpointBroken (files), ArchitectureUnfit (the gate) or another ModelRefused, each
    with the reason, and OutOfMemory when the weights do not fit.
    """
    checked = check_checkpoint(settings, world.world_size)
    dtype, device = checked.dtype, settings.device
    _require_room(device, checked.bytes_of_rank, world)
    model = zoo.load(
        settings.folder,
        checked.config,
        dtype=dtype,
        device=device,
        trust_remote_code=settings.trust_remote_code,
        num_shards=checked.num_shards,
    )
    expected = gate.expected_logits(model, device)
    plans = gate.probe_layers(model, ReferenceAttention(), dtype, device, expected)
    geometries = [plan.geometry for plan in plans]
    backend = select_backend(settings.attention, device, dtype, geometries)
    patched = patches.Patched()
    if world.world_size == 1:
        patched = patches.apply(model.module)
        _log_patches(patched)
    plans = gate.probe_layers(model, backend, dtype, device, expected)
    return PagedModel(
        model,
        plans,
        backend,
        dtype=dtype,
        device=device,
        vocab_size=expected[0].shape[1],
        eos_token_ids=zoo.eos_token_ids(settings.folder, checked.config),
        thread_counts=patched.thread_counts if device.type == "cpu" else (),
    )


def device_of(name: str, rank: int) -> torch.device:
    """The device of a rank, by --device. Raises ConfigRefused."""
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise ConfigRefused("--device cuda: torch finds no CUDA device here")
    if name == "cpu" or not has_cuda:
        return torch.device("cpu")
    if rank >= torch.cuda.device_count():
        raise ConfigRefused(
            f"rank {rank} has no GPU: torch finds {torch.cuda.device_count()} on this machine"
        )
    return torch.device("cuda", rank)


def model_settings(settings: ServeConfig, folder: Path, device: torch.device) -> ModelSettings:
    """The model's settings, from the configuration."""
    return ModelSettings(
        folder=folder,
        dtype=settings.dtype,
        device=device,
        trust_remote_code=settings.trust_remote_code,
        attention=settings.attention,
    )


def _require_room(device: torch.device, rank_bytes: int, world: World) -> None:
    """Raises OutOfMemory, on all ranks or on none: none reads weights before all have measured."""
    available = available_bytes(device)
    least = world.smallest(_UNKNOWN if available is None else available)
    needed = weights_of_all(device, rank_bytes, world.world_size)
    require_weights_fit(device, needed, None if least == _UNKNOWN else least)


def _log_patches(patched: patches.Patched) -> None:
    _log.info("%d linear layers were packed", patched.num_packed)
    if patched.num_variant:
        _log.info(
            "%d of %d matrix products may differ in their last bits with the number of tokens in "
            "a step",
            patched.num_variant,
            patched.num_variant + patched.num_invariant,
        )


def _sampler(settings: ServeConfig, model: PagedModel) -> Sampler:
    return Sampler(
        model.vocab_size,
        model.device,
        model.eos_token_ids,
        max_rows=64,
        watermark_gamma=settings.watermark_gamma,
        watermark_delta=settings.watermark_delta,
    )


def _guides(model: PagedModel, constraints: ConstraintCache) -> MaskScheduler:
    return MaskScheduler(
        constraints,
        model.vocab_size,
        model.eos_token_ids,
        num_threads=min(_MAX_MASK_THREADS, os.cpu_count() or 1),
        is_pinned=model.device.type == "cuda",
    )


def _threads(model: PagedModel, settings: ServeConfig) -> ThreadCount | None:
    """Bind the threads of steps to cores. None where their number is fixed."""
    if model.device.type != "cpu":
        return None
    is_ours = settings.num_threads is not None and not settings.openmp_places_threads
    cores = bound(
        own_cores(torch.get_num_threads(), settings.rank, settings.world_size) if is_ours else None
    )
    if len(model.thread_counts) < 2:
        return None
    return ThreadCount(model.thread_counts, torch.set_num_threads if cores is None else cores.use)


def _info(settings: ServeConfig, model: PagedModel) -> ModelInfo:
    return ModelInfo(
        model_id=settings.model_id,
        model_type=model.model_type,
        dtype=str(model.dtype).removeprefix("torch."),
        device_type=model.device.type,
        attention_backend=model.attention_backend,
        block_size=model.block_size,
        vocab_size=model.vocab_size,
        max_position_embeddings=model.max_position_embeddings,
        window_len=model.window_len,
        eos_token_ids=model.eos_token_ids,
        world_size=settings.world_size,
        rank=settings.rank,
    )
