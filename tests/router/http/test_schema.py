"""Bodies as schemas: types, bounds, unknown fields, harmless values."""

import json
import logging
from types import MappingProxyType
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from router.http.anthropic import CountBody, MessagesBody
from router.http.bodies import DEFAULT_BOUNDS, MAX_CONTAINERS, MAX_DEPTH, JsonBounds
from router.http.errors import HttpError
from router.http.images import text_of
from router.http.lmtp.frames import BeamsFields, GenerateFields, ScoreFields
from router.http.openai.schema import ChatBody, CompletionBody
from router.http.platforms import VertexBody
from router.http.responses.schema import CountInputBody, LeftOut, ResponseBody
from router.http.schema import Schema, StrictSchema, parse
from router.http.tgi import CompatBody, TokenizeBody
from router.request.errors import InvalidRequest, Unsupported
from router.request.parameters import Limits
from tests.fakes import FakeShard
from tests.router.http.harness import housing

BODIES = (
    ChatBody,
    CompletionBody,
    CountBody,
    CountInputBody,
    MessagesBody,
    ResponseBody,
    CompatBody,
    TokenizeBody,
    VertexBody,
    GenerateFields,
    ScoreFields,
    BeamsFields,
)


class Inner(Schema):
    weight: float | None = None
    count: int | None = None
    words: list[str] | None = Field(default=None, fail_fast=True)
    anything: Any = None


class Body(Schema):
    name: str
    inner: Inner | None = None
    flag: bool | None = None


def parsed(body: bytes, schema: Any, bounds: JsonBounds = DEFAULT_BOUNDS) -> Any:
    return parse(body, schema, bounds)[0]


def nested(depth: int) -> bytes:
    return b'{"name":"a","inner":{"anything":' + b"[" * depth + b"]" * depth + b"}}"


def test_a_body_is_read_with_its_types_and_without_what_is_unknown() -> None:
    body = parsed(b'{"name": "a", "inner": {"weight": 1, "zeal": 2}, "other": []}', Body)

    assert body == Body(name="a", inner=Inner(weight=1.0))


def test_null_stands_for_absence() -> None:
    assert parsed(b'{"name": "a", "inner": null, "flag": null}', Body) == Body(name="a")


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"", "line 1 column 1"),
        (b'{"name": "a"', "line 1 column 13"),
        (b'{"name": "a"}x', "line 1 column 14"),
        (b'{"name": "a",\n "flag": NaN}', "line 2 column 10"),
        (b'{"name": "a", "inner": {"weight": Infinity}}', "line 1 column 35"),
        (b'{"name": "a", "inner": {"weight": 1e999}}', "line 1 column 35"),
        (b'{"name": "\xff\xfe"}', "byte 10 is not valid UTF-8"),
        (b'{"name": "\\ud800"}', "no low surrogate"),
        (b"\xef\xbb\xbf{}", "line 1 column 1"),
        (b"[" * 30_000, "line 1 column"),
    ],
)
def test_what_is_no_json_is_a_400_that_says_where(body: bytes, place: str) -> None:
    with pytest.raises(HttpError, match=place) as refusal:
        parsed(body, Body)

    assert (refusal.value.status, refusal.value.error_type) == (400, "validation")


def test_of_a_key_that_stands_there_twice_the_last_value_counts() -> None:
    assert parsed(b'{"name": "a", "name": "b"}', Body) == Body(name="b")


def test_nesting_is_bounded_and_the_field_is_named() -> None:
    assert parsed(nested(MAX_DEPTH - 2), Body).inner is not None

    for depth in (MAX_DEPTH - 1, 1000):
        with pytest.raises(
            HttpError, match="`inner` is nested more than 64 levels deep"
        ) as refusal:
            parsed(nested(depth), Body)
        assert refusal.value.status == 400


def test_a_wide_body_is_not_a_deep_one() -> None:
    wide = b'{"name":"a","inner":{"anything":[' + b",".join([b"[]"] * 1000) + b"]}}"

    assert parsed(wide, Body).inner == Inner(anything=[[]] * 1000)


@pytest.mark.parametrize("opening", [b"[]", b"{}"])
def test_a_body_with_too_many_lists_and_objects_is_refused_with_the_numbers(opening: bytes) -> None:
    lists = b'{"name":"a","inner":{"anything":[' + b",".join([opening] * MAX_CONTAINERS) + b"]}}"

    with pytest.raises(HttpError, match=r"at most 32768 .* Given: 32771") as refusal:
        parsed(lists, Body)

    assert (refusal.value.status, refusal.value.error_type) == (400, "validation")


@pytest.mark.parametrize(
    ("anything", "message"),
    [
        ([""] * 70_000, "JSON must have at most 65536 keys and texts. Given: 70004"),
        ([1] * 140_000, "JSON must have at most 131072 values. Given: 140001"),
        ([{}] * 9000, "`inner` may have at most 4096 objects or lists in a list. Given: 9000"),
        ([dict.fromkeys(map(str, range(5000)))], "`inner` may have at most 4096 keys in an object"),
    ],
)
def test_what_takes_long_to_validate_is_refused_before(anything: list[Any], message: str) -> None:
    body = {"name": "a", "inner": {"anything": anything}}

    with pytest.raises(HttpError, match=message) as refusal:
        parsed(json.dumps(body).encode(), Body)

    assert refusal.value.status == 400


def test_a_body_of_too_many_fields_is_refused() -> None:
    fields = dict.fromkeys(map(str, range(5000)))

    with pytest.raises(HttpError, match="the JSON may have at most 4096 keys in an object"):
        parsed(json.dumps({"name": "a", **fields}).encode(), Body)


def test_a_bias_may_have_a_key_for_each_token_of_the_model() -> None:
    bias = dict.fromkeys(map(str, range(100_000)), 1)
    body = json.dumps({"name": "a", "inner": {"anything": [{"logit_bias": bias}]}}).encode()

    with pytest.raises(HttpError, match="at most 65536 keys"):
        parsed(body, Body)
    bounds = JsonBounds.of_model(vocab_size=100_000, num_prompt_ids=1)
    assert parsed(body, Body, bounds).inner == Inner(anything=[{"logit_bias": bias}])


@pytest.mark.parametrize(
    "text",
    [
        "[" * 70_000,
        "a, " * 140_000,
        '"' * 140_000,
        '",' * 140_000,
        '"[',
        "\\",
        '\\"[{' * 40_000,
        "[\\\\" * 70_000,
    ],
)
def test_what_stands_in_texts_is_not_counted(text: str) -> None:
    body = {"name": text, "inner": {"anything": [{"[" * 70_000: text}]}}

    assert parsed(json.dumps(body).encode(), Body).model_dump(exclude_unset=True) == body


@pytest.mark.parametrize(
    ("body", "message", "field"),
    [
        (b"[]", "the body must be a JSON object. Given: a list of 0", None),
        (b'"a"', 'the body must be a JSON object. Given: "a"', None),
        (b"null", "the body must be a JSON object. Given: null", None),
        (b"{}", "`name` is required", "name"),
        (b'{"name": 1}', "`name` must be a valid string. Given: 1", "name"),
        (b'{"name": null}', "`name` must be a valid string. Given: null", "name"),
        (b'{"name": "a", "flag": 1}', "`flag` must be a valid boolean. Given: 1", "flag"),
        (b'{"name": "a", "flag": "true"}', '`flag` must be a valid boolean. Given: "true"', "flag"),
        (b'{"name": "a", "inner": 3}', "`inner` must be an object. Given: 3", "inner"),
        (
            b'{"name": "a", "inner": [1, 2]}',
            "`inner` must be an object. Given: a list of 2",
            "inner",
        ),
        (
            b'{"name": "a", "inner": {"weight": "x"}}',
            '`inner.weight` must be a valid number. Given: "x"',
            "inner.weight",
        ),
        (
            b'{"name": "a", "inner": {"weight": true}}',
            "`inner.weight` must be a valid number. Given: true",
            "inner.weight",
        ),
        (
            b'{"name": "a", "inner": {"count": 1.0}}',
            "`inner.count` must be a valid integer. Given: 1.0",
            "inner.count",
        ),
        (
            b'{"name": "a", "inner": {"words": ["a", {}, 3]}}',
            "`inner.words[1]` must be a valid string. Given: an object",
            "inner.words[1]",
        ),
    ],
)
def test_wrong_types_name_the_field_the_rule_and_the_value(
    body: bytes, message: str, field: str | None
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parsed(body, Body)

    assert (str(refusal.value), refusal.value.field) == (message, field)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parsed(b'{"name": "a", "inner": "' + b"long" * 500_000 + b'"}', Body)

    assert len(str(refusal.value)) < 120


def test_a_list_with_many_faults_is_left_at_the_first() -> None:
    with pytest.raises(InvalidRequest, match=r"`inner.words\[0\]`"):
        parsed(b'{"name": "a", "inner": {"words": [' + b"1," * 100_000 + b"1]}}", Body)


@pytest.mark.parametrize("digits", ["18446744073709551616", "-9223372036854775809", "1" * 50])
def test_a_whole_number_beyond_64_bits_is_read_exactly_for_the_rule_of_its_field(
    digits: str,
) -> None:
    body = parsed(b'{"name": "a", "inner": {"count": %b}}' % digits.encode(), Body)

    assert body.inner is not None
    assert body.inner.count == int(digits)


def test_a_whole_number_without_end_is_read_as_far_as_any_rule_cares() -> None:
    body = parsed(b'{"name": "a", "inner": {"count": %b}}' % (b"1" * 300), Body)

    assert body.inner is not None
    assert body.inner.count == int("1" * 100)


def test_beside_such_a_number_another_fault_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"`flag` must be a valid boolean\. Given: 5"):
        parsed(b'{"name": "a", "inner": {"count": %b}, "flag": 5}' % (b"1" * 50), Body)


def test_a_fraction_is_still_quoted_as_one() -> None:
    with pytest.raises(InvalidRequest, match=r"valid integer\. Given: 1\.5"):
        parsed(b'{"name": "a", "inner": {"count": 1.5}}', Body)


def lists_that_go_on(schema: Any) -> list[Any]:
    """The lists below a core schema that look at every item though one is wrong."""
    if isinstance(schema, list | tuple):
        return [found for each in schema for found in lists_that_go_on(each)]
    if not isinstance(schema, dict):
        return []
    checks_items = schema.get("type") == "list" and schema.get("items_schema") is not None
    is_any = checks_items and schema["items_schema"]["type"] == "any"
    goes_on = checks_items and not is_any and not schema.get("fail_fast")
    return [schema] * goes_on + [
        found
        for key, each in schema.items()
        if key not in ("metadata", "serialization")
        for found in lists_that_go_on(each)
    ]


def test_a_list_that_goes_on_is_found() -> None:
    class Patient(Schema):
        words: list[str] | None = None

    assert len(lists_that_go_on(Patient.__pydantic_core_schema__)) == 1


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_no_list_of_a_body_collects_a_million_faults(body: type[Schema]) -> None:
    assert lists_that_go_on(body.__pydantic_core_schema__) == []


class StrictBody(StrictSchema):
    unsupported = MappingProxyType(
        {"tools": ([],), "choice": ("auto", "none"), "image": {"size": (1,)}}
    )

    name: str | None = None


@pytest.mark.parametrize(
    "json",
    [
        b"{}",
        b'{"name": "a", "tools": [], "choice": "none", "image": {"size": 1}}',
        b'{"tools": null, "choice": null, "image": null}',
        b'{"image": {"size": null, "unknown": null}}',
    ],
)
def test_harmless_values_and_nulls_are_taken(json: bytes) -> None:
    body = parsed(json, StrictBody)
    body.refuse_unsupported()

    assert body.model_dump(exclude_unset=True) == orjson.loads(json)


@pytest.mark.parametrize(
    ("json", "field", "message"),
    [
        (b'{"tools": [1]}', "tools", "`tools` is not served yet; leave it out or say `[]`"),
        (
            b'{"choice": "any"}',
            "choice",
            '`choice` is not served yet; leave it out or say `"auto"` or `"none"`',
        ),
        (b'{"image": {"size": 2}}', "image.size", "`image.size` is not served yet; "),
        (b'{"image": {"kind": 0}}', "image.kind", "`image.kind` is not served yet; leave it out"),
    ],
)
def test_other_values_are_refused_by_name(json: bytes, field: str, message: str) -> None:
    with pytest.raises(Unsupported) as refused:
        parsed(json, StrictBody).refuse_unsupported()

    assert refused.value.field == field
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(("json", "field"), [(b'{"odd": null}', "odd"), (b'{"image": 1}', "image")])
def test_what_is_no_field_or_no_object_is_no_request(json: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parsed(json, StrictBody).refuse_unsupported()

    assert refused.value.field == field
    assert not isinstance(refused.value, Unsupported)


def test_the_document_says_what_is_taken() -> None:
    schema = StrictBody.model_json_schema()

    assert schema["additionalProperties"] is False
    assert schema["properties"]["choice"] == {"enum": [None, "auto", "none"]}
    assert schema["properties"]["image"] == {
        "type": ["object", "null"],
        "properties": {"size": {"enum": [None, 1]}},
        "additionalProperties": {"type": "null"},
    }
    assert schema["properties"]["name"]["anyOf"] == [{"type": "string"}, {"type": "null"}]


LIMITS = Limits(max_input_len=100, max_total_len=200, vocab_size=50)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "role", "content", "format", "effort", "id", "a"]),
            inner | st.sampled_from(["text", "message", "input_text", "user", "assistant"]),
            max_size=4,
        )
    ),
    max_leaves=8,
)
GOOD = {"input": "hi", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}


def bodies(schema: Any) -> st.SearchStrategy[dict[str, Any]]:
    names = [*schema.model_fields, "unknown"]
    good = {name: value for name, value in GOOD.items() if name in schema.model_fields}
    odd = st.dictionaries(st.sampled_from(names), ODD, max_size=3)
    return odd.map(lambda fields: {**good, **fields})


def outcome(raw: bytes, schema: Any) -> str:
    """The texts of the turns, or the reason why there are none."""
    try:
        body = parsed(raw, schema)
        body.check()
        if isinstance(body, ResponseBody | MessagesBody):
            body.to_raw(LIMITS)
    except (InvalidRequest, HttpError) as error:
        return str(error)
    if isinstance(body, CountBody):
        turns = body.messages.turns
    else:
        turns = tuple(item.turn for item in body.input if not isinstance(item, LeftOut))
    return " ".join(["turns:", *(text_of(turn.parts) for turn in turns)])


@pytest.mark.parametrize("schema", [ResponseBody, CountInputBody, MessagesBody, CountBody])
@given(data=st.data())
def test_every_body_is_a_value_or_a_reason_why_not(schema: Any, data: st.DataObject) -> None:
    raw = json.dumps(data.draw(bodies(schema))).encode()

    assert outcome(raw, schema)


HELLO = [{"role": "user", "content": "Hi"}]
CHAT = {"messages": HELLO, "max_tokens": 2}


async def asked(path: str, body: dict[str, Any], **edge: Any) -> httpx.Response:
    async with housing(FakeShard(), **edge) as house, house.client as client:
        return await client.post(path, json=body)


@pytest.mark.parametrize(
    ("path", "body", "ignored"),
    [
        ("/generate", {"inputs": "Hi", "max_tokens": 3}, "max_tokens"),
        (
            "/generate",
            {"inputs": "Hi", "parameters": {"max_new_token": 3, "do_smaple": True}},
            "parameters.max_new_token,parameters.do_smaple",
        ),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 2, "temprature": 1}, "temprature"),
        (
            "/v1/chat/completions",
            {**CHAT, "stream": True, "stream_options": {"include_usge": True}},
            "stream_options.include_usge",
        ),
        ("/generate", {"inputs": "Hi", "ä, ö\r\nx: y": 1}, "??????x:?y"),
        (
            "/generate",
            {"inputs": "Hi", **{f"x{i}": 1 for i in range(40)}},
            ",".join(f"x{i}" for i in range(16)),
        ),
    ],
)
async def test_unknown_fields_are_named(path: str, body: dict[str, Any], ignored: str) -> None:
    answer = await asked(path, body)

    assert answer.status_code == 200
    assert answer.headers["x-ignored-fields"] == ignored


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": "Hi", "model": "x", "parameters": {"max_new_tokens": 2}}),
        ("/v1/chat/completions", {**CHAT, "store": False, "user": "me", "functions": None}),
        ("/v1/chat/completions", {**CHAT, "tools": [], "chat_template_kwargs": {"a": 1}}),
    ],
)
async def test_of_known_fields_nothing_is_said(path: str, body: dict[str, Any]) -> None:
    for edge in ({}, {"strict_fields": True}):
        answer = await asked(path, body, **edge)
        assert answer.status_code == 200
        assert "x-ignored-fields" not in answer.headers


@pytest.mark.parametrize(
    ("path", "body", "ignored"),
    [
        ("/v1/chat/completions", {**CHAT, "reasoning_effort": "high"}, "reasoning_effort"),
        ("/v1/chat/completions", {**CHAT, "verbosity": "low"}, "verbosity"),
        ("/v1/responses", {"input": "Hi", "reasoning": {"effort": "high"}}, "reasoning.effort"),
        ("/v1/responses", {"input": "Hi", "text": {"verbosity": "low"}}, "text.verbosity"),
        (
            "/v1/messages",
            {"model": "", "max_tokens": 2, "messages": HELLO, "output_config": {"effort": "high"}},
            "output_config.effort",
        ),
    ],
)
async def test_hints_that_the_template_does_not_read_are_taken(
    path: str, body: dict[str, Any], ignored: str
) -> None:
    answer = await asked(path, body)

    assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, ignored)


async def test_the_log_names_them(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "router"):
        await asked("/generate", {"inputs": "Hi", "max_tokens": 3})

    assert "ignored_fields=max_tokens" in caplog.text


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (
            "/generate",
            {"inputs": "Hi", "parameters": {"max_new_token": 3}},
            "is not a parameter of this route; did you mean `parameters.max_new_tokens`?",
        ),
        ("/v1/completions", {"prompt": "Hi", "temprature": 1}, "did you mean `temperature`?"),
        ("/v1/chat/completions", {**CHAT, "xyzzy": 1}, "`xyzzy` is not a parameter of this route"),
    ],
)
async def test_strict_fields_refuses_them(path: str, body: dict[str, Any], words: str) -> None:
    answer = await asked(path, body, strict_fields=True)

    assert answer.status_code in (400, 422)
    assert words in answer.text
