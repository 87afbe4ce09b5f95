"""/v1/completions: prompts of every kind, echo, the old logprobs, whole and streamed."""

import gc
import json
from time import process_time
from typing import Any

import pytest

from tests.byte_tokenizer import byte_ids
from tests.fake_script import letters, saying
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing
from tests.router.http.openai.test_chat import usage

PATH = "/v1/completions"


async def post(house: House, prompt: Any, **fields: Any) -> Any:
    async with house.client as client:
        answer = await client.post(PATH, json={"prompt": prompt, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def stream(house: House, prompt: Any, **fields: Any) -> list[Any]:
    """The chunks; the last one must be [DONE]."""
    async with house.client as client:
        answer = await client.post(PATH, json={"prompt": prompt, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    *chunks, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


async def test_an_answer_has_openai_s_shape() -> None:
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        answer = await post(house, "ab")

    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "text_completion",
        "model": "fake/model",
        "system_fingerprint": "0.0.1",
        "choices": [{"index": 0, "text": "cd", "logprobs": None, "finish_reason": "stop"}],
        "usage": usage(2, 3),
    }


async def test_a_stream_is_texts_and_an_empty_text_with_the_reason() -> None:
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        chunks = await stream(house, "ab")

    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}]
        for text, reason in (("c", None), ("d", None), ("", "stop"))
    ]


@pytest.mark.parametrize(
    ("prompt", "num_choices"),
    [
        ("ab", 1),
        (["ab"], 1),
        (["ab", "xy"], 2),
        (byte_ids("ab"), 1),
        ([byte_ids("ab"), byte_ids("xy")], 2),
    ],
)
async def test_prompts_are_texts_or_token_ids_one_or_several(prompt: Any, num_choices: int) -> None:
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        answer = await post(house, prompt)
        chunks = await stream(house, prompt)

    assert [choice["text"] for choice in answer["choices"]] == ["cd"] * num_choices
    assert answer["usage"]["prompt_tokens"] == 2 * num_choices
    for index in range(num_choices):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in own) == "cd"


async def test_choices_are_numbered_prompt_by_prompt() -> None:
    async with housing(FakeShard(script=letters)) as house:
        answer = await post(house, ["ab", "xy"], n=2, max_tokens=6, echo=True)

    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["text"][:2] for choice in answer["choices"]] == ["ab", "ab", "xy", "xy"]
    assert answer["usage"]["prompt_tokens"] == 4
    assert answer["usage"]["completion_tokens"] == 24


async def test_logprobs_are_parallel_lists_with_offsets() -> None:
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        answer = await post(house, "ab", logprobs=2, max_tokens=2)

    assert answer["choices"][0]["logprobs"] == {
        "text_offset": [0, 1],
        "token_logprobs": [-0.75, -0.875],
        "tokens": ["c", "d"],
        "top_logprobs": [{"c": -0.75, "d": -1.75}, {"d": -0.875, "e": -1.875}],
    }


async def test_logprobs_zero_tells_of_the_tokens_alone() -> None:
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        answer = await post(house, "ab", logprobs=0, max_tokens=1)

    assert answer["choices"][0]["logprobs"] == {
        "text_offset": [0],
        "token_logprobs": [-0.75],
        "tokens": ["c"],
        "top_logprobs": None,
    }


async def test_echo_begins_with_the_prompt_and_its_logprobs() -> None:
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        answer = await post(house, "ab", echo=True, logprobs=1, max_tokens=1)
        chunks = await stream(house, "ab", echo=True, logprobs=1, max_tokens=1)

    choice = answer["choices"][0]
    assert choice["text"] == "abc"
    assert choice["logprobs"] == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [None, -0.625, -0.75],
        "tokens": ["a", "b", "c"],
        "top_logprobs": [None, {"b": -0.625}, {"c": -0.75}],
    }
    told = [chunk["choices"][0] for chunk in chunks]
    assert [piece["text"] for piece in told] == ["ab", "c", ""]
    for key, values in choice["logprobs"].items():
        pieces = [piece["logprobs"][key] for piece in told if piece["logprobs"]]
        assert [value for piece in pieces for value in piece] == values


async def test_echo_without_logprobs_is_text_alone() -> None:
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        answer = await post(house, byte_ids("ab"), echo=True)
        chunks = await stream(house, "ab", echo=True)

    assert answer["choices"][0]["text"] == "abcd"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abcd"


async def test_echo_of_no_tokens_scores_the_prompt_alone() -> None:
    async with housing(FakeShard(script=saying("cd", 2))) as house:
        answer = await post(house, "ab", echo=True, logprobs=1, max_tokens=0)
        chunks = await stream(house, "ab", echo=True, max_tokens=0)

    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
    assert choice["logprobs"]["tokens"] == ["a", "b"]
    assert answer["usage"]["completion_tokens"] == 0
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["ab", ""]


async def test_scoring_ends_by_its_length_whatever_the_model_would_say() -> None:
    async with housing(FakeShard(script=saying("", 2))) as house:
        answer = await post(house, "ab", echo=True, max_tokens=0)
        chunks = await stream(house, "ab", echo=True, max_tokens=0)

    assert answer["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_the_header_counts_what_the_usage_counts() -> None:
    body = {"prompt": "ab", "echo": True, "n": 2}
    async with housing(FakeShard(script=saying("", 2))) as house, house.client as client:
        for num_tokens in (0, 1):
            answer = await client.post(PATH, json={**body, "max_tokens": num_tokens})

            assert answer.json()["usage"]["completion_tokens"] == 2 * num_tokens
            assert answer.headers["x-generated-tokens"] == str(2 * num_tokens)


async def test_best_of_keeps_the_most_probable() -> None:
    async with housing(FakeShard(script=letters)) as house:
        answer = await post(house, "ab", best_of=3, n=2, max_tokens=4)

    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a"] * 5}, "prompt"),
        ({"prompt": [999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": 1}, "echo"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"n": 100}, "n"),
        ({"best_of": 100}, "best_of"),
    ],
)
async def test_a_broken_rule_is_a_400_that_names_the_field(fields: Any, param: str) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.post(PATH, json={"prompt": "ab", **fields})

    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["param"] == param
    assert f"`{param}`" in error["message"]


@pytest.mark.alone
@pytest.mark.parametrize("prompt", [[[5]] * 500_000, ["a"] * 500_000, [5] * 499_999 + ["a"]])
async def test_half_a_million_prompts_are_refused_quickly(prompt: Any) -> None:
    async with housing(FakeShard(), max_body_len=10**7) as house, house.client as client:
        body = json.dumps({"prompt": prompt}).encode()
        # What the tests before have left in memory is not to be searched for garbage here.
        gc.collect()
        gc.freeze()
        begun_s = process_time()
        answer = await client.post(PATH, content=body, headers={"content-type": "application/json"})
        took_s = process_time() - begun_s
        gc.unfreeze()

    assert answer.status_code == 400
    assert took_s < 1.5


async def test_more_prompts_than_the_server_takes_are_refused_by_their_number() -> None:
    async with housing(FakeShard(), max_concurrent_requests=2) as house, house.client as client:
        answer = await client.post(PATH, json={"prompt": ["ab"] * 3, "max_tokens": 1})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert answer.json()["error"]["message"] == (
        "`prompt` must have at most 2 prompts (--max-concurrent-requests). Given: 3"
    )
