"""Streams that outlive a connection or a failure: their parts are those of one stream."""

import asyncio
import string
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.calls import Answer, GenerateCall, GeneratedToken, ScoreCall, ServerNotice
from client.errors import ConnectionLost, Overloaded, ServerFailed
from client.lmtp.model import LmtpModel, RetryPolicy
from client.sampling import Sampling
from tests.client.lmtp.peer import USAGE, Peer, performing

QUICK = RetryPolicy(first_pause_s=0.005, max_pause_s=0.01, max_tries=4)
LETTERS = string.ascii_lowercase


async def answer_letters(peer: Peer, body: dict[str, Any], last: int, text: str = "") -> None:
    """The rest of the first `last` letters, as a server that gets what it generated before."""
    known = len(body.get("output", []))
    await peer.letters(body["stream_id"], known, last)
    usage = {**USAGE, "prompt_tokens": 3 + known}
    await peer.done(body["stream_id"], text or LETTERS[known:last], usage=usage)


async def rest(peer: Peer) -> None:
    await answer_letters(peer, await peer.first("GENERATE"), 6)
    await peer.until_closed()


async def lost_after_three(peer: Peer) -> None:
    await peer.letters((await peer.first("GENERATE"))["stream_id"], 0, 3)


async def test_a_stream_goes_on_where_its_connection_was_lost() -> None:
    async with performing(lost_after_three, rest) as scene:
        async with LmtpModel(scene.url, retry=QUICK) as model:
            parts = [part async for part in model.stream(GenerateCall(prompt="Once"))]
        (_, first), (_, second) = (peer.received[1] for peer in scene.peers)
    assert [part.text for part in parts[:-1]] == list("abcdef")
    answer = parts[-1]
    assert isinstance(answer, Answer)
    assert answer.text == "abcdef"
    assert (answer.usage.num_prompt_tokens, answer.usage.num_output_tokens) == (3, 6)
    assert second == {**first, "output": [0, 1]}


async def test_a_thought_goes_on_where_its_connection_was_lost() -> None:
    # Each token adds its letter to the thought, until the fourth one says something.
    async def tell(peer: Peer, first: int, last: int) -> None:
        stream_id = (await peer.first("GENERATE"))["stream_id"]
        for token_id in range(first, last):
            thought = {} if token_id > 3 else {"reasoning": LETTERS[token_id], "text": ""}
            await peer.token(stream_id, token_id, **thought)
        if last == 6:
            await peer.done(stream_id, "ef", reasoning=LETTERS[first:4])
            await peer.until_closed()

    async with (
        performing(partial(tell, first=0, last=3), partial(tell, first=2, last=6)) as scene,
        LmtpModel(scene.url, retry=QUICK) as model,
    ):
        answer = await model.generate(GenerateCall(prompt="Once", separates_thought=True))
    assert (answer.thought, answer.text) == ("abcd", "ef")
    assert [token.thought for token in answer.tokens] == ["a", "b", "c", "d", None, None]


async def test_a_sampled_stream_goes_on_with_the_seed_it_began_with() -> None:
    call = GenerateCall(prompt="Once", sampling=Sampling(temperature=1.0), output=(25,))
    async with performing(lost_after_three, rest) as scene:
        async with LmtpModel(scene.url, retry=QUICK) as model:
            with pytest.raises(ServerFailed, match="token 2 was 2 and is 3 now"):
                await model.generate(replace(call, max_tokens=4))
        (_, first), (_, second) = (peer.received[1] for peer in scene.peers)
    assert first["seed"] == second["seed"]
    assert (first["output"], second["output"]) == ([25], [25, 0, 1])


async def test_a_last_token_that_comes_out_otherwise_is_gone_on_with_as_it_was() -> None:
    async def other(peer: Peer) -> None:
        body = await peer.first("GENERATE")
        await peer.token(body["stream_id"], 9)
        await peer.expect("CANCEL")
        await answer_letters(peer, await peer.expect("GENERATE"), 6)
        await peer.until_closed()

    async with performing(lost_after_three, other) as scene:
        async with LmtpModel(scene.url, retry=QUICK) as model:
            answer = await model.generate(GenerateCall(prompt="Once"))
        outputs = [body.get("output") for _, body in scene.peers[1].received if "text" in body]
    assert answer.text == "abcdef"
    assert outputs == [[0, 1], [0, 1, 2]]


async def test_a_failure_that_may_pass_is_tried_again_on_the_same_socket() -> None:
    async def script(peer: Peer) -> None:
        body = await peer.first("GENERATE")
        await peer.letters(body["stream_id"], 0, 2)
        await peer.fail(body["stream_id"], "generation", retryable=True)
        await answer_letters(peer, await peer.expect("GENERATE"), 6)
        await peer.until_closed()

    async with performing(script) as scene, LmtpModel(scene.url, retry=QUICK) as model:
        answer = await model.generate(GenerateCall(prompt="Once"))
        assert len(scene.peers) == 1
    assert answer.text == "abcdef"


async def test_tokens_renew_the_tries() -> None:
    async def one_more(peer: Peer) -> None:
        body = await peer.first("GENERATE")
        known = len(body.get("output", []))
        await peer.letters(body["stream_id"], known, known + 2)
        if known == 7:
            await peer.done(body["stream_id"], "hi", usage={**USAGE, "prompt_tokens": 10})
            await peer.until_closed()

    async with performing(one_more) as scene:
        async with LmtpModel(scene.url, retry=QUICK) as model:
            answer = await model.generate(GenerateCall(prompt="Once"))
        assert len(scene.peers) == 8
    assert answer.text == "abcdefghi"


async def test_a_server_that_never_gets_on_is_given_up() -> None:
    async def stuck_at_three(peer: Peer) -> None:
        body = await peer.first("GENERATE")
        await peer.letters(body["stream_id"], len(body.get("output", [])), 3)

    async with performing(stuck_at_three) as scene:
        async with LmtpModel(scene.url, retry=QUICK) as model:
            with pytest.raises(ConnectionLost):
                await model.generate(GenerateCall(prompt="Once"))
        assert len(scene.peers) == QUICK.max_tries


async def test_a_server_that_is_gone_is_noticed_once_and_at_once() -> None:
    notices: list[ServerNotice] = []
    slow = RetryPolicy(first_pause_s=60.0, max_pause_s=60.0)
    async with performing(lost_after_three) as scene:
        model = LmtpModel(scene.url, retry=slow, on_notice=notices.append)
        calls = [GenerateCall(prompt="Once"), GenerateCall(prompt="Twice")]
        asking = [asyncio.create_task(model.generate(call)) for call in calls]
        async with asyncio.timeout(10):
            while not notices:
                await asyncio.sleep(0.01)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    await model.close()
    (notice,) = notices
    assert (notice.state, notice.stream) == ("reconnecting", None)
    assert notice.message.startswith("the connection was lost")
    assert notice.message.endswith("; trying again")


async def test_an_overloaded_server_is_waited_for_as_long_as_it_says() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        for _ in range(6):
            body = await peer.expect("GENERATE")
            await peer.fail(body["stream_id"], "overloaded", retry_after_s=0.01, retryable=True)
        await answer_letters(peer, await peer.expect("GENERATE"), 6)
        await peer.until_closed()

    async with performing(script) as scene, LmtpModel(scene.url, retry=QUICK) as model:
        assert (await model.generate(GenerateCall(prompt="Once"))).text == "abcdef"
    async with (
        performing(script) as scene,
        LmtpModel(scene.url, retry=RetryPolicy(max_wait_s=0.035)) as model,
    ):
        with pytest.raises(Overloaded):
            await model.generate(GenerateCall(prompt="Once"))
        assert len(scene.peers[0].received) == 1 + 4


async def test_scores_are_asked_for_again() -> None:
    async def lost(peer: Peer) -> None:
        await peer.first("SCORE")

    async def scored(peer: Peer) -> None:
        body = await peer.first("SCORE")
        scores = [{"tokens": [1], "logprobs": [-1.0]}]
        await peer.say("SCORES", {"stream_id": body["stream_id"], "scores": scores, "usage": USAGE})
        await peer.until_closed()

    async with performing(lost, scored) as scene, LmtpModel(scene.url, retry=QUICK) as model:
        scores = await model.score(ScoreCall(prompt="", values=("a",)))
    assert scores.values[0].total == -1.0


async def test_a_reader_that_stands_still_holds_up_nobody_and_misses_nothing() -> None:
    async def flood(peer: Peer) -> None:
        slow = await peer.first("GENERATE")
        await answer_letters(peer, slow, 26)
        await answer_letters(peer, await peer.expect("GENERATE"), 3)
        await peer.until_closed()

    async with performing(flood) as scene, LmtpModel(scene.url, retry=QUICK) as model:
        slow = model.stream(GenerateCall(prompt="slow"))
        pieces = [(await anext(slow)).text]
        quick = await model.generate(GenerateCall(prompt="quick"))
        assert quick.text == "abc"
        pieces += [part.text async for part in slow if isinstance(part, GeneratedToken)]
    assert "".join(pieces) == LETTERS


@settings(max_examples=30)
@given(cuts=st.lists(st.integers(0, 12), max_size=4), last=st.integers(1, 12))
def test_wherever_it_is_cut_the_pieces_add_up(cuts: list[int], last: int) -> None:
    async def act() -> None:
        async def cut(peer: Peer, at: int) -> None:
            body = await peer.first("GENERATE")
            await peer.letters(body["stream_id"], len(body.get("output", [])), min(at, last))

        async def whole(peer: Peer) -> None:
            await answer_letters(peer, await peer.first("GENERATE"), last)
            await peer.until_closed()

        scripts = [lambda peer, at=at: cut(peer, at) for at in cuts]
        policy = replace(QUICK, first_pause_s=0.0, max_tries=10)
        async with (
            performing(*scripts, whole) as scene,
            LmtpModel(scene.url, retry=policy) as model,
        ):
            parts = [part async for part in model.stream(GenerateCall(prompt="Once"))]
        assert "".join(part.text for part in parts[:-1]) == LETTERS[:last] == parts[-1].text
        assert isinstance(parts[-1], Answer)
        assert [token.token_id for token in parts[-1].tokens] == list(range(last))

    asyncio.run(act())
