"""Wires one shard by hand: configuration, ranks, model, sampler, runner, gRPC server.

    python -m model_server serve MODEL_ID
    python -m model_server check MODEL_ID
    python -m model_server download-weights MODEL_ID

Exit codes: 0 stopped when asked, or found in order; 1 refused to start or became unfit; 2 a bad
flag or variable. Beside 1 and 2 there is a line on stderr.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from model_server import config
from model_server.cores import bound, own_cores
from model_server.distributed import World
from model_server.errors import ConfigRefused, ShardError
from model_server.examination import ModelSettings, examine
from model_server.hub import find_checkpoint
from model_server.logs import start_logging
from model_server.malloc import keep_freed_memory
from model_server.masking.guides import Guides
from model_server.masking.languages import Languages
from model_server.memory import require_weights_fit
from model_server.model import PagedModel
from model_server.runner import Runner
from model_server.sampling.sampler import Sampler
from model_server.server import listening
from model_server.service import TextGenerationService
from model_server.threads import ThreadCount
from model_server.tracing import StepTracer, start_tracing
from model_server.wire import ModelInfo

_log = logging.getLogger("model_server")

_PARENT_POLL_S = 0.5
_CHECK_NICENESS = 10
# Masks are made while the forward runs; on a CPU both share the cores.
_MAX_MASK_THREADS = 8

# The device's thread shares the interpreter with those that make masks and answer calls. Python's
# own interval lets each hold up the others for longer than a small model's step takes.
_SWITCH_INTERVAL_S = 0.0005


def main(argv: list[str]) -> int:
    """Run one command of this tier; answers the exit code."""
    try:
        settings = config.parse(argv)
    except ConfigRefused as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    try:
        if isinstance(settings, config.DownloadConfig):
            folder = find_checkpoint(
                settings.model_id, settings.revision, allow_pickle=settings.allow_pickle
            )
            sys.stdout.write(f"{folder}\n")
            return 0
        if isinstance(settings, config.CheckConfig):
            start_logging(settings.serve.logger_level, json_output=settings.serve.json_output)
            sys.stdout.write(f"{_check(settings)}\n")
            return 0
        start_logging(settings.logger_level, json_output=settings.json_output)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        return asyncio.run(_serve(settings))
    except ShardError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


def _check(settings: config.CheckConfig) -> Path:
    """The model's folder, if nothing that can be known beforehand speaks against it."""
    # Others compute meanwhile, and somebody waits for them.
    os.nice(_CHECK_NICENESS)
    torch.set_num_threads(1)
    serve = settings.serve
    device = _device(serve.device, serve.world_size - 1)
    folder = find_checkpoint(serve.model_id, serve.revision)
    examined = examine(_model_settings(serve, folder, device), serve.world_size)
    require_weights_fit(
        device,
        examined.bytes_of_rank(serve.world_size),
        num_ranks=serve.world_size,
        memory_fraction=serve.cuda_memory_fraction,
        to_come=settings.memory_to_come,
    )
    return folder


async def _serve(settings: config.ServeConfig) -> int:
    stop = asyncio.Event()
    fatal: list[str] = []

    def on_fatal(reason: str) -> None:
        fatal.append(reason)
        stop.set()

    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    watch = asyncio.create_task(_stop_with_parent(settings.parent_pid, stop))
    tracer = start_tracing(settings.otlp_endpoint, settings.otlp_service_name, settings.rank)
    device_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="device")
    service = await _load_unless_stopped(settings, device_thread, tracer, stop)
    # A collection would go through all that torch and transformers have made, for a third of a
    # second in which no step runs, whenever a constraint's compiling has made as much again.
    gc.collect()
    gc.freeze()
    async with listening(service, settings.address, on_fatal):
        _log.info(
            "rank %d of %d is ready at %s", settings.rank, settings.world_size, settings.address
        )
        await stop.wait()
    watch.cancel()
    if fatal:
        sys.stderr.write(f"error: shard {settings.rank} is unfit: {fatal[0]}\n")
    tracer.close()
    sys.stderr.flush()
    # Not sys.exit: the device's thread may hang in a collective that never completes, and the
    # process group's own clean-up waits for its peers.
    os._exit(1 if fatal else 0)


async def _load_unless_stopped(
    settings: config.ServeConfig,
    device_thread: ThreadPoolExecutor,
    tracer: StepTracer,
    stop: asyncio.Event,
) -> TextGenerationService:
    loop = asyncio.get_running_loop()
    loading = loop.run_in_executor(device_thread, _load, settings)
    stopped = asyncio.create_task(stop.wait())
    either: tuple[asyncio.Future[Any], ...] = (loading, stopped)
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        # A load cannot be interrupted; nothing outside this process holds on to it yet.
        os._exit(0)
    stopped.cancel()
    runner, info, languages = await loading
    return TextGenerationService(runner, info, settings.urls, device_thread, tracer, languages)


def _load(settings: config.ServeConfig) -> tuple[Runner, ModelInfo, Languages | None]:
    """Everything that takes long, on the thread that will run the steps."""
    started_s = time.monotonic()
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    device = _device(settings.device, settings.rank)
    folder = find_checkpoint(settings.model_id, settings.revision)
    world = World.connect(
        rank=settings.rank,
        world_size=settings.world_size,
        master_addr=settings.master_addr,
        master_port=settings.master_port,
        device=device,
    )
    _log.info("loading %s on %s", settings.model_id, device)
    model = PagedModel.load(_model_settings(settings, folder, device), world)
    sampler = _sampler(settings, model) if world.is_first else None
    languages = Languages(folder, model.vocab_size, model.eos_token_ids) if world.is_first else None
    runner = Runner(
        model,
        sampler,
        world,
        guides=None if languages is None else _guides(model, languages),
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
    return runner, _info(settings, model), languages


def _device(name: str, rank: int) -> torch.device:
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


def _model_settings(
    settings: config.ServeConfig, folder: Path, device: torch.device
) -> ModelSettings:
    return ModelSettings(
        model_id=settings.model_id,
        folder=folder,
        dtype=settings.dtype,
        device=device,
        trust_remote_code=settings.trust_remote_code,
        attention=settings.attention,
    )


def _sampler(settings: config.ServeConfig, model: PagedModel) -> Sampler:
    return Sampler(
        model.vocab_size,
        model.device,
        model.eos_token_ids,
        max_rows=64,
        watermark_gamma=settings.watermark_gamma,
        watermark_delta=settings.watermark_delta,
    )


def _guides(model: PagedModel, languages: Languages) -> Guides:
    return Guides(
        languages,
        model.vocab_size,
        model.eos_token_ids,
        num_threads=min(_MAX_MASK_THREADS, os.cpu_count() or 1),
        is_pinned=model.device.type == "cuda",
    )


def _threads(model: PagedModel, settings: config.ServeConfig) -> ThreadCount | None:
    """Places the threads of steps. None where there is no number of them to choose."""
    if model.device.type != "cpu":
        return None
    is_ours = settings.num_threads is not None and not settings.openmp_places_threads
    cores = bound(
        own_cores(torch.get_num_threads(), settings.rank, settings.world_size) if is_ours else None
    )
    if len(model.thread_counts) < 2:
        return None
    return ThreadCount(model.thread_counts, torch.set_num_threads if cores is None else cores.use)


def _info(settings: config.ServeConfig, model: PagedModel) -> ModelInfo:
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


async def _stop_with_parent(parent_pid: int | None, stop: asyncio.Event) -> None:
    """A shard whose launcher was killed outright must not live on as an orphan."""
    while parent_pid is not None and os.getppid() == parent_pid:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(_PARENT_POLL_S)
    if parent_pid is not None:
        stop.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
