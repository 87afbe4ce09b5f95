"""Idle workers that are closed while their zygote starts leave nothing behind."""

import asyncio
import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from constraints.worker.idle_workers import IdleWorkers
from constraints.worker.zygote_client import ZygoteClient
from tests.constraints.worker.pools import vocabulary_file
from tests.constraints.worker.processes import num_sockets, zygotes


def arguments(folder: Path) -> tuple[str, ...]:
    """Of a zygote over the byte tokenizer."""
    limits = ("--cpu-s", "60", "--memory-bytes", str(1 << 30))
    return (*vocabulary_file(folder).arguments(), *limits)


@pytest.fixture
async def complaints() -> Callable[[], list[dict[str, Any]]]:
    """What the loop was told of errors that nobody has read, as a function to call at the end."""
    told: list[dict[str, Any]] = []
    # Sockets that tests before this one have left to it.
    gc.collect()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    def all_of_them() -> list[dict[str, Any]]:
        gc.collect()
        return told

    return all_of_them


async def test_it_can_be_closed_while_its_zygote_reads_the_tokenizer(
    tmp_path: Path, complaints: Callable[[], list[dict[str, Any]]]
) -> None:
    num_before = num_sockets(os.getpid())
    idle_workers = IdleWorkers(arguments(tmp_path), max_low=1)
    async with asyncio.timeout(30):
        while not zygotes():
            await asyncio.sleep(0.001)

    # Told to end, the zygote still says that it is ready.
    await idle_workers.close()
    del idle_workers

    assert complaints() == []
    assert zygotes() == []
    assert num_sockets(os.getpid()) == num_before


@pytest.mark.parametrize("num_turns", [0, 1, 2, 3, 4, 5])
async def test_a_zygote_that_is_being_started_is_ended_if_nobody_waits_for_it(
    num_turns: int, tmp_path: Path, complaints: Callable[[], list[dict[str, Any]]]
) -> None:
    num_before = num_sockets(os.getpid())
    starting = asyncio.create_task(ZygoteClient.start(arguments(tmp_path)))
    for _ in range(num_turns):
        await asyncio.sleep(0)

    starting.cancel()
    (started,) = await asyncio.gather(starting, return_exceptions=True)
    if isinstance(started, ZygoteClient):
        await started.close()
    del starting, started

    assert complaints() == []
    assert zygotes() == []
    assert num_sockets(os.getpid()) == num_before
