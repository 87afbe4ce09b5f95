"""A model's server: a whole `launcher serve` of its own, behind a unix socket.

The child ends when this process does, however that ends; see its --parent-pid.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from fleet.commands import ServerRules
from fleet.daemon_thread import aside
from fleet.exit_reason import reason_of
from fleet.memory import anonymous_bytes
from fleet.names import Model
from processes.addresses import answers_health
from processes.child import Child
from processes.host import HostMemory
from processes.hub import has_weights_cached
from processes.logs import Console

_logger = logging.getLogger("fleet")

_HOST = HostMemory()
_POLL_S = 0.05
# A child's own steps of ending, behind its drain.
_STOP_SLACK_S = 30.0
_FAILED_STOP_S = 5.0
_MAX_REMEMBERED = 1000
# Of this process alone; what a child has instead is in its command.
_FRONTS_OWN = frozenset(
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


class DidNotStart(Exception):
    """A server ended, or was given up, before it was ready; says why in a line."""


class Server(Protocol):
    """A model that is in memory, and answers at `socket`."""

    @property
    def socket(self) -> Path:
        """Its unix socket."""
        ...

    async def ended(self) -> str:
        """Waits for its end, and says how it came."""
        ...

    async def stop(self) -> None:
        """Lets what runs there end, within its own bound, and ends it."""
        ...

    def hurry(self) -> None:
        """Ends at once what `stop` is being patient with."""
        ...


class Servers(Protocol):
    """Where servers come from."""

    async def is_at_hand(self, model: Model) -> bool:
        """Whether nothing of a model has to be fetched."""
        ...

    async def check(self, model: Model) -> None:
        """Finds out what may be wrong with a model, without its memory. Raises DidNotStart. May be
        cancelled."""
        ...

    async def start(self, model: Model, num_others: int) -> Server:
        """A server that is ready, beside so many others. Raises DidNotStart. May be cancelled."""
        ...


class LaunchedServer:
    """Owner of one child."""

    def __init__(self, child: Child, socket: Path, stop_timeout_s: float) -> None:
        self._child = child
        self._socket = socket
        self._stop_timeout_s = stop_timeout_s

    @property
    def socket(self) -> Path:
        """Where it answers."""
        return self._socket

    async def ended(self) -> str:
        """How it ended, in a line."""
        await self._child.wait()
        return reason_of(self._child)

    async def stop(self) -> None:
        """Drains it; it waits for what runs there."""
        await self._child.stop(self._stop_timeout_s)
        try:
            self._socket.unlink(missing_ok=True)
        except OSError as error:
            # No other server will have this path.
            _logger.warning("%s stays behind: %s", self._socket, error.strerror)

    def hurry(self) -> None:
        """A second signal stops it at once, with its own children."""
        self._child.signal(signal.SIGTERM)


class LaunchedServers:
    """Starts children, each with a number of its own.

    A model is not looked over again while its files are as they were when it was found in order,
    and there is as much memory as it is known to fit into. Whether it fits is decided when it has
    been looked over, by what is there then: fetching it may have taken hours. `available`: bytes of
    the host, None where it does not tell.
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
        self._environ = {name: text for name, text in environ.items() if name not in _FRONTS_OWN}
        self._console = console
        self._num_started = 0
        self._num_checks = 0
        self._children: set[Child] = set()
        self._sound: dict[str, _Sound] = {}
        self._looks: dict[str, asyncio.Future[bool]] = {}

    async def is_at_hand(self, model: Model) -> bool:
        """Whether it is a folder, or its weights are in the hub's cache; looks once for all who ask
        at the same time."""
        source = model.source
        if os.path.isdir(source):
            return True
        look = self._looks.get(source)
        if look is None:
            look = asyncio.ensure_future(aside(partial(self._is_cached, source)))
            look.add_done_callback(lambda _: self._looks.pop(source))
            self._looks[source] = look
        # Who goes takes the answer from nobody else.
        return await asyncio.shield(look)

    async def check(self, model: Model) -> None:
        """Looks a model over in a child of its own; fetches it if need be."""
        files = await aside(partial(_files_of, model))
        known = self._sound.get(model.source)
        room = await aside(self._room)
        if known is not None and known.files == files and (room is None or room >= known.enough):
            return
        needed = await self._look_over(model)
        room = await aside(self._room)
        if room is not None and needed > room:
            raise DidNotStart(
                f"weights of {needed / 2**30:.2f} GiB do not fit into the {room / 2**30:.2f} GiB"
                " that the host could have available"
            )
        self._remember(model, _Sound(files, needed))

    async def _look_over(self, model: Model) -> int:
        """The bytes that it needs of the host."""
        self._num_checks += 1
        needs_file = self._rules.folder / f"needs-{self._num_checks}"
        child = await self._child(model.name, self._rules.check_argv(model, needs_file))
        try:
            if await child.wait():
                raise DidNotStart(reason_of(child))
            return int(needs_file.read_text())
        finally:
            await child.stop(_FAILED_STOP_S)
            needs_file.unlink(missing_ok=True)

    async def start(self, model: Model, num_others: int) -> LaunchedServer:
        """A child that answers GET /health/ready."""
        self._num_started += 1
        socket = self._rules.folder / f"{self._num_started}.sock"
        files = await aside(partial(_files_of, model))
        available = await aside(self._available)
        child = await self._child(model.name, self._rules.argv(model, socket, num_others))
        self._children = {*self._running(), child}
        try:
            while not await answers_health("", 0, uds=socket):
                if child.returncode is not None:
                    await child.wait()
                    raise DidNotStart(reason_of(child))
                await asyncio.sleep(_POLL_S)
        except BaseException:
            await child.stop(_FAILED_STOP_S)
            raise
        self._remember(model, _Sound(files, available or 0))
        stop_timeout_s = self._rules.graceful_timeout_s + _STOP_SLACK_S
        return LaunchedServer(child, socket, stop_timeout_s)

    async def _child(self, name: str, argv: Sequence[str]) -> Child:
        try:
            return await Child.start(name, argv, self._environ, self._console, own_session=True)
        except OSError as error:
            raise DidNotStart(f"no process could be started: {error.strerror or error}") from error

    def _running(self) -> set[Child]:
        return {child for child in self._children if child.returncode is None}

    def _room(self) -> int | None:
        """Bytes of the host that there could be for one more model."""
        available = self._available()
        if available is None:
            return None
        held = sorted(anonymous_bytes(child.pid) for child in self._running())
        # One leaves for it where all places are taken, at best the largest; the others stay.
        return available + sum(held[self._rules.max_loaded - 1 :])

    def _remember(self, model: Model, found: "_Sound") -> None:
        if len(self._sound) >= _MAX_REMEMBERED:
            self._sound.clear()
        known = self._sound.get(model.source)
        if known is not None and known.files == found.files:
            found = _Sound(found.files, min(known.enough, found.enough))
        self._sound[model.source] = found


@dataclass(frozen=True, slots=True)
class _Sound:
    """A model that was in order with these files, for which so many bytes of the host are enough.

    Told by a check they are what its weights take, by a load what there was."""

    files: object
    enough: int


def _files_of(model: Model) -> tuple[tuple[str, int, int], ...] | None:
    """A folder's files, by which it is known again; None for a model of the hub."""
    folder = Path(model.source)
    try:
        found = [(path, path.stat()) for path in sorted(folder.iterdir())]
    except OSError:
        return None
    return tuple((path.name, told.st_size, told.st_mtime_ns) for path, told in found)
