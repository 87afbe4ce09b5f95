"""Best-first searches over a socket: what is sent, what is read, what a lost one begins with."""

import pytest

from client.beams import BeamHole, BeamsAnswer, BeamsReport, BeamState, BestCall
from client.errors import InvalidRequest
from client.lmtp.model import LmtpModel
from client.words import Sampling
from tests.client.lmtp.peer import Peer, performing
from tests.client.lmtp.test_beams import QUICK, beam, end

CALL = BestCall(
    k=3,
    budget=20,
    holes=(BeamHole(prompt="Once", max_tokens=4, is_last=True),),
    beams=(
        BeamState(),
        BeamState(output=(1, 2), logprob=-2.5, num_tokens=3, ended_by="token"),
        BeamState(output=(7,), logprob=-1.0, num_tokens=1, known=(5, 6), most=-6.5),
    ),
    sampling=Sampling(temperature=0.7, repetition_penalty=1.1),
    ended=(-9.0,),
    bound=-7.5,
    report_s=None,
)


async def parts_of(model: LmtpModel, call: BestCall) -> list[BeamsReport | BeamsAnswer]:
    return [part async for part in model.search(call)]


async def test_all_that_is_known_of_beams_is_sent_and_read_again() -> None:
    left = [
        beam(4, 5, text="de", is_ended=True),
        beam(1, 2, ended_by="length"),
        beam(7, known=[9, 8], most=-8.25),
    ]

    async def answers(peer: Peer) -> None:
        await peer.greet()
        body = await peer.expect("BEST")
        more = {"finish_reason": "hole", "beams": left}
        await end(peer, body["stream_id"], beam(1, is_ended=True, text="b"), **more)
        await peer.until_closed()

    async with performing(answers) as scene, LmtpModel(scene.url) as model:
        (answer,) = await parts_of(model, CALL)
        (_, body) = scene.peers[0].received[1]

    first, second, third = body["beams"]
    assert {key: body[key] for key in ("k", "budget", "num_alternatives", "ended", "bound")} == {
        "k": 3,
        "budget": 20,
        "num_alternatives": 16,
        "ended": [-9.0],
        "bound": -7.5,
    }
    assert "temperature" not in body
    assert body["repetition_penalty"] == 1.1
    assert first == beam(logprob=0.0)
    assert (second["ended_by"], second["output"]) == ("token", [1, 2])
    assert (third["known"], third["most"]) == ([5, 6], -6.5)
    assert isinstance(answer, BeamsAnswer)
    assert [(state.is_ended, state.ended_by, state.known) for state in answer.beams] == [
        (True, None, ()),
        (False, "length", ()),
        (False, None, (9, 8)),
    ]
    assert answer.beams[2].most == -8.25
    assert [state.text for state in answer.ended] == ["b"]


async def test_a_lost_search_begins_anew_since_no_report_has_all_of_it() -> None:
    async def lost(peer: Peer) -> None:
        await peer.greet()
        stream_id = (await peer.expect("BEST"))["stream_id"]
        await peer.say(
            "BEAMS", {"stream_id": stream_id, "beams": [beam(1, text="b")], "ended": [beam(2)]}
        )

    async def rest(peer: Peer) -> None:
        await peer.greet()
        body = await peer.expect("BEST")
        await end(peer, body["stream_id"], beam(2, is_ended=True, text="c"))
        await peer.until_closed()

    async with performing(lost, rest) as scene:
        async with LmtpModel(scene.url, retry=QUICK) as model:
            report, answer = await parts_of(model, CALL)
        (_, first), (_, second) = (peer.received[1] for peer in scene.peers)

    assert isinstance(report, BeamsReport)
    assert [state.text for state in report.beams] == ["b"]
    assert {**second, "stream_id": 0} == {**first, "stream_id": 0}
    assert isinstance(answer, BeamsAnswer)
    assert [state.text for state in answer.ended] == ["c"]


async def test_a_server_that_does_not_know_it_says_so() -> None:
    async def refuses(peer: Peer) -> None:
        await peer.greet()
        await peer.fail((await peer.expect("BEST"))["stream_id"], "unknown_command")
        await peer.until_closed()

    async with performing(refuses) as scene, LmtpModel(scene.url, retry=QUICK) as model:
        with pytest.raises(InvalidRequest):
            await parts_of(model, CALL)
