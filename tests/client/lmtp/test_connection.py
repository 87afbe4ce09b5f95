"""Addresses of servers, and requests and handshakes that these refuse."""

import math

import pytest

from client.calls import Constraint, GenerateCall
from client.errors import InvalidRequest, Unreachable
from client.lmtp.address import Address, read_address
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
        first = await peer.first("GENERATE")
        await peer.token(first["stream_id"], 0)
        await peer.expect("GENERATE")
        await peer.socket.close(1007, "the frame's JSON is too deep")

    async def patient(peer: Peer) -> None:
        body = await peer.first("GENERATE")
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


@pytest.mark.parametrize(
    ("url", "websocket", "http"),
    [
        ("http://host:3000", "ws://host:3000/", "http://host:3000"),
        ("https://host", "wss://host/", "https://host"),
        ("ws://host:3000/lmtp", "ws://host:3000/lmtp", "http://host:3000"),
        ("wss://host/a/lmtp/", "wss://host/a/lmtp/", "https://host/a"),
        ("HTTP://host/a/", "ws://host/a/", "http://host/a"),
        ("localhost:3000", "ws://localhost:3000/", "http://localhost:3000"),
        ("[::1]:3000", "ws://[::1]:3000/", "http://[::1]:3000"),
        ("host", "ws://host/", "http://host"),
        ("http://host/?team=a", "ws://host/?team=a", "http://host"),
    ],
)
def test_every_form_leads_to_both_urls(url: str, websocket: str, http: str) -> None:
    assert read_address(url) == Address(websocket, http, None)


@pytest.mark.parametrize(
    "url",
    [
        "http://host/?key=s%20t",
        "http://:s%20t@host/",
        "http://anybody:s%20t@host",
        "http://s%20t@host",
        "s%20t@host",
    ],
)
def test_a_key_in_the_url_is_taken_out_of_it(url: str) -> None:
    address = read_address(url)
    assert address == Address("ws://host/", "http://host", "s t")
    assert "s t" not in repr(address)


def test_a_key_that_is_given_goes_before_the_urls() -> None:
    assert read_address("http://host/?key=a", "b").key == "b"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://host", "the scheme is 'ftp'"),
        ("http://", "it has no host"),
        ("", "it has no host"),
        ("host:port", "Port could not be cast"),
        ("http://secret@[host", "IPv6"),
    ],
)
def test_what_is_no_address_is_refused_without_showing_a_key(url: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=r"url must be host:port or begin with") as caught:
        read_address(url)
    assert why in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.field == "url"


@pytest.mark.parametrize(
    ("url", "is_local"),
    [("localhost:1", True), ("127.0.0.2", True), ("http://[::1]", True), ("example.org", False)],
)
def test_this_machine_is_recognised(url: str, is_local: bool) -> None:
    assert read_address(url).is_local is is_local
