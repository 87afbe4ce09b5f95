"""A client that sends too slowly over a real socket gets an error, or is cut; others are not."""

import asyncio
import logging
from time import monotonic

import pytest

from router.http.server.protocol import CUT_CAUSES
from router.telemetry.metrics import CUTS
from tests.fake_script import letters
from tests.fakes import FakeShard
from tests.router.http.harness import housing, listening
from tests.router.http.server.connection import GET, PATIENCE_S, QUICK, error_of, hello, rules, say


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

    assert await answer == b""


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/messages"])
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
    (record,) = caplog.records
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
    house = housing(FakeShard(), body_timeout_s=QUICK, max_body_len=300_000)
    async with house as built, listening(built.app) as port:
        head = b"POST /tokenize HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        head += b"connection: close\r\ncontent-length: 240016\r\n\r\n"
        parts = (b'{"inputs": "ab"', *[b" " * 20_000] * 12, b"}")
        answer = await say(port, head, *parts, pause_s=0.1)

    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_the_next_request_may_wait_for_a_long_answer() -> None:
    shard = FakeShard(script=letters)
    shard.faults.delay_s = 0.03
    async with housing(shard) as house, listening(house.app, rules()) as port:
        body = b'{"inputs": "hello", "parameters": {"max_new_tokens": 50}}'
        head = b"POST /generate_stream HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        head += b"content-length: %d\r\n\r\n" % len(body)
        answer = await say(port, head + body, GET, b"connection: close\r\n\r\n", pause_s=0.5)

    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert answer.count(b"data: ") == 50
