"""Beam searches over a socket: what is sent, what is read, and how a lost one goes on."""

import math
from typing import Any

import pytest

from client.beams import BeamHole, BeamsAnswer, BeamsCall, BeamsReport, BeamState
from client.calls import Constraint
from client.errors import ConstraintRefused, InvalidRequest
from client.lmtp.model import LmtpModel
from client.lmtp.retry import RetryPolicy
from client.sampling import Sampling
from tests.client.lmtp.peer import USAGE, Peer, performing

QUICK = RetryPolicy(first_pause_s=0.005, max_pause_s=0.01, max_tries=4)
CALL = BeamsCall(
    width=2,
    holes=(BeamHole(prompt="Once", max_tokens=4, is_last=True),),
    beams=(BeamState(),),
    sampling=Sampling(temperature=0.7, repetition_penalty=1.1),
    ended=(-9.0,),
)


def beam(*output: int, logprob: float = -1.0, **more: object) -> dict[str, Any]:
    made = {"hole": 0, "output": list(output), "logprob": logprob, "num_tokens": len(output)}
    return {**made, "output_logprob": logprob, **more}


async def end(peer: Peer, stream_id: int, *ended: dict[str, Any], **more: object) -> None:
    fields = {"stream_id": stream_id, "finish_reason": "complete", "beams": [], "dropped": []}
    await peer.say("DONE", {**fields, "ended": list(ended), "usage": USAGE, **more})


async def parts_of(model: LmtpModel, call: BeamsCall) -> list[BeamsReport | BeamsAnswer]:
    return [part async for part in model.search(call)]


async def test_a_lost_search_is_sent_again_as_it_was() -> None:
    async def lost(peer: Peer) -> None:
        await peer.greet()
        stream_id = (await peer.expect("BEAMS"))["stream_id"]
        ended = [beam(1, logprob=-2.0, is_ended=True, text="b", score=-2.0)]
        live = [beam(1, 2, text="bc"), beam(3, 4, logprob=-3.0, text="de")]
        await peer.say("BEAMS", {"stream_id": stream_id, "beams": live, "ended": ended})

    async def whole(peer: Peer) -> None:
        await peer.greet()
        stream_id = (await peer.expect("BEAMS"))["stream_id"]
        first = beam(1, logprob=-2.0, is_ended=True, text="b", score=-2.0)
        await end(peer, stream_id, first, beam(1, 2, 5, is_ended=True, text="bcf", score=-1.0))
        await peer.until_closed()

    async with performing(lost, whole) as scene:
        async with LmtpModel(scene.url, retry=QUICK) as model:
            report, answer = await parts_of(model, CALL)
        (_, first), (_, second) = (peer.received[1] for peer in scene.peers)

    assert isinstance(report, BeamsReport)
    assert [state.text for state in report.beams] == ["bc", "de"]
    assert isinstance(answer, BeamsAnswer)
    assert [state.text for state in answer.ended] == ["b", "bcf"]
    assert second == first


async def test_a_call_is_sent_without_what_means_nothing_to_a_search() -> None:
    async def answers(peer: Peer) -> None:
        await peer.greet()
        await end(peer, (await peer.expect("BEAMS"))["stream_id"])
        await peer.until_closed()

    hole = BeamHole(
        prompt=(1, 2), constraint=Constraint("regex", "a+"), stop=(".",), keeps_stop=False
    )
    call = BeamsCall(width=3, holes=(hole,), beams=(BeamState(output=(4,)),), report_s=None)
    async with performing(answers) as scene, LmtpModel(scene.url) as model:
        await parts_of(model, call)
        (_, body) = scene.peers[0].received[1]
    constraint = {"type": "regex", "value": "a+"}
    assert body == {
        "stream_id": body["stream_id"],
        "width": 3,
        "holes": [
            {"prompt": [1, 2], "constraint": constraint, "stop": ["."], "include_stop": False}
        ],
        "beams": [beam(4, logprob=0.0) | {"num_tokens": 0}],
        "length_penalty": 0.0,
        "early_stopping": False,
    }


async def test_dropped_beams_have_the_clients_errors() -> None:
    async def answers(peer: Peer) -> None:
        await peer.greet()
        fault: dict[str, Any] = {
            "error": "no",
            "error_type": "constraint_error",
            "details": {"reason": "broken"},
        }
        dropped = [
            beam(1, **fault, retryable=False),
            beam(2, is_ended=True, text="c", constraint_satisfied=False, violation="too short"),
        ]
        stream_id = (await peer.expect("BEAMS"))["stream_id"]
        candidates = [beam(3, logprob=-1.7976931348623157e308)]
        await end(peer, stream_id, dropped=dropped, candidates=candidates, num_considered=4)
        await peer.until_closed()

    async with performing(answers) as scene, LmtpModel(scene.url) as model:
        (answer,) = await parts_of(model, CALL)
    assert isinstance(answer, BeamsAnswer)
    refused, violated = answer.dropped
    assert isinstance(refused.error, ConstraintRefused)
    assert (violated.error, violated.violation, violated.beam.text) == (None, "too short", "c")
    assert answer.candidates is not None
    assert answer.candidates[0].logprob == -math.inf


async def test_a_mistake_is_not_asked_again() -> None:
    async def refuses(peer: Peer) -> None:
        await peer.greet()
        stream_id = (await peer.expect("BEAMS"))["stream_id"]
        await peer.fail(stream_id, "validation", field="width")
        await peer.until_closed()

    async with performing(refuses) as scene, LmtpModel(scene.url, retry=QUICK) as model:
        with pytest.raises(InvalidRequest, match="it went wrong"):
            await parts_of(model, CALL)
