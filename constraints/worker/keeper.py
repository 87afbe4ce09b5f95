"""Keeps a nursery alive and a few workers ready: who ends is replaced, ever later if it recurs."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from constraints.worker.nursery import Nursery, NurseryDown, NurseryFailed, WorkerProcess
from native.cpu_yield import CpuYield

_logger = logging.getLogger("constraints")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0
# A nursery that lived so long was in order.
_PROVEN_S = 60.0
_NUM_SPARES = 2


class Keeper:
    """Owner of the nursery. `max_low`: workers of low priority that are kept for another job."""

    def __init__(self, arguments: Sequence[str], max_low: int) -> None:
        self._arguments = arguments
        self._max_low = max_low
        self._up: asyncio.Future[Nursery] = asyncio.get_running_loop().create_future()
        self._ready: list[WorkerProcess] = []
        self._low: list[WorkerProcess] = []
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def nursery(self) -> Nursery:
        """The one that lives, as soon as it does. Raises NurseryFailed when there will be none."""
        return await asyncio.shield(self._up)

    async def take(self, *, low: bool) -> WorkerProcess:
        """A worker for one job; with `low` rather one that gives way already.

        Raises NurseryFailed.
        """
        nursery = await self.nursery()
        self._ready = [each for each in self._ready if not each.ended.done()]
        self._low = [each for each in self._low if not each.ended.done()]
        if low and self._low:
            return self._low.pop()
        worker = self._ready.pop() if self._ready else nursery.fork()
        while len(self._ready) < _NUM_SPARES:
            self._ready.insert(0, nursery.fork())
        return worker

    def put_back(self, worker: WorkerProcess) -> None:
        """A worker whose job is done."""
        if not worker.gives_way:
            self._ready.append(worker)
        elif len(self._low) < self._max_low:
            self._low.append(worker)
        else:
            worker.let_go()

    async def close(self) -> None:
        """Ends all processes."""
        self._keeping.cancel()
        await asyncio.wait({self._keeping})
        if not self._up.done():
            self._up.set_exception(NurseryFailed("the workers were stopped"))
        with contextlib.suppress(NurseryDown):
            await (await self._up).close()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = _FIRST_PAUSE_S
        while True:
            begun_s = loop.time()
            try:
                nursery = await self._begin()
                self._up.set_result(nursery)
                await asyncio.wait({nursery.over})
                reason = "it ended"
            except NurseryFailed as error:
                self._up.set_exception(error)
                return
            except (NurseryDown, OSError) as error:
                reason = str(error)
            if loop.time() - begun_s > _PROVEN_S:
                pause_s = _FIRST_PAUSE_S
            _logger.error("compiling processes: %s; again in %g s", reason, pause_s)
            if self._up.done():
                self._up = loop.create_future()
            self._ready, self._low = [], []
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _begin(self) -> Nursery:
        """A nursery that serves. Raises NurseryDown, OSError."""
        # Compiled here if need be: the nursery has no environment, and so no compiler.
        breath = await asyncio.to_thread(CpuYield.load)
        path = () if breath.path is None else ("--breath", str(breath.path))
        nursery = await Nursery.start((*self._arguments, *path))
        try:
            # Shielded, as the nursery still tells of itself while a cancelled beginning ends it.
            await asyncio.shield(nursery.ready)
        except BaseException:
            await nursery.close()
            raise
        return nursery
