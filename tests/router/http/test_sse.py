"""Event streams: what goes out in which write, how they end, and what silence sounds like."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import pytest
from starlette.types import Message

from router.http.sse import EventStream
from router.request.errors import Overloaded, RouterError, ShardFailed


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
    source = Source(["a"], lambda: asyncio.sleep(0.25), ["b"])

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
