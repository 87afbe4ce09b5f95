"""One connection over real sockets: limits on what is sent, requests behind others, offers."""

import asyncio
from time import monotonic

import pytest

from router.http.server.protocol import MAX_URL_LEN, MAX_WAITING, ConnectionLimits
from tests.fake_script import letters
from tests.fakes import FakeShard
from tests.router.http.harness import housing, listening
from tests.router.http.server.connection import (
    GET,
    PATIENCE_S,
    QUICK,
    error_of,
    hello,
    rules,
    say,
)
from tests.router.rig import settled


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
    async with hello(ConnectionLimits(max_head_len=4096, head_timeout_s=5.0)) as port:
        answer = await say(port, *parts, pause_s=0.005)

    assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 414 "))


@pytest.mark.parametrize(
    "framing",
    [
        pytest.param(b"0\r\na: " + b"x" * 300_000, id="a-trailer-without-end"),
        pytest.param(b"0\r\n" + b"a: b\r\n" * 6000, id="trailers"),
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
async def test_an_answer_before_garbage_is_the_last(garbage: bytes) -> None:
    async with hello() as port:
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


@pytest.mark.parametrize("target", [b"a:443", b"/", b"http://a/"])
async def test_no_tunnel_is_opened(target: bytes) -> None:
    async with hello() as port:
        answer = await say(port, b"CONNECT " + target + b" HTTP/1.1\r\nhost: a\r\n\r\n")

    assert error_of(answer, 400)["error_type"] == "bad_request"


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"FOO / HTTP/1.1", "Invalid method"),
        (b"GET / HTTP/3.7", "Invalid HTTP version"),
        (b"POST / HTTP/1.1\r\ncontent-length: -5", "Content-Length"),
        (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2", "Content-Length"),
        (
            b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 2",
            "Transfer-Encoding",
        ),
        (b"GET / HTTP/1.1\r\na b: c", "header"),
    ],
)
async def test_what_is_no_request_is_refused_with_the_reason(head: bytes, reason: str) -> None:
    async with hello() as port:
        answer = await say(port, head + b"\r\n\r\n")

    error = str(error_of(answer, 400)["error"])
    assert error.startswith("this is no HTTP request: ")
    assert reason in error


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("hosts", [b"", b"host: a\r\nhost: b\r\n", b"host: a\r\nhost: a\r\n"])
async def test_a_request_names_one_host(hosts: bytes, version: bytes) -> None:
    async with hello() as port:
        head = b"GET / HTTP/%b\r\n%bconnection: close\r\n\r\n" % (version, hosts)
        answer = await say(port, head)

    if version == b"1.0" and not hosts:
        assert answer.startswith(b"HTTP/1.1 200 ")
    else:
        assert "one Host header" in str(error_of(answer, 400)["error"])


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked", id="a-list"),
        pytest.param(b"HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip", id="gzip"),
        pytest.param(b"HTTP/1.1\r\nhost: a\r\ntransfer-encoding: identity", id="identity"),
        pytest.param(b"HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked", id="1.0"),
    ],
)
async def test_no_transfer_encoding_but_chunked_is_read(head: bytes) -> None:
    async with hello() as port:
        answer = await say(port, b"POST / " + head + b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")

    assert "Transfer-Encoding must be" in str(error_of(answer, 400)["error"])
