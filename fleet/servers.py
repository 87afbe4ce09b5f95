"""Starts a server per model, each a whole `launcher serve` at a unix socket, and checks models."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from fleet.background import run_in_daemon_thread
from fleet.errors import DidNotStart
from fleet.launched_server import LaunchedServer, ServerRules, exit_reason
from fleet.names import Model
from processes.addresses import answers_health
from processes.child import Child
from processes.host import HostMemory, anonymous_bytes
from processes.hub import has_weights_cached
from processes.logs import Console

_HOST = HostMemory()
_POLL_S = 0.05
# Beyond the graceful timeout, for a server to end its own children.
_STOP_SLACK_S = 30.0
_FAILED_STOP_S = 5.0
_MAX_REMEMBERED = 1000
# Environment variables of the front alone; servers get flags for them.
_FRONT_VARIABLES = frozenset(
    {
        "PORT",
        "AIP_HTTP_PORT",
        "HTTP_UDS",
        "MODEL_ID",
        "SERVED_MODEL_NAME",
        "CORS_ALLOW_ORIGIN",
        "SSL_CERTFILE",
        "SSL_KEYFILE",
        "SSL_KEYFILE_PASSWORD",
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
    """Starts servers and checks models."""

    async def is_local(self, model: Model) -> bool:
        """Whether nothing of a model has to be downloaded."""
        ...

    async def check(self, model: Model) -> None:
        """Check a model without loading it. Raises DidNotStart. May be cancelled."""
        ...

    async def start(self, model: Model, num_others: int) -> Server:
        """A ready server beside `num_others`. Raises DidNotStart. May be cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class _CheckedModel:
    """A model that passed a check, or loaded, with these `files`.

    `enough_bytes` of host memory suffice: what the check found that the weights take, or what was
    available before a load that succeeded.
    """

    files: object
    enough_bytes: int

    def is_valid(self, files: object, room_bytes: int | None) -> bool:
        """Whether no further check is needed, with these files and this much memory."""
        return files == self.files and (room_bytes is None or room_bytes >= self.enough_bytes)


class LaunchedServers:
    """Starts servers as child processes, each at a numbered socket.

    A model that passed a check is not checked again while its files are the same and as much
    memory is available as it is known to fit into. Whether it fits is decided after the check, with
    the memory of that moment: the download may have taken hours. `available` returns the host's
    available bytes, None where the system does not report them.
    """

    def __init__(
        self,
        rules: ServerRules,
        environ: Mapping[str, str],
        console: Console,
        available: Callable[[], int | None] = _HOST.available_bytes,
        is_cached: Callable[[str], bool] = has_weights_cached,
    ) -> None:
        self._rules = rules
        self._available = available
        self._is_cached = is_cached
        self._environ = {
            name: value for name, value in environ.items() if name not in _FRONT_VARIABLES
        }
        self._console = console
        self._num_started = 0
        self._num_checks = 0
        self._children: set[Child] = set()
        self._checked: dict[str, _CheckedModel] = {}
        self._cache_lookups: dict[str, asyncio.Future[bool]] = {}

    async def is_local(self, model: Model) -> bool:
        """Whether the model is a folder, or its weights are in the hub's cache.

        Concurrent calls for one model share a lookup.
        """
        source = model.source
        if os.path.isdir(source):
            return True
        lookup = self._cache_lookups.get(source)
        if lookup is None:
            call = partial(self._is_cached, source)
            lookup = asyncio.ensure_future(run_in_daemon_thread(call))
            lookup.add_done_callback(lambda _: self._cache_lookups.pop(source))
            self._cache_lookups[source] = lookup
        # A caller that is cancelled does not cancel the lookup for the others.
        return await asyncio.shield(lookup)

    async def check(self, model: Model) -> None:
        """Check a model in a child process, which downloads it if necessary. Raises DidNotStart."""
        files = await run_in_daemon_thread(partial(_files_of, model))
        known = self._checked.get(model.source)
        room = await run_in_daemon_thread(self._room_bytes)
        if known is not None and known.is_valid(files, room):
            return
        needed = await self._check_in_child(model)
        room = await run_in_daemon_thread(self._room_bytes)
        if room is not None and needed > room:
            raise DidNotStart(
                f"weights of {needed / 2**30:.2f} GiB do not fit into the {room / 2**30:.2f} GiB"
                " that the host could have available"
            )
        self._remember(model, _CheckedModel(files, needed))

    async def _check_in_child(self, model: Model) -> int:
        """The bytes of host memory that the model needs."""
        self._num_checks += 1
        needs_file = self._rules.folder / f"needs-{self._num_checks}"
        child = await self._start_child(model.name, self._rules.check_argv(model, needs_file))
        try:
            if await child.wait():
                raise DidNotStart(exit_reason(child))
            return int(needs_file.read_text())
        finally:
            await child.stop(_FAILED_STOP_S)
            needs_file.unlink(missing_ok=True)

    async def start(self, model: Model, num_others: int) -> LaunchedServer:
        """A server that answers GET /health/ready. Raises DidNotStart."""
        self._num_started += 1
        socket = self._rules.folder / f"{self._num_started}.sock"
        files = await run_in_daemon_thread(partial(_files_of, model))
        available = await run_in_daemon_thread(self._available)
        child = await self._start_child(model.name, self._rules.argv(model, socket, num_others))
        self._children = {*self._running(), child}
        try:
            while not await answers_health("", 0, uds=socket):
                if child.returncode is not None:
                    await child.wait()
                    raise DidNotStart(exit_reason(child))
                await asyncio.sleep(_POLL_S)
        except BaseException:
            await child.stop(_FAILED_STOP_S)
            raise
        self._remember(model, _CheckedModel(files, available or 0))
        return LaunchedServer(child, socket, self._rules.graceful_timeout_s + _STOP_SLACK_S)

    async def _start_child(self, name: str, argv: Sequence[str]) -> Child:
        try:
            return await Child.start(name, argv, self._environ, self._console, own_session=True)
        except OSError as error:
            raise DidNotStart(f"no process could be started: {error.strerror or error}") from error

    def _running(self) -> set[Child]:
        return {child for child in self._children if child.returncode is None}

    def _room_bytes(self) -> int | None:
        """Host memory that one more model could get, with those that would be unloaded for it."""
        available = self._available()
        if available is None:
            return None
        held = sorted(anonymous_bytes(child.pid) for child in self._running())
        # With all places taken one model is unloaded, at best the largest; the others stay.
        return available + sum(held[self._rules.max_loaded - 1 :])

    def _remember(self, model: Model, checked: _CheckedModel) -> None:
        if len(self._checked) >= _MAX_REMEMBERED:
            self._checked.clear()
        known = self._checked.get(model.source)
        if known is not None and known.files == checked.files:
            enough_bytes = min(known.enough_bytes, checked.enough_bytes)
            checked = _CheckedModel(checked.files, enough_bytes)
        self._checked[model.source] = checked


def _files_of(model: Model) -> tuple[tuple[str, int, int], ...] | None:
    """Name, size and modification time of a folder's files; None for a model of the hub."""
    try:
        found = [(path, path.stat()) for path in sorted(Path(model.source).iterdir())]
    except OSError:
        return None
    return tuple((path.name, stat.st_size, stat.st_mtime_ns) for path, stat in found)
