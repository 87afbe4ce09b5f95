"""The open streams of a socket, the queue of their messages, and slow readers."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from router.http.lmtp.streams import Outbox
from router.http.server.protocol import ConnectionLimits
from tests.byte_tokenizer import byte_ids
from tests.fakes import FakeShard
from tests.router.http.harness import House
from tests.router.http.lmtp.talking import Message, Talk, served, talking
from tests.router.rig import settled


async def test_tokens_that_are_there_together_are_one_frame() -> None:
    sent: list[str] = []

    async def send(text: str) -> None:
        sent.append(text)

    outbox = Outbox(1000)
    await outbox.put("TOKEN", "1", "2")
    await outbox.put("DONE", "3")
    await outbox.put("DONE", "4")
    await outbox.put("TOKEN", "5")
    running = asyncio.create_task(outbox.run(send))
    await outbox.until_empty()
    outbox.close()
    await running

    assert sent == ["TOKEN [1,2]", "DONE [3]", "DONE [4]", "TOKEN [5]"]


async def test_a_frame_has_its_bounds() -> None:
    sent: list[str] = []

    async def send(text: str) -> None:
        sent.append(text)

    outbox = Outbox(1 << 20)
    await outbox.put("TOKEN", *["x" * 40_000] * 3)
    running = asyncio.create_task(outbox.run(send))
    await outbox.until_empty()
    outbox.close()
    await running

    assert [len(text) for text in sent] == [40_008] * 3


async def test_who_has_more_to_say_than_is_read_waits() -> None:
    reads = asyncio.Semaphore(0)

    async def send(text: str) -> None:
        await reads.acquire()

    outbox = Outbox(10)
    running = asyncio.create_task(outbox.run(send))
    await outbox.put("DONE", "x" * 20)
    await outbox.put("DONE", "y" * 20)
    waiting = asyncio.create_task(outbox.put("DONE", "z"))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    reads.release()
    await asyncio.wait_for(waiting, 30)
    outbox.close()
    reads.release()
    await asyncio.wait_for(running, 30)


async def test_nobody_waits_for_a_socket_that_is_gone() -> None:
    async def send(text: str) -> None:
        raise ConnectionResetError

    outbox = Outbox(10)
    await outbox.put("DONE", "x" * 20)
    waiting = asyncio.create_task(outbox.put("DONE", "y"))
    with pytest.raises(ConnectionResetError):
        await outbox.run(send)

    await asyncio.wait_for(waiting, 30)
    await asyncio.wait_for(outbox.until_empty(), 30)


def slow(delay_s: float = 0.012) -> FakeShard:
    shard = FakeShard(num_blocks=48)
    shard.faults.delay_s = delay_s
    return shard


async def test_a_waiting_request_gets_its_place_and_its_start() -> None:
    async with served(slow(0.02)) as (_, port), talking(port) as talk:
        await talk.hello()
        # The blocks are for one of these at a time.
        for stream_id in (1, 2, 3):
            text = chr(97 + stream_id) * 115
            await talk.send("GENERATE", stream_id=stream_id, text=text, max_tokens=40)
        heard: list[Message] = []
        while sum(command == "DONE" for command, _ in heard) < 3:
            heard.append(await talk.hear())

    assert [
        fields["state"]
        for command, fields in heard
        if command == "SYS" and fields["stream_id"] == 1
    ] == []
    for stream_id, places in ((2, [1]), (3, [2, 1])):
        of_it = [(command, fields) for command, fields in heard if fields["stream_id"] == stream_id]
        notices = [fields for command, fields in of_it if command == "SYS"]
        assert [fields["state"] for fields in notices] == ["queued"] * len(places) + ["running"]
        assert [fields["place"] for fields in notices[:-1]] == places
        assert of_it[len(notices)][0] == "TOKEN"


async def test_version_1_gets_no_system_messages() -> None:
    async with served(slow()) as (_, port), talking(port, "/") as talk:
        for stream_id in (1, 2):
            prompt = byte_ids(chr(97 + stream_id) * 115)
            await talk.send("GENERATE", stream_id=stream_id, prompt=prompt, max_tokens=40)
        heard: list[Message] = []
        while sum(fields["finish_reason"] is not None for _, fields in heard) < 2:
            heard.append(await talk.hear())

    assert {command for command, _ in heard} == {"TOKEN"}


async def test_a_request_that_is_cancelled_while_it_waits_gets_no_further_messages() -> None:
    async with served(slow()) as (_, port), talking(port) as talk:
        await talk.hello()
        for stream_id in (1, 2):
            text = chr(97 + stream_id) * 115
            await talk.send("GENERATE", stream_id=stream_id, text=text, max_tokens=40)
        while (await talk.hear())[0] != "SYS":
            pass
        await talk.send("CANCEL", stream_id=2)
        heard: list[Message] = []
        while not heard or heard[-1][1]["stream_id"] != 1 or heard[-1][0] != "DONE":
            heard.append(await talk.hear())

    of_it = [(command, fields) for command, fields in heard if fields["stream_id"] == 2]
    assert [(command, fields["finish_reason"]) for command, fields in of_it] == [
        ("DONE", "cancelled")
    ]
    assert of_it[0][1]["usage"]["output_tokens"] == 0


NUM_STREAMS = 6


@asynccontextmanager
async def narrow(port: int) -> AsyncIterator[Talk]:
    """A client whose kernel takes little by itself."""
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    taken.setblocking(False)
    await asyncio.get_running_loop().sock_connect(taken, ("127.0.0.1", port))
    async with talking(port, sock=taken, max_queue=1) as talk:
        yield talk


async def fill(talk: Talk) -> None:
    """Asks for more than waits for a client; alternatives make tokens large."""
    for stream_id in range(NUM_STREAMS):
        prompt = byte_ids(f"Once {stream_id}")
        fields = {"prompt": prompt, "max_tokens": 140, "top_logprobs": 64}
        await talk.send("GENERATE", stream_id=stream_id, **fields)


async def paused(house: House) -> None:
    """Waits until sequences sit steps out for a client that does not read."""
    begun_s = time.monotonic()
    while not house.rig.metrics.paused_sequences.value():
        assert time.monotonic() - begun_s < 20
        await asyncio.sleep(0.02)


def stop_reading(talk: Talk) -> None:
    talk.socket.transport.pause_reading()


async def test_who_does_not_read_is_closed_and_its_blocks_come_back() -> None:
    rules = ConnectionLimits(write_timeout_s=0.3)
    shard = FakeShard(num_blocks=1024)
    async with (
        served(shard, rules, max_concurrent_requests=64) as (house, port),
        narrow(port) as talk,
    ):
        await fill(talk)
        stop_reading(talk)
        begun_s = time.monotonic()
        while not rules.cuts.value("slow_reader"):
            assert time.monotonic() - begun_s < 20
            await asyncio.sleep(0.02)
        await settled(house.rig)
        assert house.rig.scheduler.stats().num_blocks_used == 0
        talk.socket.transport.resume_reading()
        close = await talk.closed()

    assert close == (1008, "what was sent was not read within 0.3 s")


async def test_streams_of_a_slow_reader_pause_and_go_on() -> None:
    shard = FakeShard(num_blocks=1024)
    async with (
        served(shard, max_concurrent_requests=64) as (house, port),
        narrow(port) as talk,
        talking(port) as other,
    ):
        await fill(talk)
        stop_reading(talk)
        await paused(house)
        quick = await other.ask("GENERATE", prompt=byte_ids("Twice"), max_tokens=5)
        talk.socket.transport.resume_reading()
        ends = 0
        num_tokens = 0
        while ends < NUM_STREAMS:
            _, fields = await talk.hear()
            num_tokens += "token" in fields
            ends += fields["finish_reason"] is not None

    assert quick[-1][1]["finish_reason"] == "length"
    assert num_tokens == NUM_STREAMS * 140


@pytest.mark.slow
async def test_an_error_that_waits_for_a_slow_reader_is_not_lost_by_cancelling_its_stream() -> None:
    async with (
        served(FakeShard(num_blocks=1024), max_concurrent_requests=64) as (house, port),
        narrow(port) as talk,
    ):
        await fill(talk)
        stop_reading(talk)
        await paused(house)
        begun_s = time.monotonic()
        await talk.send("GENERATE", stream_id=77, prompt=byte_ids("Once"), max_tokens=0)
        while house.rig.metrics.socket_streams.value() <= NUM_STREAMS:
            assert time.monotonic() - begun_s < 20
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        await talk.send("CANCEL", stream_id=77)
        await asyncio.sleep(0.1)
        talk.socket.transport.resume_reading()
        fields: dict[str, object] = {}
        async with asyncio.timeout(20):
            while fields.get("stream_id") != 77:
                _, fields = await talk.hear()

    assert fields["field"] == "max_tokens"


async def test_an_end_that_waits_for_a_slow_reader_is_sent_once_though_it_is_cancelled() -> None:
    async with (
        served(FakeShard(num_blocks=1024), max_concurrent_requests=64) as (house, port),
        narrow(port) as talk,
    ):
        await talk.hello()
        await fill(talk)
        stop_reading(talk)
        await paused(house)
        await talk.send("GENERATE", stream_id=77, prompt=byte_ids("Once"), max_tokens=1)
        begun_s = time.monotonic()
        while not house.rig.metrics.sequence_ends.value("length"):
            assert time.monotonic() - begun_s < 20
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        await talk.send("CANCEL", stream_id=77)
        await asyncio.sleep(0.1)
        talk.socket.transport.resume_reading()
        heard: list[Message] = []
        async with asyncio.timeout(20):
            while sum(command == "DONE" for command, _ in heard) <= NUM_STREAMS:
                heard.append(await talk.hear())

    messages = [(command, fields) for command, fields in heard if fields["stream_id"] == 77]
    assert [command for command, _ in messages] == ["TOKEN", "DONE"]
    assert [fields["finish_reason"] for _, fields in messages] == ["length", "length"]
    ends = [fields["stream_id"] for command, fields in heard if command == "DONE"]
    assert sorted(ends) == [*range(NUM_STREAMS), 77]


async def cancelled_unread(talk: Talk, house: House) -> dict[int, list[dict[str, Any]]]:
    """The objects of streams that a client cancelled when it had not read for long."""
    await fill(talk)
    stop_reading(talk)
    await paused(house)
    for stream_id in range(NUM_STREAMS):
        await talk.send("CANCEL", stream_id=stream_id)
    await settled(house.rig)
    talk.socket.transport.resume_reading()
    streams: dict[int, list[dict[str, Any]]] = {index: [] for index in range(NUM_STREAMS)}
    async with asyncio.timeout(20):
        while not all(messages and messages[-1]["finish_reason"] for messages in streams.values()):
            _, fields = await talk.hear()
            streams[fields["stream_id"]].append(fields)
    return streams


async def whole_streams(port: int) -> dict[int, list[int]]:
    """The tokens of the same streams for a client that reads."""
    async with talking(port) as talk:
        await fill(talk)
        streams: dict[int, list[int]] = {index: [] for index in range(NUM_STREAMS)}
        while any(len(tokens) < 140 for tokens in streams.values()):
            _, fields = await talk.hear()
            streams[fields["stream_id"]].append(fields["token"])
    return streams


async def test_a_cancelled_stream_that_waited_for_its_reader_reports_its_usage() -> None:
    async with (
        served(FakeShard(num_blocks=1024), max_concurrent_requests=64) as (house, port),
        narrow(port) as talk,
    ):
        await talk.hello()
        streams = await cancelled_unread(talk, house)
        whole = await whole_streams(port)

    for stream_id, (*tokens, done) in streams.items():
        ids = [fields["token"] for fields in tokens]
        assert ids == whole[stream_id][: len(ids)]
        assert done["finish_reason"] == "cancelled"
        assert done["usage"]["output_tokens"] == len(ids)
        assert done["text"] == "".join(fields["text"] for fields in tokens)


async def test_a_cancelled_stream_of_version_1_has_no_gap_in_its_tokens() -> None:
    async with (
        served(FakeShard(num_blocks=1024), max_concurrent_requests=64) as (house, port),
        narrow(port) as talk,
    ):
        streams = await cancelled_unread(talk, house)
        whole = await whole_streams(port)

    for stream_id, messages in streams.items():
        ids = [fields["token"] for fields in messages]
        assert ids == whole[stream_id][: len(ids)]
        assert messages[-1]["finish_reason"] == "cancelled"


async def test_who_does_not_answer_pings_is_closed() -> None:
    rules = ConnectionLimits(ping_interval_s=0.1)
    async with served(FakeShard(), rules) as (_, port), talking(port) as talk:
        # Its library answers pings by itself, so it has to be deaf for a while.
        stop_reading(talk)
        while not rules.cuts.value("no_pong"):
            await asyncio.sleep(0.01)
        talk.socket.transport.resume_reading()
        close = await talk.closed()

    assert close == (1011, "keepalive ping timeout")
    assert rules.cuts.value("no_pong") == 1


async def test_who_answers_pings_may_be_silent_for_long() -> None:
    # Longer than a busy machine keeps its library from answering.
    rules = ConnectionLimits(ping_interval_s=1.0)
    async with served(FakeShard(), rules) as (_, port), talking(port) as talk:
        await asyncio.sleep(2.5)
        messages = await talk.ask("GENERATE", prompt=byte_ids("Once"), max_tokens=1)

    assert messages[0][1]["finish_reason"] == "length"


async def test_who_asks_much_and_reads_nothing_is_closed() -> None:
    rules = ConnectionLimits(write_timeout_s=0.3)
    async with served(FakeShard(), rules) as (house, port), narrow(port) as talk:
        stop_reading(talk)

        async def flood() -> None:
            while True:
                await talk.send("MODEL_INFO", stream_id=1, model="x" * 5000)

        flooding = asyncio.create_task(flood())
        begun_s = time.monotonic()
        while not rules.cuts.value("slow_reader"):
            assert time.monotonic() - begun_s < 20
            await asyncio.sleep(0.02)
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
        while house.rig.metrics.sockets.value():
            await asyncio.sleep(0.01)

    assert house.rig.metrics.socket_closes.value("1008") == 1
