"""The replicas behind names, as they come and go."""

import asyncio
import socket
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fleet.discovery import Discovery
from fleet.metrics import FleetMetrics
from fleet.replica_pool import CheckRules, ReplicaPool
from fleet.upstream import Address, HostAddress


class Told(ReplicaPool):
    """Only notes who is there."""

    def __init__(self) -> None:
        super().__init__(FleetMetrics(CollectorRegistry()), CheckRules())
        self.told: asyncio.Queue[dict[str, Address]] = asyncio.Queue()

    def replace(self, addresses: Any) -> None:
        self.told.put_nowait(dict(addresses))


async def test_every_address_of_a_name_is_a_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    records: dict[str, list[str]] = {
        "pods": ["10.0.0.2", "fd00::2", "10.0.0.1"],
        "six": ["fd00::1"],
    }

    async def getaddrinfo(host: str, port: int, **kwargs: object) -> list[tuple[Any, ...]]:
        if not records[host]:
            raise socket.gaierror(-2, "Name or service not known")
        return [
            (socket.AF_INET6, 1, 6, "", (each, port, 0, 0))
            if ":" in each
            else (socket.AF_INET, 1, 6, "", (each, port))
            for each in records[host]
        ]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    pool = Told()
    running = asyncio.create_task(
        Discovery(["http://pods:3000", "https://six"], pool, 1.0, every_s=0.001).run()
    )
    six = {"[fd00::1]:443": HostAddress("fd00::1", 443, "six")}
    one = {"10.0.0.1:3000": HostAddress("10.0.0.1", 3000)}
    two = {"10.0.0.2:3000": HostAddress("10.0.0.2", 3000)}
    assert await pool.told.get() == {**one, **two, **six}
    records["pods"] = ["10.0.0.2"]
    assert await pool.told.get() == {**two, **six}
    # While the name is not resolved they stay.
    records["pods"] = []
    await asyncio.sleep(0.01)
    records["pods"] = ["10.0.0.1"]
    assert await pool.told.get() == {**one, **six}
    assert pool.told.empty()
    running.cancel()
