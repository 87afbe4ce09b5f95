"""The time that the supervisor leaves its children; how often, how soon and as what they start."""

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from processes.child import STANDING_BY
from processes.host import HostMemory
from processes.supervisor import (
    ROUTER_SLACK_S,
    WINDOW_S,
    RestartLimit,
    example,
    wants_standbys,
)
from router import __main__ as router
from router.telemetry import tracing
from tests.integration.server import wait_until_gone
from tests.processes.supervised import SLOW_IMPORTS
from tests.processes.test_deployment import deployment


def test_the_router_may_take_its_time_to_end() -> None:
    needed_s = router._LAST_STEP_S + router._LAST_BYTES_S + tracing.CLOSE_TIMEOUT_S
    assert needed_s < ROUTER_SLACK_S


@pytest.mark.parametrize(
    ("secrets", "key"),
    [({}, ""), ({"API_KEY": "hush"}, ' -H "Authorization: Bearer $API_KEY"')],
    ids=["open", "with-a-key"],
)
def test_who_sees_the_server_start_gets_a_line_to_try(secrets: dict[str, str], key: str) -> None:
    said = example(deployment(port=81, secrets=secrets))
    assert "Tandem serves at http://127.0.0.1:81. Open it in a browser" in said
    assert f"curl -N http://127.0.0.1:81/generate_stream{key} -H 'Content-Type: app" in said
    assert "hush" not in said


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_who_lived_for_a_while_is_started_anew_at_once_each_time() -> None:
    clock = Clock()
    limit = RestartLimit(9, clock)
    for _ in range(5):
        limit.note_ready()
        clock.now_s += 60.0
        assert limit.next_delay_s() == 0.0


def test_who_does_not_come_to_life_is_started_anew_later_and_later() -> None:
    limit = RestartLimit(9, Clock())
    delays_s = [limit.next_delay_s() for _ in range(8)]
    assert delays_s == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


def test_who_dies_as_soon_as_it_lives_has_lived_in_vain() -> None:
    clock = Clock()
    limit = RestartLimit(9, clock)
    for expected_s in (0.0, 1.0, 2.0):
        limit.note_ready()
        clock.now_s += 1.0
        assert limit.next_delay_s() == expected_s


def test_too_many_within_the_window_are_the_end_and_old_ones_are_forgiven() -> None:
    clock = Clock()
    limit = RestartLimit(2, clock)
    for _ in range(2):
        limit.note_ready()
        clock.now_s += 60.0
        assert limit.next_delay_s() == 0.0
    limit.note_ready()
    clock.now_s += 60.0
    assert limit.next_delay_s() is None
    clock.now_s += WINDOW_S
    assert limit.next_delay_s() == 0.0


def test_with_a_limit_of_zero_nothing_is_started_anew() -> None:
    assert RestartLimit(0).next_delay_s() is None


def test_what_ended_for_others_is_not_counted_but_begins_later_and_later() -> None:
    limit = RestartLimit(1, Clock())
    delays_s = [limit.next_delay_s(is_counted=False) for _ in range(4)]
    assert delays_s == [0.0, 1.0, 2.0, 4.0]
    assert limit.next_delay_s() == 8.0
    assert limit.next_delay_s() is None
    assert limit.next_delay_s(is_counted=False) is not None


@dataclass(slots=True)
class Supervised:
    """A supervisor's process (see tests.processes.supervised), and what is said there."""

    process: asyncio.subprocess.Process
    folder: Path
    said: list[str] = field(default_factory=list)

    async def until(self, pattern: str) -> re.Match[str]:
        """The next line in which it is found."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60.0):
            while line := (await self.process.stdout.readline()).decode():
                self.said.append(line)
                if found := re.search(pattern, line):
                    return found
        raise AssertionError(f"not said: {pattern}; but:\n{''.join(self.said)}")

    async def pid(self, pattern: str) -> int:
        return int((await self.until(pattern))[1])

    def slow_imports(self) -> None:
        """From now on nothing new stands by."""
        (self.folder / SLOW_IMPORTS).touch()


@asynccontextmanager
async def supervised(**changes: object) -> AsyncIterator[Supervised]:
    with tempfile.TemporaryDirectory() as folder:  # of a path that is short enough for sockets
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.processes.supervised", folder, json.dumps(changes)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            yield Supervised(process, Path(folder))
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


# The launcher says them again when a shard is dead.
CALLED_UP = r"^shard \d \| \S+ (\d+) serves, called up"
COLD = r"^shard \d \| \S+ (\d+) serves, cold"
IMPORTS = r"^shard \d \| \S+ (\d+) imports"
STANDS_BY = rf"^shard \d \| \S+ {STANDING_BY}, in 0 MiB of memory"


async def test_what_stands_by_takes_the_place_of_a_shard_that_dies_and_another_stands_by() -> None:
    async with supervised() as server:
        shard = await server.pid(COLD)
        for _ in range(2):
            standby = await server.pid(IMPORTS)
            await server.until(STANDS_BY)
            os.kill(shard, signal.SIGKILL)
            shard = await server.pid(CALLED_UP)
            assert shard == standby
            await server.until("ready again")


async def test_a_shard_is_started_cold_where_what_stood_by_is_dead() -> None:
    async with supervised() as server:
        shard = await server.pid(COLD)
        standby = await server.pid(IMPORTS)
        await server.until(STANDS_BY)
        os.kill(standby, signal.SIGKILL)
        assert not wait_until_gone([standby])
        os.kill(shard, signal.SIGKILL)
        await server.until("standing by, shard 0 was ended by SIGKILL")
        await server.until(COLD)
        await server.until(STANDS_BY)


async def test_a_shard_is_started_cold_while_what_is_to_stand_by_imports() -> None:
    async with supervised() as server:
        shard = await server.pid(COLD)
        await server.until(STANDS_BY)
        server.slow_imports()
        os.kill(shard, signal.SIGKILL)
        shard = await server.pid(CALLED_UP)
        importing = await server.pid(IMPORTS)
        os.kill(shard, signal.SIGKILL)
        await server.until(COLD)
        assert not wait_until_gone([importing])


async def test_one_stands_by_for_each_rank_and_all_are_called_up_or_none() -> None:
    async with supervised(num_shard=2) as server:
        shards = [await server.pid(COLD), await server.pid(COLD)]
        standbys = [await server.pid(IMPORTS) for _ in shards]
        while sum(re.search(STANDS_BY, line) is not None for line in server.said) < 2:
            await server.until(STANDS_BY)
        os.kill(shards[1], signal.SIGKILL)
        called = [await server.pid(CALLED_UP), await server.pid(CALLED_UP)]
        assert sorted(called) == sorted(standbys)
        assert not wait_until_gone(shards)
        standby = await server.pid(IMPORTS)
        os.kill(standby, signal.SIGKILL)
        await server.until(STANDS_BY)
        os.kill(called[0], signal.SIGKILL)
        await server.until(COLD)
        await server.until(COLD)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
async def test_what_stands_by_ends_with_its_launcher(signum: signal.Signals) -> None:
    async with supervised() as server:
        standby = await server.pid(IMPORTS)
        await server.until(STANDS_BY)
        server.process.send_signal(signum)
        await server.process.wait()
        assert not wait_until_gone([standby])


@pytest.mark.parametrize(
    ("changes", "environ", "mib", "wanted"),
    [
        ({}, {}, 2000, True),
        ({}, {}, 1999, False),
        ({}, {}, None, False),
        ({"num_shard": 4}, {}, 8000, True),
        ({"num_shard": 4}, {}, 7999, False),
        ({"parent_pid": 7}, {}, 99_999, False),
        ({"parent_pid": 7, "standby_shards": True}, {}, 0, True),
        ({"standby_shards": False}, {}, 99_999, False),
        ({"standby_shards": True, "max_restarts": 0}, {}, 99_999, False),
        ({"device": "auto"}, {"CUDA_VISIBLE_DEVICES": "0"}, 0, True),
        ({"device": "cpu"}, {"CUDA_VISIBLE_DEVICES": "0"}, 0, False),
    ],
)
def test_one_stands_by_where_there_are_gpus_or_memory_to_spare(
    tmp_path: Path, changes: dict[str, object], environ: dict[str, str], mib: int, wanted: bool
) -> None:
    of_machine = HostMemory(tmp_path, tmp_path / "cgroup")
    if mib is not None:
        (tmp_path / "meminfo").write_text(f"MemAvailable: {mib * 1024} kB\n")
    plan = deployment(**{"num_shard": 1, "device": "cpu", "max_restarts": 5, **changes})
    assert wants_standbys(plan, environ, of_machine) == wanted
