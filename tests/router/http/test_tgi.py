"""TGI's routes: shapes, defaults and semantics that its clients look at."""

import json
from itertools import combinations
from typing import Any

import grpc
import httpx
import pytest
from pydantic import BaseModel, TypeAdapter

from constraints.spec import ConstraintSpec, Kind, StopRule, Whitespace
from router.http.openai.schema import ChatBody, CompletionBody
from router.http.operations import Info, ModelCard, ModelList
from router.http.platforms import VertexBody, VertexResponse
from router.http.tgi import (
    ChatTokenizeResponse,
    CompatBody,
    GenerateBody,
    GenerateResponse,
    Parameters,
    SimpleToken,
    StreamResponse,
    TokenizeBody,
)
from router.request.errors import ConstraintRefused
from router.request.request import Constraint
from tests.byte_tokenizer import EOS_ID, byte_ids
from tests.checks import FakeChecks
from tests.fake_script import letters, saying
from tests.fakes import FakeShard
from tests.router.http.harness import MAX_INPUT_LEN, MAX_TOTAL_LEN, SEED, House, housing

PROMPT = "hello"


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


# The first of the two bytes of a letter.
PART = byte_ids("é")[0]


@pytest.mark.parametrize(
    ("ids", "fields", "text"),
    [
        ([*byte_ids("ab"), PART, PART], {"max_new_tokens": 3}, "ab\ufffd"),
        ([*byte_ids("ab"), PART, EOS_ID], {}, "ab\ufffd"),
        ([PART, *byte_ids("b"), EOS_ID], {}, "\ufffdb"),
        ([*byte_ids("aéb"), EOS_ID], {}, "aéb"),
        (
            [*byte_ids("lonely"), EOS_ID],
            {"stop": ["onx", "lyx"], "include_stop_str_in_output": False},
            "lonely",
        ),
        (
            [*byte_ids("a lonely man"), EOS_ID],
            {"stop": ["ely"], "include_stop_str_in_output": False},
            "a lon",
        ),
    ],
)
async def test_tokens_have_the_same_texts_whole_and_streamed_and_joined_are_the_text(
    ids: list[int], fields: Any, text: str
) -> None:
    shard = FakeShard(script=lambda token_ids: ids[min(len(token_ids) - len(PROMPT), len(ids) - 1)])
    async with housing(shard) as house:
        answer = await post(house, details=True, **fields)
        frames = await stream(house, details=True, **fields)

    tokens = answer["details"]["tokens"]
    assert answer["generated_text"] == frames[-1]["generated_text"] == text
    assert "".join(token["text"] for token in tokens if not token["special"]) == text
    assert tokens == [frame["token"] for frame in frames]


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


async def test_tokenize_answers_a_bare_list_with_byte_offsets() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.post("/tokenize", json={"inputs": "hé"})

    assert answer.json() == [
        {"id": 106, "text": "h", "start": 0, "stop": 1},
        {"id": 197, "text": "é", "start": 1, "stop": 3},
        {"id": 171, "text": "é", "start": 1, "stop": 3},
    ]


BROKEN: list[tuple[Any, ...]] = [
    ({"best_of": 0, "do_sample": True}, "best_of"),
    ({"frequency_penalty": 2.1}, "frequency_penalty"),
    ({"top_k": -1}, "top_k"),
    ({"max_new_tokens": 10**12}, "max_new_tokens"),
    ({"stop": "a"}, "parameters.stop"),
    ({"stop": [""]}, "stop"),
    ({"seed": 2**64}, "seed"),
    ({"details": "yes"}, "parameters.details"),
    ({"adapter_id": "mine"}, "adapter_id"),
    ({"grammar": "a+"}, "parameters.grammar"),
    ([], "parameters"),
]


async def test_a_broken_rule_is_a_422_that_names_the_field() -> None:
    async with housing(FakeShard()) as house:
        for parameters, field in BROKEN:
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


async def stream(house: House, **parameters: Any) -> list[Any]:
    """The data of all events."""
    body = {"inputs": PROMPT, "parameters": parameters}
    async with house.client as client:
        answer = await client.post("/generate_stream", json=body)
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line]


async def test_a_failing_row_is_the_last_event_of_its_stream() -> None:
    shard = FakeShard(script=letters)
    shard.faults.row_errors[None] = "logits are NaN"
    async with housing(shard) as house:
        (event,) = await stream(house, max_new_tokens=4)
    assert event["error_type"] == "generation"
    assert "logits are NaN" in event["error"]


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


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


async def refusal(house: House, grammar: Any, path: str = "/generate") -> str:
    body = {"inputs": "hello", "parameters": {"grammar": grammar}}
    async with house.client as client:
        answer = await client.post(path, json=body)
    assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")
    assert not any(method == "Prefill" for method, _ in house.shard.calls)
    return str(answer.json()["error"])


def spec(kind: Kind, text: str) -> ConstraintSpec:
    return ConstraintSpec(kind, text)


JSON = '{"type":"object","properties":{"a":{"type":"integer"}}}'


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ({"type": "json", "value": SCHEMA}, spec(Kind.JSON_SCHEMA, JSON)),
        ({"type": "json", "value": '{"enum": [1]}'}, spec(Kind.JSON_SCHEMA, '{"enum": [1]}')),
        ({"type": "json_object", "value": SCHEMA}, spec(Kind.JSON_SCHEMA, JSON)),
        (
            {"type": "json_schema", "value": {"schema": SCHEMA, "name": "a", "strict": True}},
            spec(Kind.JSON_SCHEMA, JSON),
        ),
        ({"type": "regex", "value": "[0-9]+"}, spec(Kind.REGEX, "[0-9]+")),
        ({"type": "choice", "value": ["yes", "no"]}, spec(Kind.CHOICE, '["yes","no"]')),
        ({"type": "lark", "value": "start: WORD"}, spec(Kind.LARK, "start: WORD")),
        ({"type": "gbnf", "value": "root ::= [a]"}, spec(Kind.GBNF, "root ::= [a]")),
        ({"type": "where", "value": "len(X) < 3"}, spec(Kind.WHERE, "len(X) < 3")),
        (
            {"type": "json", "value": SCHEMA, "whitespace": "compact", "lenient": True},
            ConstraintSpec(Kind.JSON_SCHEMA, JSON, Whitespace.COMPACT, lenient=True),
        ),
        (
            {"type": "json", "value": SCHEMA, "key_order": "any"},
            ConstraintSpec(Kind.JSON_SCHEMA, JSON, any_key_order=True),
        ),
        (
            {"type": "json", "value": SCHEMA, "strict": True},
            ConstraintSpec(Kind.JSON_SCHEMA, JSON, strict=True),
        ),
    ],
)
async def test_a_grammar_is_checked_and_then_asked_of_the_shard(
    grammar: Any, expected: ConstraintSpec
) -> None:
    checks = FakeChecks()
    parameters = {"grammar": grammar, "max_new_tokens": 9, "stop": ["."]}
    async with housing(FakeShard(), checks=checks) as house, house.client as client:
        answer = await client.post("/generate", json={"inputs": "hello", "parameters": parameters})
        requests = [
            call.batch.requests[0] for method, call in house.shard.calls if method == "Prefill"
        ]

    assert answer.status_code == 200
    assert checks.asked == [(Constraint(expected), StopRule((".",)), 9, False)]
    assert requests[0].constraint.text == expected.text


async def test_a_grammar_may_be_cut() -> None:
    checks = FakeChecks()
    grammar = {"type": "regex", "value": "a+", "on_budget": "cut"}
    body = {"inputs": "hello", "parameters": {"grammar": grammar, "max_new_tokens": 4}}
    async with housing(FakeShard(), checks=checks) as house, house.client as client:
        await client.post("/generate", json=body)

    assert checks.asked == [(Constraint(spec(Kind.REGEX, "a+"), cuts=True), StopRule(), 4, True)]


async def test_the_reason_of_a_refused_grammar_is_a_field_too() -> None:
    refusal_ = ConstraintRefused(
        "the keyword `not` is not enforced", "not_enforced", {"pointer": "/properties/a"}
    )
    checks = FakeChecks(lambda _: refusal_)
    body = {"inputs": "a", "parameters": {"grammar": {"type": "json", "value": SCHEMA}}}
    async with housing(FakeShard(), checks=checks) as house, house.client as client:
        answer = await client.post("/generate", json=body)

    assert answer.status_code == 422
    assert answer.json() == {
        "error": "Constraint error: `grammar`: the keyword `not` is not enforced",
        "error_type": "constraint_error",
        "constraint": {"reason": "not_enforced", "pointer": "/properties/a"},
    }


async def test_a_grammar_that_cannot_be_read_is_tgi_s_error() -> None:
    checks = FakeChecks(lambda _: ConstraintRefused("at 3: a ) is missing", "malformed"))
    body = {"type": "regex", "value": "(a"}
    async with housing(FakeShard(), checks=checks) as house:
        error = await refusal(house, body)

    assert error == "Input validation error: `grammar`: at 3: a ) is missing"


MALFORMED_GRAMMARS: list[tuple[Any, ...]] = [
    ("a+", "`parameters.grammar` must be an object like"),
    ({}, "`parameters.grammar` must have a `type`, one of `json`, `json_object`"),
    ({"type": "xml", "value": "a"}, "`json`, `json_object`, `json_schema`, `regex`, `choice`"),
    ({"type": "xml", "value": "a"}, 'Given: "xml"'),
    ({"type": "regex", "value": 5}, "must have a string for its `value`. Given: 5"),
    ({"type": "json", "value": {}, "lenient": 1}, "Given: 1"),
    ({"type": ["json"], "value": {}}, "`parameters.grammar` must have a `type`"),
    ({"type": "json"}, "`parameters.grammar` must have a `value`"),
    ({"type": "regex", "value": None}, "`parameters.grammar` must have a `value`"),
    ({"type": "json_schema", "value": SCHEMA}, "must have a `value` with a `schema`"),
    ({"type": "regex", "value": ["a"]}, "of type `regex` must have a string for its `value`"),
    ({"type": "regex", "value": ""}, "`grammar` is not valid: the value of `regex`"),
    ({"type": "json", "value": "{'a'}"}, "`grammar` is not valid: the value is a string"),
    (
        {"type": "json", "value": [SCHEMA]},
        "must have an object, true, false or a string for its",
    ),
    ({"type": "json", "value": "[]"}, "must be a JSON schema"),
    ({"type": "choice", "value": [1]}, "`grammar` is not valid: the value of `choice`"),
    ({"type": "json", "value": {}, "whitespace": "much"}, "must have one of `flexible`"),
    ({"type": "json", "value": {}, "lenient": 1}, "must have true or false for `lenient`"),
    ({"type": "json", "value": {}, "on_budget": 3}, "must have one of `finish`, `cut`"),
    ({"type": "regex", "value": "a", "lenient": True}, "`lenient` is said of JSON"),
    ({"type": "json", "value": {}, "key_order": "none"}, "must have one of `schema`, `any` for"),
    ({"type": "regex", "value": "a", "key_order": "any"}, "`key_order` is said of JSON"),
    ({"type": "json", "value": {}, "strict": "no"}, "must have true or false for `strict`"),
    ({"type": "choice", "value": ["a"], "strict": True}, "`strict` is said of JSON"),
]


async def test_a_malformed_grammar_is_refused_with_its_fault() -> None:
    async with housing(FakeShard()) as house:
        for grammar, words in MALFORMED_GRAMMARS:
            assert words in await refusal(house, grammar)


async def test_a_server_may_take_no_grammar_at_all() -> None:
    async with housing(FakeShard(), takes_grammars=False) as house:
        error = await refusal(house, {"type": "json", "value": "{"})

    assert error == "Input validation error: grammar is not supported"


async def test_in_a_stream_the_refusal_is_an_event() -> None:
    checks = FakeChecks(lambda _: ConstraintRefused("no text", "contradiction"))
    body = {"inputs": "a", "parameters": {"grammar": {"type": "regex", "value": "a"}}}
    async with housing(FakeShard(), checks=checks) as house, house.client as client:
        answer = await client.post("/generate_stream", json=body)

    assert answer.status_code == 200
    assert answer.text.startswith('data: {"error":"Constraint error: `grammar`: no text"')


@pytest.mark.parametrize("satisfied", [True, False])
async def test_details_say_whether_the_text_satisfies_the_grammar(satisfied: bool) -> None:
    shard = FakeShard(script=saying("abcdef", len("hello")))
    shard.followed.num_forced = lambda _: 2
    shard.followed.satisfied = satisfied
    grammar = {"type": "regex", "value": "[a-z]*"}
    body = {"inputs": "hello", "parameters": {"grammar": grammar, "details": True}}
    async with housing(shard) as house, house.client as client:
        whole = (await client.post("/generate", json=body)).json()
        streamed = await client.post("/generate_stream", json=body)

    assert whole["generated_text"] == "abcdef"
    assert whole["details"]["constraint_satisfied"] is satisfied
    events = [json.loads(line[5:]) for line in streamed.text.split("\n\n") if line]
    # Tokens that come together are sent one by one.
    assert [event["token"]["text"] for event in events] == [*"abcdef"]
    assert [event["index"] for event in events] == list(range(1, 7))
    assert events[-1]["details"]["constraint_satisfied"] is satisfied


NULLS = dict.fromkeys(Parameters.model_fields)
TURN = {"role": "user", "content": "hello", "name": None, "tool_calls": None}


NULLED: list[tuple[Any, ...]] = [
    ("/", CompatBody, {"inputs": "hello"}),
    ("/generate", GenerateBody, {"inputs": "hello"}),
    ("/generate", GenerateBody, {"inputs": "hello", "parameters": NULLS}),
    ("/generate_stream", GenerateBody, {"inputs": "hello", "parameters": NULLS}),
    ("/tokenize", TokenizeBody, {"inputs": "hello"}),
    ("/chat_tokenize", ChatBody, {"messages": [TURN]}),
    ("/invocations", CompatBody, {"inputs": "hello", "messages": None, "prompt": None}),
    ("/invocations", ChatBody, {"messages": [TURN], "inputs": None}),
    ("/vertex", VertexBody, {"instances": [{"inputs": "hello", "parameters": None}]}),
    ("/v1/chat/completions", ChatBody, {"messages": [TURN]}),
    ("/v1/completions", CompletionBody, {"prompt": "hello"}),
]


async def test_all_that_may_be_absent_may_be_null() -> None:
    async with housing(FakeShard(script=saying("w", 5))) as house, house.client as client:
        for path, schema, needed in NULLED:
            body = {**dict.fromkeys(schema.model_fields), **needed}
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            assert '"error"' not in answer.text


ALL = {"details": True, "decoder_input_details": True, "top_n_tokens": 2, "max_new_tokens": 2}


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/generate", {"inputs": "hello"}, GenerateResponse),
        ("/generate", {"inputs": "hello", "parameters": ALL}, GenerateResponse),
        (
            "/generate",
            {"inputs": "hello", "parameters": {**ALL, "best_of": 2, "top_k": 5}},
            GenerateResponse,
        ),
        ("/", {"inputs": "hello", "parameters": ALL}, list[GenerateResponse]),
        ("/tokenize", {"inputs": "hello"}, list[SimpleToken]),
        (
            "/chat_tokenize",
            {"messages": [{"role": "user", "content": "a"}]},
            ChatTokenizeResponse,
        ),
        ("/vertex", {"instances": [{"inputs": "hello"}]}, VertexResponse),
    ],
)
async def test_an_answer_is_of_its_model(path: str, body: Any, model: Any) -> None:
    async with housing(FakeShard(script=saying("world", 5))) as house, house.client as client:
        answer = await client.post(path, json=body)

    assert answer.status_code == 200, answer.text
    TypeAdapter(model).validate_json(answer.content, strict=True)


async def test_an_event_is_of_its_model() -> None:
    body = {"inputs": "hello", "parameters": {"details": True, "top_n_tokens": 2}}
    async with housing(FakeShard(script=saying("wo", 5))) as house, house.client as client:
        answer = await client.post("/generate_stream", json=body)

    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    assert len(events) == 3
    for event in events:
        StreamResponse.model_validate(event, strict=True)


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/info", Info),
        ("/v1/models", ModelList),
        ("/v1/models/model", ModelCard),
    ],
)
async def test_a_description_of_the_server_is_of_its_model(
    path: str, model: type[BaseModel]
) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.get(path)

    assert answer.status_code == 200
    model.model_validate_json(answer.content, strict=True)


# In TGI's order: what breaks the rule, and words of its message.
RULES: list[tuple[str, dict[str, Any], str]] = [
    ("best_of", {"best_of": 3}, "`best_of` must be between 1 and 2"),
    ("sampling", {"best_of": 2}, "`best_of` must be 1 without sampling"),
    ("temperature", {"temperature": 0.0}, "`temperature` must"),
    ("repetition_penalty", {"repetition_penalty": 0.0}, "`repetition_penalty` must"),
    ("frequency_penalty", {"frequency_penalty": 2.5}, "`frequency_penalty` must"),
    ("top_p", {"top_p": 1.0}, "`top_p` must"),
    ("typical_p", {"typical_p": 0.0}, "`typical_p` must"),
    ("top_k", {"top_k": 0}, "`top_k` must"),
    ("max_new_tokens", {"max_new_tokens": 0}, "`max_new_tokens` must be a whole number"),
    ("stop", {"stop": list("abcde")}, "`stop` must have at most 4"),
    ("seed", {"seed": 1, "best_of": 2, "do_sample": True}, "`seed` must be absent"),
    ("top_n_tokens", {"top_n_tokens": 6}, "`top_n_tokens` must"),
    ("inputs", {"inputs": ""}, "`inputs` must not be empty"),
    ("truncate", {"truncate": 0}, "`truncate` must"),
    (
        "total",
        {"inputs": "x" * 130, "max_new_tokens": 100},
        f"`inputs` tokens + `max_new_tokens` must be at most {MAX_TOTAL_LEN}",
    ),
    ("length", {"inputs": "x" * 130}, f"`inputs` must have at most {MAX_INPUT_LEN} tokens"),
    ("grammar", {"grammar": {"type": "json", "value": "{"}}, "`grammar` is not valid"),
    ("kept", {"grammar": {"type": "regex", "value": "a"}}, "Constraint error: `grammar`: nothing"),
]
WARPERS = {"temperature", "top_p", "typical_p", "top_k", "do_sample"}
PAIRS = [
    (first, second)
    for first, second in combinations(RULES, 2)
    # Not both at once: one value breaks one rule, and a warper asks for sampling.
    if all(first[1][name] == second[1][name] for name in first[1].keys() & second[1].keys())
    and not (first[0] == "sampling" and WARPERS & second[1].keys())
]


NOTHING = ConstraintRefused("nothing satisfies it", "contradiction")


def test_nearly_all_pairs_can_be_broken_at_once() -> None:
    assert len(PAIRS) == 142


async def first_refusal(client: httpx.AsyncClient, *broken: dict[str, Any]) -> str:
    parameters: dict[str, Any] = {}
    for each in broken:
        parameters |= each
    inputs = parameters.pop("inputs", "hello")
    answer = await client.post("/generate", json={"inputs": inputs, "parameters": parameters})
    assert answer.status_code == 422
    return str(answer.json()["error"])


async def test_each_rule_is_named_alone() -> None:
    async with (
        housing(FakeShard(), checks=FakeChecks(lambda _: NOTHING)) as house,
        house.client as client,
    ):
        for rule in RULES:
            assert rule[2] in await first_refusal(client, rule[1])


async def test_of_two_broken_rules_the_first_is_named() -> None:
    wrong = []
    async with (
        housing(FakeShard(), checks=FakeChecks(lambda _: NOTHING)) as house,
        house.client as client,
    ):
        for first, second in PAIRS:
            error = await first_refusal(client, first[1], second[1])
            if first[2] not in error:
                wrong.append((first[0], second[0], error))

    assert wrong == []


async def sampling_told(path: str, body: dict[str, Any]) -> Any:
    """The sampling parameters that the shard got."""
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        (call,) = (call for method, call in house.shard.calls if method == "Prefill")
        return call.batch.requests[0].sampling


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
@pytest.mark.parametrize("asked", [True, False, None])
async def test_who_asks_gets_it_on_every_route_of_tgi(path: str, asked: bool | None) -> None:
    parameters = {"watermark": asked, "max_new_tokens": 2}
    sampling = await sampling_told(path, {"inputs": "hello", "parameters": parameters})
    assert sampling.watermark is bool(asked)


async def test_asking_for_it_does_not_turn_sampling_on() -> None:
    parameters = {"watermark": True, "max_new_tokens": 2}
    sampling = await sampling_told("/generate", {"inputs": "hello", "parameters": parameters})
    assert not sampling.do_sample


async def test_a_chat_is_templated_and_tokenized() -> None:
    body = {"messages": [{"role": "user", "content": "é"}]}
    async with housing(FakeShard()) as house, house.client as client:
        answer = (await client.post("/chat_tokenize", json=body)).json()

    assert list(answer) == ["tokenize_response", "templated_text"]
    assert answer["templated_text"] == "user: é\n"
    assert answer["tokenize_response"][6:] == [
        {"id": 197, "text": "é", "start": 6, "stop": 8},
        {"id": 171, "text": "é", "start": 6, "stop": 8},
        {"id": 12, "text": "\n", "start": 8, "stop": 9},
    ]


async def test_a_text_of_many_tokens_is_answered_whole() -> None:
    text = "abcdefg" * 1000
    async with housing(FakeShard()) as house, house.client as client:
        plain = (await client.post("/tokenize", json={"inputs": text})).json()
        body = {"messages": [{"role": "user", "content": text}]}
        chat = (await client.post("/chat_tokenize", json=body)).json()

    assert "".join(token["text"] for token in plain) == text
    assert [(token["start"], token["stop"]) for token in plain] == [(i, i + 1) for i in range(7000)]
    assert [token["id"] for token in chat["tokenize_response"][6:-1]] == [t["id"] for t in plain]


async def test_what_a_chat_may_not_say_it_may_not_say_here() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for body, field in (
            ({}, "messages"),
            ({"messages": []}, "messages"),
            ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ):
            answer = await client.post("/chat_tokenize", json=body)
            assert answer.status_code == 422
            assert answer.json().keys() == {"error", "error_type"}
            assert f"`{field}`" in answer.json()["error"]


async def test_without_a_template_it_is_a_template_error() -> None:
    body = {"messages": [{"role": "user", "content": "a"}]}
    async with housing(FakeShard(), with_template=False) as house, house.client as client:
        answer = await client.post("/chat_tokenize", json=body)

    assert answer.status_code == 422
    assert answer.json()["error_type"] == "template_error"
    assert answer.json()["error"].startswith("Template error: ")
