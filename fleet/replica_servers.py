"""Starts the replicas of one machine, each a whole `launcher serve` with its share of GPUs and
cores, and starts anew what ends."""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import DidNotStart
from fleet.replica_pool import ReplicaPool
from fleet.servers import FRONT_VARIABLES, STOP_SLACK_S, LaunchedServer, ready_server, start_server
from fleet.upstream import Address
from processes.logs import Console
from router.http.bodies import end

_logger = logging.getLogger("fleet")
_FIRST_DELAY_S = 1.0
_MAX_DELAY_S = 60.0
# A replica's own: what it calls its model, and how much of its GPUs it takes.
_OF_REPLICA = frozenset({"SERVED_MODEL_NAME", "CUDA_MEMORY_FRACTION"})


@dataclass(frozen=True, slots=True)
class ReplicaRules:
    """`count` servers of one model; None: the bundled one. `flags` are those of `launcher serve`.

    `gpus` are dealt out by `num_shard`; without any each has its share of cores. `folder` holds the
    sockets.
    """

    count: int
    model: str | None
    flags: Sequence[str]
    folder: Path
    gpus: Sequence[str]
    num_shard: int
    graceful_timeout_s: float

    def argv(self, socket: Path) -> list[str]:
        """The command of a replica at this socket."""
        argv = [sys.executable, "-m", "launcher", "serve"]
        argv += [] if self.model is None else [self.model]
        return [*argv, "--http-uds", str(socket), "--parent-pid", str(os.getpid()), *self.flags]

    def environ(self, number: int, environ: Mapping[str, str]) -> dict[str, str]:
        """The environment of a replica, by its number from 0."""
        kept = {
            name: value
            for name, value in environ.items()
            if name not in FRONT_VARIABLES or name in _OF_REPLICA
        }
        if self.gpus:
            first = number * self.num_shard
            kept["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[first : first + self.num_shard])
        num_cores = len(os.sched_getaffinity(0)) // (self.count * self.num_shard)
        return {"OMP_NUM_THREADS": str(max(1, num_cores)), **kept}


class ReplicaServers:
    """Owner of the processes. The pool knows each by its number, and where it listens."""

    def __init__(
        self, rules: ReplicaRules, environ: Mapping[str, str], console: Console, pool: ReplicaPool
    ) -> None:
        self._rules = rules
        self._environ = environ
        self._console = console
        self._pool = pool
        self._servers: dict[int, LaunchedServer] = {}
        # Of those that are not up, where nobody listens.
        self._sockets: dict[str, Address] = {
            str(number): rules.folder / f"none-{number}.sock" for number in range(rules.count)
        }
        self._num_started = 0

    async def run(self) -> None:
        """Until it is cancelled. Raises DidNotStart where the first replica never was ready."""
        self._pool.replace(self._sockets)
        # It alone fetches the model, and finds what is wrong with it.
        await self._start(0)
        keeping = [asyncio.create_task(self._keep(number)) for number in range(self._rules.count)]
        try:
            await asyncio.gather(*keeping)
        finally:
            await end(*keeping)

    async def stop(self) -> None:
        """Stop each after its running requests; `run` has ended."""
        await asyncio.gather(*(server.stop() for server in self._servers.values()))

    def stop_now(self) -> None:
        """Stop at once the servers that `stop` waits for."""
        for server in self._servers.values():
            server.stop_now()

    async def _keep(self, number: int) -> None:
        delay_s = _FIRST_DELAY_S
        while True:
            try:
                server = self._servers.get(number) or await self._start(number)
            except DidNotStart as error:
                _logger.error("replica %d did not start: %s", number, error)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _MAX_DELAY_S)
                continue
            delay_s = _FIRST_DELAY_S
            reason = await server.ended()
            _logger.error("replica %d is gone: %s; it is started anew", number, reason)
            del self._servers[number]
            # Whatever is left of it.
            await server.stop()
            # Where there are few cores, what goes on elsewhere needs them first.
            await asyncio.sleep(delay_s)

    async def _start(self, number: int) -> LaunchedServer:
        """Raises DidNotStart."""
        rules = self._rules
        self._num_started += 1
        socket = rules.folder / f"{self._num_started}.sock"
        environ = rules.environ(number, self._environ)
        child = await start_server(f"replica {number}", rules.argv(socket), environ, self._console)
        server = await ready_server(child, socket, rules.graceful_timeout_s + STOP_SLACK_S)
        self._servers[number] = server
        self._sockets[str(number)] = socket
        self._pool.replace(self._sockets)
        return server
