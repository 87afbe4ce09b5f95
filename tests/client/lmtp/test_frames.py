"""Frames of a server as values; malformed ones are refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.calls import GenerateCall, GeneratedToken, ScoreCall, ServerNotice
from client.errors import ConnectionLost, ServerFailed
from client.lmtp.frames import BadFrame, StreamEnd, read_frame
from client.lmtp.model import LmtpModel, RetryPolicy
from tests.client.lmtp.peer import Peer, performing

TYPES = ("TOKEN", "DONE", "SCORES", "MSG", "SYS")
FIELDS = (
    *("stream_id", "token", "text", "logprob", "error", "error_type", "finish_reason", "usage"),
    *("prompt_tokens", "scores", "tokens", "logprobs", "hello", "state", "top_logprobs"),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.sampled_from(FIELDS),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5)
    ),
    max_leaves=8,
)


@given(st.sampled_from(TYPES), st.lists(VALUES, max_size=2))
def test_any_objects_are_read_or_refused(kind: str, objects: list[object]) -> None:
    try:
        parts = list(read_frame(f"{kind} {json.dumps(objects)}"))
    except BadFrame:
        return
    assert len(parts) <= len(objects)
    assert all(stream_id is None or isinstance(stream_id, int) for stream_id, _ in parts)
    texts = [part.text for _, part in parts if isinstance(part, GeneratedToken | StreamEnd)]
    assert all(isinstance(text, str) for text in texts)


@pytest.mark.parametrize("frame", ["", " ", "HELLO", "WHATEVER {]", "token []", "\x00"])
def test_unknown_types_hold_nothing(frame: str) -> None:
    assert list(read_frame(frame)) == []


@pytest.mark.parametrize("frame", ["TOKEN", "TOKEN ", "TOKEN {}", "DONE null", "SYS [", "MSG [1]"])
def test_what_is_no_list_of_objects_is_refused(frame: str) -> None:
    with pytest.raises(BadFrame):
        list(read_frame(frame))


def test_a_notice_may_concern_the_connection_or_a_stream() -> None:
    frame = 'SYS [{"stream_id": null, "state": "draining"}, {"stream_id": 3, "state": "queued"}]'
    assert [part for _, part in read_frame(frame)] == [
        ServerNotice("draining"),
        ServerNotice("queued", "", 3),
    ]


@pytest.mark.parametrize(
    "frame",
    [
        "TOKEN {}",
        'TOKEN [{"stream_id": 2}]',
        'TOKEN [{"stream_id": "2", "token": 1}]',
        'MSG [{"stream_id": null, "error": "what?"}]',
    ],
)
async def test_what_is_no_lmtp_ends_in_an_error(frame: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.first("GENERATE")
        await peer.socket.send(frame)
        await peer.until_closed()

    policy = RetryPolicy(max_tries=2, first_pause_s=0.001)
    async with performing(script) as scene, LmtpModel(scene.url, retry=policy) as model:
        with pytest.raises(ConnectionLost, match="no LMTP"):
            await model.generate(GenerateCall(prompt="Once"))


async def test_an_answer_of_the_wrong_kind_ends_in_an_error() -> None:
    async def script(peer: Peer) -> None:
        body = await peer.first("SCORE")
        await peer.token(body["stream_id"], 1)
        await peer.until_closed()

    async with performing(script) as scene, LmtpModel(scene.url) as model:
        with pytest.raises(ServerFailed, match="sent GeneratedToken instead of Scores"):
            await model.score(ScoreCall(prompt="", values=("a",)))
