"""One connection over real sockets: limits on what is sent, slow senders, slow readers."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from router.http.outflow import HIGH_LEN, PIECE_LEN
from router.http.protocol import MAX_WAITING, ConnectionRules, Protocol
from router.http.request_size import MAX_NUM_HEADERS, MAX_URL_LEN
from tests.fakes import FakeShard, letters
from tests.router.http.harness import exchange, housing, listening, open_request
from tests.router.rig import settled

QUICK = 0.3
PATIENCE_S = 10.0
GET = b"GET /info HTTP/1.1\r\nhost: a\r\n"


def rules(**changes: float) -> ConnectionRules:
    """Short patience, so that tests are."""
    values = {"head_timeout_s": QUICK, "body_timeout_s": QUICK, "write_timeout_s": QUICK}
    return ConnectionRules(**(values | changes))  # type: ignore[arg-type]


async def say(port: int, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """All that is answered to these bytes, sent with pauses, until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.ensure_future(asyncio.wait_for(reader.read(), PATIENCE_S))
    for part in parts:
        if answer.done() or writer.is_closing():
            break
        writer.write(part)
        await asyncio.sleep(pause_s)
    try:
        return await answer
    finally:
        writer.close()


def error_of(answer: bytes, status: int) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert b"content-type: application/json" in head
    assert b"x-request-id: " in head
    error = json.loads(body)
    assert isinstance(error, dict)
    return error


@asynccontextmanager
async def hello(limits: ConnectionRules | None = None) -> AsyncIterator[int]:
    """A server that reads a body and says how long it was."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body_len, more_body = 0, True
        while more_body:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body_len += len(message["body"])
            more_body = message["more_body"]
        body = str(body_len).encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with listening(app, limits or rules()) as port:
        yield port


def noted(monkeypatch: pytest.MonkeyPatch) -> list[Protocol]:
    """The connections that will be made."""
    protocols: list[Protocol] = []
    made = Protocol.connection_made

    def note(self: Protocol, transport: asyncio.Transport) -> None:
        protocols.append(self)
        made(self, transport)

    monkeypatch.setattr(Protocol, "connection_made", note)
    return protocols


async def test_a_url_has_a_longest_length() -> None:
    async with hello() as port:
        answer = await say(port, b"GET /v1/%b HTTP/1.1\r\n\r\n" % (b"x" * MAX_URL_LEN))
        fits = await say(
            port, b"GET /%b HTTP/1.1\r\nconnection: close\r\n\r\n" % (b"x" * (MAX_URL_LEN - 1))
        )

    error = error_of(answer, 414)["error"]
    assert isinstance(error, dict)
    assert error["code"] == "uri_too_long"
    assert f"{MAX_URL_LEN} bytes" in error["message"]
    assert fits.startswith(b"HTTP/1.1 200 ")


async def test_headers_have_a_largest_number() -> None:
    async with hello() as port:
        answer = await say(port, GET + b"a: b\r\n" * MAX_NUM_HEADERS + b"\r\n")
        fits = await say(
            port, GET + b"a: b\r\n" * (MAX_NUM_HEADERS - 2) + b"connection: close\r\n\r\n"
        )

    error = error_of(answer, 431)
    assert error == {
        "error": f"there are more than {MAX_NUM_HEADERS} headers",
        "error_type": "headers_too_large",
    }
    assert fits.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([GET + b"a: %b\r\n\r\n" % (b"x" * 4096)], id="one-long"),
        pytest.param([GET + (b"a: %b\r\n" % (b"x" * 500)) * 9 + b"\r\n"], id="many"),
        pytest.param([GET + b"a: ", *[b"x" * 1000] * 9], id="without-end"),
        pytest.param([b"\r\n" * 3000], id="empty-lines"),
        pytest.param([b"GET /" + b"x" * 100, *[b"x" * 50_000] * 3], id="a-method-and-a-flood"),
    ],
)
async def test_headers_have_a_largest_length(parts: list[bytes]) -> None:
    async with hello(ConnectionRules(max_head_len=4096, head_timeout_s=5.0)) as port:
        answer = await say(port, *parts, pause_s=0.005)

    assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 414 "))


@pytest.mark.parametrize(
    "framing",
    [
        pytest.param(b"0\r\na: " + b"x" * 300_000, id="a-trailer-without-end"),
        pytest.param(b"0\r\n" + b"a: b\r\n" * 200, id="trailers"),
        pytest.param(b"5;" + b"x" * 300_000, id="a-chunk-extension"),
    ],
)
async def test_framing_without_a_body_has_a_largest_length_too(framing: bytes) -> None:
    async with hello() as port:
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
        key, body = b"authorization: Bearer k\r\n", b'10\r\n{"inputs": "ab"}\r\n0\r\n'
        behind = await say(port, head + b"\r\n" + body + key + b"\r\n")
        before = await say(port, head + key + b"\r\n" + body + b"\r\n")

    assert behind.startswith(b"HTTP/1.1 401 ")
    assert before.startswith(b"HTTP/1.1 200 ")


async def test_so_many_requests_may_wait_for_their_turn() -> None:
    async with hello() as port:
        answer = await say(port, (GET + b"\r\n") * 1000)
        offer = GET + b"connection: upgrade\r\nupgrade: a\r\n\r\n"
        offered = await say(port, offer * 1000)

    for answered in (answer, offered):
        assert answered.count(b"HTTP/1.1 ") == MAX_WAITING + 1
        assert answered.endswith(b"\r\n\r\n0")


async def test_who_has_asked_for_more_may_still_leave() -> None:
    shard = FakeShard(script=letters)
    shard.faults.delay_s = 0.02
    async with housing(shard) as house, listening(house.app) as port:
        body = b'{"inputs": "hello", "parameters": {"max_new_tokens": 100}}'
        _, writer = await open_request(port, "POST", "/generate", body, connection="keep-alive")
        while not house.rig.batcher.num_streams:
            await asyncio.sleep(0.01)
        writer.write((GET + b"\r\n") * 3)
        await asyncio.sleep(0.1)
        writer.transport.abort()
        await settled(house.rig)

    assert sum(method == "Decode" for method, _ in shard.calls) < 50


async def test_bodies_that_wait_for_their_turn_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    protocols, may_answer = noted(monkeypatch), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await may_answer.wait()
        await endless(1, declares=True)(scope, receive, send)

    async with listening(app) as port:
        one = GET + b"content-length: 50000\r\n\r\n" + b"x" * 50_000
        last = GET + b"connection: close\r\n\r\n"
        answering = asyncio.ensure_future(say(port, one * 60 + last))
        await asyncio.sleep(0.5)
        (protocol,) = protocols
        waiting_len = sum(len(cycle.body) for cycle, _ in protocol.pipeline)
        may_answer.set()
        answer = await answering

    assert waiting_len < 500_000
    assert answer.count(b"HTTP/1.1 200 ") == 61


async def test_a_body_behind_its_answer_does_not_keep_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("router.listening._KEEP_ALIVE_S", QUICK)
    async with housing(FakeShard()) as house, listening(house.app, rules()) as port:
        began_s = monotonic()
        head = b"GET /health HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\n"
        answer = await say(port, head, b"hello", pause_s=0.1)

    assert answer.startswith(b"HTTP/1.1 200 ")
    assert QUICK <= monotonic() - began_s < 10 * QUICK


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
        waited = await say(port, head, b"hello" + GET + b"connection: close\r\n\r\n", pause_s=0.1)
        at_once = await say(port, head + b"hello" + GET + b"connection: close\r\n\r\n")

    for answer in (waited, at_once):
        assert answer.count(b"HTTP/1.1 200 ") == 2
        assert answer.count(b"HTTP/1.1 100 ") == 1


async def test_a_refusal_reaches_a_client_that_still_writes() -> None:
    async with hello() as port:
        answer = await say(port, GET + b"a: ", *[b"x" * 100_000] * 50)

    assert error_of(answer, 431)["error_type"] == "headers_too_large"


async def test_garbage_behind_a_request_does_not_get_into_its_answer() -> None:
    async with housing(FakeShard(script=letters)) as house, listening(house.app) as port:
        house.shard.faults.delay_s = 0.02
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


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"}}\r\n", id="a-body-longer-than-its-length"),
        pytest.param(GET + b"content-length: x\r\n\r\n", id="a-bad-header"),
        pytest.param(GET + b"transfer-encoding: chunked\r\n\r\nz\r\n", id="a-bad-chunk"),
        pytest.param(GET + b"a: %b\r\n\r\n" % (b"x" * 40_000), id="a-header-too-long"),
    ],
)
@pytest.mark.parametrize("num_good", [1, 3])
async def test_what_comes_before_garbage_is_answered(garbage: bytes, num_good: int) -> None:
    async with hello() as port:
        good = GET + b"content-length: 4\r\n\r\nabcd"
        answer = await say(port, good * num_good + garbage)

    assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 200 ") == num_good
    assert answer.endswith(b"\r\n\r\n4")


@pytest.mark.parametrize(
    "offer",
    [
        pytest.param(
            b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAA\r\n",
            id="h2c",
        ),
        pytest.param(b"upgrade: websocket\r\nconnection: upgrade\r\n", id="websocket"),
        pytest.param(b"connection: keep-alive, upgrade\r\nupgrade: a, b\r\n", id="others"),
    ],
)
@pytest.mark.parametrize("pause_s", [0.0, 0.05])
async def test_an_offer_of_another_protocol_is_passed_over(offer: bytes, pause_s: float) -> None:
    last = GET + b"connection: close\r\n\r\n"
    async with hello() as port:
        answer = await say(
            *(port, GET + offer + b"content-length: 10\r\n\r\n", b"hello", b"hello", last),
            pause_s=pause_s,
        )
        chunked = await say(
            *(port, GET + offer + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
            *(GET + offer + b"\r\n", last),
            pause_s=pause_s,
        )

    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert b"\r\n\r\n10HTTP/1.1 " in answer
    assert chunked.count(b"HTTP/1.1 200 ") == 3
    assert b"\r\n\r\n3HTTP/1.1 " in chunked


@pytest.mark.parametrize("target", [b"a:443", b"/", b"http://a/"])
async def test_no_tunnel_is_opened(target: bytes) -> None:
    async with hello() as port:
        answer = await say(port, b"CONNECT " + target + b" HTTP/1.1\r\nhost: a\r\n\r\n")

    assert error_of(answer, 400)["error_type"] == "bad_request"


async def test_a_connection_that_is_never_used_is_closed_in_silence() -> None:
    limits = rules()
    async with hello(limits) as port:
        began_s = monotonic()
        assert await say(port, b"") == b""

    assert QUICK <= monotonic() - began_s < 10 * QUICK
    assert limits.cuts.value("slow_head") == 0


async def test_a_second_request_that_never_ends_is_told() -> None:
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
    assert QUICK <= took_s < 10 * QUICK
    assert limits.cuts.value("slow_head") == 1


async def test_empty_lines_do_not_keep_a_connection() -> None:
    async with hello() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET + b"\r\n")
        await reader.readuntil(b"\r\n\r\n0")
        answer = asyncio.ensure_future(asyncio.wait_for(reader.read(), PATIENCE_S))
        while not answer.done():
            writer.write(b"\r\n")
            await asyncio.sleep(0.02)
        writer.close()

    assert (await answer).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/messages"])
async def test_a_body_that_comes_too_slowly_is_a_408_in_the_paths_dialect(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="router.http.access")
    limits = rules()
    async with housing(FakeShard()) as house, listening(house.app, limits) as port:
        head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        head += "x-request-id: mine\r\ncontent-length: 1000\r\n\r\n"
        answer = await say(port, head.encode(), *[b" "] * 200, pause_s=0.02)

    error = error_of(answer, 408)
    assert b"x-request-id: mine\r\n" in answer
    message = error["error"]["message"] if isinstance(error["error"], dict) else error["error"]
    assert message == "less than 16384 bytes of the body came within 0.3 s"
    assert limits.cuts.value("slow_body") == 1
    (record,) = caplog.records
    told = vars(record)
    assert (told["status"], told["error_type"], told["request_id"]) == (408, "slow_sender", "mine")


async def test_a_body_that_keeps_coming_may_take_its_time() -> None:
    parts = [b"x" * 10_000] * 12
    async with hello() as port:
        head = GET + b"connection: close\r\ncontent-length: 120000\r\n\r\n"
        answer = await say(port, head, *parts, pause_s=0.1)

    assert answer.endswith(b"\r\n\r\n120000")


async def test_the_next_request_may_wait_for_a_long_answer() -> None:
    shard = FakeShard(script=letters)
    shard.faults.delay_s = 0.02
    async with housing(shard) as house, listening(house.app, rules()) as port:
        body = b'{"inputs": "hello", "parameters": {"max_new_tokens": 50}}'
        head = b"POST /generate_stream HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        head += b"content-length: %d\r\n\r\n" % len(body)
        answer = await say(port, head + body, GET, b"connection: close\r\n\r\n", pause_s=0.5)

    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert answer.count(b"data: ") == 50


class SlowReader:
    """A client with hardly any buffer, which reads when told to."""

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


def endless(total_len: int, *, declares: bool = False, piece_len: int = 500) -> ASGIApp:
    """Answers so many bytes: at once with their length, or piece by piece."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        headers = [(b"content-length", b"%d" % total_len)] if declares else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if declares:
            await send({"type": "http.response.body", "body": b"x" * total_len})
            return
        for _ in range(total_len // piece_len):
            await send({"type": "http.response.body", "body": b"x" * piece_len, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app


async def until_cut(limits: ConnectionRules, number: int = 1) -> float:
    """Seconds until so many readers were cut."""
    began_s = monotonic()
    while limits.cuts.value("slow_reader") < number:
        assert monotonic() - began_s < PATIENCE_S, "nobody was cut"
        await asyncio.sleep(0.01)
    return monotonic() - began_s


@pytest.mark.parametrize("declares", [False, True])
@pytest.mark.parametrize("reads", [0, 1])
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

    assert QUICK <= await cutting < 10 * QUICK
    assert limits.cuts.value("slow_reader") == 1


async def test_the_rest_of_a_complete_answer_must_go_too() -> None:
    # More than the kernel takes, less than makes the server wait.
    answering, completed = endless(32_000, declares=True), asyncio.Event()

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
    limits, is_first, second = rules(), True, asyncio.Event()

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


@pytest.mark.slow
@pytest.mark.parametrize("declares", [False, True])
async def test_who_reads_slowly_but_reads_gets_all(declares: bool) -> None:
    limits = rules(write_timeout_s=1.0)
    total_len, read_len = 400_000, 0
    async with listening(endless(total_len, declares=declares), limits) as port:
        reader = SlowReader(port)
        reader.say(GET + b"connection: close\r\n\r\n")
        began_s = monotonic()
        while read_len < total_len:
            # Some 100 KB in each second, more than the rule asks for.
            read_len += reader.read(3_000)
            await asyncio.sleep(0.02)
            assert monotonic() - began_s < PATIENCE_S
        reader.close()

    assert monotonic() - began_s > 2.0
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
    access = [vars(record) for record in caplog.records if record.name == "router.http.access"]
    assert [told["error_type"] for told in access] == ["slow_reader"]


async def test_what_waits_for_a_reader_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    protocols = noted(monkeypatch)
    limits = rules(write_timeout_s=1.0)
    largest = 0
    async with listening(endless(10_000_000, declares=True), limits) as port:
        readers = [SlowReader(port) for _ in range(20)]
        for reader in readers:
            reader.say(GET + b"\r\n")
        for _ in range(50):
            sizes = [one.transport.get_write_buffer_size() for one in protocols]
            largest = max([largest, *sizes])
            await asyncio.sleep(0.01)
        await until_cut(limits, 20)
        await asyncio.sleep(0.05)
        assert [one for one in protocols if one in one.connections] == []
        for reader in readers:
            reader.close()

    assert len(protocols) == 20
    assert HIGH_LEN < largest <= HIGH_LEN + PIECE_LEN + 1000


async def test_a_client_that_reads_later_loses_nothing() -> None:
    async with listening(endless(3_000_000), rules(write_timeout_s=5.0)) as port:
        reader, writer = await open_request(port, "GET", "/")
        await asyncio.sleep(1.0)
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()

    assert answer.count(b"x") == 3_000_000


async def test_a_large_answer_goes_out_whole_and_with_its_length() -> None:
    async with listening(endless(1_000_003, declares=True)) as port:
        answer = await exchange(port, "GET", "/")

    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-length: 1000003\r\n" in head + b"\r\n"
    assert body == b"x" * 1_000_003
