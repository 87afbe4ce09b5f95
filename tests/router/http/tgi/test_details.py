"""`details` and the like: the losers of best_of, the prompt, the alternatives."""

import json
from typing import Any

import pytest

from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import SEED, House, housing

PROMPT = "hello"


def saying_after_prompt(text: str) -> FakeShard:
    return FakeShard(script=saying(text, len(PROMPT)))


async def post(house: House, path: str = "/generate", **parameters: Any) -> Any:
    async with house.client as client:
        answer = await client.post(path, json={"inputs": PROMPT, "parameters": parameters})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stream(house: House, **parameters: Any) -> list[Any]:
    """The data of all events."""
    body = {"inputs": PROMPT, "parameters": parameters}
    async with house.client as client:
        answer = await client.post("/generate_stream", json=body)
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]


async def test_the_losers_of_best_of_have_the_prompt_in_front_and_their_own_details() -> None:
    async with housing(saying_after_prompt("w")) as house:
        answer = await post(
            house,
            best_of=2,
            do_sample=True,
            return_full_text=True,
            decoder_input_details=True,
            top_n_tokens=1,
        )

    (loser,) = answer["details"]["best_of_sequences"]
    assert (answer["generated_text"], loser["generated_text"]) == ("hellow", "hellow")
    assert [token["text"] for token in loser["prefill"]] == list(PROMPT)
    assert [len(tops) for tops in loser["top_tokens"]] == [1, 1]


async def test_the_losers_are_in_details_alone() -> None:
    async with housing(saying_after_prompt("w")) as house:
        assert await post(house, best_of=2, top_k=3) == {"generated_text": "w"}


@pytest.mark.parametrize("best_of", [None, 1])
async def test_without_losers_there_is_no_list_of_them(best_of: int | None) -> None:
    async with housing(saying_after_prompt("w")) as house:
        answer = await post(house, best_of=best_of, details=True)

    assert "best_of_sequences" not in answer["details"]


async def test_prompt_details_come_even_if_details_are_declined() -> None:
    async with housing(saying_after_prompt("w")) as house:
        answer = await post(house, details=False, decoder_input_details=True)

    assert len(answer["details"]["prefill"]) == len(PROMPT)


@pytest.mark.parametrize("top_n_tokens", [None, 0])
async def test_without_alternatives_there_is_no_list_of_them(top_n_tokens: int | None) -> None:
    async with housing(saying_after_prompt("w")) as house:
        whole = await post(house, top_n_tokens=top_n_tokens, details=True)
        events = await stream(house, top_n_tokens=top_n_tokens)

    assert "top_tokens" not in whole["details"]
    assert [event for event in events if "top_tokens" in event] == []


async def test_each_event_has_its_alternatives() -> None:
    async with housing(saying_after_prompt("w")) as house:
        events = await stream(house, top_n_tokens=2)

    assert [[token["text"] for token in event["top_tokens"]] for event in events] == [
        ["w", "x"],
        ["</s>", "<s>"],
    ]


async def test_a_random_seed_is_in_details_and_a_greedy_one_is_null() -> None:
    async with housing(saying_after_prompt("w")) as house:
        assert (await post(house, do_sample=True, details=True))["details"]["seed"] == SEED
        assert (await post(house, details=True))["details"]["seed"] is None
        assert (await post(house, seed=3, details=True))["details"]["seed"] is None
        assert (await stream(house, typical_p=0.5, details=True))[-1]["details"]["seed"] == SEED


async def test_a_stream_s_details_come_last_and_only_if_asked_for() -> None:
    async with housing(saying_after_prompt("w")) as house:
        with_details = await stream(house, details=True)
        without = await stream(house)

    assert [event["details"] for event in without] == [None, None]
    assert [event["details"] for event in with_details] == [
        None,
        {"finish_reason": "eos_token", "generated_tokens": 2, "seed": None, "input_length": 5},
    ]


async def test_a_truncated_prompt_counts_as_it_was_read_and_returns_as_it_was_sent() -> None:
    async with housing(FakeShard(script=saying("w", 2))) as house:
        last = (await stream(house, truncate=2, details=True, return_full_text=True))[-1]

    assert last["details"]["input_length"] == 2
    assert last["generated_text"] == "hellow"


async def test_a_prompt_that_is_shorter_than_truncate_is_whole() -> None:
    async with housing(saying_after_prompt("w")) as house:
        answer = await post(house, truncate=6, decoder_input_details=True)

    assert len(answer["details"]["prefill"]) == len(PROMPT)


async def test_a_token_is_silent_until_its_character_is_whole() -> None:
    async with housing(saying_after_prompt("é")) as house:
        whole = await post(house, details=True)
        events = await stream(house)

    assert [token["text"] for token in whole["details"]["tokens"]] == ["", "é", "</s>"]
    assert [event["token"]["text"] for event in events] == ["", "é", "</s>"]
    assert whole["generated_text"] == events[-1]["generated_text"] == "é"


@pytest.mark.parametrize("field", ["decoder_input_details", "best_of"])
async def test_what_cannot_be_streamed_is_refused_in_the_stream(field: str) -> None:
    asked = {"decoder_input_details": True} if field != "best_of" else {"best_of": 2, "top_k": 2}
    async with housing(saying_after_prompt("w")) as house:
        (event,) = await stream(house, **asked)

    assert event["error_type"] == "validation"
    assert f"`{field}`" in event["error"]
