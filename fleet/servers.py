"""Starts a server per model, each a whole `launcher serve` at a unix socket; downloads models."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from fleet.errors import DidNotStart
from fleet.names import Model
from processes.addresses import answers_health
from processes.child import Child
from processes.hub import has_weights_cached
from processes.logs import Console

_POLL_S = 0.05
# Beyond the graceful timeout, for a server to end its own children.
STOP_SLACK_S = 30.0
_FAILED_STOP_S = 5.0
_MAX_REASON_LEN = 500
# In front of the lines of other processes that an error quotes.
_INDENT = "    "
_PREFIX = re.compile(r"\S+( \d+)? \| (\d\d:\d\d:\d\d )?")
# Environment variables of the front alone; servers get flags for them.
FRONT_VARIABLES = frozenset(
    {
        "PORT",
        "AIP_HTTP_PORT",
        "HTTP_UDS",
        "MODEL_ID",
        "SERVED_MODEL_NAME",
        "CORS_ALLOW_ORIGIN",
        "SSL_CERTFILE",
        "SSL_KEYFILE",
        "CUDA_MEMORY_FRACTION",
    }
)


class Server(Protocol):
    """The server of a model that is in memory."""

    @property
    def socket(self) -> Path:
        """The unix socket at which it answers."""
        ...

    async def ended(self) -> str:
        """Wait for its end; returns the reason in one line."""
        ...

    async def stop(self) -> None:
        """Stop it after its running requests, within a time limit of its own."""
        ...

    def stop_now(self) -> None:
        """Stop at once a server that `stop` waits for."""
        ...


class Servers(Protocol):
    """Starts servers and downloads models."""

    def is_local(self, model: Model) -> bool:
        """Whether nothing of a model has to be downloaded."""
        ...

    async def download(self, model: Model) -> None:
        """Download a model to the hub's cache. Raises DidNotStart. May be cancelled."""
        ...

    async def start(self, model: Model, num_others: int) -> Server:
        """A ready server beside `num_others`. Raises DidNotStart. May be cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class ServerRules:
    """What all servers share. `flags` are those of `launcher serve`; `folder` holds the sockets.

    `memory_fraction` of a GPU is shared by `max_loaded` servers.
    """

    flags: Sequence[str]
    folder: Path
    max_loaded: int
    memory_fraction: float
    graceful_timeout_s: float

    def argv(self, model: Model, socket: Path, num_others: int) -> list[str]:
        """The command of a server beside `num_others`."""
        # The share includes the memory that the others hold.
        share = self.memory_fraction * (num_others + 1) / self.max_loaded
        argv = [sys.executable, "-m", "launcher", "serve", model.source, "--http-uds", str(socket)]
        argv += ["--parent-pid", str(os.getpid()), "--served-model-name", model.name]
        return [*argv, *self.flags, "--cuda-memory-fraction", f"{share:.4f}"]

    def download_argv(self, model: Model) -> list[str]:
        argv = [sys.executable, "-m", "model_server", "download-weights", model.source]
        return [*argv, "--parent-pid", str(os.getpid())]


class LaunchedServer:
    """Owner of the child process of one server. The child ends when this process does."""

    def __init__(self, child: Child, socket: Path, stop_timeout_s: float) -> None:
        self._child = child
        self.socket = socket
        self._stop_timeout_s = stop_timeout_s

    async def ended(self) -> str:
        """Wait for its end; returns the reason in one line."""
        await self._child.wait()
        return exit_reason(self._child)

    async def stop(self) -> None:
        """Stop it after its running requests, within the graceful timeout."""
        await self._child.stop(self._stop_timeout_s)
        # No other server gets this path.
        with contextlib.suppress(OSError):
            self.socket.unlink()

    def stop_now(self) -> None:
        """Stop it at once: a second signal makes it end its own children too."""
        self._child.signal(signal.SIGTERM)


class LaunchedServers:
    """Starts servers as child processes, each at a numbered socket."""

    def __init__(
        self,
        rules: ServerRules,
        environ: Mapping[str, str],
        console: Console,
        is_cached: Callable[[str], bool] = has_weights_cached,
    ) -> None:
        self._rules = rules
        self._is_cached = is_cached
        self._environ = {
            name: value for name, value in environ.items() if name not in FRONT_VARIABLES
        }
        self._console = console
        self._num_started = 0

    def is_local(self, model: Model) -> bool:
        """Whether the model is a folder or a file, or its weights are in the hub's cache."""
        return os.path.exists(model.source) or self._is_cached(model.source)

    async def download(self, model: Model) -> None:
        """Download a model in a child process. Raises DidNotStart."""
        child = await self._start_child(model.name, self._rules.download_argv(model))
        try:
            if await child.wait():
                raise DidNotStart(exit_reason(child).replace(model.source, model.name))
        finally:
            await child.stop(_FAILED_STOP_S)

    async def start(self, model: Model, num_others: int) -> LaunchedServer:
        """A server that answers GET /health/ready. Raises DidNotStart."""
        self._num_started += 1
        socket = self._rules.folder / f"{self._num_started}.sock"
        argv = self._rules.argv(model, socket, num_others)
        child = await self._start_child(model.name, argv)
        stop_timeout_s = self._rules.graceful_timeout_s + STOP_SLACK_S
        try:
            return await ready_server(child, socket, stop_timeout_s)
        except DidNotStart as error:
            # For clients: they know a model by its name alone.
            raise DidNotStart(str(error).replace(model.source, model.name)) from error

    async def _start_child(self, name: str, argv: Sequence[str]) -> Child:
        return await start_server(name, argv, self._environ, self._console)


async def start_server(
    name: str, argv: Sequence[str], environ: Mapping[str, str], console: Console
) -> Child:
    """A process in a session of its own. Raises DidNotStart."""
    try:
        return await Child.start(name, argv, environ, console, own_session=True)
    except OSError as error:
        raise DidNotStart(f"no process could be started: {error.strerror or error}") from error


async def ready_server(child: Child, socket: Path, stop_timeout_s: float) -> LaunchedServer:
    """The child's server, once it answers GET /health/ready. Raises DidNotStart."""
    try:
        while not await answers_health("", 0, uds=socket):
            if child.returncode is not None:
                await child.wait()
                raise DidNotStart(exit_reason(child))
            await asyncio.sleep(_POLL_S)
    except BaseException:
        await child.stop(_FAILED_STOP_S)
        raise
    return LaunchedServer(child, socket, stop_timeout_s)


def exit_reason(child: Child) -> str:
    """Why a child ended, in one line: the first error that it logged, or how it ended.

    The last line of a process that the error quotes is appended.
    """
    if child.error is not None:
        return child.error[:_MAX_REASON_LEN]
    lines = [part for line in child.last_lines for part in _message(line).splitlines()]
    for index, line in enumerate(lines):
        if line.lower().startswith("error: "):
            reason, quotes, _ = line[len("error: ") :].partition("; its last lines:")
            quoted = [*takewhile(lambda line: line.startswith(_INDENT), lines[index + 1 :])]
            if quotes and quoted:
                reason = f"{reason}: {_message(quoted[-1].strip())}"
            return reason[:_MAX_REASON_LEN]
    return child.death_notice().splitlines()[0].split(";")[0][:_MAX_REASON_LEN]


def _message(line: str) -> str:
    """The message of a log line, which is text after a process's name and a time, or JSON."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(line)["message"])
    return _PREFIX.sub("", line)
