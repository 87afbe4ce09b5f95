"""Version 1, as LMQL's own client speaks it: what it reads, and what it would wait for for ever."""

from tests.byte_tokenizer import EOS_ID, byte_ids
from tests.fakes import FakeShard
from tests.router.http.lmtp.talking import served, talking
from tests.router.rig import says


async def test_tokens_come_with_their_alternatives_and_the_last_one_says_why() -> None:
    async with served(FakeShard()) as (_, port), talking(port, "/") as talk:
        said = await talk.ask("GENERATE", prompt=byte_ids("Once"), max_tokens=6, model="model")

    assert [command for command, _ in said] == ["TOKEN"] * 6
    assert {frozenset(told) for _, told in said} == {
        frozenset({"token", "stream_id", "logprob", "finish_reason", "top_logprobs"})
    }
    assert [told["finish_reason"] for _, told in said] == [None] * 5 + ["length"]
    assert all(told["top_logprobs"][str(told["token"])] == told["logprob"] for _, told in said)


async def test_the_end_token_is_a_token_with_stop() -> None:
    async with served(says("Hello", "Once")) as (_, port), talking(port, "/") as talk:
        said = await talk.ask("GENERATE", prompt=byte_ids("Once"), max_tokens=16)

    assert [told["token"] for _, told in said] == [*byte_ids("Hello"), EOS_ID]
    assert said[-1][1]["finish_reason"] == "stop"
