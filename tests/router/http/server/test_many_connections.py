"""More connections than there may be: probes of the server's health still get in."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from router.http.server.protocol import KEPT_BACK, ConnectionLimits
from tests.fakes import FakeShard
from tests.router.http.harness import housing, listening, record
from tests.router.http.server.connection import error_of

LIMITS = ConnectionLimits(max_connections=3)


@asynccontextmanager
async def idle(port: int, num_connections: int) -> AsyncIterator[None]:
    """So many connections on which nothing is asked."""
    async with AsyncExitStack() as closing:
        for _ in range(num_connections):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            closing.callback(writer.close)
        # The server has accepted them all.
        await asyncio.sleep(0.1)
        yield
    # It has noticed that they are gone.
    await asyncio.sleep(0.1)


async def test_beyond_the_limit_only_probes_are_answered() -> None:
    limits = ConnectionLimits(max_connections=3)
    async with housing(FakeShard()) as house, listening(house.app, limits) as port:
        async with idle(port, 2):
            last = await record(port, "GET", "/info")
        async with idle(port, 3):
            info = await record(port, "GET", "/info")
            health = await record(port, "GET", "/health")
        again = await record(port, "GET", "/info")

    assert last.startswith(b"HTTP/1.1 200 ")
    assert error_of(info, 503) == {
        "error": "3 connections are open, as many as there may be; try again",
        "error_type": "too_many_connections",
    }
    assert health.startswith(b"HTTP/1.1 200 ")
    assert again.startswith(b"HTTP/1.1 200 ")
    assert limits.cuts.value("too_many") == 1


async def test_what_is_kept_back_has_an_end() -> None:
    async with (
        housing(FakeShard()) as house,
        listening(house.app, LIMITS) as port,
        idle(port, 3 + KEPT_BACK),
    ):
        try:
            answer = await record(port, "GET", "/health")
        except ConnectionResetError:
            answer = b""

    assert answer == b""
