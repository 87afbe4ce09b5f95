"""Malformed frames close the socket with a code and a reason; others are answered."""

import asyncio
import json
from typing import Any

import pytest

from router.http.lmtp.frames import SocketClose, read_frame
from router.http.server.protocol import ConnectionLimits
from tests.byte_tokenizer import VOCAB_SIZE, byte_ids
from tests.fakes import FakeShard
from tests.router.http.lmtp.talking import Talk, served, talking

ONCE = byte_ids("Once")


async def closed(talk: Talk) -> tuple[int, str]:
    """The code and the reason with which the server closes."""
    close = await talk.closed()
    assert close is not None
    return close


@pytest.mark.parametrize(
    ("text", "words"),
    [
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
    ],
)
async def test_a_text_that_is_no_frame_closes_the_socket(text: str, words: str) -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.socket.send(text)
        code, reason = await closed(talk)

    assert code == 1007
    assert words in reason


@pytest.mark.parametrize("fault", ['"temperature": NaN', '"top_p": -Infinity', '"text": "\\ud800"'])
async def test_what_pythons_json_writes_beside_json_fails_its_own_stream_alone(fault: str) -> None:
    shard = FakeShard()
    shard.faults.delay_s = 0.02
    async with served(shard) as (_, port), talking(port) as talk:
        await talk.send("GENERATE", stream_id=1, prompt=ONCE, max_tokens=20)
        await talk.socket.send(f'GENERATE {{"stream_id": 2, "prompt": [1], {fault}}}')
        await talk.socket.send(f'MODEL_INFO {{"stream_id": 3, {fault}}}')
        objects: dict[int, list[dict[str, Any]]] = {1: [], 2: [], 3: []}
        while not any(fields.get("finish_reason") for fields in objects[1]):
            _, fields = await talk.hear()
            objects[fields["stream_id"]].append(fields)

    for (fields,) in (objects[2], objects[3]):
        assert fields["error_type"] == "validation"
        assert fields["error"].startswith("the frame's JSON is malformed: ")
    assert len(objects[1]) == 20


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


@pytest.mark.parametrize("stream_id", ["1", None, 1.5, True, [1]])
async def test_a_frame_without_a_number_is_answered_without_one(stream_id: object) -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.send("GENERATE", stream_id=stream_id, prompt=ONCE)
        command, fields = await talk.hear()
        messages = await talk.ask("GENERATE", 2, prompt=ONCE, max_tokens=1)

    assert (command, fields["stream_id"], fields["field"]) == ("MSG", None, "stream_id")
    assert messages[0][1]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("1" + "0" * 30, "1" + "0" * 30),
        ("-9223372036854775809", "-9223372036854775809"),
        ("1.5", "1.5"),
        ("true", "true"),
        ("null", "null"),
        ('"7"', '"7"'),
        ("[7]", "a list of 1"),
    ],
)
async def test_what_is_no_streams_number_is_quoted_as_it_was_written(
    written: str, shown: str
) -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
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


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"\x81\x02hi", 1002),  # not masked
        (b"\xf1\x80\0\0\0\0", 1002),  # reserved bits
        (b"\x83\x80\0\0\0\0", 1002),  # no such opcode
        (b"\x80\x80\0\0\0\0", 1002),  # goes on with nothing
        (b"\x09\x80\0\0\0\0", 1002),  # a ping in pieces
        (b"\x81\xff\x00\x00\x01\x00\x00\x00\x00\x00\0\0\0\0", 1009),  # a petabyte
    ],
)
async def test_broken_websocket_frames_close_the_socket(sent: bytes, code: int) -> None:
    async with served(FakeShard()) as (_, port):
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
