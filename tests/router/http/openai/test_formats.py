"""Every way to ask for a form is a constraint: one that is checked, and asked of the shard."""

from dataclasses import replace
from typing import Any

import pytest

from constraints.spec import ConstraintSpec, Kind, StopRule, Whitespace
from router.http.openai.formats import Formats
from router.request.errors import ConstraintRefused, InvalidRequest
from router.request.request import Constraint
from tests.checks import FakeChecks
from tests.router.http.harness import housing
from tests.router.http.openai.asking import (
    CHAT,
    COMPLETIONS,
    HI,
    choices_of,
    first_request,
    post,
    refuse,
    saying_after_hi,
    stream,
    text_of,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TEXT = '{"type":"object","properties":{"a":{"type":"string"}}}'
ANY = '{"type":"object"}'
COMPACT = Whitespace.COMPACT
SPACED = Whitespace.SPACED
FLEXIBLE = Whitespace.FLEXIBLE


def json_of(text: str, whitespace: Whitespace = FLEXIBLE, **how: bool) -> Constraint:
    return Constraint(ConstraintSpec(Kind.JSON_SCHEMA, text, whitespace, **how))


def relaxing(text: str) -> Constraint:
    """What masks cannot keep of it is left to a check at the end."""
    return replace(json_of(text), may_relax=True)


def of(kind: Kind, text: str) -> Constraint:
    return Constraint(ConstraintSpec(kind, text))


ROOT = 'root ::= "a" | "b"'
STRICT = {"name": "a", "schema": SCHEMA, "strict": True}
LOOSE = {"name": "a", "schema": SCHEMA, "strict": False}
FORMS: list[tuple[dict[str, Any], Constraint]] = [
    ({"response_format": {"type": "json_object"}}, json_of(ANY)),
    ({"response_format": {"type": "json_object", "value": SCHEMA}}, json_of(TEXT)),
    ({"response_format": {"type": "json", "value": SCHEMA}}, json_of(TEXT)),
    ({"response_format": {"type": "json", "value": '{"enum": [1]}'}}, json_of('{"enum": [1]}')),
    (
        {"response_format": {"type": "json_schema", "json_schema": STRICT}},
        json_of(TEXT, strict=True),
    ),
    ({"response_format": {"type": "json_schema", "json_schema": LOOSE}}, relaxing(TEXT)),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, relaxing(ANY)),
    ({"response_format": {"type": "json_schema", "value": {"schema": SCHEMA}}}, json_of(TEXT)),
    ({"response_format": {"type": "regex", "value": "a+"}}, of(Kind.REGEX, "a+")),
    ({"response_format": {"type": "choice", "value": ["a", "b"]}}, of(Kind.CHOICE, '["a","b"]')),
    ({"response_format": {"type": "lark", "value": "start: A"}}, of(Kind.LARK, "start: A")),
    ({"response_format": {"type": "gbnf", "value": ROOT}}, of(Kind.GBNF, ROOT)),
    ({"response_format": {"type": "grammar", "grammar": ROOT}}, of(Kind.GBNF, ROOT)),
    ({"structured_outputs": {"grammar": f"# one\n{ROOT}"}}, of(Kind.GBNF, f"# one\n{ROOT}")),
    ({"guided_grammar": ROOT}, of(Kind.GBNF, ROOT)),
    ({"guided_grammar": 'start: "::="'}, of(Kind.LARK, 'start: "::="')),
    ({"response_format": {"type": "grammar", "grammar": "start: A"}}, of(Kind.LARK, "start: A")),
    ({"response_format": {"type": "where", "value": "int(X)"}}, of(Kind.WHERE, "int(X)")),
    (
        {"response_format": {"type": "json_object", "whitespace": "compact", "lenient": True}},
        json_of(ANY, COMPACT, lenient=True),
    ),
    (
        {"response_format": {"type": "regex", "value": "a+", "on_budget": "cut"}},
        Constraint(ConstraintSpec(Kind.REGEX, "a+"), cuts=True),
    ),
    ({"structured_outputs": {"json": SCHEMA}}, json_of(TEXT)),
    *(
        ({name: {**said, "key_order": "any"}}, json_of(TEXT, any_key_order=True))
        for name, said in (
            ("structured_outputs", {"json": SCHEMA}),
            ("response_format", {"type": "json_object", "value": SCHEMA}),
        )
    ),
    ({"structured_outputs": {"json": TEXT}}, json_of(TEXT)),
    ({"structured_outputs": {"regex": "a"}}, of(Kind.REGEX, "a")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, of(Kind.CHOICE, '["a","b"]')),
    ({"structured_outputs": {"grammar": "start: A"}}, of(Kind.LARK, "start: A")),
    ({"structured_outputs": {"where": "int(X)"}}, of(Kind.WHERE, "int(X)")),
    ({"structured_outputs": {"json_object": True}}, json_of(ANY)),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        json_of(TEXT, COMPACT),
    ),
    *(
        ({"structured_outputs": {"json": SCHEMA, "whitespace": each.value}}, json_of(TEXT, each))
        for each in Whitespace
    ),
    (
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "[ ]?"}},
        json_of(TEXT, COMPACT),
    ),
    ({"structured_outputs": {"json": SCHEMA, "strict": True}}, json_of(TEXT, strict=True)),
    ({"guided_json": SCHEMA}, json_of(TEXT)),
    ({"guided_json": SCHEMA, "guided_whitespace_pattern": r"\s*"}, json_of(TEXT)),
    ({"guided_json": SCHEMA, "guided_decoding_backend": "outlines"}, json_of(TEXT)),
    ({"guided_regex": "a"}, of(Kind.REGEX, "a")),
    ({"guided_choice": ["a"]}, of(Kind.CHOICE, '["a"]')),
    ({"guided_grammar": "start: A"}, of(Kind.LARK, "start: A")),
    ({"bad_words": ["no"]}, of(Kind.WHERE, '"no" not in X')),
    (
        {"bad_words": ["no", 'a "b"', "no"]},
        of(Kind.WHERE, '"no" not in X and "a \\"b\\"" not in X'),
    ),
]


@pytest.mark.parametrize(("fields", "expected"), FORMS)
def test_each_way_to_ask_is_one_constraint(fields: dict[str, Any], expected: Constraint) -> None:
    named = Formats.model_validate(fields).named_grammar()

    assert named is not None
    name, grammar = named
    assert name.split(".")[0] in fields
    assert grammar.constraint(name) == expected


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(("fields", "expected"), [FORMS[0], FORMS[-1]])
async def test_a_form_is_checked_and_asked_of_the_shard(
    path: str, fields: dict[str, Any], expected: Constraint
) -> None:
    checks = FakeChecks()
    asked: dict[str, Any] = {"messages": HI} if path == CHAT else {"prompt": "user: hi\n"}
    async with housing(saying_after_hi("x"), checks=checks) as house:
        await post(house, path, {**asked, "max_tokens": 9, "stop": "!", **fields})
        sent = first_request(house).constraint

    assert checks.asked[-1] == (expected, StopRule(("!",), kept=False), 9, expected.cuts)
    assert sent.text == expected.spec.text


def test_words_that_are_too_long_together_are_refused() -> None:
    words = ["b" * 60_000, "c" * 39_974]
    with pytest.raises(InvalidRequest, match=r"at most 100000 bytes .* Given: 100001") as refused:
        Formats(bad_words=words).named_grammar()
    assert refused.value.field == "bad_words"


@pytest.mark.parametrize("satisfied", [True, False])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_answer_says_whether_it_is_what_was_asked_for(path: str, satisfied: bool) -> None:
    asked: dict[str, Any] = {"messages": HI} if path == CHAT else {"prompt": "user: hi\n"}
    shard = saying_after_hi("abc")
    shard.followed.satisfied = satisfied
    async with housing(shard) as house:
        whole = await post(house, path, {**asked, "guided_regex": "a.*"})
        chunks = choices_of(await stream(house, path, {**asked, "guided_regex": "a.*"}))
        free = await post(house, path, asked)

    assert whole["choices"][0]["constraint_satisfied"] is satisfied
    assert chunks[-1]["constraint_satisfied"] is satisfied
    assert not any("constraint_satisfied" in chunk for chunk in chunks[:-1])
    assert "constraint_satisfied" not in free["choices"][0]


async def test_forced_tokens_are_told_as_if_they_were_drawn() -> None:
    shard = saying_after_hi("abcdef")
    shard.followed.num_forced = lambda _: 2
    body = {"messages": HI, "guided_regex": "[a-z]*", "return_token_ids": True}
    async with housing(shard) as house:
        whole = await post(house, CHAT, body)
        chunks = await stream(house, CHAT, body)

    assert whole["choices"][0]["message"]["content"] == text_of(chunks) == "abcdef"
    ids = [token_id for c in choices_of(chunks) for token_id in c.get("token_ids", [])]
    assert ids == whole["choices"][0]["token_ids"]


async def test_text_asks_for_no_form() -> None:
    checks = FakeChecks()
    async with housing(saying_after_hi("x"), checks=checks) as house:
        await post(house, CHAT, {"messages": HI, "response_format": {"type": "text"}})

    assert checks.asked == []


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        ("malformed", 400, None),
        ("not_enforced", 422, "not_enforced"),
        ("contradiction", 422, "contradiction"),
        ("does_not_fit", 422, "does_not_fit"),
        ("too_complex", 422, "too_complex"),
    ],
)
async def test_a_form_that_cannot_be_kept_is_refused_with_its_reason(
    reason: str, status: int, code: str | None
) -> None:
    refused = ConstraintRefused("because", reason, {"max_len": 9})
    checks = FakeChecks(lambda _: refused)
    async with housing(saying_after_hi("x"), checks=checks) as house, house.client as client:
        body = {"messages": HI, "response_format": {"type": "json_object"}}
        answer = await client.post(CHAT, json=body)

    assert answer.status_code == status
    assert answer.json()["error"] == {
        "message": "`response_format`: because",
        "type": "invalid_request_error",
        "param": "response_format",
        "code": code,
        "constraint": {"reason": reason, "max_len": 9},
    }


async def test_a_server_that_takes_no_grammar_says_so() -> None:
    async with housing(saying_after_hi("x"), takes_grammars=False) as house:
        status, error = await refuse(house, CHAT, {"messages": HI, "guided_regex": "a"})

    assert (status, error["message"]) == (400, "grammar is not supported")
