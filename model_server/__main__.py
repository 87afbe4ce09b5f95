"""Wires one shard by hand: configuration, ranks, model, sampler, runner, gRPC server.

    python -m model_server serve MODEL_ID
    python -m model_server check MODEL_ID
    python -m model_server download-weights MODEL_ID

Exit codes: 0 stopped when asked, fetched, or fit to be served; 1 refused to start or became unfit;
2 a bad flag or variable; 3 other ranks are gone. Beside these there is a line on stderr; on stdout
where another process has started the download, and says why it failed.
"""

import gc

# Nothing of what is imported ever is garbage; to look for some takes a sixth of the time.
gc.disable()

# ruff: noqa: E402
from processes.image_processor import hide_unfit_torchvision

hide_unfit_torchvision()

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

import torch
import uvloop
from transformers.utils.logging import disable_progress_bar

from model_server import config
from model_server.checkpoint.check import forecast
from model_server.checkpoint.checkpoint import find_checkpoint
from model_server.errors import FetchStalled, RanksLost, ShardError
from model_server.loading import Loaded, Prepared, load
from model_server.service.device_thread import DeviceThread
from model_server.service.server import listening
from model_server.service.service import TextGenerationService
from model_server.service.tracing import StepTracer, start_tracing
from native.time_slice import use_long_time_slices
from processes.child import LOST_OTHERS
from processes.logs import start_logging
from processes.settings import BadConfig
from processes.signals import Signals, end_when_orphaned

_log = logging.getLogger("model_server")

# The device's thread shares the interpreter with those that make masks and answer calls. Python's
# own interval lets each hold up the others for longer than a small model's step takes.
_SWITCH_INTERVAL_S = 0.0005
# A quarter of a core that steps want as well.
_LOOK_NICENESS = 5


def main(argv: list[str], prepared: Prepared | None = None) -> int:
    """Run one command of this tier; returns the exit code.

    prepared: by a process that stood by, for `serve`
    """
    gc.freeze()
    gc.enable()
    try:
        settings = config.parse(argv)
    except BadConfig as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    try:
        if isinstance(settings, config.DownloadConfig):
            start_logging("info", json_output=settings.json_output)
            end_when_orphaned(settings.parent_pid)
            folder = find_checkpoint(settings.model_id, settings.revision)
            sys.stdout.write(f"{folder}\n")
            return 0
        start_logging(settings.logger_level, json_output=settings.json_output)
        if isinstance(settings, config.CheckConfig):
            sys.stdout.write(f"{forecast(settings)}\n")
            return 0
        if settings.parent_pid is None and (settings.json_output or not sys.stderr.isatty()):
            # The launcher reads bars, and passes none on.
            disable_progress_bar()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, prepared))
    except FetchStalled as error:
        _say_why(settings, error)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit, which waits for the threads that still fetch.
        os._exit(1)
    except ShardError as error:
        _say_why(settings, error)
        return _code_of(error)


def _code_of(error: ShardError) -> int:
    return LOST_OTHERS if isinstance(error, RanksLost) else 1


def _say_why(settings: config.ModelConfig, error: ShardError) -> None:
    has_reader = isinstance(settings, config.DownloadConfig) and settings.parent_pid is not None
    (sys.stdout if has_reader else sys.stderr).write(f"error: {error}\n")


async def _serve(settings: config.ServeConfig, prepared: Prepared | None) -> int:
    signals = Signals(settings.parent_pid)
    stop = signals.first
    fatal: list[ShardError] = []

    def on_fatal(error: ShardError) -> None:
        fatal.append(error)
        stop.set()

    def on_lost(error: RanksLost) -> None:
        # A step that waits for them hangs, and a farewell would wait for the step; the launcher
        # would take that for a hang of this shard's own.
        _end([error])

    tracer = start_tracing(settings.otlp_endpoint, settings.otlp_service_name, settings.rank)
    # What it starts to compute steps beside it takes long turns as well.
    device_thread = DeviceThread(use_long_time_slices)
    loading = partial(load, settings, on_lost, prepared)
    service = await _load_unless_stopped(
        loading, device_thread, tracer, stop, fatal, settings.num_threads
    )
    # A collection would go through all that torch and transformers have made, for a third of a
    # second in which no step runs, whenever a constraint's compiling has made as much again.
    gc.collect()
    gc.freeze()
    async with listening(service, settings.address, on_fatal, token=settings.shard_token):
        _log.debug(
            "rank %d of %d is ready at %s", settings.rank, settings.world_size, settings.address
        )
        await stop.wait()
    signals.close()
    tracer.close()
    _end(fatal)


def _end(fatal: Sequence[ShardError]) -> NoReturn:
    """Not by sys.exit: the device's thread may hang in a load or in a collective that never
    completes, and the process group's own clean-up waits for its peers.
    """
    if fatal:
        sys.stderr.write(f"error: it cannot go on: {fatal[0]}\n")
    logging.shutdown()
    sys.stderr.flush()
    os._exit(_code_of(fatal[0]) if fatal else 0)


async def _load_unless_stopped(
    load_all: Callable[[], Loaded],
    device_thread: DeviceThread,
    tracer: StepTracer,
    stop: asyncio.Event,
    fatal: Sequence[ShardError],
    num_threads: int | None,
) -> TextGenerationService:
    loop = asyncio.get_running_loop()
    loading = loop.run_in_executor(device_thread, load_all)
    stopped = asyncio.create_task(stop.wait())
    either: tuple[asyncio.Future[Any], ...] = (loading, stopped)
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        # A load cannot be interrupted; nothing outside this process holds on to it yet.
        _end(fatal)
    stopped.cancel()
    runner, info, constraints, addresses = await loading
    look_thread = None
    if info.sees_images:
        look_thread = ThreadPoolExecutor(1, "look", partial(_let_steps_go_first, num_threads))
    return TextGenerationService(
        runner, info, addresses, device_thread, tracer, constraints, look_thread
    )


def _let_steps_go_first(num_threads: int | None) -> None:
    """What this thread computes, and those that it starts for it, gets a smaller share of cores."""
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    if sys.platform.startswith("linux"):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOOK_NICENESS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
