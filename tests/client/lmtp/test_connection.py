"""Refused requests and handshakes."""

import math

import pytest

from client.calls import Constraint, GenerateCall
from client.errors import (
    InvalidRequest,
    Unreachable,
)
from client.lmtp.model import LmtpModel
from client.sampling import Sampling
from tests.client.lmtp.peer import Peer, endless, performing, three_letters


async def test_an_address_without_a_server_fails_at_once() -> None:
    async with performing(endless) as scene:
        url = scene.url
    async with LmtpModel(url) as model:
        with pytest.raises(Unreachable, match="nobody listens there"):
            await model.generate(GenerateCall(prompt="Once"))


async def test_a_server_that_knows_no_hello_is_named() -> None:
    async def script(peer: Peer) -> None:
        body = await peer.expect("HELLO")
        await peer.say("MSG", {"stream_id": body["stream_id"], "error": "Unknown command: HELLO"})
        await peer.until_closed()

    async with performing(script) as scene, LmtpModel(scene.url) as model:
        with pytest.raises(Unreachable, match="version 2 of LMTP: Unknown command"):
            await model.generate(GenerateCall(prompt="Once"))


async def test_a_request_that_no_socket_would_take_is_refused_before_it_is_sent() -> None:
    async with performing(three_letters) as scene, LmtpModel(scene.url) as model:
        with pytest.raises(InvalidRequest, match="at most 10000 bytes"):
            await model.generate(GenerateCall(prompt="x" * 10_000))
        with pytest.raises(InvalidRequest, match="surrogate"):
            await model.generate(GenerateCall(prompt="\ud800"))
        assert (await model.generate(GenerateCall(prompt="Once"))).text == "abc!"


async def test_what_json_cannot_say_is_refused_before_it_is_sent() -> None:
    async with performing(three_letters) as scene, LmtpModel(scene.url) as model:
        with pytest.raises(InvalidRequest, match="`temperature` must be JSON"):
            await model.generate(GenerateCall(prompt="", sampling=Sampling(temperature=math.nan)))
        with pytest.raises(InvalidRequest, match="`constraint` must be JSON"):
            await model.generate(GenerateCall(prompt="", constraint=Constraint("json", {"a": {1}})))


async def test_a_frame_that_closes_the_socket_is_not_sent_again() -> None:
    async def strict(peer: Peer) -> None:
        await peer.greet()
        first = await peer.expect("GENERATE")
        await peer.token(first["stream_id"], 0)
        await peer.expect("GENERATE")
        await peer.socket.close(1007, "the frame's JSON is too deep")

    async def patient(peer: Peer) -> None:
        await peer.greet()
        body = await peer.expect("GENERATE")
        await peer.letters(body["stream_id"], 0, 2)
        await peer.done(body["stream_id"], "ab")
        await peer.until_closed()

    async with performing(strict, patient) as scene, LmtpModel(scene.url) as model:
        stream = model.stream(GenerateCall(prompt="good"))
        await anext(stream)
        with pytest.raises(InvalidRequest, match="too deep"):
            await model.generate(GenerateCall(prompt="bad"))
        rest = [part.text async for part in stream]
    assert rest == ["b", "ab"]
