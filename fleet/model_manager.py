"""The model manager: leases models to requests, and loads and unloads as the table decides.

    acquire --> open in the table? ----------------------------------------> Lease
                `-> wait; table.next_step: download, load, unload --> servers --> grant the waiting

Everything runs in one event loop; only the manager changes the table.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from fleet.errors import DidNotStart, LoadFailed, NoRoom, NotNow, ShuttingDown, StillLoading
from fleet.metrics import FleetMetrics
from fleet.model_table import ModelEntry, ModelState, ModelTable
from fleet.names import Model
from fleet.servers import Server, Servers
from processes.addresses import socket_listens

_logger = logging.getLogger("fleet")
_RETRY_AFTER_S = 5.0


class Lease:
    """One request's use of a loaded model, which is not unloaded before `close`."""

    def __init__(
        self, model: Model, server: Server, server_id: int, on_close: Callable[[], None]
    ) -> None:
        self.model = model
        self.server_id = server_id
        self.socket = server.socket
        self._on_close: Callable[[], None] | None = on_close

    def close(self) -> None:
        """End the use; a second call does nothing."""
        if self._on_close is not None:
            on_close = self._on_close
            self._on_close = None
            on_close()


class ModelManager:
    """Owner of the model table and of every model's server."""

    def __init__(
        self,
        table: ModelTable,
        servers: Servers,
        metrics: FleetMetrics,
        load_timeout_s: float,
    ) -> None:
        self._table = table
        self._factory = servers
        self._metrics = metrics
        self._load_timeout_s = load_timeout_s
        self._servers: dict[str, Server] = {}
        self._models: dict[str, Model] = {}
        # By model, in order of arrival.
        self._waiting: dict[str, list[asyncio.Future[Lease]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Downloads and loads; a model has at most one.
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._is_draining = False

    @property
    def is_draining(self) -> bool:
        """Whether no new requests are accepted."""
        return self._is_draining

    def entries(self) -> tuple[ModelEntry, ...]:
        """The models that are not simply absent; for reading."""
        return self._table.entries()

    def entry(self, name: str) -> ModelEntry:
        """The state of one model; for reading."""
        return self._table.entry(name)

    def last_used(self) -> Model | None:
        """The ready model that was used most recently."""
        name = self._table.last_used()
        return None if name is None else self._models[name]

    def ready(self) -> dict[str, Path]:
        """The socket of each ready model's server, by the model's name."""
        ready = [each.name for each in self.entries() if each.state is ModelState.READY]
        return {name: self._servers[name].socket for name in ready}

    def acquire_ready(self, name: str) -> Lease | None:
        """A lease of a model that is ready and open; None for others. Loads nothing."""
        if self._is_draining or not self._table.is_open(name, time.monotonic()):
            return None
        return self._lease(self._models[name])

    async def acquire(self, model: Model) -> Lease:
        """A lease of the model, which is loaded if necessary. Raises NotNow."""
        if self._is_draining:
            raise ShuttingDown()
        self._table.check_failure(model.name, time.monotonic())
        return self.acquire_ready(model.name) or await self._wait(model)

    def report_failure(self, lease: Lease) -> None:
        """Report that the lease's server did not answer.

        Unless its socket still accepts connections, the model is unloaded, so that the next
        request loads it again.
        """
        name = lease.model.name
        entry = self._table.entry(name)
        is_current = entry.state is ModelState.READY and entry.server_id == lease.server_id
        if is_current and not self._is_draining and not socket_listens(lease.socket):
            _logger.error("the server of %s does not answer", name)
            self._start_unload(name, "died")

    async def start(self) -> None:
        """Nothing is loaded before a request asks for it."""

    async def drain(self) -> None:
        """Accept no new requests, and stop every server after its running ones."""
        self._is_draining = True
        for task in self._loads.values():
            task.cancel()
        for name in self._waiting:
            self._refuse(name, ShuttingDown())
        if self._alarm is not None:
            self._alarm.cancel()
        for name in self.ready():
            self._start_unload(name, "stop")
        while self._tasks:
            await asyncio.wait(self._tasks)

    def stop_now(self) -> None:
        """Stop at once the servers that `drain` waits for."""
        for server in self._servers.values():
            server.stop_now()

    async def _wait(self, model: Model) -> Lease:
        name = model.name
        started_s = time.monotonic()
        self._models[name] = model
        granted: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, []).append(granted)
        self._table.add_waiting(name, started_s, is_local=self._factory.is_local(model))
        self._metrics.waiting.add(1)
        self._advance()
        try:
            async with asyncio.timeout(self._load_timeout_s):
                return await asyncio.shield(granted)
        except TimeoutError:
            if granted.done():
                return granted.result()
            raise self._timed_out(name) from None
        except asyncio.CancelledError:
            if granted.done() and not granted.exception():
                granted.result().close()
            raise
        finally:
            self._metrics.wait_duration.observe(time.monotonic() - started_s)
            self._metrics.waiting.add(-1)
            self._stop_waiting(name, granted)

    def _timed_out(self, name: str) -> NotNow:
        """The error of a request that waited for too long."""
        state = self._table.entry(name).state
        within = f"within {self._load_timeout_s:g} s (--model-load-timeout)"
        if state not in (ModelState.DOWNLOADING, ModelState.LOADING):
            message = f"there was no room for the model {name!r} {within}: others are in use"
            return NoRoom(message, _RETRY_AFTER_S)
        work = "loaded" if state is ModelState.LOADING else "downloaded"
        message = f"the model {name!r} is still being {work}; it was not ready {within}"
        return StillLoading(message, _RETRY_AFTER_S)

    def _stop_waiting(self, name: str, granted: "asyncio.Future[Lease]") -> None:
        """Remove a request that was not served."""
        if granted in self._waiting[name]:
            self._waiting[name].remove(granted)
            granted.cancel()
            self._table.remove_waiting(name)
            self._advance()

    def _advance(self) -> None:
        """Carry out the table's steps until there is none."""
        if self._is_draining:
            return
        self._grant()
        while (entry := self._table.next_step(time.monotonic())) is not None:
            if entry.state is ModelState.LOADING:
                self._loads[entry.name] = self._start(self._load(entry.name))
            elif entry.state is ModelState.DOWNLOADING:
                self._loads[entry.name] = self._start(self._download(entry.name))
            else:
                cause = "room" if self._table.num_waiting > 0 else "idle"
                self._start(self._unload(entry.name, cause))
            self._grant()
        self._grant()
        self._metrics.show_states({each.name: str(each.state) for each in self.entries()})
        self._set_alarm()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        due_s = self._table.next_alarm_s(time.monotonic())
        if due_s is not None:
            delay_s = max(0.0, due_s - time.monotonic())
            self._alarm = asyncio.get_running_loop().call_later(delay_s, self._advance)

    def _grant(self) -> None:
        """Give open models to the requests that wait for them."""
        for name, waiting in self._waiting.items():
            while waiting and self._table.is_open(name, time.monotonic()):
                self._table.remove_waiting(name)
                waiting.pop(0).set_result(self._lease(self._models[name]))

    def _lease(self, model: Model) -> Lease:
        server_id = self._table.add_user(model.name, time.monotonic())

        def release() -> None:
            self._table.remove_user(model.name, server_id, time.monotonic())
            self._advance()

        return Lease(model, self._servers[model.name], server_id, release)

    def _refuse(self, name: str, error: NotNow) -> None:
        refused = self._waiting.get(name, [])
        if refused:
            self._waiting[name] = []
            self._table.remove_waiting(name, len(refused))
        for granted in refused:
            granted.set_exception(error)

    async def _download(self, name: str) -> None:
        _logger.info("downloading %s", name)
        if await self._tried(name, self._factory.download(self._models[name])):
            self._table.mark_downloaded(name, time.monotonic())
            self._advance()

    async def _load(self, name: str) -> None:
        _logger.info("loading %s", name)
        if await self._tried(name, self._start_server(name)):
            self._table.mark_loaded(name, time.monotonic())
            if self._is_draining:
                self._start_unload(name, "stop")
                return
            self._start(self._watch(name, self._servers[name]))
            self._advance()

    async def _start_server(self, name: str) -> None:
        started_s = time.monotonic()
        num_others = self._table.num_loaded - 1
        self._servers[name] = await self._factory.start(self._models[name], num_others)
        duration_s = time.monotonic() - started_s
        self._metrics.loads.inc("loaded")
        self._metrics.load_duration.observe(duration_s)
        _logger.info("%s is ready after %.1f s", name, duration_s)

    async def _tried(self, name: str, work: Coroutine[Any, Any, None]) -> bool:
        """Whether the work succeeded. Every error is a failure of the model, or it would be
        loading for ever."""
        try:
            await work
        except DidNotStart as error:
            reason = str(error)
        except asyncio.CancelledError:
            reason = "the server is shutting down"
        except Exception:
            _logger.exception("loading %s failed by a bug", name)
            reason = "a bug; the server's log has more"
        else:
            return True
        finally:
            del self._loads[name]
        self._fail(name, reason)
        return False

    def _fail(self, name: str, reason: str) -> None:
        _logger.error("%s could not be loaded: %s", name, reason)
        self._metrics.loads.inc("failed")
        now_s = time.monotonic()
        self._table.mark_failed(name, reason, now_s)
        try:
            self._table.check_failure(name, now_s)
        except LoadFailed as error:
            self._refuse(name, error)
        self._advance()

    async def _watch(self, name: str, server: Server) -> None:
        reason = await server.ended()
        is_current = self._servers.get(name) is server
        if is_current and self._table.entry(name).state is ModelState.READY:
            _logger.error("the server of %s is gone: %s", name, reason)
            self._start_unload(name, "died")

    def _start_unload(self, name: str, cause: str) -> None:
        """Unload a ready model whoever uses it."""
        self._table.start_unload(name, time.monotonic())
        self._start(self._unload(name, cause))

    async def _unload(self, name: str, cause: str) -> None:
        _logger.info("unloading %s", name)
        try:
            await self._servers[name].stop()
        except Exception:
            # Whatever is left of it, the model's place must not stay taken for ever.
            _logger.exception("the server of %s could not be stopped", name)
        self._metrics.unloads.inc(cause)
        del self._servers[name]
        self._table.mark_unloaded(name, time.monotonic())
        self._advance()
