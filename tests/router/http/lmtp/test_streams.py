"""System messages of requests that wait in the queue."""

import asyncio

from tests.byte_tokenizer import byte_ids
from tests.fakes import FakeShard
from tests.router.http.lmtp.talking import Message, served, talking


def slow() -> FakeShard:
    shard = FakeShard(num_blocks=48)
    shard.faults.delay_s = 0.02
    return shard


async def test_a_waiting_request_gets_its_place_and_its_start() -> None:
    async with served(slow()) as (_, port), talking(port) as talk:
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
        await asyncio.sleep(0.3)

    of_it = [(command, fields) for command, fields in heard if fields["stream_id"] == 2]
    assert [(command, fields["finish_reason"]) for command, fields in of_it] == [
        ("DONE", "cancelled")
    ]
    assert of_it[0][1]["usage"]["output_tokens"] == 0
