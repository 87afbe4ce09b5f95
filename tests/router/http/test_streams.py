"""Streams through a real server: bytes on the wire, clients that leave, silence, large bodies."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Sequence

import pytest
from starlette.types import Receive, Scope, Send

from router.http.sse import EventStream
from router.request.errors import RouterError
from tests.fake_script import letters, saying
from tests.fakes import FakeShard
from tests.router.http.harness import (
    House,
    housing,
    listening,
    open_request,
    record,
    unchunked,
)
from tests.router.rig import settled

PROMPT = "hello"
LONG = {"max_new_tokens": 100, "max_tokens": 100}


def num_steps(house: House) -> int:
    return sum(method in ("Prefill", "Decode") for method, _ in house.shard.calls)


def body_of(path: str, **fields: object) -> bytes:
    return json.dumps(
        {"parameters": {"max_new_tokens": 100}, "max_tokens": 100, "inputs": PROMPT}
        | {"prompt": PROMPT, "messages": [{"role": "user", "content": PROMPT}], **fields}
    ).encode()


async def test_a_native_stream_byte_for_byte() -> None:
    body = b'{"inputs": "hello", "parameters": {"details": true, "top_n_tokens": 1}}'
    async with (
        housing(FakeShard(script=saying("\u00e9", len(PROMPT)))) as house,
        listening(house.app) as port,
    ):
        answer = await record(port, "POST", "/generate_stream", body, x_request_id="mine")

    head, _, _ = answer.partition(b"\r\n\r\n")
    status, *headers = head.split(b"\r\n")
    assert status == b"HTTP/1.1 200 OK"
    assert sorted(line for line in headers if not line.startswith(b"date: ")) == [
        b"cache-control: no-cache",
        b"connection: close",
        b"content-type: text/event-stream",
        b"transfer-encoding: chunked",
        b"x-accel-buffering: no",
        b"x-compute-characters: 5",
        b"x-compute-type: test",
        b"x-request-id: mine",
    ]
    assert unchunked(answer) == (
        b'data: {"index":1,"token":{"id":197,"text":"","logprob":-0.75,"special":false},'
        b'"top_tokens":[{"id":197,"text":"\xef\xbf\xbd","logprob":-0.75,"special":false}],'
        b'"generated_text":null,"details":null}\n\n'
        b'data: {"index":2,"token":{"id":171,"text":"\xc3\xa9","logprob":-0.5,"special":false},'
        b'"top_tokens":[{"id":171,"text":"\xef\xbf\xbd","logprob":-0.5,"special":false}],'
        b'"generated_text":null,"details":null}\n\n'
        b'data: {"index":3,"token":{"id":0,"text":"</s>","logprob":-0.125,"special":true},'
        b'"top_tokens":[{"id":0,"text":"</s>","logprob":-0.125,"special":true}],'
        b'"generated_text":"\xc3\xa9","details":{"finish_reason":"eos_token",'
        b'"generated_tokens":3,"seed":null,"input_length":5}}\n\n'
    )


async def test_the_root_streams_with_the_full_text_in_the_last_event() -> None:
    body = b'{"inputs": "hello", "parameters": {"max_new_tokens": 1}, "stream": true}'
    async with (
        housing(FakeShard(script=saying('"\n', len(PROMPT)))) as house,
        listening(house.app) as port,
    ):
        answer = await record(port, "POST", "/", body)

    assert unchunked(answer) == (
        b'data: {"index":1,"token":{"id":36,"text":"\\"","logprob":-0.625,"special":false},'
        b'"generated_text":"hello\\"","details":null}\n\n'
    )


async def test_a_native_stream_shows_nothing_past_a_stop_string() -> None:
    body = b'{"inputs": "hello", "parameters": {"stop": ["rl"], "seed": 3}, "stream": true}'
    async with (
        housing(FakeShard(script=saying("world", len(PROMPT)))) as house,
        listening(house.app) as port,
    ):
        answer = await record(port, "POST", "/generate_stream", body)

    events = [json.loads(event[6:]) for event in unchunked(answer).split(b"\n\n")[:-1]]
    assert "".join(event["token"]["text"] for event in events) == "worl"
    assert events[-1]["generated_text"] == "worl"


@pytest.mark.parametrize(
    ("parameters", "error_type", "words"),
    [
        (b'{"top_p": 7}', "validation", "`top_p`"),
        (b'{"decoder_input_details": true}', "validation", "`decoder_input_details`"),
        (b'{"best_of": 2, "do_sample": true}', "validation", "`best_of`"),
    ],
)
async def test_an_error_in_a_native_stream_is_an_event_of_a_200(
    parameters: bytes, error_type: str, words: str
) -> None:
    body = b'{"inputs": "hello", "parameters": ' + parameters + b"}"
    async with housing(FakeShard()) as house, listening(house.app) as port:
        answer = await record(port, "POST", "/generate_stream", body)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    event = unchunked(answer)
    assert event.startswith(b'data: {"error":"')
    assert event.endswith(b"}\n\n")
    error = json.loads(event[6:])
    assert error["error_type"] == error_type
    assert words in error["error"]


async def test_overload_in_a_native_stream_is_an_event_too() -> None:
    shard = FakeShard()
    shard.faults.delay_s = 0.02
    async with (
        housing(shard, max_concurrent_requests=1) as house,
        listening(house.app) as port,
    ):
        path = "/generate_stream"
        reader, writer = await open_request(port, "POST", path, body_of(path))
        await reader.readuntil(b"data: ")
        answer = await record(port, "POST", path, body_of(path))
        writer.close()
        await writer.wait_closed()

    event = json.loads(unchunked(answer).removeprefix(b"data: "))
    assert event.pop("retry_after") >= 1
    assert event.pop("retry_after_ms") >= 1000
    assert event == {"error": "Model is overloaded", "error_type": "overloaded"}


@pytest.mark.parametrize(
    ("path", "streams"),
    [
        ("/generate", False),
        ("/generate_stream", True),
        ("/", False),
        ("/", True),
        ("/v1/completions", False),
        ("/v1/completions", True),
        ("/v1/chat/completions", False),
        ("/v1/chat/completions", True),
    ],
)
async def test_a_client_that_leaves_ends_its_generation_within_a_step(
    path: str, streams: bool
) -> None:
    shard = FakeShard(script=letters)
    shard.faults.delay_s = 0.02
    async with housing(shard) as house, listening(house.app) as port:
        body = body_of(path, stream=streams, n=1 if path in ("/", "/generate") else 2)
        _, writer = await open_request(port, "POST", path, body)
        while num_steps(house) < 3:
            await asyncio.sleep(0.005)
        writer.close()
        await writer.wait_closed()
        num_before = num_steps(house)
        await settled(house.rig)

        # One step may be under way, one may be scheduled before the server hears of it.
        assert num_steps(house) <= num_before + 2
        assert shard.num_held == 0
        assert house.rig.metrics.request_failure.value("dropped") == 1


async def test_clients_that_leave_at_any_moment_leave_nothing_behind() -> None:
    shard = FakeShard(script=letters)
    shard.faults.delay_s = 0.002
    paths = ("/generate", "/generate_stream", "/v1/completions", "/v1/chat/completions")
    async with housing(shard, max_concurrent_requests=64) as house:
        async with listening(house.app) as port:

            async def visit(number: int) -> None:
                path = paths[number % len(paths)]
                body = body_of(path, stream=number % 3 > 0)
                _, writer = await open_request(port, "POST", path, body)
                await asyncio.sleep(0.001 * (number % 40))
                writer.transport.abort()

            await asyncio.gather(*(visit(number) for number in range(60)))
            await settled(house.rig)
        assert shard.num_held == 0
        assert house.rig.scheduler.stats().num_blocks_used == 0


async def test_silence_is_broken_on_the_wire() -> None:
    class Words:
        def render(self, index: int, burst: Sequence[bytes]) -> bytes:
            return b"".join(burst)

        def fail(self, error: RouterError) -> bytes:
            raise error

        def end(self) -> bytes:
            return b"end"

    async def slowly() -> AsyncGenerator[Sequence[bytes], None]:
        await asyncio.sleep(0.25)
        yield [b"word"]

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # the body
        await EventStream([slowly()], Words(), {}, keep_alive_s=0.1)(scope, receive, send)

    async with listening(app) as port:
        answer = await record(port, "GET", "/")

    assert unchunked(answer) == b":\n\n:\n\nwordend"


async def test_a_body_that_is_much_too_large_still_gets_its_answer() -> None:
    async with housing(FakeShard()) as house, listening(house.app) as port:
        answer = await record(port, "POST", "/generate", b"x" * 20_000_000)

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"error_type":"payload_too_large"' in answer


async def test_a_client_that_asks_before_it_sends_too_much_is_answered_at_once() -> None:
    async with housing(FakeShard()) as house, listening(house.app) as port:
        answer = await record(
            port, "POST", "/generate", content_length="20000000", expect="100-continue"
        )

    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_one_connection_serves_one_request_after_another() -> None:
    async with housing(FakeShard()) as house, listening(house.app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            body = b'{"inputs": "hello", "parameters": {"max_new_tokens": 2}}'
            writer.write(
                b"POST /generate_stream HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(body), body)
            )
            answer = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 30)
            assert unchunked(answer).count(b"data: ") == 2
        writer.close()
        await writer.wait_closed()


async def test_streams_run_side_by_side() -> None:
    async with housing(FakeShard(script=letters)) as house, listening(house.app) as port:
        body = b'{"prompt": "hello", "stream": true, "max_tokens": 20, "temperature": 0}'
        answers = await asyncio.gather(
            *(record(port, "POST", "/v1/completions", body) for _ in range(8))
        )

    def text(answer: bytes) -> str:
        events = unchunked(answer).split(b"\n\n")[:-2]
        return "".join(json.loads(event[6:])["choices"][0]["text"] for event in events)

    assert {len(text(answer)) for answer in answers} == {20}
    assert len({text(answer) for answer in answers}) == 1


async def test_bytes_that_are_no_http_are_answered_in_json_with_an_id() -> None:
    async with housing(FakeShard()) as house, listening(house.app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x16\x03\x01 garbage\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()

    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert re.search(rb"x-request-id: [0-9a-f]{32}\r\n", head)
    assert json.loads(body).keys() == {"error", "error_type"}
