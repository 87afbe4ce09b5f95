"""Calls and beam searches over a wire whose other end is scripted."""

import asyncio
import math
from contextlib import aclosing
from typing import Any

import pytest

from client.calls import (
    Answer,
    BeamHole,
    BeamsAnswer,
    BeamsCall,
    BeamsReport,
    BeamState,
    Constraint,
    GenerateCall,
    GeneratedToken,
    Message,
    ScoreCall,
    ServerNotice,
)
from client.errors import (
    ConstraintRefused,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    ServerFailed,
    Unauthorized,
)
from client.lmtp.model import LmtpModel, RetryPolicy
from client.sampling import Sampling
from tests.client.lmtp.peer import USAGE, Peer, endless, performing, three_letters
from tests.router.rig import until


async def test_a_stream_gives_its_tokens_and_then_the_answer() -> None:
    async with performing(three_letters) as scene, LmtpModel(scene.url) as model:
        parts = [part async for part in model.stream(GenerateCall(prompt="Once"))]
    assert [part.text for part in parts] == ["a", "b", "c", "abc!"]
    answer = parts[-1]
    assert isinstance(answer, Answer)
    assert [token.token_id for token in answer.tokens] == [0, 1, 2]
    assert answer.finish_reason == "length"
    assert answer.logprob == -1.5
    assert (answer.usage.num_prompt_tokens, answer.usage.num_output_tokens) == (3, 3)
    assert answer.seed == 7


async def test_calls_for_several_models_take_a_connection_each_where_a_server_binds_them() -> None:
    async def one_model(peer: Peer) -> None:
        first = await peer.first("GENERATE", features=["models_on_demand"])
        await peer.token(first["stream_id"], 0)
        while True:
            body = await peer.expect("GENERATE")
            for each in (first, body):
                await peer.done(each["stream_id"], each["model"])

    async def ask(model: LmtpModel, name: str | None) -> str:
        return (await model.generate(GenerateCall(prompt="x", model=name))).text

    async with performing(one_model) as scene, LmtpModel(scene.url, name="a") as model:
        names = (None, "b", "a", "b")
        # The first two wait for the others, each on the connection of its model.
        answers = await asyncio.gather(*(ask(model, name) for name in names))
    assert answers == ["a", "b", "a", "b"]
    named = [[body.get("model") for _, body in peer.received[1:]] for peer in scene.peers]
    assert named == [["a", "a"], ["b", "b"]]


async def test_an_idle_connection_is_closed_before_one_for_another_model_is_opened() -> None:
    """As long as it is open, a server of several models keeps its model in memory."""
    num_open = 0

    async def one_model(peer: Peer) -> None:
        nonlocal num_open
        await peer.greet(features=["models_on_demand"])
        num_open += 1
        assert num_open == 1
        try:
            while True:
                body = await peer.expect("GENERATE")
                await peer.done(body["stream_id"], body["model"])
        finally:
            num_open -= 1

    async with performing(one_model) as scene, LmtpModel(scene.url, name="a") as model:
        calls = [GenerateCall(prompt="x", model=name) for name in (None, "a", "b", "a")]
        answers = [await model.generate(call) for call in calls]
    assert [answer.text for answer in answers] == ["a", "a", "b", "a"]
    assert len(scene.peers) == 3


async def test_a_call_is_sent_with_what_it_says_and_nothing_else() -> None:
    call = GenerateCall(
        prompt=(Message("user", "Hi"), Message("assistant", "Yes?", "A greeting.")),
        sampling=Sampling(temperature=0.5, top_k=4, seed=9, logit_bias={5: -100.0}),
        max_tokens=8,
        constraint=Constraint("choice", ["yes", "no"]),
        stop=("\n",),
        keeps_stop=False,
        top_logprobs=2,
        output=(4, 5),
        model="scripted",
        separates_thought=True,
    )
    async with performing(three_letters) as scene, LmtpModel(scene.url) as model:
        await model.generate(call)
        (_, body) = scene.peers[0].received[1]
    assert body == {
        "stream_id": 2,
        "messages": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Yes?", "reasoning_content": "A greeting."},
        ],
        "temperature": 0.5,
        "top_k": 4,
        "seed": 9,
        "logit_bias": {"5": -100.0},
        "max_tokens": 8,
        "constraint": {"type": "choice", "value": ["yes", "no"]},
        "stop": ["\n"],
        "include_stop": False,
        "top_logprobs": 2,
        "output": [4, 5],
        "model": "scripted",
        "include_reasoning": True,
    }


async def test_scores_come_for_every_value_in_one_request() -> None:
    async def script(peer: Peer) -> None:
        body = await peer.first("SCORE")
        assert body["scored"] == ["yes", "no"]
        scores = [{"tokens": [1, 2], "logprobs": [-1.0, -3.0]}, {"tokens": [3], "logprobs": [-2]}]
        usage = {"prompt_tokens": 4, "cached_tokens": 0, "output_tokens": 0}
        await peer.say("SCORES", {"stream_id": body["stream_id"], "scores": scores, "usage": usage})
        await peer.until_closed()

    async with performing(script) as scene, LmtpModel(scene.url) as model:
        scores = await model.score(ScoreCall(prompt="Well?", values=("yes", "no")))
    assert [(value.total, value.mean) for value in scores.values] == [(-4.0, -2.0), (-2.0, -2.0)]


async def test_streams_share_a_socket_and_do_not_mix() -> None:
    async def script(peer: Peer) -> None:
        first = (await peer.first("GENERATE"))["stream_id"]
        second = (await peer.expect("GENERATE"))["stream_id"]
        for token_id in range(3):
            await peer.token(second, token_id + 10)
            await peer.token(first, token_id)
        await peer.done(second, "klm")
        await peer.done(first, "abc")
        await peer.until_closed()

    async with performing(script) as scene, LmtpModel(scene.url) as model:
        calls = [model.generate(GenerateCall(prompt=text)) for text in ("one", "two")]
        answers = await asyncio.gather(*calls)
        assert len(scene.peers) == 1
    assert [answer.text for answer in answers] == ["abc", "klm"]
    assert [[t.token_id for t in answer.tokens] for answer in answers] == [
        [0, 1, 2],
        [10, 11, 12],
    ]


async def test_a_stream_that_is_closed_early_is_cancelled() -> None:
    async with performing(endless) as scene, LmtpModel(scene.url) as model:
        async with aclosing(model.stream(GenerateCall(prompt="Once"))) as stream:
            assert isinstance(await anext(stream), GeneratedToken)
        await until(lambda: len(scene.peers[0].received) == 3)
        sent = scene.peers[0].received
    assert sent[2] == ("CANCEL", {"stream_id": sent[1][1]["stream_id"]})


BROKEN = {"reason": "malformed", "position": 3}
LATER = {"retry_after_s": 600, "retryable": True}


@pytest.mark.parametrize(
    ("error_type", "more", "kind"),
    [
        ("validation", {"field": "stop"}, InvalidRequest),
        ("unauthorized", {}, Unauthorized),
        ("model_not_found", {}, ModelNotFound),
        ("generation", {}, ServerFailed),
        ("validation", {"field": "constraint", "details": BROKEN}, ConstraintRefused),
        ("constraint_error", {"field": "constraint", "details": BROKEN}, ConstraintRefused),
        # Longer than a client waits, and what waiting does not help.
        ("overloaded", LATER, Overloaded),
        ("model_load_failed", LATER, ModelNotFound),
    ],
)
async def test_an_error_of_the_server_has_its_class_and_its_facts(
    error_type: str, more: dict[str, Any], kind: type[Exception]
) -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        for request in ("GENERATE", "BEAMS"):
            body = await peer.expect(request)
            await peer.fail(body["stream_id"], error_type, **more)
        await peer.until_closed()

    async with performing(script) as scene, LmtpModel(scene.url) as model:
        for asking in (model.generate(GenerateCall(prompt="Once")), parts_of(model, CALL)):
            with pytest.raises(kind, match="it went wrong") as caught:
                await asking
    facts = {name: getattr(caught.value, name, None) for name in more if name != "retryable"}
    if kind is not ModelNotFound:
        assert facts == {name: more[name] for name in facts}
    assert getattr(caught.value, "error_type", None) == error_type


async def test_what_cannot_come_at_all_has_no_probability() -> None:
    async def script(peer: Peer) -> None:
        body = await peer.first("GENERATE")
        tops = {"1": -0.5, "2": -1.7976931348623157e308}
        await peer.token(body["stream_id"], 1, top_logprobs=tops)
        await peer.done(body["stream_id"], "b")
        await peer.until_closed()

    async with performing(script) as scene, LmtpModel(scene.url) as model:
        answer = await model.generate(GenerateCall(prompt="Once", top_logprobs=2))
    assert answer.tokens[0].top_logprobs == {1: -0.5, 2: -math.inf}


async def test_a_full_socket_gets_a_neighbour() -> None:
    all_are_in = asyncio.Barrier(5)

    async def answer(peer: Peer, stream_id: int) -> None:
        await all_are_in.wait()
        await peer.done(stream_id, "ok")

    async def script(peer: Peer) -> None:
        await peer.greet(max_streams=2)
        async with asyncio.TaskGroup() as answers:
            while True:
                _, body = await peer.read()
                answers.create_task(answer(peer, body["stream_id"]))

    async with performing(script) as scene, LmtpModel(scene.url) as model:
        calls = [model.generate(GenerateCall(prompt=str(index))) for index in range(5)]
        answers = await asyncio.gather(*calls)
        assert [len(peer.received) - 1 for peer in scene.peers] == [2, 2, 1]
    assert [answer.text for answer in answers] == ["ok"] * 5


async def test_a_server_that_leaves_finishes_what_it_has_and_gets_nothing_new() -> None:
    async def leaving(peer: Peer) -> None:
        body = await peer.first("GENERATE")
        await peer.token(body["stream_id"], 0)
        await peer.say("SYS", {"stream_id": None, "state": "draining", "message": ""})
        await peer.token(body["stream_id"], 1)
        await peer.until_closed()

    async with performing(leaving, three_letters) as scene, LmtpModel(scene.url) as model:
        async with aclosing(model.stream(GenerateCall(prompt="Once"))) as stream:
            pieces = [(await anext(stream)).text for _ in range(2)]
            assert (await model.generate(GenerateCall(prompt="Twice"))).text == "abc!"
        assert pieces == ["a", "b"]
        assert len(scene.peers) == 2


async def test_notices_are_handed_on() -> None:
    notices: list[ServerNotice] = []

    async def script(peer: Peer) -> None:
        body = await peer.first("GENERATE")
        await peer.say("SYS", {"stream_id": None, "state": "loading", "message": "50 %"})
        await peer.say("WHATEVER", {"stream_id": None})
        await peer.done(body["stream_id"], "")
        await peer.until_closed()

    async with performing(script) as scene, LmtpModel(scene.url, on_notice=notices.append) as model:
        await model.generate(GenerateCall(prompt="Once"))
    assert notices == [ServerNotice("loading", "50 %", None)]


async def test_a_closed_model_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    async with performing(endless) as scene:
        model = LmtpModel(scene.url)
        task = asyncio.create_task(model.generate(GenerateCall(prompt="Once")))
        await until(lambda: bool(scene.peers) and len(scene.peers[0].received) == 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await model.close()
    assert asyncio.all_tasks() == before


QUICK = RetryPolicy(first_pause_s=0.005, max_pause_s=0.01, max_tries=4)
CALL = BeamsCall(
    width=2,
    holes=(BeamHole(call=GenerateCall(prompt="Once", max_tokens=4), is_last=True),),
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
        stream_id = (await peer.first("BEAMS"))["stream_id"]
        ended = [beam(1, logprob=-2.0, is_ended=True, text="b", score=-2.0)]
        live = [beam(1, 2, text="bc"), beam(3, 4, logprob=-3.0, text="de")]
        await peer.say("BEAMS", {"stream_id": stream_id, "beams": live, "ended": ended})

    async def whole(peer: Peer) -> None:
        stream_id = (await peer.first("BEAMS"))["stream_id"]
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
        await end(peer, (await peer.first("BEAMS"))["stream_id"])
        await peer.until_closed()

    asked = GenerateCall(
        prompt=(1, 2), constraint=Constraint("regex", "a+"), stop=(".",), keeps_stop=False
    )
    hole = BeamHole(call=asked)
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
