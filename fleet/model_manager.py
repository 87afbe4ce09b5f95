"""The model manager: leases models to requests, and loads and unloads as the table decides.

    acquire --> open in the table? --------------------------------------> Lease
                `-> wait; table.next_step: Check, Load, Unload --> servers --> grant the waiting

Everything runs in one event loop; only the manager changes the table.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from fleet.background import BackgroundTasks
from fleet.errors import DidNotStart, LoadFailed, NotNow, ShuttingDown
from fleet.metrics import FleetMetrics
from fleet.model_entry import ModelState
from fleet.model_table import Check, Load, ModelTable
from fleet.names import Model
from fleet.servers import Server, Servers
from processes.addresses import socket_listens

_logger = logging.getLogger("fleet")


class Lease:
    """One request's use of a loaded model, which is not unloaded before `release`."""

    def __init__(
        self, model: Model, server: Server, server_id: int, on_release: Callable[[], None]
    ) -> None:
        self.model = model
        self.server_id = server_id
        self._server = server
        self._on_release: Callable[[], None] | None = on_release

    @property
    def socket(self) -> Path:
        """The unix socket of the model's server."""
        return self._server.socket

    def release(self) -> None:
        """End the use; a second call does nothing."""
        if self._on_release is not None:
            on_release, self._on_release = self._on_release, None
            on_release()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class ModelManager:
    """Owner of the model table and of every model's server."""

    def __init__(
        self,
        table: ModelTable,
        servers: Servers,
        metrics: FleetMetrics,
        load_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._factory = servers
        self._metrics = metrics
        self._load_timeout_s = load_timeout_s
        self._clock = clock
        self._servers: dict[str, Server] = {}
        self._models: dict[str, Model] = {}
        # By model, in order of arrival.
        self._waiting: dict[str, list[asyncio.Future[Lease]]] = {}
        self._tasks = BackgroundTasks()
        self._alarm: asyncio.TimerHandle | None = None
        self._is_draining = False

    @property
    def is_draining(self) -> bool:
        """Whether no new requests are accepted."""
        return self._is_draining

    def states(self) -> dict[str, ModelState]:
        """The state of every model that is not simply absent."""
        return {entry.name: entry.state for entry in self._table.entries()}

    def failure(self, name: str) -> str | None:
        """Why the model could not be loaded lately."""
        entry = self._table.entry(name)
        return entry.failure if entry.state is ModelState.FAILED else None

    def num_users(self, name: str) -> int:
        """Requests that run on a model."""
        return self._table.entry(name).num_users

    def request_state(self, name: str) -> str:
        """The state of the requests that wait for a model: "loading" or "queued"."""
        return self._table.wait_reason(name).request_state

    def wait_message(self, name: str) -> str:
        """A progress message for the clients that wait for a model."""
        return self._table.wait_reason(name).message(name, self._waited_s(name))

    def last_used(self) -> Model | None:
        """The ready model that was used most recently."""
        name = self._table.last_used()
        return None if name is None else self._models[name]

    def ready(self) -> dict[str, Path]:
        """The socket of each ready model's server, by the model's name."""
        return {
            name: self._servers[name].socket
            for name, state in self.states().items()
            if state is ModelState.READY
        }

    def acquire_ready(self, name: str) -> Lease | None:
        """A lease of a model that is ready and open; None for others. Loads nothing."""
        if self._is_draining or not self._table.entry(name).is_open:
            return None
        return self._lease(self._models[name])

    async def acquire(self, model: Model) -> Lease:
        """A lease of the model, which is loaded if necessary. Raises NotNow."""
        self._check_available(model.name)
        lease = self.acquire_ready(model.name)
        if lease is not None:
            return lease
        is_local = await self._factory.is_local(model)
        # The state may have changed meanwhile.
        self._check_available(model.name)
        return await self._wait(model, is_local=is_local)

    def _check_available(self, name: str) -> None:
        if self._is_draining:
            raise ShuttingDown()
        self._table.check_failure(name, self._clock())

    def report_failure(self, lease: Lease, *, is_draining: bool = False) -> None:
        """Report that the lease's server did not answer, or that it is shutting down by itself.

        Unless its socket still accepts connections, the model is unloaded, so that the next
        request loads it again.
        """
        name, server = lease.model.name, self._servers.get(lease.model.name)
        entry = self._table.entry(name)
        is_current = entry.state is ModelState.READY and entry.server_id == lease.server_id
        if server is None or not is_current or self._is_draining:
            return
        if not is_draining and socket_listens(lease.socket):
            return
        problem = "is shutting down" if is_draining else "does not answer"
        _logger.error("the server of %s %s", name, problem)
        self._start_unload(name, "died")

    async def drain(self) -> None:
        """Accept no new requests, and stop every server after its running ones."""
        self._is_draining = True
        self._tasks.cancel_loads()
        for name in self._waiting:
            self._refuse(name, ShuttingDown())
        if self._alarm is not None:
            self._alarm.cancel()
        for name in self.ready():
            self._start_unload(name, "stop")
        await self._tasks.wait()

    def stop_now(self) -> None:
        """Stop at once the servers that `drain` waits for."""
        for server in self._servers.values():
            server.stop_now()

    async def _wait(self, model: Model, *, is_local: bool) -> Lease:
        name, started_s = model.name, self._clock()
        self._models[name] = model
        granted: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(name, []).append(granted)
        self._table.add_waiting(name, started_s, is_local=is_local)
        self._metrics.waiting.add(1)
        self._advance()
        try:
            async with asyncio.timeout(self._load_timeout_s):
                return await asyncio.shield(granted)
        except TimeoutError:
            if granted.done():
                return granted.result()
            reason, waited_s = self._table.wait_reason(name), self._waited_s(name)
            raise reason.timeout_error(name, waited_s, self._load_timeout_s) from None
        except asyncio.CancelledError:
            if granted.done() and not granted.exception():
                granted.result().release()
            raise
        finally:
            self._metrics.wait_duration.observe(self._clock() - started_s)
            self._metrics.waiting.add(-1)
            self._stop_waiting(name, granted)

    def _stop_waiting(self, name: str, granted: "asyncio.Future[Lease]") -> None:
        """Remove a request that was not served."""
        if granted in self._waiting[name]:
            self._waiting[name].remove(granted)
            granted.cancel()
            self._table.remove_waiting(name)
            self._advance()

    def _waited_s(self, name: str) -> float:
        """Seconds since the model's last state change."""
        return self._clock() - self._table.entry(name).since_s

    def _advance(self) -> None:
        """Carry out the table's steps until there is none."""
        if self._is_draining:
            return
        self._grant()
        while (step := self._table.next_step(self._clock())) is not None:
            if isinstance(step, Load):
                self._tasks.start_load(step.name, self._load(step))
            elif isinstance(step, Check):
                self._tasks.start_load(step.name, self._check(self._models[step.name]))
            else:
                cause = "room" if self._table.num_waiting > 0 else "idle"
                self._tasks.start(self._unload(step.name, cause))
            self._grant()
        self._grant()
        self._metrics.show_states({name: str(state) for name, state in self.states().items()})
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        due_s = self._table.next_alarm_s(self._clock())
        if due_s is not None:
            delay_s = max(0.0, due_s - self._clock())
            self._alarm = asyncio.get_running_loop().call_later(delay_s, self._advance)

    def _grant(self) -> None:
        """Give open models to the requests that wait for them."""
        for name, waiting in self._waiting.items():
            while waiting and self._table.entry(name).is_open:
                self._table.remove_waiting(name)
                waiting.pop(0).set_result(self._lease(self._models[name]))

    def _lease(self, model: Model) -> Lease:
        server_id = self._table.add_user(model.name, self._clock())

        def release() -> None:
            self._table.remove_user(model.name, server_id, self._clock())
            self._advance()

        return Lease(model, self._servers[model.name], server_id, release)

    def _refuse(self, name: str, error: NotNow) -> None:
        refused = self._waiting.get(name, [])
        if refused:
            self._waiting[name] = []
            self._table.remove_waiting(name, len(refused))
        for granted in refused:
            granted.set_exception(error)

    async def _check(self, model: Model) -> None:
        name = model.name
        _logger.info("checking %s", name)
        try:
            async with self._tasks.loading(name):
                await self._factory.check(model)
        except DidNotStart as error:
            self._fail(name, str(error), "refused")
            return
        self._table.mark_checked(name, self._clock())
        self._advance()

    async def _load(self, load: Load) -> None:
        name, started_s = load.name, self._clock()
        _logger.info("loading %s", name)
        try:
            async with self._tasks.loading(name):
                server = await self._factory.start(self._models[name], load.num_others)
        except DidNotStart as error:
            self._fail(name, str(error), "failed", load.instead_of)
            return
        duration_s = self._clock() - started_s
        self._metrics.loads.inc("loaded")
        self._metrics.load_duration.observe(duration_s)
        _logger.info("%s is ready after %.1f s", name, duration_s)
        self._servers[name] = server
        self._table.mark_loaded(name, self._clock())
        if self._is_draining:
            self._start_unload(name, "stop")
            return
        self._tasks.start(self._watch(name, server))
        self._advance()

    def _fail(self, name: str, reason: str, outcome: str, instead_of: Sequence[str] = ()) -> None:
        _logger.error("%s could not be loaded: %s", name, reason)
        self._metrics.loads.inc(outcome)
        self._table.mark_failed(name, reason, self._clock())
        retry_after_s = 1.0
        try:
            self._table.check_failure(name, self._clock())
        except LoadFailed as error:
            retry_after_s = error.retry_after_s
        evicted = ""
        if others := ", ".join(repr(each) for each in instead_of if each != name):
            evicted = f" ({others} left the memory for it, and will be loaded when asked for again)"
        message = f"the model {name!r} could not be loaded: {reason}{evicted}"
        self._refuse(name, LoadFailed(message, retry_after_s))
        self._advance()

    async def _watch(self, name: str, server: Server) -> None:
        reason = await server.ended()
        is_current = self._servers.get(name) is server
        if is_current and self._table.entry(name).state is ModelState.READY:
            _logger.error("the server of %s is gone: %s", name, reason)
            self._start_unload(name, "died")

    def _start_unload(self, name: str, cause: str) -> None:
        """Unload a ready model whoever uses it."""
        self._table.start_unload(name, self._clock())
        self._tasks.start(self._unload(name, cause))

    async def _unload(self, name: str, cause: str) -> None:
        _logger.info("unloading %s", name)
        try:
            await self._servers[name].stop()
        except Exception:
            # Whatever is left of it, the model's place must not stay taken for ever.
            _logger.exception("the server of %s could not be stopped", name)
        self._metrics.unloads.inc(cause)
        del self._servers[name]
        self._table.mark_unloaded(name, self._clock())
        self._advance()
