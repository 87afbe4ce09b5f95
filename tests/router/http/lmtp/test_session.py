"""Streams that end early: by CANCEL, by a close of the socket, by a lost connection."""

import asyncio
import json
import logging
from typing import Any

import pytest

from tests.byte_tokenizer import byte_ids
from tests.fakes import FakeShard
from tests.router.http.lmtp.talking import Message, served, talking
from tests.router.rig import settled

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
        await asyncio.sleep(0.1)
        assert house.rig.metrics.sockets.value() == 0

    assert [record.getMessage() for record in caplog.records] == []
