"""Frames: what is read, what is refused, nonsense by chance, and prompts."""

import asyncio
import json
import logging
import random
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from router.http.lmtp.frames import SocketClose, read_frame
from router.http.server.protocol import ConnectionLimits
from tests.byte_tokenizer import VOCAB_SIZE, byte_ids
from tests.fakes import FakeShard
from tests.router.http.lmtp.talking import Talk, complaints, served, talking
from tests.router.rig import settled

ONCE = byte_ids("Once")


async def closed(talk: Talk) -> tuple[int, str]:
    """The code and the reason with which the server closes."""
    close = await talk.closed()
    assert close is not None
    return close


NO_FRAMES: list[tuple[Any, ...]] = [
    ("", "a frame is TYPE"),
    ("GENERATE", "a frame is TYPE"),
    (" {}", "a frame is TYPE"),
    ("GENERATE {", "malformed"),
    ("GENERATE []", "an object"),
    ("GENERATE 5", "an object"),
    ('GENERATE {"stream_id": NaN}', "malformed"),
    ('GENERATE {"text": "\\ud800"}', "malformed"),
    ('GENERATE {"stream_id": 1267650600228229401496703205376, "top_p": NaN}', "malformed"),
    ("X" * 41 + " {}", "a frame is TYPE"),
    ("GENERÄTE {}", "a frame is TYPE"),
    ('GENERATE {"x": ' + "[" * 70 + "]" * 70 + "}", "levels deep"),
    ('GENERATE {"x": [[]' + ",[]" * 32_767 + "]}", "at most 32768 lists and objects"),
]


async def test_a_text_that_is_no_frame_closes_the_socket() -> None:
    async with served(FakeShard()) as (_, port):
        for text, words in NO_FRAMES:
            async with talking(port) as talk:
                await talk.socket.send(text)
                code, reason = await closed(talk)
            assert code == 1007
            assert words in reason


async def test_what_pythons_json_writes_beside_json_fails_its_own_stream_alone() -> None:
    faults = ['"temperature": NaN', '"top_p": -Infinity', '"text": "\\ud800"']
    shard = FakeShard()
    shard.faults.delay_s = 0.02
    async with served(shard) as (_, port), talking(port) as talk:
        await talk.send("GENERATE", stream_id=1, prompt=ONCE, max_tokens=20)
        for index, fault in enumerate(faults):
            await talk.socket.send(
                f'GENERATE {{"stream_id": {10 + index}, "prompt": [1], {fault}}}'
            )
            await talk.socket.send(f'MODEL_INFO {{"stream_id": {20 + index}, {fault}}}')
        objects: dict[int, list[dict[str, Any]]] = {
            stream_id: [] for stream_id in (1, 10, 11, 12, 20, 21, 22)
        }
        while not any(fields.get("finish_reason") for fields in objects[1]):
            _, fields = await talk.hear()
            objects[fields["stream_id"]].append(fields)

    assert len(objects.pop(1)) == 20
    for (fields,) in objects.values():
        assert fields["error_type"] == "validation"
        assert fields["error"].startswith("the frame's JSON is malformed: ")


async def test_a_binary_message_closes_the_socket() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.socket.send(b'GENERATE {"stream_id": 1}')
        code, reason = await closed(talk)

    assert code == 1003
    assert "text message" in reason


async def test_a_text_message_that_is_no_text_closes_the_socket() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.socket.send(b"GENERATE \xff", text=True)
        code, reason = await closed(talk)

    assert (code, reason) == (1007, "a text frame is not UTF-8: byte 9")


async def test_a_message_that_is_too_large_closes_the_socket_with_the_numbers() -> None:
    rules = ConnectionLimits(max_message_len=1 << 16)
    async with served(FakeShard(), rules) as (_, port), talking(port) as talk:
        await talk.socket.send("GENERATE " + json.dumps({"text": "x" * (1 << 20)}))
        code, reason = await closed(talk)

    assert code == 1009
    assert "65536" in reason


async def test_a_message_in_pieces_is_one() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.socket.send(
            ["GENERATE ", '{"stream_id": 1, "prompt": [3', '], "max_tokens": 1}']
        )
        messages = await talk.stream(1)

    assert messages[0][1]["finish_reason"] == "length"


async def test_a_frame_without_a_number_is_answered_without_one() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        for stream_id in ("1", None, 1.5, True, [1]):
            await talk.send("GENERATE", stream_id=stream_id, prompt=ONCE)
            command, fields = await talk.hear()
            messages = await talk.ask("GENERATE", 2, prompt=ONCE, max_tokens=1)
            assert (command, fields["stream_id"], fields["field"]) == ("MSG", None, "stream_id")
            assert messages[0][1]["finish_reason"] == "length"


NO_NUMBERS: list[tuple[Any, ...]] = [
    ("1" + "0" * 30, "1" + "0" * 30),
    ("-9223372036854775809", "-9223372036854775809"),
    ("1.5", "1.5"),
    ("true", "true"),
    ("null", "null"),
    ('"7"', '"7"'),
    ("[7]", "a list of 1"),
]


async def test_what_is_no_streams_number_is_quoted_as_it_was_written() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        for written, shown in NO_NUMBERS:
            await talk.socket.send(f'CANCEL {{"stream_id": {written}}}')
            _, fields = await talk.hear()
            rule = "`stream_id` must be a whole number of at most 64 bits"
            assert fields["error"] == f"{rule}. Given: {shown}"


async def test_numbers_of_64_bits_are_streams() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        for stream_id in (2**64 - 1, -(2**63)):
            messages = await talk.ask("GENERATE", stream_id, prompt=ONCE, max_tokens=1)
            assert messages[0][1]["stream_id"] == stream_id


async def test_a_mask_of_a_megabyte_is_taken_and_its_first_wrong_id_named() -> None:
    bias = {str(token_id): -100 for token_id in range(2, VOCAB_SIZE)}
    wrong = bias | {str(10_000_000 + index): -100 for index in range(62_000)}
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        messages = await talk.ask("GENERATE", 1, prompt=ONCE, max_tokens=1, logit_bias=bias)
        await talk.send("GENERATE", stream_id=2, prompt=ONCE, max_tokens=1, logit_bias=wrong)
        error = (await talk.hear())[1]

    assert messages[0][1]["finish_reason"] == "length"
    assert len(json.dumps(wrong)) > 1 << 20
    assert (error["field"], "10000000" in error["error"]) == ("logit_bias", True)


async def test_of_many_wrong_values_the_first_is_named() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        error = await talk.error("GENERATE", 1, prompt=[*ONCE, *["a"] * 60_000])

    assert error["field"] == f"prompt[{len(ONCE)}]"


async def test_a_text_of_megabytes_is_refused_by_its_beginning() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        for command, fields in (
            ("GENERATE", {"text": "abcd " * 1_000_000}),
            ("SCORE", {"prompt": ONCE, "scored": ["abcd " * 1_000_000]}),
            ("SCORE", {"text": "abcd " * 1_000_000, "scored": ["a"]}),
        ):
            error = await talk.error(command, 1, **fields)
            assert "in its first 16384 of 5000000 characters" in error["error"]


def test_a_frame_is_its_type_and_its_object() -> None:
    frame = read_frame('FOO {"a": 1}')
    assert (frame.command, frame.payload) == ("FOO", {"a": 1})


def test_no_text_is_no_frame() -> None:
    with pytest.raises(SocketClose) as raised:
        read_frame(None)
    assert raised.value.code == 1003


BROKEN_FRAMES: list[tuple[Any, ...]] = [
    (b"\x81\x02hi", 1002),
    (b"\xf1\x80\0\0\0\0", 1002),
    (b"\x83\x80\0\0\0\0", 1002),
    (b"\x80\x80\0\0\0\0", 1002),
    (b"\x09\x80\0\0\0\0", 1002),
    (b"\x81\xff\x00\x00\x01\x00\x00\x00\x00\x00\0\0\0\0", 1009),
]


async def test_broken_websocket_frames_close_the_socket() -> None:
    async with served(FakeShard()) as (_, port):
        for sent, code in BROKEN_FRAMES:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                b"GET /lmtp HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
                b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
            )
            await reader.readuntil(b"\r\n\r\n")
            writer.write(sent)
            answer = await asyncio.wait_for(reader.read(), 30)
            writer.close()
            assert answer[0] == 0x88
            assert int.from_bytes(answer[2:4], "big") == code
            assert len(answer) > 4, "it has no reason"


_TYPES = (
    "GENERATE",
    "SCORE",
    "MODEL_INFO",
    "HELLO",
    "CANCEL",
    "SYS",
    "TOKEN",
    "",
)
_FIELDS = (
    "stream_id", "model", "prompt", "text", "messages", "max_tokens", "scored",
    "temperature", "top_logprobs", "logit_bias", "top_p", "top_k", "min_p", "typical_p", "seed",
    "repetition_penalty", "constraint", "stop", "include_stop", "stop_token_ids", "ignore_eos",
    "min_tokens", "output", "timeout_s", "version", "data", "nothing",
)  # fmt: skip
_CONSTRAINTS = ("json", "regex", "choice", "lark", "where", "sql")


class Nonsense:
    """An endless source; the same seed says the same."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def message(self) -> str | bytes | list[str]:
        """A text message, a binary one, or one in pieces."""
        chance = self._chance
        kind = chance.random()
        text = self._frame()
        if kind < 0.75:
            return text
        if kind < 0.85:
            return self._damaged(text)
        if kind < 0.9:
            return [text[:3], text[3:7], text[7:]]
        if kind < 0.95:
            return chance.randbytes(chance.randrange(60))
        return "".join(chr(chance.choice((32, 34, 65, 123, 233, 0x1F600))) for _ in range(9))

    def _frame(self) -> str:
        chance = self._chance
        command = chance.choice(_TYPES[:3] * 3 + _TYPES)
        fields = self._sensible(command) if chance.random() < 0.8 else {}
        for _ in range(chance.randrange(4)):
            fields[chance.choice(_FIELDS)] = self._value(3)
        if chance.random() < 0.2 and fields:
            del fields[chance.choice(list(fields))]
        return f"{command} {json.dumps(fields)}"

    def _sensible(self, command: str) -> dict[str, Any]:
        chance = self._chance
        fields: dict[str, Any] = {"stream_id": chance.randrange(8), "prompt": byte_ids("Once")}
        if command == "SCORE":
            fields["scored"] = chance.choice((byte_ids("ab"), ["ab", "c"], [byte_ids("a")]))
        if command == "HELLO":
            fields["version"] = chance.randrange(4)
        if command == "GENERATE":
            fields["max_tokens"] = chance.randrange(6)
        return fields

    def _value(self, depth: int) -> Any:
        chance = self._chance
        leaves: tuple[Any, ...] = (
            None, True, False, 0, 1, -1, 3, 2**31, 2**63, 2**64, 2**70, -(2**63), 0.5, -0.5, 1e308,
            "", "a", "b", "Once", "x" * 200, "\x00", "é", "\U0001f600", "1", "-1", [], {},
            [257], [258], [-1], [3] * 130, byte_ids("Twice"), {"5": 1}, {"258": 1}, {"x": 1},
            {"5": 1e9}, {"5": None}, [{"role": "user", "content": "hi"}],
            [{"role": "", "content": 1}],
        )  # fmt: skip
        kind = chance.random()
        if kind < 0.7 or depth == 0:
            return chance.choice(leaves)
        if kind < 0.8:
            return {"type": chance.choice(_CONSTRAINTS), "value": self._value(depth - 1)}
        if kind < 0.9:
            return [self._value(depth - 1) for _ in range(chance.randrange(4))]
        keys = (chance.choice(("a", "type", "5", "content")) for _ in range(chance.randrange(4)))
        return {key: self._value(depth - 1) for key in keys}

    def _damaged(self, text: str) -> str:
        chance = self._chance
        at = chance.randrange(len(text) + 1)
        more = chance.choice('{}[],:" ')
        return chance.choice((text[:at], text[at:], text[:at] + more + text[at:]))


_PING_ID = 999_999
_PATIENCE_S = 20.0


async def ends_well(talk: Talk) -> bool:
    """Whether the server still answers; False: it closed the socket, and messages why."""
    try:
        await talk.send("MODEL_INFO", stream_id=_PING_ID)
        while True:
            _, fields = await talk.hear()
            assert fields.get("error_type") != "internal_error", fields
            if fields["stream_id"] == _PING_ID:
                return True
    except ConnectionClosed as error:
        close = error.rcvd
    assert close is not None, "it hung up"
    assert close.code in (1002, 1003, 1007), close
    assert close.reason
    return False


async def survive(seed: int, num_messages: int, caplog: pytest.LogCaptureFixture) -> int:
    """The number of sockets that it took."""
    caplog.set_level(logging.ERROR, logger="router")
    nonsense = Nonsense(seed)
    num_sockets = 0
    num_sent = 0
    shard = FakeShard(num_blocks=256)
    async with served(shard, max_concurrent_requests=64) as (house, port):
        while num_sent < num_messages:
            num_sockets += 1
            async with talking(port) as talk, asyncio.timeout(_PATIENCE_S):
                is_open = True
                while is_open and num_sent < num_messages:
                    num_sent += 1
                    await talk.socket.send(nonsense.message())
                    is_open = await ends_well(talk)
        await settled(house.rig)
        assert house.rig.scheduler.stats().num_blocks_used == 0
        async with talking(port) as talk:
            messages = await talk.ask("GENERATE", prompt=[3, 4], max_tokens=2)
        assert messages[-1][1]["finish_reason"] == "length"
        assert house.rig.metrics.socket_streams.value() == 0
    assert complaints(caplog) == []
    return num_sockets


async def test_300_messages_by_chance(caplog: pytest.LogCaptureFixture) -> None:
    assert await survive(1, 300, caplog) > 10


@pytest.mark.nightly
async def test_3_000_random_messages(caplog: pytest.LogCaptureFixture) -> None:
    assert await survive(2, 3_000, caplog) > 90


TURNS = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("prompt", [{"prompt": byte_ids("user: hi\n")}, {"messages": TURNS}])
async def test_a_continuation_is_scored_behind_ids_and_messages(prompt: dict[str, Any]) -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("SCORE", scored=["x"], **prompt)

    assert messages[0][1]["scores"][0]["tokens"] == byte_ids("x")
    assert messages[0][1]["usage"]["prompt_tokens"] == len("user: hi\n") + 1


WRONG_PROMPTS: list[tuple[Any, ...]] = [
    ({}, "prompt", "is required: token ids, or `text`, or `messages`"),
    ({"prompt": [3], "messages": TURNS}, "messages", "exclude each other"),
    ({"prompt": [999]}, "prompt", "between 0 and 257. Given: 999"),
    ({"text": "x" * 161}, "text", "at most 160 tokens. Given: 161"),
]


async def test_a_wrong_prompt_is_refused_by_its_field() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        for prompt, field, words in WRONG_PROMPTS:
            error = await talk.error("SCORE", scored=["x"], **prompt)
            assert (error["error_type"], error["field"]) == ("validation", field)
            assert words in error["error"]
