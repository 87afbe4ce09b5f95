"""WebSockets to replicas, passed on both ways."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from fleet.metrics import FleetMetrics
from fleet.relay import ReplicaSockets
from fleet.replica_pool import CheckRules, ReplicaPool
from router.http.bodies import body_part
from router.http.server.access import Access
from tests.fleet.harness import FRONT, Listeners, listening


async def replica(scope: Scope, receive: Receive, send: Send) -> None:
    """Says what it was asked by, then repeats; `close` closes; another path is refused."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send(body_part(b"", more=False))
        return
    socket = WebSocket(scope, receive, send)
    if scope["path"] != "/lmtp":
        await receive()
        await send({"type": "websocket.http.response.start", "status": 404, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b"nothing there"})
        return
    await socket.accept()
    await socket.send_text(f"{scope['query_string'].decode()} {socket.headers['authorization']}")
    async for message in socket.iter_text():
        if message == "close":
            await socket.close(4321, "as you say")
            return
        await socket.send_text(message)
        await socket.send_bytes(message.encode())


@asynccontextmanager
async def running(
    listeners: Listeners,
) -> AsyncIterator[tuple[ReplicaPool, FleetMetrics, ReplicaSockets, str]]:
    metrics = FleetMetrics(CollectorRegistry())
    pool = ReplicaPool(metrics, CheckRules(interval_s=0.05))
    pool.replace(listeners.sockets)
    sockets = ReplicaSockets(pool, metrics)
    listeners.apps = {"a": replica, FRONT: Access(sockets)}
    async with asyncio.timeout(10):
        await pool.until_ready()
    url = f"ws://127.0.0.1:{urlsplit(listeners.front.address).port}"
    try:
        yield pool, metrics, sockets, url
    finally:
        await pool.close()


async def test_a_socket_is_that_of_a_replica_until_one_side_closes_it(tmp_path: Path) -> None:
    async with listening(tmp_path, ["a"]) as listeners, running(listeners) as front:
        pool, metrics, sockets, url = front
        headers = {"authorization": "Bearer k"}

        def client(path: str = "/lmtp?key=k") -> connect:
            return connect(url + path, additional_headers=headers, proxy=None)

        async with client() as socket:
            assert await hear(socket) == "key=k Bearer k"
            await socket.send("x")
            assert (await hear(socket), await hear(socket)) == ("x", b"x")
            assert metrics.sockets.value() == 1
            await socket.send("close")
            assert await closed(socket) == (4321, "as you say")
        await asyncio.wait_for(pool.until_idle(), 10)
        assert metrics.sockets.value() == 0
        async with client() as socket:
            await hear(socket)
        # The client has left.
        await asyncio.wait_for(pool.until_idle(), 10)
        async with client() as socket:
            await hear(socket)
            listeners.cut("a")
            assert (await closed(socket))[0] == 1012
        async with client() as socket:
            await hear(socket)
            await sockets.close()
            assert (await closed(socket))[0] == 1001
        with pytest.raises(InvalidStatus) as refused:
            await client("/other")
        assert refused.value.response.status_code == 404
        assert refused.value.response.body == b"nothing there"
        pool.replace({"a": tmp_path / "nobody"})
        with pytest.raises(InvalidStatus) as refused:
            await client()
        assert refused.value.response.status_code == 503


async def draining(scope: Scope, receive: Receive, send: Send) -> None:
    """A replica that says that it is ready, and refuses sockets."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send(body_part(b"", more=False))
        return
    await receive()
    await send({"type": "websocket.http.response.start", "status": 503, "headers": []})
    await send({"type": "websocket.http.response.body", "body": b""})


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_replica_that_takes_no_socket_leaves_it_to_another(
    is_there: bool, tmp_path: Path
) -> None:
    async with listening(tmp_path, ["a", "b"]) as listeners, running(listeners) as front:
        pool, _, _, url = front
        listeners.apps["b"] = replica
        if is_there:
            listeners.apps["a"] = draining
        while len(pool.ready) < 2:
            await asyncio.sleep(0.01)
        if not is_there:
            (tmp_path / "a.sock").unlink()
        headers = {"authorization": "Bearer k"}
        for _ in range(2):
            async with connect(f"{url}/lmtp?n", additional_headers=headers, proxy=None) as socket:
                assert await hear(socket) == "n Bearer k"


async def hear(socket: ClientConnection) -> str | bytes:
    return await asyncio.wait_for(socket.recv(), 10)


async def closed(socket: ClientConnection) -> tuple[int | None, str | None]:
    """Code and reason, once it is closed."""
    await asyncio.wait_for(socket.wait_closed(), 10)
    return socket.close_code, socket.close_reason
