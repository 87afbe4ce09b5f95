"""The replicas of one machine as children: their commands, their shares, and being started anew."""

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from fleet.errors import DidNotStart
from fleet.metrics import FleetMetrics
from fleet.replica_pool import CheckRules, ReplicaPool
from fleet.replica_servers import ReplicaRules, ReplicaServers
from processes.logs import Console
from router.http.bodies import end

# Answers every request, and ends when a file tells it to.
SERVES = """
import os, socket, sys, threading
open(sys.argv[1] + ".pid", "w").write(str(os.getpid()))
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
while True:
    connection, _ = listening.accept()
    connection.recv(9999)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\n\\r\\n")
    connection.close()
"""


def rules_of(folder: Path, *flags: str, **changes: object) -> ReplicaRules:
    given: dict[str, object] = {"count": 2, "model": "m", "gpus": (), "num_shard": 1, **changes}
    return ReplicaRules(flags=flags, folder=folder, graceful_timeout_s=1.0, **given)  # type: ignore[arg-type]


def test_a_replica_is_a_whole_launcher_at_a_socket() -> None:
    argv = rules_of(Path("/f"), "--dtype=float32").argv(Path("/f/1.sock"))
    assert argv[:7] == [sys.executable, "-m", "launcher", "serve", "m", "--http-uds", "/f/1.sock"]
    assert argv[7:] == ["--parent-pid", str(os.getpid()), "--dtype=float32"]
    assert rules_of(Path("/f"), model=None).argv(Path("s"))[4] == "--http-uds"


def test_gpus_are_dealt_out_and_cores_shared() -> None:
    rules = rules_of(Path("/f"), gpus=("4", "5", "6", "7"), num_shard=2)
    environ = {"PORT": "1", "SERVED_MODEL_NAME": "x", "MODEL_ID": "m", "KEPT": "1"}
    assert [rules.environ(number, environ)["CUDA_VISIBLE_DEVICES"] for number in (0, 1)] == [
        "4,5",
        "6,7",
    ]
    given = rules.environ(0, environ)
    assert {"KEPT", "SERVED_MODEL_NAME"} <= given.keys()
    assert not {"PORT", "MODEL_ID"} & given.keys()
    alone = rules_of(Path("/f"))
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert alone.environ(1, {})["OMP_NUM_THREADS"] == str(threads)
    assert alone.environ(1, {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"
    assert "CUDA_VISIBLE_DEVICES" not in alone.environ(1, {})


@dataclass(frozen=True, slots=True)
class Scripted(ReplicaRules):
    """Starts a script instead of a launcher."""

    def argv(self, socket: Path) -> list[str]:
        return [sys.executable, "-c", self.flags[0], str(socket)]

    def environ(self, number: int, environ: Mapping[str, str]) -> dict[str, str]:
        return {}


def servers_of(folder: Path, script: str, pool: ReplicaPool) -> ReplicaServers:
    rules = Scripted(2, "m", (script,), folder, (), 1, 1.0)
    return ReplicaServers(rules, {}, Console(), pool)


async def test_a_replica_that_ends_is_started_anew_at_another_socket(tmp_path: Path) -> None:
    pool = ReplicaPool(FleetMetrics(CollectorRegistry()), CheckRules(interval_s=0.01))
    servers = servers_of(tmp_path, SERVES, pool)
    running = asyncio.create_task(servers.run())
    await until_ready(pool)
    before = pool.ready
    assert list(before) == ["0", "1"]
    os.kill(int(Path(f"{before['0']}.pid").read_text()), 9)
    async with asyncio.timeout(20):
        while pool.ready.get("0") in (None, before["0"]):
            await asyncio.sleep(0.01)
    assert pool.ready["1"] == before["1"]
    await end(running)
    await servers.stop()
    await pool.close()


async def until_ready(pool: ReplicaPool) -> None:
    async with asyncio.timeout(20):
        while len(pool.ready) < 2:
            await asyncio.sleep(0.01)


async def test_why_the_first_replica_does_not_start_is_said(tmp_path: Path) -> None:
    pool = ReplicaPool(FleetMetrics(CollectorRegistry()), CheckRules())
    with pytest.raises(DidNotStart, match=r"^no weights"):
        await servers_of(tmp_path, "print('error: no weights'); exit(1)", pool).run()
    await pool.close()
