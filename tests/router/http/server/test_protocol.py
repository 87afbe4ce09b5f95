"""Connections: HTTP/1.1 as it is sent, slow readers and senders, many at once."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from time import monotonic
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from router.http.server.protocol import (
    CUT_CAUSES,
    HIGH_LEN,
    KEPT_BACK,
    MAX_URL_LEN,
    MAX_WAITING,
    ConnectionLimits,
    HttpProtocol,
)
from router.telemetry.metrics import CUTS
from tests.fake_script import letters
from tests.fakes import FakeShard
from tests.router.http.harness import housing, listening, open_request, record
from tests.router.http.server.connection import (
    GET,
    PATIENCE_S,
    QUICK,
    endless,
    error_of,
    hello,
    noted,
    rules,
    say,
)
from tests.router.rig import settled, until


async def test_a_url_has_a_longest_length() -> None:
    async with hello() as port:
        answer = await say(port, b"GET /v1/%b HTTP/1.1\r\n\r\n" % (b"x" * MAX_URL_LEN))
        fits = await say(
            port,
            b"GET /%b HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
            % (b"x" * (MAX_URL_LEN - 1)),
        )

    error = error_of(answer, 414)["error"]
    assert isinstance(error, dict)
    assert error["code"] == "uri_too_long"
    assert f"{MAX_URL_LEN} bytes" in error["message"]
    assert fits.startswith(b"HTTP/1.1 200 ")


LONG_HEADS: list[Any] = [
    [GET + b"a: %b\r\n\r\n" % (b"x" * 4096)],
    [GET + (b"a: %b\r\n" % (b"x" * 500)) * 9 + b"\r\n"],
    [GET + b"a: ", *[b"x" * 1000] * 9],
    [b"\r\n" * 3000],
    [b"GET /" + b"x" * 100, *[b"x" * 50_000] * 3],
]


async def test_headers_have_a_largest_length() -> None:
    async with hello(ConnectionLimits(max_head_len=4096, head_timeout_s=5.0)) as port:
        for parts in LONG_HEADS:
            answer = await say(port, *parts, pause_s=0.005)
            assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 414 "))


LONG_FRAMING: list[Any] = [
    b"0\r\na: " + b"x" * 300_000,
    b"0\r\n" + b"a: b\r\n" * 6000,
    b"5;" + b"x" * 300_000,
]


async def test_framing_without_a_body_has_a_largest_length_too() -> None:
    async with hello() as port:
        for framing in LONG_FRAMING:
            answer = await say(port, GET + b"transfer-encoding: chunked\r\n\r\n" + framing)
            assert error_of(answer, 431)["error_type"] == "headers_too_large"


async def test_small_chunks_are_no_abuse() -> None:
    async with hello() as port:
        answer = await exchange_chunks(port, [b"x"] * 20_000)

    assert answer.endswith(b"\r\n\r\n20000")


async def exchange_chunks(port: int, chunks: list[bytes]) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    head = GET + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    return await say(port, head + body)


async def test_a_request_may_come_in_pieces_of_any_kind() -> None:
    request = GET + b"connection: upgrade\r\nupgrade: h2c\r\ntransfer-encoding: chunked\r\n\r\n"
    request += b"3\r\nabc\r\n2;a=b\r\nde\r\n0\r\nx: y\r\n\r\n" + GET + b"connection: close\r\n\r\n"
    async with hello() as port:
        answers = [await say(port, request[:cut], request[cut:]) for cut in range(len(request))]
        bytewise = await say(port, *(bytes([byte]) for byte in request))

    for answer in (*answers, bytewise):
        assert answer.count(b"HTTP/1.1 200 ") == 2
        assert b"\r\n\r\n5HTTP/1.1 " in answer


async def test_trailers_are_no_headers() -> None:
    async with housing(FakeShard(), api_keys=["k"]) as house, listening(house.app) as port:
        head = b"POST /tokenize HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        head += b"connection: close\r\ntransfer-encoding: chunked\r\n"
        key = b"authorization: Bearer k\r\n"
        body = b'10\r\n{"inputs": "ab"}\r\n0\r\n'
        behind = await say(port, head + b"\r\n" + body + key + b"\r\n")
        before = await say(port, head + key + b"\r\n" + body + b"\r\n")

    assert behind.startswith(b"HTTP/1.1 401 ")
    assert before.startswith(b"HTTP/1.1 200 ")


async def test_so_many_requests_may_wait_for_their_turn() -> None:
    last = GET + b"connection: close\r\n\r\n"
    async with hello() as port:
        fits = await say(port, (GET + b"\r\n") * MAX_WAITING + last)
        more = await say(port, (GET + b"\r\n") * 1000)

    assert fits.count(b"HTTP/1.1 200 ") == MAX_WAITING + 1
    assert more.count(b"HTTP/1.1 ") == more.count(b"HTTP/1.1 200 ") == 1
    assert more.endswith(b"\r\n\r\n0")


OLD_STREAMS: list[tuple[str, bytes]] = [
    ("/generate_stream", b'{"inputs": "ab", "parameters": {"max_new_tokens": 3}}'),
    ("/v1/completions", b'{"prompt": "ab", "max_tokens": 3, "stream": true}'),
    ("/v1/responses", b'{"input": "ab", "max_output_tokens": 3, "stream": true}'),
]


async def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    async with housing(FakeShard(script=letters)) as house, listening(house.app) as port:
        for path, body in OLD_STREAMS:
            head = b"POST %b HTTP/1.0\r\ncontent-type: application/json\r\n" % path.encode()
            head += b"connection: keep-alive\r\ncontent-length: %d\r\n\r\n" % len(body)
            answer_head, _, answer = (await say(port, head + body)).partition(b"\r\n\r\n")

            assert answer_head.startswith(b"HTTP/1.1 200 ")
            assert b"transfer-encoding" not in answer_head
            assert b"connection: close" in answer_head
            assert answer.startswith((b"data:", b"event: ")), answer
            assert answer.endswith(b"\n\n")
        whole = await say(port, b"GET /info HTTP/1.0\r\n\r\n")
        probe = await say(port, b"HEAD /health HTTP/1.0\r\n\r\n")

    assert b"content-length: " in whole
    assert probe.endswith(b"\r\n\r\n")


async def test_a_body_behind_its_answer_does_not_keep_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.http.server.listen._KEEP_ALIVE_S", QUICK)
    async with housing(FakeShard()) as house, listening(house.app, rules()) as port:
        began_s = monotonic()
        head = b"GET /health HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n"
        answer = await say(port, head, b"hello", pause_s=0.1)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert QUICK <= monotonic() - began_s < PATIENCE_S


async def test_a_body_without_end_behind_its_answer_is_not_read_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.http.server.protocol.MAX_DROPPED_LEN", 100_000)
    monkeypatch.setattr("router.http.server.protocol.LINGER_S", 0.1)
    async with housing(FakeShard(), api_keys=["k"]) as house, listening(house.app) as port:
        head = b"POST /generate HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        chunk = b"4e20\r\n%b\r\n" % (b" " * 20_000)
        answer = await say(port, head, *[chunk] * 200, pause_s=0.02)

    assert error_of(answer, 401)["error_type"] == "invalid_api_key"


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"])
async def test_an_answer_before_a_body_was_asked_for_is_the_last(sent: bytes) -> None:
    async with housing(FakeShard(), api_keys=["k"]) as house, listening(house.app) as port:
        head = b"POST /generate HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n"
        answer = await say(port, head + b"expect: 100-continue\r\n\r\n", sent, pause_s=0.1)

    assert answer.startswith(b"HTTP/1.1 401 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"\r\nconnection: close\r\n" in answer


async def test_a_body_that_was_not_waited_with_is_read() -> None:
    async with hello() as port:
        head = GET + b"content-length: 5\r\nexpect: 100-continue\r\n\r\n"
        waited = await say(port, head, b"hello", pause_s=0.1)
        at_once = await say(port, head + b"hello")

    for answer in (waited, at_once):
        assert answer.startswith(b"HTTP/1.1 100 ")
        assert b"\r\nconnection: close\r\n" in answer
        assert answer.endswith(b"\r\n\r\n5")


async def test_a_refusal_reaches_a_client_that_still_writes() -> None:
    async with hello() as port:
        answer = await say(port, GET + b"a: ", *[b"x" * 100_000] * 50)

    assert error_of(answer, 431)["error_type"] == "headers_too_large"


async def test_garbage_behind_a_request_does_not_get_into_its_answer() -> None:
    async with housing(FakeShard(script=letters)) as house, listening(house.app) as port:
        house.shard.faults.delay_s = 0.005
        body = b'{"inputs": "hello", "parameters": {"max_new_tokens": 50}}'
        head = b"POST /generate_stream HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        head += b"content-length: %d\r\n\r\n" % len(body)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + body)
        answer = await asyncio.wait_for(reader.readuntil(b"data: "), PATIENCE_S)
        writer.write(b"\x00garbage\r\n\r\n")
        answer += await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
        await settled(house.rig)

    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"data: {") == 50
    assert answer.endswith(b"0\r\n\r\n")


GARBAGE: list[Any] = [
    b"}}\r\n",
    GET + b"content-length: x\r\n\r\n",
    GET + b"transfer-encoding: chunked\r\n\r\nz\r\n",
    GET + b"a: %b\r\n\r\n" % (b"x" * 40_000),
]


async def test_an_answer_before_garbage_is_the_last() -> None:
    async with hello() as port:
        for garbage in GARBAGE:
            good = GET + b"content-length: 4\r\n\r\nabcd"
            answer = await say(port, good + garbage)
            assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 200 ") == 1
            assert answer.endswith(b"\r\n\r\n4")


@pytest.mark.parametrize(
    "offer",
    [
        pytest.param(
            b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAA\r\n",
            id="h2c",
        ),
        pytest.param(b"connection: keep-alive, upgrade\r\nupgrade: a, b\r\n", id="others"),
    ],
)
@pytest.mark.parametrize("pause_s", [0.0, 0.05])
async def test_an_offer_of_another_protocol_is_passed_over(offer: bytes, pause_s: float) -> None:
    last = GET + b"connection: close\r\n\r\n"
    async with hello() as port:
        answer = await say(
            port,
            GET + offer + b"content-length: 10\r\n\r\n",
            b"hello",
            b"hello",
            last,
            pause_s=pause_s,
        )
        chunked = await say(
            port,
            GET + offer + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            GET + offer + b"\r\n",
            last,
            pause_s=pause_s,
        )

    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert b"\r\n\r\n10HTTP/1.1 " in answer
    assert chunked.count(b"HTTP/1.1 200 ") == 3
    assert b"\r\n\r\n3HTTP/1.1 " in chunked


async def test_no_tunnel_is_opened() -> None:
    async with hello() as port:
        for target in (b"a:443", b"/", b"http://a/"):
            answer = await say(port, b"CONNECT " + target + b" HTTP/1.1\r\nhost: a\r\n\r\n")
            assert error_of(answer, 400)["error_type"] == "bad_request"


NO_REQUESTS: list[tuple[Any, ...]] = [
    (b"FOO / HTTP/1.1", "Invalid method"),
    (b"GET / HTTP/3.7", "Invalid HTTP version"),
    (b"POST / HTTP/1.1\r\ncontent-length: -5", "Content-Length"),
    (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2", "Content-Length"),
    (
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 2",
        "Transfer-Encoding",
    ),
    (b"GET / HTTP/1.1\r\na b: c", "header"),
]


async def test_what_is_no_request_is_refused_with_the_reason() -> None:
    async with hello() as port:
        for head, reason in NO_REQUESTS:
            answer = await say(port, head + b"\r\n\r\n")
            error = str(error_of(answer, 400)["error"])
            assert error.startswith("this is no HTTP request: ")
            assert reason in error


async def test_a_request_names_one_host() -> None:
    async with hello() as port:
        for hosts in (b"", b"host: a\r\nhost: b\r\n", b"host: a\r\nhost: a\r\n"):
            for version in (b"1.1", b"1.0"):
                head = b"GET / HTTP/%b\r\n%bconnection: close\r\n\r\n" % (version, hosts)
                answer = await say(port, head)
                if version == b"1.0" and not hosts:
                    assert answer.startswith(b"HTTP/1.1 200 ")
                else:
                    assert "one Host header" in str(error_of(answer, 400)["error"])


CODED_HEADS: list[Any] = [
    b"HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked",
    b"HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip",
    b"HTTP/1.1\r\nhost: a\r\ntransfer-encoding: identity",
    b"HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked",
]


async def test_no_transfer_encoding_but_chunked_is_read() -> None:
    async with hello() as port:
        for head in CODED_HEADS:
            answer = await say(port, b"POST / " + head + b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
            assert "Transfer-Encoding must be" in str(error_of(answer, 400)["error"])


class SlowReader:
    """A client with hardly any buffer, which reads on demand."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setblocking(False)

    def say(self, words: bytes) -> None:
        self._socket.sendall(words)

    def read(self, most: int) -> int:
        """Bytes that were there, up to `most`."""
        try:
            return len(self._socket.recv(most))
        except BlockingIOError:
            return 0

    def close(self) -> None:
        self._socket.close()


async def until_cut(limits: ConnectionLimits, number: int = 1) -> float:
    """Seconds until so many readers were cut."""
    began_s = monotonic()
    while limits.cuts.value("slow_reader") < number:
        assert monotonic() - began_s < PATIENCE_S, "nobody was cut"
        await asyncio.sleep(0.01)
    return monotonic() - began_s


@pytest.mark.parametrize(("declares", "reads"), [(False, 0), (True, 1)])
async def test_a_reader_of_nothing_or_next_to_nothing_is_cut(declares: bool, reads: int) -> None:
    limits = rules()
    async with listening(endless(10_000_000, declares=declares), limits) as port:
        reader = SlowReader(port)
        reader.say(GET + b"\r\n")
        cutting = asyncio.ensure_future(until_cut(limits))
        while not cutting.done():
            if reads:
                reader.read(reads)
            await asyncio.sleep(0.01)
        reader.close()

    assert QUICK <= await cutting < PATIENCE_S
    assert limits.cuts.value("slow_reader") == 1


async def test_the_rest_of_a_complete_answer_must_go_too() -> None:
    # More than the kernel takes, less than makes the server wait.
    answering = endless(32_000, declares=True)
    completed = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answering(scope, receive, send)
        completed.set()

    limits = rules()
    async with listening(app, limits) as port:
        reader = SlowReader(port)
        reader.say(GET + b"connection: close\r\n\r\n")
        await asyncio.wait_for(completed.wait(), PATIENCE_S)
        assert limits.cuts.value("slow_reader") == 0
        await until_cut(limits)
        reader.close()

    assert limits.cuts.value("slow_reader") == 1


async def test_what_is_left_of_an_answer_counts_as_part_of_the_next() -> None:
    limits = rules()
    is_first = True
    second = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            await endless(32_000, declares=True)(scope, receive, send)
        else:
            await second.wait()
            await endless(100, declares=True)(scope, receive, send)

    async with listening(app, limits) as port:
        reader = SlowReader(port)
        reader.say((GET + b"\r\n") * 2)
        await asyncio.sleep(2 * QUICK)
        assert limits.cuts.value("slow_reader") == 0
        second.set()
        await until_cut(limits)
        reader.close()


@pytest.mark.parametrize("declares", [False, True])
async def test_who_reads_slowly_but_reads_gets_all(declares: bool) -> None:
    # Longer than a busy machine keeps a reader from reading.
    limits = rules(write_timeout_s=1.0)
    total_len = 300_000
    read_len = 0
    async with listening(endless(total_len, declares=declares), limits) as port:
        reader = SlowReader(port)
        reader.say(GET + b"connection: close\r\n\r\n")
        began_s = monotonic()
        while read_len < total_len:
            # Some 200 KB in each second, more than the rule asks for.
            read_len += reader.read(10_000)
            await asyncio.sleep(0.05)
            assert monotonic() - began_s < PATIENCE_S
        reader.close()

    assert monotonic() - began_s > 2 * limits.write_timeout_s
    assert limits.cuts.value("slow_reader") == 0


async def test_a_cut_stream_ends_its_generation_and_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="router.http")
    shard = FakeShard(script=letters, num_blocks=256)
    shard.faults.delay_s = 0.02
    limits = rules()
    async with housing(shard) as house, listening(house.app, limits) as port:
        reader = SlowReader(port)
        body = b'{"messages": [{"role": "user", "content": "hello"}], "n": 4, "stream": true,'
        body += b'"max_tokens": 100, "logprobs": true, "top_logprobs": 5}'
        reader.say(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            b"x-request-id: mine\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        await until_cut(limits)
        await settled(house.rig)
        reader.close()

        assert sum(method == "Decode" for method, _ in shard.calls) < 90
        assert shard.num_held == 0
        assert house.rig.metrics.request_failure.value("slow_reader") == 1
    lines = [record.getMessage() for record in caplog.records]
    assert any("mine" in line and "bytes untaken" in line for line in lines)
    access = [
        vars(record) for record in caplog.records if record.name == "router.http.server.access"
    ]
    assert [line["error_type"] for line in access] == ["slow_reader"]


async def test_what_waits_for_a_reader_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    protocols = noted(monkeypatch)
    limits = rules(write_timeout_s=2 * QUICK)
    largest = 0
    async with listening(endless(10_000_000), limits) as port:
        readers = [SlowReader(port) for _ in range(20)]
        for reader in readers:
            reader.say(GET + b"\r\n")
        for _ in range(50):
            sizes = [one.transport.get_write_buffer_size() for one in protocols]
            largest = max([largest, *sizes])
            await asyncio.sleep(0.01)
        await until_cut(limits, 20)
        await until(lambda: num_open(protocols) == 0)
        for reader in readers:
            reader.close()

    assert len(protocols) == 20
    assert HIGH_LEN < largest <= HIGH_LEN + 1000


async def test_a_client_that_reads_later_loses_nothing() -> None:
    async with listening(endless(3_000_000), rules(write_timeout_s=5.0)) as port:
        reader, writer = await open_request(port, "GET", "/")
        await asyncio.sleep(QUICK)
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()

    assert answer.count(b"x") == 3_000_000


async def test_a_large_answer_goes_out_whole_and_with_its_length() -> None:
    async with listening(endless(1_000_003, declares=True)) as port:
        answer = await record(port, "GET", "/")

    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-length: 1000003\r\n" in head + b"\r\n"
    assert body == b"x" * 1_000_003


def test_the_causes_are_those_of_the_metric() -> None:
    assert CUT_CAUSES == CUTS


async def test_a_connection_that_is_never_used_is_closed_in_silence() -> None:
    limits = rules()
    async with hello(limits) as port:
        began_s = monotonic()
        assert await say(port, b"") == b""

    assert QUICK <= monotonic() - began_s < PATIENCE_S
    assert limits.cuts.value("slow_head") == 0


async def test_a_second_request_that_never_ends_is_answered() -> None:
    limits = rules()
    async with hello(limits) as port:
        answer = await say(port, GET + b"\r\n" + GET + b"a: b")

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"\r\n\r\n0HTTP/1.1 408 " in answer
    assert limits.cuts.value("slow_head") == 1


async def test_headers_that_come_a_byte_now_and_then_are_cut_short() -> None:
    limits = rules()
    async with hello(limits) as port:
        began_s = monotonic()
        answer = await say(port, GET + b"a: ", *[b"x"] * 200, pause_s=0.02)
        took_s = monotonic() - began_s

    error = error_of(answer, 408)
    assert error == {"error": "the headers did not come within 0.3 s", "error_type": "slow_sender"}
    assert QUICK <= took_s < PATIENCE_S
    assert limits.cuts.value("slow_head") == 1


async def test_empty_lines_do_not_keep_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.http.server.listen._KEEP_ALIVE_S", QUICK)
    async with hello() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET + b"\r\n")
        await reader.readuntil(b"\r\n\r\n0")
        answer = asyncio.ensure_future(asyncio.wait_for(reader.read(), PATIENCE_S))
        while not answer.done():
            writer.write(b"\r\n")
            await asyncio.sleep(0.02)
        writer.close()
        # An empty line may meet a connection that is closed already.
        with suppress(ConnectionResetError):
            assert await answer == b""


@pytest.mark.parametrize("path", ["/generate", "/v1/messages"])
async def test_a_body_that_comes_too_slowly_is_a_408_in_the_paths_dialect(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="router.http.server.access")
    async with housing(FakeShard(), body_timeout_s=QUICK) as house, listening(house.app) as port:
        head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        head += "x-request-id: mine\r\ncontent-length: 1000\r\n\r\n"
        answer = await say(port, head.encode(), *[b" "] * 200, pause_s=0.02)

    error = error_of(answer, 408)
    assert b"x-request-id: mine\r\n" in answer
    message = error["error"]["message"] if isinstance(error["error"], dict) else error["error"]
    assert message == "less than 16384 bytes of the body came within 0.3 s"
    assert b"\r\nconnection: close\r\n" in answer
    assert house.rig.metrics.connections_cut.value("slow_body") == 1
    # Loops of tests before this one may log that they are closed.
    (record,) = [each for each in caplog.records if each.name == "router.http.server.access"]
    line = vars(record)
    assert (line["status"], line["error_type"], line["request_id"]) == (408, "slow_sender", "mine")


async def test_a_body_that_is_too_large_and_keeps_coming_is_not_read_for_ever() -> None:
    house = housing(FakeShard(), body_timeout_s=QUICK, max_body_len=5000)
    async with house as built, listening(built.app) as port:
        began_s = monotonic()
        head = b"POST /generate HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"transfer-encoding: chunked\r\n\r\n")
        answer = asyncio.ensure_future(reader.readuntil(b"payload_too_large"))
        while not answer.done() and monotonic() - began_s < PATIENCE_S:
            writer.write(b"4e20\r\n%b\r\n" % (b" " * 20_000))
            await asyncio.sleep(0.02)
        writer.close()

    assert (await answer).startswith(b"HTTP/1.1 413 ")
    assert QUICK <= monotonic() - began_s < PATIENCE_S / 2


async def test_a_body_that_keeps_coming_may_take_its_time() -> None:
    house = housing(FakeShard(), body_timeout_s=1.0, max_body_len=300_000)
    async with house as built, listening(built.app) as port:
        head = b"POST /tokenize HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        head += b"connection: close\r\ncontent-length: 160016\r\n\r\n"
        parts = (b'{"inputs": "ab"', *[b" " * 20_000] * 8, b"}")
        answer = await say(port, head, *parts, pause_s=0.2)

    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_the_next_request_may_wait_for_a_long_answer() -> None:
    shard = FakeShard(script=letters)
    shard.faults.delay_s = 0.015
    async with housing(shard) as house, listening(house.app, rules()) as port:
        body = b'{"inputs": "hello", "parameters": {"max_new_tokens": 50}}'
        head = b"POST /generate_stream HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        head += b"content-length: %d\r\n\r\n" % len(body)
        answer = await say(port, head + body, GET, b"connection: close\r\n\r\n", pause_s=0.35)

    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert answer.count(b"data: ") == 50


LIMITS = ConnectionLimits(max_connections=3)


@asynccontextmanager
async def idle(
    port: int, num_connections: int, protocols: list[HttpProtocol]
) -> AsyncIterator[None]:
    """So many connections on which nothing is asked, until the server has noticed their end."""
    async with AsyncExitStack() as closing:
        for _ in range(num_connections):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            closing.callback(writer.close)
        await until(lambda: num_open(protocols) == num_connections)
        yield
    await until(lambda: num_open(protocols) == 0)


def num_open(protocols: list[HttpProtocol]) -> int:
    return sum(one in one.connections for one in protocols)


async def test_beyond_the_limit_only_probes_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    protocols = noted(monkeypatch)
    limits = ConnectionLimits(max_connections=3)
    async with housing(FakeShard()) as house, listening(house.app, limits) as port:
        async with idle(port, 2, protocols):
            last = await record(port, "GET", "/info")
        async with idle(port, 3, protocols):
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


async def test_what_is_kept_back_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    protocols = noted(monkeypatch)
    async with (
        housing(FakeShard()) as house,
        listening(house.app, LIMITS) as port,
        idle(port, 3 + KEPT_BACK, protocols),
    ):
        try:
            answer = await record(port, "GET", "/health")
        except ConnectionResetError:
            answer = b""

    assert answer == b""
