"""Sockets from the handshake to the close: routes, ids, draining, leavers."""

import asyncio
import base64
import json
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from router.http.server.listen import HttpServer, bind
from router.http.server.protocol import ConnectionLimits
from tests.byte_tokenizer import byte_ids, save_byte_tokenizer
from tests.fake_script import letters
from tests.fakes import FakeShard, serving
from tests.router.http.harness import open_request
from tests.router.http.lmtp.talking import Message, complaints, served, talking
from tests.router.process import RouterProcess, serving_http
from tests.router.rig import settled, until

LONG = {"max_tokens": 100}


def slow() -> FakeShard:
    shard = FakeShard(num_blocks=512)
    shard.faults.delay_s = 0.01
    return shard


async def test_a_cancelled_stream_says_so_and_gives_its_blocks_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="router.http.server.access")
    async with served(slow()) as (house, port), talking(port) as talk:
        await talk.hello()
        await talk.send("GENERATE", stream_id=1, text="Once", **LONG)
        await talk.send("GENERATE", stream_id=2, text="Twice", max_tokens=20)
        await talk.hear()
        await talk.send("CANCEL", stream_id=1)
        ends: dict[int, dict[str, Any]] = {}
        while len(ends) < 2:
            command, fields = await talk.hear()
            if command == "DONE":
                ends[fields["stream_id"]] = fields
        await settled(house.rig)

    assert ends[1]["finish_reason"] == "cancelled"
    assert 0 < ends[1]["usage"]["output_tokens"] < 100
    assert len(ends[1]["text"]) == ends[1]["usage"]["output_tokens"]
    assert ends[2]["finish_reason"] == "length"
    (fields,) = (
        vars(line) for line in caplog.records if vars(line).get("error_type") == "cancelled"
    )
    assert ends[1]["usage"]["output_tokens"] <= fields["num_generated_tokens"] < 100


@pytest.mark.parametrize("num_heard", [1, 6])
async def test_a_cancelled_stream_of_version_1_ends_where_its_client_sees_it(
    num_heard: int,
) -> None:
    async with served(slow()) as (house, port), talking(port, "/") as talk:
        await talk.send("GENERATE", stream_id=1, prompt=byte_ids("Once"), **LONG)
        for _ in range(num_heard):
            await talk.hear()
        await talk.send("CANCEL", stream_id=1)
        messages = await talk.stream(1)
        await settled(house.rig)

    last = messages[-1][1]
    assert last.get("finish_reason") == "cancelled" or last["error_type"] == "cancelled"
    assert "error" not in last or len(messages) + num_heard <= 4


@pytest.mark.parametrize("command", ["GENERATE", "SCORE"])
async def test_a_stream_that_is_cancelled_before_it_began_says_so(command: str) -> None:
    fields: dict[str, Any] = {"max_tokens": 100, "scored": byte_ids(" upon")}
    async with served(slow()) as (house, port), talking(port) as talk:
        await talk.hello()
        # In one segment: the server has both before the stream's first step.
        frames = [
            f"{command} {json.dumps({'stream_id': 1, 'prompt': byte_ids('Once')} | fields)}",
            'CANCEL {"stream_id": 1}',
        ]
        async with talk.socket.send_context():
            for frame in frames:
                talk.socket.protocol.send_text(frame.encode())
        async with asyncio.timeout(30):
            messages = await talk.stream(1)
        again = await talk.ask("GENERATE", prompt=byte_ids("Once"), max_tokens=1)
        await settled(house.rig)

    fields = messages[-1][1]
    assert "cancelled" in (fields.get("finish_reason"), fields.get("error_type"))
    assert again[-1][1]["finish_reason"] == "length"


async def test_an_unknown_stream_cancels_nothing() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        await talk.send("CANCEL", stream_id=77)
        messages = await talk.ask("GENERATE", 1, text="Once", max_tokens=2)
        await talk.send("CANCEL", stream_id=1)
        again = await talk.ask("GENERATE", 1, text="Once", max_tokens=2)

    assert messages == [*again[:-1], messages[-1]]


async def test_an_open_streams_id_is_not_taken_twice_but_may_be_used_again() -> None:
    async with served(slow()) as (_, port), talking(port) as talk:
        await talk.hello()
        await talk.send("GENERATE", stream_id=1, text="Once", max_tokens=20)
        await talk.send("GENERATE", stream_id=1, text="Twice", max_tokens=20)
        heard: list[Message] = []
        while not heard or heard[-1][0] != "DONE":
            heard.append(await talk.hear())
        again = await talk.ask("GENERATE", 1, text="Twice", max_tokens=3)

    refusals = [fields for command, fields in heard if command == "MSG"]
    assert [fields["error_type"] for fields in refusals] == ["stream_in_use"]
    assert sum(command == "TOKEN" for command, _ in heard) == 20
    assert again[-1][1]["usage"]["prompt_tokens"] == 5


@pytest.mark.parametrize("says_goodbye", [True, False])
async def test_a_socket_that_ends_frees_everything(says_goodbye: bool) -> None:
    async with served(slow(), max_concurrent_requests=40) as (house, port):
        async with talking(port) as talk:
            await talk.hello()
            for stream_id in range(30):
                await talk.send("GENERATE", stream_id=stream_id, text=f"Once {stream_id}", **LONG)
            await talk.send("SCORE", stream_id=30, text="Once", scored=["a"] * 64)
            await talk.hear()
            if says_goodbye:
                await talk.socket.close()
            else:
                talk.socket.transport.abort()
            await settled(house.rig)
        stats = house.rig.scheduler.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_blocks_used) == (0, 0, 0)
        assert house.shard.num_held == 0


async def test_clients_that_leave_while_their_prompt_is_read_leave_nothing() -> None:
    async with served(slow(), max_concurrent_requests=40) as (house, port):
        for pause_s in (0.0, 0.001, 0.005, 0.02):
            async with talking(port) as talk:
                for stream_id in range(10):
                    await talk.send("GENERATE", stream_id=stream_id, text="Once", **LONG)
                await asyncio.sleep(pause_s)
                talk.socket.transport.abort()
        await settled(house.rig)
        async with talking(port) as talk:
            messages = await talk.ask("GENERATE", 1, prompt=byte_ids("Once"), max_tokens=3)

    assert messages[-1][1]["finish_reason"] == "length"


async def test_clients_that_leave_at_the_door_are_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    handshake = (
        b"GET %b HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    )
    caplog.set_level(logging.WARNING)
    async with served(FakeShard(), api_keys=("sk",)) as (house, port):
        for index in range(60):
            path = (b"/lmtp?key=sk", b"/lmtp", b"/elsewhere?key=sk")[index % 3]
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(handshake % path)
            await asyncio.sleep(0.001 * (index % 4))
            writer.transport.abort()
        await until(lambda: house.rig.metrics.sockets.value() == 0)

    assert complaints(caplog) == []


KEYS = ("sk-first",)
ONCE = byte_ids("Once")


@pytest.mark.parametrize("path", ["/", "/lmtp", "/lmtp/", "/?model=x"])
async def test_a_socket_is_at_either_path_beside_http(path: str) -> None:
    async with served(FakeShard()) as (_, port), talking(port, path) as talk:
        messages = await talk.ask("GENERATE", prompt=ONCE, max_tokens=1)
        async with httpx.AsyncClient() as client:
            health = await client.get(f"http://127.0.0.1:{port}/health")
            metrics = await client.get(f"http://127.0.0.1:{port}/metrics")

    assert messages[0][1]["finish_reason"] == "length"
    assert health.status_code == 200
    assert "tandem_sockets 1.0" in metrics.text
    assert 'tandem_socket_frames_total{type="GENERATE"} 1.0' in metrics.text
    assert "tgi_request_success_total 1.0" in metrics.text


async def test_elsewhere_there_is_no_socket() -> None:
    async with served(FakeShard()) as (_, port):
        with pytest.raises(InvalidStatus) as raised:
            async with talking(port, "/generate"):
                pass

    assert raised.value.response.status_code == 404
    assert b"LMTP is at / and /lmtp" in raised.value.response.body


@pytest.mark.parametrize(
    ("path", "authorization"),
    [
        ("/lmtp?key=sk-first", None),
        ("/lmtp", "Bearer sk-first"),
        ("/", "Basic " + base64.b64encode(b"any:sk-first").decode()),
        ("/", "Basic " + base64.b64encode(b"sk-first:").decode()),
    ],
)
async def test_a_key_opens_it(
    path: str, authorization: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    caplog.set_level(logging.DEBUG, logger="router")
    async with (
        served(FakeShard(), api_keys=KEYS) as (_, port),
        talking(port, path, additional_headers=headers) as talk,
    ):
        messages = await talk.ask("GENERATE", prompt=ONCE, max_tokens=1)

    assert messages[0][1]["finish_reason"] == "length"
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("router")]
    assert not any("sk-first" in line for line in lines)


async def test_without_a_key_it_stays_shut() -> None:
    async with served(FakeShard(), api_keys=KEYS) as (house, port):
        with pytest.raises(InvalidStatus) as raised:
            async with talking(port, "/lmtp?key=sk-other"):
                pass

    assert raised.value.response.status_code == 401
    assert raised.value.response.headers["www-authenticate"] == "Bearer, Basic"
    assert b"invalid_api_key" in raised.value.response.body
    assert house.rig.metrics.rejected.value("invalid_api_key") == 1


@pytest.mark.parametrize(
    ("origin", "status"), [("https://a.example", 101), ("https://b.example", 403)]
)
async def test_pages_of_other_origins_open_none(origin: str, status: int) -> None:
    opened = 0
    async with served(FakeShard(), allowed_origins=("https://a.example",)) as (_, port):
        try:
            async with talking(port, additional_headers={"origin": origin}):
                opened = 101
        except InvalidStatus as refused:
            opened = refused.response.status_code

    assert opened == status


async def test_a_connection_may_have_spoken_http_before() -> None:
    async with served(FakeShard()) as (_, port):
        reader, writer = await open_request(port, "GET", "/health", connection="keep-alive")
        first = await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"GET /lmtp HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
        )
        second = await reader.readuntil(b"\r\n\r\n")
        writer.close()

    assert first.startswith(b"HTTP/1.1 200 ")
    assert second.startswith(b"HTTP/1.1 101 ")
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in second


KEY = b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
VERSION = b"sec-websocket-version: 13"


BROKEN_HANDSHAKES: list[tuple[Any, ...]] = [
    (b"GET", [KEY], b"missing Sec-WebSocket-Version"),
    (b"GET", [VERSION], b"missing Sec-WebSocket-Key"),
    (b"GET", [KEY, b"sec-websocket-version: 12"], b"invalid Sec-WebSocket-Version header: 12"),
    (b"GET", [VERSION, b"sec-websocket-key: short"], b"invalid Sec-WebSocket-Key header"),
    (b"GET", [KEY, VERSION, b"content-length: 5"], b"request body"),
    (b"GET", [KEY, VERSION, b"transfer-encoding: chunked"], b"transfer codings"),
    (b"POST", [KEY, VERSION, b"content-length: 0"], b"unsupported HTTP method"),
]


async def test_a_broken_handshake_is_refused_with_the_reason() -> None:
    async with served(FakeShard()) as (_, port):
        for method, headers, words in BROKEN_HANDSHAKES:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            offer = (b"host: x", b"connection: Upgrade", b"upgrade: websocket", *headers)
            writer.write(b"%b /lmtp HTTP/1.1\r\n%b\r\n\r\n" % (method, b"\r\n".join(offer)))
            answer = await asyncio.wait_for(reader.read(), 30)
            writer.close()
            assert answer.startswith(b"HTTP/1.1 400 " if method == b"GET" else b"HTTP/1.1 405 ")
            assert words in answer


async def test_a_handshake_with_a_long_line_is_answered() -> None:
    async with served(FakeShard()) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        headers = (KEY, VERSION, b"cookie: " + b"x" * 9_000)
        offer = (b"host: x", b"connection: Upgrade", b"upgrade: websocket", *headers)
        writer.write(b"GET /lmtp HTTP/1.1\r\n%b\r\n\r\n" % b"\r\n".join(offer))
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()

    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_broken_handshake_behind_http_is_answered_in_http() -> None:
    async with served(FakeShard()) as (_, port):
        reader, writer = await open_request(port, "GET", "/health", connection="keep-alive")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"GET /lmtp HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-key: short\r\nsec-websocket-version: 13\r\n\r\n"
        )
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        writer.close()

    assert answer.startswith(b"HTTP/1.1 400 ")


async def test_a_key_that_is_no_ascii_is_a_wrong_one_like_any_other() -> None:
    async with served(FakeShard(), api_keys=KEYS) as (_, port):
        with pytest.raises(InvalidStatus) as raised:
            async with talking(port, "/lmtp?key=%c3%a9"):
                pass

    assert raised.value.response.status_code == 401


async def test_each_stream_and_each_socket_has_its_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="router.http.server.access")
    async with served(FakeShard()) as (house, port):
        async with talking(port, additional_headers={"x-request-id": "mine"}) as talk:
            await talk.ask("GENERATE", 1, prompt=ONCE, max_tokens=2)
            await talk.ask("GENERATE", 2, prompt=ONCE, max_tokens=0)
        while house.rig.metrics.sockets.value():
            await asyncio.sleep(0.01)

    lines = [record.__dict__ for record in caplog.records]
    fields = [(line["method"], line["request_id"], line.get("error_type")) for line in lines]
    assert fields == [
        ("GENERATE", "mine/1", None),
        ("GENERATE", "mine/2", "validation"),
        ("SOCKET", "mine", None),
    ]
    assert lines[0]["num_generated_tokens"] == 2
    assert (lines[2]["num_streams"], lines[2]["close_code"]) == (2, 1000)
    assert house.rig.metrics.socket_closes.value("1000") == 1


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


async def test_a_socket_is_closed_behind_the_last_messages_of_its_streams() -> None:
    shard = FakeShard(script=letters)
    shard.faults.delay_s = 0.02
    async with served(shard) as (house, port), talking(port) as talk:
        await talk.hello()
        await talk.send("GENERATE", stream_id=1, text="Hello", max_tokens=8)
        await talk.hear()
        closing = asyncio.create_task(house.sockets.close())
        while (end := await talk.hear())[0] != "DONE":
            pass
        assert await talk.closed() == (1001, "the server stops")
        await closing
    assert end[1]["finish_reason"] == "length"


@pytest.mark.nightly
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


@pytest.mark.nightly
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


async def test_a_server_that_stops_at_once_closes_its_sockets_with_a_reason() -> None:
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
