"""The owner of loaded models: lends them to requests, loads and unloads as the roster decides.

    lend --> roster: open? -------------------------------------> Lease
                `-> wait; roster.next_step: Check, Unload, Load --> servers --> grant who waits

Everything runs in one event loop; the roster is changed here alone.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fleet.background_tasks import BackgroundTasks
from fleet.errors import LoadFailed, NotNow, ShuttingDown
from fleet.lease import Lease, Waiting, WaitingRoom
from fleet.metrics import FleetMetrics
from fleet.model_entry import State
from fleet.model_table import Check, Load, ModelTable
from fleet.names import Model
from fleet.servers import DidNotStart, Server, Servers
from fleet.wait_messages import notice, state_of, too_late
from processes.addresses import socket_listens

_logger = logging.getLogger("fleet")

_NEXT_SERVER_S = 1.0


class ModelManager:
    """Owner of the roster and of every model's server."""

    def __init__(
        self,
        roster: ModelTable,
        servers: Servers,
        metrics: FleetMetrics,
        load_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._roster = roster
        self._sources = servers
        self._metrics = metrics
        self._load_timeout_s = load_timeout_s
        self._clock = clock
        self._servers: dict[str, Server] = {}
        self._models: dict[str, Model] = {}
        self._waiting = WaitingRoom()
        self._errands = BackgroundTasks()
        self._alarm: asyncio.TimerHandle | None = None
        self._is_closing = False

    @property
    def is_draining(self) -> bool:
        """Whether nothing new is lent."""
        return self._is_closing

    def states(self) -> dict[str, State]:
        """The state of every model that is not simply absent."""
        return {berth.name: berth.state for berth in self._roster.berths()}

    def failure(self, name: str) -> str | None:
        """Why the model could not be loaded lately."""
        berth = self._roster.berth(name)
        return berth.failure if berth.state is State.FAILED else None

    def num_users(self, name: str) -> int:
        """Requests that run on a model."""
        return self._roster.berth(name).num_users

    def waits_for(self, name: str) -> str:
        """What those who wait for a model wait for: "loading", or "queued" for room."""
        return state_of(self._roster.waits_for(name))

    def notice(self, name: str) -> str:
        """The same, as clients are told."""
        return notice(name, self._roster.waits_for(name), self._waited_s(name))

    def last_used(self) -> Model | None:
        """The ready model that was used last."""
        name = self._roster.last_used()
        return None if name is None else self._models[name]

    def ready(self) -> list[tuple[Model, Path]]:
        """Every ready model, and where its server answers."""
        return [
            (self._models[name], self._servers[name].socket)
            for name, state in self.states().items()
            if state is State.READY
        ]

    def lend_ready(self, name: str) -> Lease | None:
        """A model that is ready and open; None for others. Loads nothing."""
        if self._is_closing or not self._roster.berth(name).is_open:
            return None
        return self._lease(self._models[name])

    async def lend(self, model: Model) -> Lease:
        """The model, loaded if need be. Raises NotNow: it cannot be had, or not in time."""
        self._check(model.name)
        lease = self.lend_ready(model.name)
        if lease is not None:
            return lease
        is_at_hand = await self._sources.is_at_hand(model)
        # Much may have happened meanwhile.
        self._check(model.name)
        return await self._wait(model, is_at_hand=is_at_hand)

    def _check(self, name: str) -> None:
        if self._is_closing:
            raise ShuttingDown("the server is shutting down", _NEXT_SERVER_S)
        self._roster.check(name, self._clock())

    def suspect(self, lease: Lease, *, is_leaving: bool = False) -> None:
        """The lease's server did not answer, or said that it takes nothing more (`is_leaving`).

        Unless somebody is there all the same, the model is loaded anew when it is asked for.
        """
        name, server = lease.model.name, self._servers.get(lease.model.name)
        berth = self._roster.berth(name)
        is_current = berth.state is State.READY and berth.generation == lease.generation
        if server is None or not is_current or self._is_closing:
            return
        if not is_leaving and socket_listens(lease.socket):
            return
        _logger.error("the server of %s %s", name, "leaves" if is_leaving else "does not answer")
        self._roster.unload(name, self._clock())
        self._errands.begin(self._unload(name, "died"))

    async def drain(self) -> None:
        """Lends nothing more, and ends every server when what runs there has ended."""
        self._is_closing = True
        self._errands.give_up()
        for name in self._waiting.names():
            self._refuse(name, ShuttingDown("the server is shutting down", _NEXT_SERVER_S))
        if self._alarm is not None:
            self._alarm.cancel()
        for name, state in self.states().items():
            if state is State.READY:
                self._roster.unload(name, self._clock())
                self._errands.begin(self._unload(name, "stop"))
        await self._errands.until_done()

    def hurry(self) -> None:
        """Ends at once what `drain` waits for."""
        for server in self._servers.values():
            server.hurry()

    async def _wait(self, model: Model, *, is_at_hand: bool) -> Lease:
        name, started_s = model.name, self._clock()
        self._models[name] = model
        waiting = self._waiting.enter(model)
        self._roster.wait(name, started_s, is_at_hand=is_at_hand)
        self._metrics.waiting.set(self._metrics.waiting.value() + 1)
        self._advance()
        try:
            async with asyncio.timeout(self._load_timeout_s):
                return await asyncio.shield(waiting.granted)
        except TimeoutError:
            if waiting.granted.done():
                return waiting.granted.result()
            wait, so_far_s = self._roster.waits_for(name), self._waited_s(name)
            raise too_late(name, wait, so_far_s, self._load_timeout_s) from None
        except asyncio.CancelledError:
            if waiting.granted.done() and not waiting.granted.exception():
                waiting.granted.result().release()
            raise
        finally:
            self._metrics.wait_duration.observe(self._clock() - started_s)
            self._metrics.waiting.set(self._metrics.waiting.value() - 1)
            self._forget(waiting)

    def _forget(self, waiting: Waiting) -> None:
        """One who got nothing waits no more."""
        if self._waiting.leave(waiting):
            self._roster.unwait(waiting.model.name)
            self._advance()

    def _waited_s(self, name: str) -> float:
        """How long the model has been in its state."""
        return self._clock() - self._roster.berth(name).since_s

    def _advance(self) -> None:
        """Carries out what the roster decides, until it has no more to say."""
        if self._is_closing:
            return
        self._grant()
        while (step := self._roster.next_step(self._clock())) is not None:
            if isinstance(step, Load):
                self._errands.bring(step.name, self._load(step))
            elif isinstance(step, Check):
                self._errands.bring(step.name, self._look_over(self._models[step.name]))
            else:
                has_demand = self._roster.num_waiting > 0
                cause = "room" if has_demand else "idle"
                self._errands.begin(self._unload(step.name, cause))
            self._grant()
        self._grant()
        self._metrics.show_states({name: str(state) for name, state in self.states().items()})
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        due_s = self._roster.next_alarm_s(self._clock())
        if due_s is not None:
            delay_s = max(0.0, due_s - self._clock())
            self._alarm = asyncio.get_running_loop().call_later(delay_s, self._advance)

    def _grant(self) -> None:
        for name in self._waiting.names():
            while self._roster.berth(name).is_open and (waiting := self._waiting.next(name)):
                self._roster.unwait(name)
                waiting.granted.set_result(self._lease(waiting.model))

    def _lease(self, model: Model) -> Lease:
        generation = self._roster.enter(model.name, self._clock())

        def end() -> None:
            self._roster.leave(model.name, generation, self._clock())
            self._advance()

        return Lease(model, self._servers[model.name], generation, end)

    def _refuse(self, name: str, error: NotNow) -> None:
        refused = self._waiting.clear(name)
        if refused:
            self._roster.unwait(name, len(refused))
        for waiting in refused:
            waiting.granted.set_exception(error)

    async def _look_over(self, model: Model) -> None:
        name = model.name
        _logger.info("checking %s", name)
        try:
            async with self._errands.in_words(name):
                await self._sources.check(model)
        except DidNotStart as error:
            self._not_loaded(name, str(error), "refused")
            return
        self._roster.passed(name, self._clock())
        self._advance()

    async def _load(self, load: Load) -> None:
        name, started_s = load.name, self._clock()
        _logger.info("loading %s", name)
        try:
            async with self._errands.in_words(name):
                server = await self._sources.start(self._models[name], load.num_others)
        except DidNotStart as error:
            self._not_loaded(name, str(error), "failed", load.instead_of)
            return
        duration_s = self._clock() - started_s
        self._metrics.loads.inc("loaded")
        self._metrics.load_duration.observe(duration_s)
        _logger.info("%s is ready after %.1f s", name, duration_s)
        self._servers[name] = server
        self._roster.loaded(name, self._clock())
        if self._is_closing:
            self._roster.unload(name, self._clock())
            self._errands.begin(self._unload(name, "stop"))
            return
        self._errands.begin(self._watch(name, server))
        self._advance()

    def _not_loaded(
        self, name: str, reason: str, outcome: str, instead_of: Sequence[str] = ()
    ) -> None:
        _logger.error("%s could not be loaded: %s", name, reason)
        self._metrics.loads.inc(outcome)
        self._roster.failed(name, reason, self._clock())
        retry_after_s = 1.0
        try:
            self._roster.check(name, self._clock())
        except LoadFailed as told:
            retry_after_s = told.retry_after_s
        left = ""
        if others := ", ".join(repr(each) for each in instead_of if each != name):
            left = f" ({others} left the memory for it, and will be loaded when asked for again)"
        message = f"the model {name!r} could not be loaded: {reason}{left}"
        self._refuse(name, LoadFailed(message, retry_after_s))
        self._advance()

    async def _watch(self, name: str, server: Server) -> None:
        reason = await server.ended()
        is_ours = self._servers.get(name) is server
        if is_ours and self._roster.berth(name).state is State.READY:
            _logger.error("the server of %s is gone: %s", name, reason)
            self._roster.unload(name, self._clock())
            await self._unload(name, "died")

    async def _unload(self, name: str, cause: str) -> None:
        _logger.info("unloading %s", name)
        try:
            await self._servers[name].stop()
        except Exception:
            # Whatever is left of it: else the model would be leaving for ever.
            _logger.exception("the server of %s could not be stopped", name)
        self._metrics.unloads.inc(cause)
        del self._servers[name]
        self._roster.gone(name, self._clock())
        self._advance()
