"""Keeps a zygote and a few idle workers; replaces those that end, with a growing delay."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from constraints.worker.zygote_client import WorkerProcess, ZygoteClient, ZygoteDown, ZygoteFailed
from native.cpu_yield import CpuYield

_logger = logging.getLogger("constraints")

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
# A zygote that lived so long resets the delay.
_PROVEN_S = 60.0
_NUM_SPARES = 2


class IdleWorkers:
    """Owner of the zygote. `max_low`: the most idle workers with low priority."""

    def __init__(self, arguments: Sequence[str], max_low: int) -> None:
        self._arguments = arguments
        self._max_low = max_low
        self._up: asyncio.Future[ZygoteClient] = asyncio.get_running_loop().create_future()
        self._spawned = asyncio.Event()
        self._ready: list[WorkerProcess] = []
        self._low: list[WorkerProcess] = []
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def zygote_client(self) -> ZygoteClient:
        """The running one; waits until it runs. Raises ZygoteFailed if it cannot start."""
        return await asyncio.shield(self._up)

    async def wait_spawned(self) -> None:
        """Return once the first attempt has forked this process, or has failed to."""
        await self._spawned.wait()

    async def take(self, *, low: bool) -> WorkerProcess:
        """A worker for one job; `low`: prefer one with low priority.

        Raises ZygoteFailed.
        """
        zygote_client = await self.zygote_client()
        self._ready = [each for each in self._ready if not each.ended.done()]
        self._low = [each for each in self._low if not each.ended.done()]
        if low and self._low:
            return self._low.pop()
        worker = self._ready.pop() if self._ready else zygote_client.fork()
        while len(self._ready) < _NUM_SPARES:
            self._ready.insert(0, zygote_client.fork())
        return worker

    def put_back(self, worker: WorkerProcess) -> None:
        """Return a worker after its job."""
        if not worker.gives_way:
            self._ready.append(worker)
        elif len(self._low) < self._max_low:
            self._low.append(worker)
        else:
            worker.close_channel()

    async def close(self) -> None:
        self._keeping.cancel()
        await asyncio.wait({self._keeping})
        if not self._up.done():
            self._up.set_exception(ZygoteFailed("the workers were stopped"))
        with contextlib.suppress(ZygoteDown):
            await (await self._up).close()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PAUSE_S
        while True:
            begun_s = loop.time()
            try:
                zygote_client = await self._begin()
                self._up.set_result(zygote_client)
                await asyncio.wait({zygote_client.over})
                reason = "it ended"
            except ZygoteFailed as error:
                self._up.set_exception(error)
                return
            except (ZygoteDown, OSError) as error:
                reason = str(error)
            finally:
                self._spawned.set()
            if loop.time() - begun_s > _PROVEN_S:
                pause_s = _FIRST_PAUSE_S
            _logger.error("compiling processes: %s; again in %g s", reason, pause_s)
            if self._up.done():
                self._up = loop.create_future()
            self._ready = []
            self._low = []
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _begin(self) -> ZygoteClient:
        """Start a zygote and wait until it serves. Raises ZygoteDown, OSError."""
        # Compiled here if necessary: the zygote has no environment and so no compiler.
        cpu_yield = await asyncio.to_thread(CpuYield.load)
        path = () if cpu_yield.path is None else ("--cpu-yield", str(cpu_yield.path))
        zygote_client = await ZygoteClient.start((*self._arguments, *path))
        self._spawned.set()
        try:
            # Shielded: a cancelled start still reads from the zygote while ending it.
            await asyncio.shield(zygote_client.ready)
        except BaseException:
            await zygote_client.close()
            raise
        return zygote_client
