"""Event streams: frames, bursts, leavers, silence; what is streamed is what is answered."""

import asyncio
import json
import random
import re
import unicodedata
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any
from zlib import crc32

import httpx
import pytest
from starlette.types import Message

from router.http.bodies import PART_WRITER
from router.http.sse import EventStream
from router.request.errors import Overloaded, RouterError, ShardFailed
from tests.asked_twice import Asked, streamed_text, whole_text
from tests.byte_tokenizer import EOS_ID, NUM_SPECIAL
from tests.fake_script import letters, saying
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing, listening, open_request, record, unchunked
from tests.router.rig import PATIENT, settled


class Words:
    """Frames of words; the word "bad" ends the stream badly."""

    def render(self, index: int, burst: Sequence[str]) -> bytes:
        if "bad" in burst:
            raise ShardFailed("it broke")
        return b"".join(b"data: %b\n\n" % word.encode() for word in burst if word)

    def fail(self, error: RouterError) -> bytes:
        return b"data: failed: %b\n\n" % str(error).encode()

    def end(self) -> bytes:
        return b"data: [END]\n\n"


class Wire:
    """The server's side of ASGI: keeps what is sent, and disconnects on demand."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.leave = asyncio.Event()
        self.may_send = asyncio.Event()
        self.may_send.set()

    async def send(self, message: Message) -> None:
        await self.may_send.wait()
        self.sent.append(message)

    async def receive(self) -> Message:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    @property
    def writes(self) -> list[bytes]:
        return [message["body"] for message in self.sent[1:]]


Step = Sequence[str] | Callable[[], Awaitable[object]]


class Source:
    """Bursts and pauses in turn; notes that it was closed."""

    def __init__(self, *steps: Step) -> None:
        self.is_closed = False
        self._steps = steps

    async def bursts(self) -> AsyncGenerator[Sequence[str], None]:
        try:
            for step in self._steps:
                if callable(step):
                    await step()
                else:
                    yield step
        finally:
            self.is_closed = True


async def run(source: Source, wire: Wire, keep_alive_s: float = 15.0) -> None:
    stream = EventStream([source.bursts()], Words(), {"x-mine": "1"}, keep_alive_s)
    async with asyncio.timeout(30):
        await stream({"type": "http"}, wire.receive, wire.send)


async def test_a_stream_is_headers_bursts_and_an_end() -> None:
    wire = Wire()
    source = Source(["a"], ["b", "c"], [""], ["d"])

    await run(source, wire)

    assert wire.sent[0] == {
        "type": "http.response.start",
        "status": 200,
        "headers": [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
            (b"x-mine", b"1"),
        ],
    }
    assert wire.writes == [
        b"data: a\n\n",
        b"data: b\n\ndata: c\n\n",
        b"data: d\n\n",
        b"data: [END]\n\n",
    ]
    assert [message["more_body"] for message in wire.sent[1:]] == [True, True, True, False]
    assert source.is_closed


class Parts:
    """What a client took at once."""

    def __init__(self) -> None:
        self.is_ready = True
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)


async def turns() -> None:
    """All that can be done is done."""
    for _ in range(20):
        await asyncio.sleep(0)


class Pushed:
    """A source whose bursts are pushed while its reader waits."""

    def __init__(self) -> None:
        self.unread: asyncio.Queue[Sequence[str] | None] = asyncio.Queue()
        self.sink: Callable[[Sequence[str]], bool] | None = None
        self.is_closed = False

    def push_to(self, sink: Callable[[Sequence[str]], bool]) -> None:
        self.sink = sink

    async def add(self, burst: Sequence[str]) -> None:
        """Once its reader waits."""
        await turns()
        if self.sink is None or not self.sink(burst):
            self.unread.put_nowait(burst)

    def __aiter__(self) -> "Pushed":
        return self

    async def __anext__(self) -> Sequence[str]:
        burst = await self.unread.get()
        if burst is None:
            raise StopAsyncIteration
        return burst

    async def aclose(self) -> None:
        self.is_closed = True


async def send(source: Pushed, wire: Wire, parts: Parts) -> None:
    stream = EventStream([source], Words(), {})
    await stream({"type": "http", PART_WRITER: parts}, wire.receive, wire.send)


async def test_a_burst_is_written_at_once_while_the_client_keeps_up() -> None:
    wire = Wire()
    parts = Parts()
    source = Pushed()
    sending = asyncio.ensure_future(send(source, wire, parts))
    await source.add(["a"])
    await source.add(["b", "c"])
    await source.add([""])
    parts.is_ready = False
    await source.add(["d"])
    await turns()
    parts.is_ready = True
    await source.add(["e"])
    source.unread.put_nowait(None)
    await asyncio.wait_for(sending, 30)

    assert parts.written == [b"data: a\n\n", b"data: b\n\ndata: c\n\n", b"data: e\n\n"]
    assert wire.writes == [b"data: d\n\n", b"data: [END]\n\n"]
    assert source.is_closed


async def test_a_burst_waits_behind_one_that_waits_for_the_client() -> None:
    wire = Wire()
    parts = Parts()
    source = Pushed()
    sending = asyncio.ensure_future(send(source, wire, parts))
    await source.add([""])
    wire.may_send.clear()
    source.unread.put_nowait(["a"])
    await source.add(["b"])
    wire.may_send.set()
    source.unread.put_nowait(None)
    await asyncio.wait_for(sending, 30)

    assert parts.written == []
    assert wire.writes == [b"data: a\n\n", b"data: b\n\n", b"data: [END]\n\n"]


async def test_an_error_of_the_frames_is_the_last_thing_said() -> None:
    wire = Wire()
    source = Source(["a"], ["bad"], ["b"])

    await run(source, wire)

    assert wire.writes == [b"data: a\n\n", b"data: failed: it broke\n\n"]
    assert wire.sent[-1]["more_body"] is False
    assert source.is_closed


async def test_an_error_of_the_source_is_the_last_thing_said() -> None:
    async def refuse() -> None:
        raise Overloaded("full")

    wire = Wire()

    await run(Source(refuse), wire)

    assert wire.writes == [b"data: failed: full\n\n"]


async def test_a_bug_of_the_source_is_no_end_of_a_stream() -> None:
    async def stumble() -> None:
        raise ZeroDivisionError

    wire = Wire()
    source = Source(["a"], stumble)

    with pytest.raises(ZeroDivisionError):
        await run(source, wire)

    assert wire.writes == [b"data: a\n\n"]
    assert source.is_closed


async def test_a_client_that_leaves_ends_the_source_at_once() -> None:
    wire = Wire()

    async def leave_and_wait() -> None:
        wire.leave.set()
        await asyncio.sleep(60)

    source = Source(["a"], leave_and_wait, ["b"])
    await run(source, wire)

    assert wire.writes == [b"data: a\n\n"]
    assert source.is_closed


async def test_a_client_that_left_before_the_first_burst_ends_the_source_too() -> None:
    wire = Wire()
    source = Source(lambda: asyncio.sleep(60))
    wire.leave.set()

    await run(source, wire)

    assert wire.writes == []


async def test_a_client_that_stopped_reading_and_leaves_ends_the_source() -> None:
    wire = Wire()

    async def block() -> None:
        wire.may_send.clear()
        asyncio.get_running_loop().call_later(0.01, wire.leave.set)

    source = Source(["a"], block, ["b"], ["c"])
    await run(source, wire)

    assert wire.writes == [b"data: a\n\n"]
    assert source.is_closed


async def test_silence_is_broken_by_comments_until_the_next_burst() -> None:
    wire = Wire()

    async def two_comments() -> None:
        while wire.writes.count(b":\n\n") < 2:
            await asyncio.sleep(0.001)

    source = Source(["a"], two_comments, ["b"])

    await run(source, wire, keep_alive_s=0.1)

    assert wire.writes == [
        b"data: a\n\n",
        b":\n\n",
        b":\n\n",
        b"data: b\n\n",
        b"data: [END]\n\n",
    ]


async def test_a_reader_that_is_slow_hears_no_comments() -> None:
    wire = Wire()

    async def block() -> None:
        wire.may_send.clear()
        asyncio.get_running_loop().call_later(0.25, wire.may_send.set)

    source = Source(block, ["a"])
    await run(source, wire, keep_alive_s=0.05)

    assert wire.writes == [b"data: a\n\n", b"data: [END]\n\n"]


async def test_a_refusal_at_the_beginning_is_raised_before_anything_is_sent() -> None:
    async def refuse() -> None:
        raise Overloaded("full")

    taken = Source(lambda: asyncio.sleep(60))
    refused = Source(refuse)
    stream = EventStream([taken.bursts(), refused.bursts()], Words(), {})

    with pytest.raises(Overloaded):
        await stream.begin()

    assert taken.is_closed
    assert refused.is_closed


async def test_what_came_before_the_headers_is_sent_behind_them() -> None:
    wire = Wire()
    stream = EventStream([Source(["a"], ["b"]).bursts()], Words(), {})

    await stream.begin()
    await asyncio.sleep(0.01)
    await stream({"type": "http"}, wire.receive, wire.send)

    assert wire.sent[0]["type"] == "http.response.start"
    assert wire.writes == [b"data: a\n\n", b"data: b\n\n", b"data: [END]\n\n"]


async def test_several_sources_are_written_as_they_come() -> None:
    wire = Wire()
    quick = Source(["a"], lambda: asyncio.sleep(0.1), ["c"])
    slow = Source(lambda: asyncio.sleep(0.05), ["b"], lambda: asyncio.sleep(0.1), ["d"])
    stream = EventStream([quick.bursts(), slow.bursts()], Words(), {})

    await stream({"type": "http"}, wire.receive, wire.send)

    assert b"".join(wire.writes) == (b"data: a\n\ndata: b\n\ndata: c\n\ndata: d\n\ndata: [END]\n\n")


async def test_one_source_that_fails_ends_the_others_before_the_last_words() -> None:
    wire = Wire()
    turn: list[Step] = [["a"], lambda: asyncio.sleep(0.001)]
    endless = Source(*turn * 10_000)
    failing = Source(lambda: asyncio.sleep(0.05), ["bad"])
    stream = EventStream([endless.bursts(), failing.bursts()], Words(), {})

    await stream({"type": "http"}, wire.receive, wire.send)

    assert endless.is_closed
    assert wire.writes[-1] == b"data: failed: it broke\n\n"
    assert [message["more_body"] for message in wire.sent[1:]].count(False) == 1


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


_NUM_CLIENTS = 8
_CHARACTERS = ("a", "q", " ", "é", "e\u0301", "ß", "你", "好", "한", "ก็", "🦊", "👩\u200d🚀", "🇫🇷")
_BYTES = [text.encode() for text in _CHARACTERS]


def babel(token_ids: Sequence[int]) -> int:
    """A byte that mostly goes on with the character under way, and now and then breaks it off."""
    written = bytes(token_id - NUM_SPECIAL for token_id in token_ids if token_id >= NUM_SPECIAL)
    digest = crc32(written)
    if digest % 61 == 0:
        return EOS_ID
    if digest % 23 == 0:
        return NUM_SPECIAL + digest % 256
    for length in range(1, 8):
        for text in _BYTES:
            if length < len(text) and written.endswith(text[:length]) and written[-1] > 127:
                return NUM_SPECIAL + text[length]
    return NUM_SPECIAL + _BYTES[digest % len(_BYTES)][0]


def random_request(draw: random.Random) -> Asked:
    """A prompt, ways to draw, and stops that are likely to come."""
    prompt = "".join(draw.choices(_CHARACTERS, k=draw.randint(1, 8)))
    stop = draw.choice(([], [draw.choice(_CHARACTERS)], ["qa", draw.choice(_CHARACTERS) * 2]))
    common: dict[str, Any] = {
        "seed": draw.randrange(2**32),
        "stop": stop,
        "repetition_penalty": draw.choice((None, 1.3)),
        "frequency_penalty": draw.choice((None, 0.5)),
        "presence_penalty": draw.choice((None, 0.7)),
        "temperature": draw.choice((None, 0.7, 3.0)),
        "include_stop_str_in_output": draw.random() < 0.5,
    }
    num_tokens = draw.randint(1, 60)
    if draw.random() < 0.4:
        parameters = common | {"max_new_tokens": num_tokens}
        return Asked.natively({"inputs": prompt, "parameters": parameters})
    common |= {"max_tokens": num_tokens}
    if draw.random() < 0.5:
        path = "/v1/completions"
        said: dict[str, Any] = {"prompt": prompt}
        logprobs: object = draw.choice((None, 0))
    else:
        path = "/v1/chat/completions"
        said = {"messages": [{"role": "user", "content": prompt}]}
        logprobs = draw.choice((None, True))
    return Asked.openly(path, common | said | {"logprobs": logprobs})


@pytest.mark.slow
@pytest.mark.parametrize("num_requests", [100, pytest.param(1000, marks=pytest.mark.nightly)])
async def test_what_is_streamed_is_what_is_answered(num_requests: int) -> None:
    draw = random.Random(5)
    todo = iter([random_request(draw) for _ in range(num_requests)])
    found: list[str] = []
    texts: list[str] = []

    async def ask(client: httpx.AsyncClient) -> None:
        for asked in todo:
            whole = await whole_text(client, asked)
            streamed = await streamed_text(client, asked)
            texts.append(whole)
            if whole != streamed:
                found.append(f"{asked}: {whole!r} but {streamed!r}")

    shard = FakeShard(script=babel, num_blocks=256)
    async with housing(shard, timeouts=PATIENT) as house, listening(house.app) as port:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            await asyncio.gather(*(ask(client) for _ in range(_NUM_CLIENTS)))
    assert not found, f"{len(found)} differ, such as {found[:3]}"
    joined = "".join(texts)
    # The dice must have thrown what this is about: characters of one to four bytes, marks that
    # combine, and broken ones.
    assert {len(character.encode()) for character in set(joined) - {"\ufffd"}} == {1, 2, 3, 4}
    assert num_requests < 1000 or any(map(unicodedata.combining, joined))
    assert "\ufffd" in joined
    assert len(joined) > 5 * num_requests
