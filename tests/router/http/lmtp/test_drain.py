"""What sockets are fields when the server stops, by a router in a process of its own."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from router.http.server.limits import ConnectionLimits
from router.http.server.listen import HttpServer, bind
from tests.byte_tokenizer import byte_ids, save_byte_tokenizer
from tests.fakes import FakeShard, serving
from tests.router.http.lmtp.talking import talking
from tests.router.process import RouterProcess, serving_http


@asynccontextmanager
async def slow_router(folder: Path, *flags: str) -> AsyncIterator[RouterProcess]:
    """A router whose streams take a while."""
    shard = FakeShard(num_blocks=1024)
    shard.faults.delay_s = 0.02
    tokenizer = save_byte_tokenizer(folder)
    async with serving(shard) as address, serving_http(address, tokenizer, *flags) as router:
        yield router


async def test_what_runs_may_finish_and_then_all_sockets_are_closed(tmp_path: Path) -> None:
    async with slow_router(tmp_path) as router, talking(router.port) as talk:
        async with talking(router.port, "/") as first:
            await talk.hello()
            await talk.send("GENERATE", stream_id=1, text="Hello", max_tokens=40)
            await first.send("GENERATE", stream_id=1, prompt=byte_ids("Hello"), max_tokens=40)
            await talk.hear()
            router.process.send_signal(signal.SIGTERM)
            while (notice := await talk.hear())[0] != "SYS":
                pass
            await talk.send("GENERATE", stream_id=2, text="Hello", max_tokens=40)
            ends: dict[int, dict[str, Any]] = {}
            while len(ends) < 2:
                command, fields = await talk.hear()
                if command == "DONE" or "error" in fields:
                    ends[fields["stream_id"]] = fields
            messages = await first.stream(1)
            assert await first.closed() == (1001, "the server stops")
        assert await talk.closed() == (1001, "the server stops")
        assert await router.ended() == 0

    assert (notice[1]["stream_id"], notice[1]["state"]) == (None, "draining")
    assert ends[1]["finish_reason"] == "length"
    assert (ends[2]["error_type"], ends[2]["retryable"]) == ("draining", True)
    assert messages[-1][1]["finish_reason"] == "length"
    assert not any("Traceback" in line for line in router.log)


async def test_what_outlasts_the_drain_ends_where_its_client_sees_it(tmp_path: Path) -> None:
    flags = ("--graceful-termination-timeout", "0.3")
    async with slow_router(tmp_path, *flags) as router, talking(router.port) as talk:
        async with talking(router.port, "/") as first:
            await talk.hello()
            await talk.send("GENERATE", stream_id=1, text="Hello", max_tokens=3000)
            await first.send("GENERATE", stream_id=1, prompt=byte_ids("Hello"), max_tokens=3000)
            for _ in range(6):
                await first.hear()
            router.process.send_signal(signal.SIGTERM)
            messages = await first.stream(1)
            while "error" not in (fields := (await talk.hear())[1]):
                pass
            assert await first.closed() == (1001, "the server stops")
        assert await talk.closed() == (1001, "the server stops")
        assert await router.ended() == 0

    assert messages[-1][1]["finish_reason"] == "length"
    assert "token" in messages[-1][1]
    assert (fields["error_type"], fields["retryable"]) == ("incomplete_generation", True)


async def test_a_second_signal_does_not_wait_for_sockets(tmp_path: Path) -> None:
    async with slow_router(tmp_path) as router, talking(router.port) as talk:
        await talk.hello()
        await talk.send("GENERATE", stream_id=1, text="Hello", max_tokens=3000)
        await talk.hear()
        router.process.send_signal(signal.SIGTERM)
        await router.until_logged("draining")
        begun_s = monotonic()
        router.process.send_signal(signal.SIGTERM)
        assert await router.ended() == 1
        assert monotonic() - begun_s < 20.0


async def test_a_server_that_stops_at_once_tells_its_sockets_why() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass

    server = HttpServer(app, bind("127.0.0.1", 0), 1.0, ConnectionLimits())
    await server.start()
    async with connect(server.address.replace("http", "ws")) as socket:
        server.stop_at_once()
        await server.stop()
        with pytest.raises(ConnectionClosed) as raised:
            await socket.recv()

    assert raised.value.rcvd is not None
    assert (raised.value.rcvd.code, raised.value.rcvd.reason) == (1012, "the server stops")
