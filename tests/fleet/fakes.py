"""Servers without processes, for tests."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from fleet.errors import DidNotStart
from fleet.metrics import FleetMetrics
from fleet.model_manager import ModelManager
from fleet.model_table import LoadingRules, ModelState, ModelTable
from fleet.names import Model


class FakeServer:
    """A server whose end a test sets."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_stopped = False
        self.is_stopped_now = False
        self.stop_fault: Exception | None = None
        self.may_stop = asyncio.Event()
        self.may_stop.set()

    @property
    def socket(self) -> Path:
        return self._socket

    async def ended(self) -> str:
        return await asyncio.shield(self._end)

    async def stop(self) -> None:
        await self.may_stop.wait()
        if self.stop_fault is not None:
            raise self.stop_fault
        self.is_stopped = True
        self.die("it was stopped")

    def stop_now(self) -> None:
        self.is_stopped_now = True
        self.may_stop.set()

    def die(self, reason: str) -> None:
        if not self._end.done():
            self._end.set_result(reason)


@dataclass
class FakeServers:
    """Starts servers when `may_start` is set; `sockets` are those of the models.

    `faults` are found by a download, `refusals` by a load; `far` ones have to be downloaded.
    """

    sockets: dict[str, Path] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    far: set[str] = field(default_factory=set)
    downloaded: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    by_name: dict[str, FakeServer] = field(default_factory=dict)
    may_start: asyncio.Event = field(default_factory=asyncio.Event)

    def is_local(self, model: Model) -> bool:
        return model.name not in self.far

    async def download(self, model: Model) -> None:
        self.downloaded.append(model.name)
        await asyncio.sleep(0)
        if model.name in self.faults:
            raise DidNotStart(self.faults[model.name])

    async def start(self, model: Model, num_others: int) -> FakeServer:
        self.started.append(model.name)
        self.others.append(num_others)
        await self.may_start.wait()
        if model.name in self.refusals:
            raise DidNotStart(self.refusals[model.name])
        server = FakeServer(self.sockets.get(model.name, Path("/nowhere")))
        self.by_name[model.name] = server
        return server


def manager_over(
    servers: FakeServers, *, load_timeout_s: float = 5.0, rules: LoadingRules | None = None
) -> ModelManager:
    """A manager of a table with these rules."""
    metrics = FleetMetrics(CollectorRegistry())
    return ModelManager(ModelTable(rules or LoadingRules()), servers, metrics, load_timeout_s)


def model(name: str) -> Model:
    return Model(name, f"/models/{name}")


def states(manager: ModelManager) -> dict[str, ModelState]:
    """The state of every model that is not simply absent."""
    return {entry.name: entry.state for entry in manager.entries()}
