"""TGI's routes: shapes, defaults and semantics that its clients look at."""

import asyncio
import json
from typing import Any

import grpc
import pytest

from tests.fake_script import letters, saying
from tests.fakes import FakeShard
from tests.router.http.harness import SEED, House, housing

PROMPT = "hello"
EVERY_OPTIONAL_PARAMETER = (
    "best_of temperature repetition_penalty frequency_penalty top_k top_p typical_p do_sample "
    "max_new_tokens return_full_text stop truncate watermark details decoder_input_details seed "
    "top_n_tokens grammar adapter_id"
).split()


def saying_after_prompt(text: str) -> FakeShard:
    return FakeShard(script=saying(text, len(PROMPT)))


async def post(house: House, path: str = "/generate", **parameters: Any) -> Any:
    async with house.client as client:
        answer = await client.post(path, json={"inputs": PROMPT, "parameters": parameters})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refuse(house: House, path: str = "/generate", **body: Any) -> tuple[int, dict[str, str]]:
    async with house.client as client:
        answer = await client.post(path, json=body)
    return answer.status_code, answer.json()


def sampling_of(house: House) -> Any:
    """The sampling parameters that the shard got, for the first request."""
    return (
        next(call for method, call in house.shard.calls if method == "Prefill")
        .batch.requests[0]
        .sampling
    )


async def test_an_answer_is_the_text_alone_unless_details_are_asked_for() -> None:
    async with housing(saying_after_prompt("world")) as house:
        assert await post(house, max_new_tokens=3) == {"generated_text": "wor"}


async def test_details_have_exactly_the_fields_of_tgi() -> None:
    async with housing(saying_after_prompt("wo")) as house:
        answer = await post(house, details=True)

    assert answer == {
        "generated_text": "wo",
        "details": {
            "finish_reason": "eos_token",
            "generated_tokens": 3,
            "seed": None,
            "prefill": [],
            "tokens": [
                {"id": 121, "text": "w", "logprob": -0.25, "special": False},
                {"id": 113, "text": "o", "logprob": -0.25, "special": False},
                {"id": 0, "text": "</s>", "logprob": -0.125, "special": True},
            ],
        },
    }


async def test_prompt_details_imply_details_and_begin_without_a_logprob() -> None:
    async with housing(saying_after_prompt("w")) as house:
        answer = await post(house, decoder_input_details=True)

    prefill = answer["details"]["prefill"]
    assert prefill[0] == {"id": 106, "text": "h", "logprob": None}
    assert [token["text"] for token in prefill] == list(PROMPT)
    assert all(token["logprob"] < 0 for token in prefill[1:])


async def test_top_tokens_come_one_list_for_each_token() -> None:
    async with housing(saying_after_prompt("wo")) as house:
        answer = await post(house, details=True, top_n_tokens=2, max_new_tokens=1)

    assert answer["details"]["top_tokens"] == [
        [
            {"id": 121, "text": "w", "logprob": -0.25, "special": False},
            {"id": 122, "text": "x", "logprob": -1.25, "special": False},
        ]
    ]


async def test_best_of_answers_the_best_and_details_the_others() -> None:
    async with housing(saying_after_prompt("wo")) as house:
        answer = await post(house, best_of=2, do_sample=True, details=True)

    others = answer["details"].pop("best_of_sequences")
    assert answer["generated_text"] == "wo"
    assert len(others) == 1
    assert others[0].keys() == {"generated_text", *answer["details"]}
    assert {answer["details"]["seed"], others[0]["seed"]} == {SEED, SEED + 1}


@pytest.mark.parametrize(
    ("stop", "text"), [(["or"], "wor"), (["ld", "rl"], "worl"), (["x"], "world")]
)
async def test_a_stop_string_stays_in_the_text(stop: list[str], text: str) -> None:
    async with housing(saying_after_prompt("world")) as house:
        answer = await post(house, stop=stop, details=True)

    assert answer["generated_text"] == text
    reason = "eos_token" if text == "world" else "stop_sequence"
    assert answer["details"]["finish_reason"] == reason


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
async def test_the_texts_of_the_tokens_end_where_the_text_does(path: str) -> None:
    stop = ["ly ma"]
    async with housing(saying_after_prompt("a lonely man")) as house, house.client as client:
        body = {"inputs": PROMPT, "parameters": {"stop": stop, "details": True}}
        answer = await client.post(path, json=body)
    if path == "/generate":
        whole = answer.json()
        texts = [token["text"] for token in whole["details"]["tokens"]]
        assert "".join(texts) == whole["generated_text"] == "a lonely ma"
    else:
        frames = [
            json.loads(line.removeprefix("data:")) for line in answer.text.splitlines() if line
        ]
        texts = [frame["token"]["text"] for frame in frames]
        assert "".join(texts) == frames[-1]["generated_text"] == "a lonely ma"


async def test_a_stop_string_is_left_out_on_request() -> None:
    async with housing(saying_after_prompt("world")) as house:
        answer = await post(house, stop=["rl"], include_stop_str_in_output=False)

    assert answer == {"generated_text": "wo"}


async def test_what_the_sampler_offers_beyond_tgi_reaches_the_shard() -> None:
    async with housing(saying_after_prompt("world")) as house:
        await post(
            house,
            max_new_tokens=9,
            min_new_tokens=2,
            ignore_eos=True,
            stop_token_ids=[7],
            presence_penalty=0.5,
            min_p=0.25,
            logit_bias={"3": -1.5},
        )
        stopping = next(call for method, call in house.shard.calls if method == "Prefill")
        sampling = sampling_of(house)

    request = stopping.batch.requests[0]
    assert request.stopping.min_new_tokens == 2
    assert request.stopping.ignore_eos
    assert list(request.stopping.stop_token_ids) == [7]
    assert (sampling.presence_penalty, sampling.min_p) == (0.5, 0.25)
    assert dict(sampling.logit_bias) == {3: -1.5}


async def test_length_ends_with_its_own_reason() -> None:
    async with housing(saying_after_prompt("world")) as house:
        answer = await post(house, max_new_tokens=2, details=True)

    assert answer["details"]["finish_reason"] == "length"


async def test_without_parameters_a_request_is_sampled_with_them_it_is_not() -> None:
    for body, samples in (
        ({"inputs": PROMPT}, True),
        ({"inputs": PROMPT, "parameters": None}, True),
        ({"inputs": PROMPT, "parameters": {}}, False),
        ({"inputs": PROMPT, "parameters": {"do_sample": True}}, True),
        ({"inputs": PROMPT, "parameters": {"temperature": 0.5}}, True),
    ):
        async with housing(saying_after_prompt("w")) as house:
            async with house.client as client:
                assert (await client.post("/generate", json=body)).status_code == 200
            assert sampling_of(house).do_sample is samples, body


async def test_a_seed_of_the_request_is_used_and_answered() -> None:
    async with housing(saying_after_prompt("w")) as house:
        answer = await post(house, do_sample=True, seed=2**64 - 1, details=True)

        assert answer["details"]["seed"] == 2**64 - 1
        assert sampling_of(house).seed == 2**64 - 1


async def test_null_stands_for_the_absence_of_every_optional_field() -> None:
    nulls: dict[str, Any] = dict.fromkeys(EVERY_OPTIONAL_PARAMETER)
    async with housing(saying_after_prompt("world")) as house:
        assert await post(house, **nulls) == {"generated_text": "world"}


async def test_unknown_fields_are_ignored() -> None:
    async with housing(saying_after_prompt("w")) as house:
        assert await post(house, zeal=3, details=False) == {"generated_text": "w"}


async def test_truncate_keeps_the_end_of_the_prompt() -> None:
    async with housing(FakeShard(script=saying("w", 2))) as house:
        answer = await post(house, truncate=2, decoder_input_details=True)

    assert [token["text"] for token in answer["details"]["prefill"]] == ["l", "o"]


@pytest.mark.parametrize(
    ("path", "asked", "text"),
    [
        ("/generate", None, "w"),
        ("/generate", True, "hellow"),
        ("/", None, "hellow"),
        ("/", False, "w"),
    ],
)
async def test_the_full_text_is_returned_when_asked_for_and_by_default_at_the_root(
    path: str, asked: bool | None, text: str
) -> None:
    async with housing(saying_after_prompt("w")) as house:
        answer = await post(house, path, return_full_text=asked)

    assert (answer[0] if path == "/" else answer) == {"generated_text": text}


async def test_the_root_answers_a_list_of_one() -> None:
    async with housing(saying_after_prompt("w")) as house:
        answer = await post(house, "/", return_full_text=False, details=True)

    assert [sorted(item) for item in answer] == [["details", "generated_text"]]


async def test_timing_headers_are_those_of_tgi() -> None:
    async with housing(saying_after_prompt("wo")) as house, house.client as client:
        answer = await client.post("/generate", json={"inputs": PROMPT, "parameters": {}})

    headers = answer.headers
    assert headers["x-compute-type"] == "test"
    assert headers["x-compute-characters"] == "5"
    assert headers["x-prompt-tokens"] == "5"
    assert headers["x-generated-tokens"] == "3"
    assert 0 < float(headers["x-compute-time"]) < 10
    for name in ("total", "validation", "queue", "inference"):
        assert 0 <= int(headers[f"x-{name}-time"]) < 10_000
    assert int(headers["x-time-per-token"]) <= int(headers["x-inference-time"])


async def test_tokenize_answers_a_bare_list_with_byte_offsets() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.post("/tokenize", json={"inputs": "hé"})

    assert answer.json() == [
        {"id": 106, "text": "h", "start": 0, "stop": 1},
        {"id": 197, "text": "é", "start": 1, "stop": 3},
        {"id": 171, "text": "é", "start": 1, "stop": 3},
    ]


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"best_of": 2}, "best_of"),
        ({"best_of": 0, "do_sample": True}, "best_of"),
        ({"best_of": 3, "do_sample": True}, "best_of"),
        ({"temperature": 0}, "temperature"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"top_p": 1.0}, "top_p"),
        ({"typical_p": 0}, "typical_p"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": -1}, "top_k"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"max_new_tokens": 10**12}, "max_new_tokens"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": "a"}, "parameters.stop"),
        ({"stop": [""]}, "stop"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 1, "best_of": 2, "do_sample": True}, "seed"),
        ({"top_n_tokens": 6}, "top_n_tokens"),
        ({"truncate": 0}, "truncate"),
        ({"truncate": 1000}, "truncate"),
        ({"details": "yes"}, "parameters.details"),
        ({"adapter_id": "mine"}, "adapter_id"),
        ({"grammar": {"type": "regex", "value": ""}}, "grammar"),
        ({"grammar": "a+"}, "parameters.grammar"),
        ([], "parameters"),
    ],
)
async def test_a_broken_rule_is_a_422_that_names_the_field(parameters: Any, field: str) -> None:
    async with housing(FakeShard()) as house:
        status, error = await refuse(house, inputs=PROMPT, parameters=parameters)

        assert status == 422
        assert error["error_type"] == "validation"
        assert error["error"].startswith("Input validation error: ")
        assert f"`{field}`" in error["error"]
        assert not any(method == "Prefill" for method, _ in house.shard.calls)


async def test_prompts_that_cannot_be_served_are_refused() -> None:
    async with housing(FakeShard()) as house:
        assert (await refuse(house))[1]["error"] == "Input validation error: `inputs` is required"
        for inputs in ("", "x" * 121, 3, None, ["a"]):
            status, error = await refuse(house, inputs=inputs)
            assert (status, error["error_type"]) == (422, "validation")
            assert "`inputs`" in error["error"]


async def test_a_full_house_is_a_429_that_says_when_to_come_again() -> None:
    shard = FakeShard()
    shard.faults.delay_s = 0.02
    async with housing(shard, max_concurrent_requests=1) as house, house.client as client:
        first = asyncio.ensure_future(client.post("/generate", json={"inputs": PROMPT}))
        while house.rig.batcher.num_streams == 0:
            await asyncio.sleep(0.001)
        answer = await client.post("/generate", json={"inputs": PROMPT})
        first.cancel()

    assert answer.status_code == 429
    assert answer.json() == {"error": "Model is overloaded", "error_type": "overloaded"}
    assert int(answer.headers["retry-after"]) >= 1


async def test_a_draining_house_is_a_503() -> None:
    async with housing(FakeShard()) as house:
        await house.rig.batcher.drain(1.0)
        status, error = await refuse(house, inputs=PROMPT)

    assert (status, error["error_type"]) == (503, "draining")


async def test_a_failing_shard_is_a_424_with_its_reason() -> None:
    shard = FakeShard()
    shard.faults.fail_for_good("Prefill", grpc.StatusCode.INTERNAL, "no memory")
    async with housing(shard) as house:
        status, error = await refuse(house, inputs=PROMPT)

    assert (status, error["error_type"]) == (424, "generation")
    assert error["error"].startswith("Request failed during generation: Server error: ")
    assert "no memory" in error["error"]


async def test_a_failing_row_is_a_424_and_the_next_request_is_served() -> None:
    shard = FakeShard(script=letters)
    shard.faults.row_errors[None] = "logits are NaN"
    async with housing(shard) as house:
        status, error = await refuse(house, inputs=PROMPT)
        assert (status, error["error_type"]) == (424, "generation")
        assert "logits are NaN" in error["error"]

        assert len((await post(house, max_new_tokens=4))["generated_text"]) == 4
