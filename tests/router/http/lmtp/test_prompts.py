"""Buffers: named prefixes of one socket, for a while and within bounds."""

import pytest

from router.http.lmtp.prompts import BufferLimits, Buffers
from router.request.errors import InvalidRequest
from tests.byte_tokenizer import byte_ids
from tests.fakes import FakeShard
from tests.router.http.lmtp.talking import served, talking
from tests.router.rig import says


async def test_a_prompt_goes_on_behind_a_buffer() -> None:
    shard = FakeShard()
    async with served(shard) as (_, port), talking(port) as talk:
        await talk.hello()
        made = await talk.ask("BUFFER", 1, name="begin", text="Once")
        longer = await talk.ask("BUFFER", 2, name="longer", buffer="begin", prompt=byte_ids(" up"))
        behind = await talk.ask("GENERATE", 3, buffer="longer", text="on", max_tokens=3)
        whole = await talk.ask("GENERATE", 4, text="Once upon", max_tokens=3)

    assert made == [
        ("MSG", {"stream_id": 1, "buffer": {"name": "begin", "num_tokens": 4, "ttl_s": 600.0}})
    ]
    assert longer[0][1]["buffer"]["num_tokens"] == 7
    assert behind[-1][1]["text"] == whole[-1][1]["text"]
    assert whole[-1][1]["usage"]["cached_tokens"] == 8


async def test_an_output_is_kept_and_gone_on_with_without_its_end_token() -> None:
    async with served(says("Hi", "Once")) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("GENERATE", 1, text="Once", store="messages")
        scored = await talk.ask("SCORE", 2, buffer="messages", scored=["x"])

    assert messages[-1][1]["stored"] == {"name": "messages", "num_tokens": 6, "ttl_s": 600.0}
    assert scored[0][1]["usage"]["prompt_tokens"] == 7


async def test_a_buffer_alone_is_a_prompt_and_may_be_dropped() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        await talk.ask("BUFFER", 1, name="begin", text="Once", ttl_s=5)
        alone = await talk.ask("GENERATE", 2, buffer="begin", max_tokens=2)
        dropped = [(await talk.ask("DROP", 3, name="begin"))[0][1]["dropped"] for _ in "ab"]
        error = await talk.error("GENERATE", 4, buffer="begin", max_tokens=2)

    assert alone[-1][0] == "DONE"
    assert dropped == [True, False]
    assert (error["field"], "begin" in error["error"]) == ("buffer", True)


async def test_buffers_are_those_of_a_socket() -> None:
    async with served(FakeShard()) as (_, port):
        async with talking(port) as talk:
            await talk.ask("BUFFER", 1, name="begin", text="Once")
        async with talking(port) as other:
            error = await other.error("GENERATE", 1, buffer="begin")

    assert error["field"] == "buffer"


async def test_wrong_buffers_are_refused_with_a_message() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        nameless = await talk.error("BUFFER", 1, name="", text="Once")
        unending = await talk.error("BUFFER", 2, name="a", text="Once", ttl_s=1e9)
        unknown = await talk.error("BUFFER", 3, name="a", prompt=[999])
        endless = await talk.error("BUFFER", 4, name="a", text="x" * 161)

    assert [each["field"] for each in (nameless, unending, unknown, endless)] == [
        "name", "ttl_s", "prompt", "text",
    ]  # fmt: skip


def test_a_buffer_lives_from_when_it_was_last_used() -> None:
    now_s = 0.0
    buffers = Buffers(BufferLimits(), lambda: now_s)
    buffers.put("a", (1, 2), "name", 10.0)
    now_s = 9.0
    assert buffers.get("a") == (1, 2)
    now_s = 18.0
    assert buffers.get("a") == (1, 2)
    now_s = 28.0
    with pytest.raises(InvalidRequest, match="buffer"):
        buffers.get("a")


def test_buffers_are_bounded_in_number_and_tokens() -> None:
    buffers = Buffers(BufferLimits(max_buffers=2, max_tokens=10))
    buffers.put("a", (1,) * 4, "name")
    buffers.put("b", (1,) * 4, "name")
    with pytest.raises(InvalidRequest, match="at most 2 buffers"):
        buffers.put("c", (1,), "name")
    with pytest.raises(InvalidRequest, match=r"at most 10 tokens\. With this one: 11"):
        buffers.put("b", (1,) * 7, "name")
    buffers.put("b", (1,) * 6, "name")
    assert buffers.drop("a")
    buffers.put("c", (1,) * 4, "name")
    with pytest.raises(InvalidRequest):
        buffers.check("b", 7, "store")
