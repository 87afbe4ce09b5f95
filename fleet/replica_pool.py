"""The replicas as they are now: where each listens, whether it is ready, and who uses it.

/health/ready each second -> admit, eject        a use that fails -> eject
pick -> Use -> close                             no answer for some checks -> its uses are cut
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fleet.errors import NoReplica
from fleet.metrics import FleetMetrics
from fleet.replicas import Pick, Replicas
from fleet.upstream import Address, UpstreamResponse, get
from processes.signals import first_of
from router.http.bodies import end

_logger = logging.getLogger("fleet")
_HEADERS = [(b"host", b"fleet")]


@dataclass(frozen=True, slots=True)
class CheckRules:
    """How replicas are watched: `max_silent` checks without an answer, and its uses are cut."""

    interval_s: float = 1.0
    timeout_s: float = 2.0
    max_silent: int = 3


class Use:
    """One request's use of a replica. `response` is what it is answered, for who cuts it."""

    def __init__(self, pool: "ReplicaPool", name: str, address: Address) -> None:
        self._pool = pool
        self.name = name
        self.address = address
        self.response: UpstreamResponse | None = None

    def close(self) -> None:
        """End the use, with its connection."""
        self.cut()
        self._pool.remove(self)

    def cut(self) -> None:
        """Break the connection off, as the end of the replica does."""
        if self.response is not None:
            self.response.close()


class ReplicaPool:
    """Owner of the replicas' state and of the tasks that check it."""

    def __init__(self, metrics: FleetMetrics, rules: CheckRules) -> None:
        self._metrics = metrics
        self._rules = rules
        self._replicas = Replicas()
        self._addresses: dict[str, Address] = {}
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._uses: set[Use] = set()
        # By replica: the name of its file of batches, also while it is away, or at another address.
        self._stores: dict[str, str] = {}
        # Set, and made anew, at each change that a request may wait for.
        self._change = asyncio.Event()
        self.is_draining = False

    @property
    def ready(self) -> dict[str, Address]:
        """Where those listen that take requests."""
        return {name: self._addresses[name] for name in self._replicas.ready}

    @property
    def are_all_ready(self) -> bool:
        """Whether no replica is away that may have what others have not."""
        return len(self._replicas.ready) == len(self._addresses)

    @property
    def names(self) -> set[str]:
        """All that there are."""
        return set(self._addresses)

    @property
    def stores(self) -> dict[str, set[str]]:
        """Who has each store of batches and is ready; several may share one."""
        ready = self.ready
        return {
            store: {name for name, has in self._stores.items() if has == store and name in ready}
            for store in sorted(set(self._stores.values()))
        }

    def replace(self, addresses: Mapping[str, Address]) -> None:
        """These are there from now on, under names by which all fronts know them.

        Requests to others go on.
        """
        changed = {
            name for name, old in self._addresses.items() if addresses.get(name, None) != old
        }
        for name in changed:
            self._eject(name, "it is not there any more")
            self._checks.pop(name).cancel()
        self._addresses = dict(addresses)
        self._replicas.replace(addresses)
        for name, address in addresses.items():
            if name not in self._checks:
                self._checks[name] = asyncio.create_task(self._check(name, address))
        self._changed()

    async def use(
        self, pieces: Sequence[bytes], without: Collection[str], wait_s: float = 0.0
    ) -> Use:
        """A use of the replica for a prompt, of none of `without`; of the first one that is ready
        within `wait_s` where none is. Raises NoReplica.
        """
        try:
            async with asyncio.timeout(wait_s):
                while (picked := self._replicas.pick(pieces, without)) is None:
                    await self._change.wait()
        except TimeoutError:
            raise NoReplica("no replica of the model is ready") from None
        return self._begin(picked, pieces)

    def report_failure(self, use: Use, error: Exception) -> None:
        """The replica broke a connection off, or accepts none: it takes no further requests until
        it says again that it is ready.
        """
        if self._addresses.get(use.name) == use.address:
            self._eject(use.name, str(error))

    def remove(self, use: Use) -> None:
        """A use has ended; a second call does nothing."""
        if use in self._uses:
            self._uses.remove(use)
            self._replicas.end(use.name)
            self._changed()

    async def until_ready(self) -> None:
        """Wait until a replica takes requests."""
        while not self._replicas.ready:
            await self._change.wait()

    async def until_idle(self) -> None:
        """Wait until nobody uses a replica."""
        while self._uses:
            await self._change.wait()

    async def close(self) -> None:
        await end(*self._checks.values())

    def _begin(self, picked: Pick, pieces: Sequence[bytes]) -> Use:
        self._metrics.picks.inc(picked.kind)
        self._replicas.begin(picked.name, pieces)
        use = Use(self, picked.name, self._addresses[picked.name])
        self._uses.add(use)
        return use

    async def _check(self, name: str, address: Address) -> None:
        num_silent = 0
        while True:
            got = await get(address, "/health/ready", _HEADERS, self._rules.timeout_s)
            status = got.status
            if status == 200:
                if store := got.headers.get(b"x-tandem-store"):
                    self._stores[name] = store.decode()
                self._admit(name)
            else:
                self._eject(name, f"/health/ready is {status}" if status else "it does not answer")
            num_silent = 0 if status else num_silent + 1
            if num_silent == self._rules.max_silent:
                for use in [each for each in self._uses if each.address == address]:
                    use.cut()
            await asyncio.sleep(self._rules.interval_s)

    def _admit(self, name: str) -> None:
        if self._replicas.admit(name):
            _logger.info("replica %s is ready", name)
            self._changed()

    def _eject(self, name: str, reason: str) -> None:
        if self._replicas.eject(name):
            _logger.warning("replica %s takes no requests: %s", name, reason)
            self._metrics.ejections.inc(name)
            self._changed()

    def _changed(self) -> None:
        self._metrics.ready_replicas.set(len(self._replicas.ready))
        self._change.set()
        self._change = asyncio.Event()


class ReplicaSource(Protocol):
    """Where replicas come from: it says to the pool which there are."""

    async def run(self) -> None:
        """Until it is cancelled. Raises DidNotStart."""

    async def stop(self) -> None:
        """Wait for running requests, and stop what it has started; `run` has ended."""

    def stop_now(self) -> None:
        """Stop at once what `stop` waits for."""


class RunningReplicas:
    """A pool and its source from the start of a front to its end."""

    def __init__(self, pool: ReplicaPool, source: ReplicaSource) -> None:
        self._pool = pool
        self._source = source
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Until the first replica is ready. Raises DidNotStart."""
        self._running = asyncio.create_task(self._source.run())
        await first_of(self._pool.until_ready(), self._running)
        if self._running.done():
            self._running.result()

    async def drain(self) -> None:
        """Accept no new requests, wait for running ones, and stop what was started."""
        self._pool.is_draining = True
        if self._running is not None:
            await end(self._running)
        await self._source.stop()
        await self._pool.close()

    def stop_now(self) -> None:
        """Stop at once what `drain` waits for."""
        self._source.stop_now()
