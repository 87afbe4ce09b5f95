"""Log-probabilities tell of the text as it is: joined, they are the answer, byte by byte."""

import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.byte_tokenizer import BOS_ID, EOS_ID, byte_ids
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import housing
from tests.router.http.openai.asking import (
    CHAT,
    COMPLETIONS,
    HI,
    PROMPT,
    choices_of,
    post,
    saying_after_hi,
    stream,
)


def told_of(choices: list[Any]) -> list[Any]:
    """The entries of a chat's choices, streamed or not."""
    return [
        entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]
    ]


@pytest.mark.parametrize("text", ["hello", "a🙂é", "日本語", "e\u0301!"])
async def test_tokens_joined_are_the_text_and_bytes_joined_are_its_bytes(text: str) -> None:
    body = {"messages": HI, "logprobs": True, "top_logprobs": 1}
    async with housing(saying_after_hi(text)) as house:
        answer = await post(house, CHAT, body)
        chunks = await stream(house, CHAT, body)

    for choices in (answer["choices"], choices_of(chunks)):
        *told, end = told_of(choices)
        assert "".join(entry["token"] for entry in told) == text
        assert bytes(byte for entry in told for byte in entry["bytes"]) == text.encode()
        assert (end["token"], end["bytes"]) == ("</s>", None)


async def test_a_token_within_a_character_has_bytes_of_its_own() -> None:
    body = {"messages": HI, "logprobs": True, "top_logprobs": 1}
    async with housing(saying_after_hi("é")) as house:
        answer = await post(house, CHAT, body)

    first, second, _ = told_of(answer["choices"])
    assert (first["token"], first["bytes"]) == ("", [0xC3])
    assert (second["token"], second["bytes"]) == ("é", [0xA9])
    assert first["top_logprobs"][0]["bytes"] == [0xC3]


async def test_a_broken_character_is_told_once() -> None:
    ids = [*byte_ids("é")[:1], *byte_ids("h\ufffd"), EOS_ID]

    def script(token_ids: Sequence[int]) -> int:
        return ids[min(len(token_ids) - len(PROMPT), len(ids) - 1)]

    async with housing(FakeShard(script=script)) as house:
        answer = await post(house, CHAT, {"messages": HI, "logprobs": True})

    *told, _ = told_of(answer["choices"])
    assert answer["choices"][0]["message"]["content"] == "\ufffdh\ufffd"
    assert [entry["token"] for entry in told[:2]] == ["", "\ufffdh"]
    joined = bytes(byte for entry in told for byte in entry["bytes"])
    assert joined == b"\xc3h" + "\ufffd".encode()


async def test_bytes_never_tell_of_a_stop() -> None:
    body = {"messages": HI, "logprobs": True, "top_logprobs": 1, "stop": "lo"}
    async with housing(saying_after_hi("hello")) as house:
        answer = await post(house, CHAT, body)

    told = told_of(answer["choices"])
    assert [entry["bytes"] for entry in told] == [[104], [101], [108], None, None]


async def test_a_token_that_ends_the_answer_is_no_text() -> None:
    body = {"messages": HI, "logprobs": True, "stop_token_ids": byte_ids("l")}
    async with housing(saying_after_hi("hello")) as house:
        answer = await post(house, CHAT, body)

    assert answer["choices"][0]["message"]["content"] == "he"
    assert [entry["bytes"] for entry in told_of(answer["choices"])] == [[104], [101], None]


async def test_twenty_alternatives_are_told_of_and_no_more() -> None:
    async with housing(saying_after_hi("ok")) as house:
        body = {"messages": HI, "logprobs": True, "top_logprobs": 20, "max_tokens": 1}
        answer = await post(house, CHAT, body)
        old = await post(house, COMPLETIONS, {"prompt": PROMPT, "logprobs": 20, "max_tokens": 1})

    assert len(told_of(answer["choices"])[0]["top_logprobs"]) == 20
    assert len(old["choices"][0]["logprobs"]["top_logprobs"][0]) == 20


async def test_tokens_are_named_by_their_ids_on_demand() -> None:
    fields = {"return_tokens_as_token_ids": True, "max_tokens": 1}
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(
            house, CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 1, **fields}
        )
        old = await post(house, COMPLETIONS, {"prompt": PROMPT, "logprobs": 1, **fields})

    name = f"token_id:{byte_ids('o')[0]}"
    entry = told_of(answer["choices"])[0]
    assert (entry["token"], entry["top_logprobs"][0]["token"]) == (name, name)
    assert entry["bytes"] == [111]
    assert old["choices"][0]["logprobs"]["tokens"] == [name]
    assert list(old["choices"][0]["logprobs"]["top_logprobs"][0]) == [name]


async def test_prompt_logprobs_of_a_chat_are_by_token_id() -> None:
    body = {"messages": HI, "prompt_logprobs": 2, "max_tokens": 1}
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house, CHAT, body)

    places = answer["prompt_logprobs"]
    assert len(places) == len(PROMPT)
    assert places[0] is None
    second = byte_ids(PROMPT)[1]
    assert list(places[1]) == [str(second), str(second + 1)]
    assert places[1][str(second)]["rank"] == 1
    assert places[1][str(second)]["decoded_token"] == "s"
    assert places[1][str(second + 1)]["rank"] == 2
    assert answer["choices"][0]["logprobs"] is None


async def test_prompt_logprobs_of_completions_belong_to_the_choices() -> None:
    body = {"prompt": ["ab", "xyz"], "prompt_logprobs": 0, "max_tokens": 1, "logprobs": 3}
    async with housing(FakeShard()) as house:
        answer = await post(house, COMPLETIONS, body)

    assert [len(choice["prompt_logprobs"]) for choice in answer["choices"]] == [2, 3]
    place = answer["choices"][0]["prompt_logprobs"][1]
    assert place.keys() == {str(byte_ids("b")[0])}
    assert place[str(byte_ids("b")[0])]["rank"] is None
    assert len(answer["choices"][0]["logprobs"]["top_logprobs"][0]) == 3


@pytest.mark.parametrize("prompt", ["a🙂b", byte_ids("a🙂b")])
async def test_offsets_of_an_echo_count_characters(prompt: Any) -> None:
    async with housing(FakeShard(script=saying("é!", 6))) as house:
        body = {"prompt": prompt, "echo": True, "logprobs": 1}
        answer = await post(house, COMPLETIONS, body)
        chunks = await stream(house, COMPLETIONS, body)

    choice = answer["choices"][0]
    assert choice["text"] == "a🙂bé!"
    assert choice["logprobs"]["tokens"] == ["a", "", "", "", "🙂", "b", "", "é", "!", "</s>"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 1, 1, 1, 2, 3, 3, 4, 5]
    for key, values in choice["logprobs"].items():
        pieces = [piece["logprobs"][key] for piece in choices_of(chunks) if piece["logprobs"]]
        assert [value for piece in pieces for value in piece] == values


@pytest.mark.parametrize(
    ("prompt", "text", "offsets"),
    [
        ("<s>ab", "<s>ab", [0, 3, 4, 5]),
        ([BOS_ID, *byte_ids("ab")], "ab", [0, 0, 1, 2]),
    ],
)
async def test_a_special_token_of_the_prompt_counts_if_it_was_written(
    prompt: Any, text: str, offsets: list[int]
) -> None:
    async with housing(FakeShard(script=saying("", 3))) as house:
        body = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 1}
        answer = await post(house, COMPLETIONS, body)

    assert answer["choices"][0]["text"] == text
    assert answer["choices"][0]["logprobs"]["text_offset"] == offsets


async def test_what_lm_eval_reads_of_a_scored_prompt_is_there() -> None:
    """Its way: the last token is the generated one, and is cut off."""
    context = byte_ids("Once")
    continuation = byte_ids(" upon")
    async with housing(FakeShard(script=lambda ids: EOS_ID)) as house:
        body = {
            "model": "fake/model",
            "prompt": [context + continuation],
            "temperature": 0,
            "max_tokens": 1,
            "logprobs": 1,
            "seed": 1234,
            "echo": True,
        }
        answer = await post(house, COMPLETIONS, body)

    logprobs = answer["choices"][0]["logprobs"]
    scores = logprobs["token_logprobs"][len(context) : -1]
    tops = logprobs["top_logprobs"][len(context) : -1]
    assert len(scores) == len(continuation)
    assert all(score <= 0 for score in scores)
    assert all(score in top.values() for score, top in zip(scores, tops, strict=True))
    assert re.fullmatch("Once upon", answer["choices"][0]["text"])


async def test_a_token_has_one_log_probability_wherever_it_is_told() -> None:
    def spoil(answer: Any) -> None:
        for generation in answer.generations:
            for token in generation.tokens:
                token.top_tokens[0].logprob += 1e-6

    shard = saying_after_hi("ok")
    shard.faults.spoil = spoil
    async with housing(shard) as house:
        fields = {"max_tokens": 1}
        answer = await post(
            house, CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 2, **fields}
        )
        old = await post(house, COMPLETIONS, {"prompt": PROMPT, "logprobs": 2, **fields})

    entry = told_of(answer["choices"])[0]
    assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]
    lists = old["choices"][0]["logprobs"]
    assert max(lists["top_logprobs"][0].values()) == lists["token_logprobs"][0]
