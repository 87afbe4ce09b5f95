"""/constraints/check, with real workers behind it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from constraints.worker.pool import PoolRules
from router.engine.constraints import ConstraintCheck
from router.http.operations import ConstraintCheckResponse
from tests.constraints.worker.pools import costly, vocabulary_file
from tests.fakes import FakeShard
from tests.router.engine.test_constraints import metrics
from tests.router.http.harness import housing

DIGITS = {"type": "regex", "value": "[0-9]{2}"}


@asynccontextmanager
async def checking(folder: Path, **edge: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a router whose constraints are compiled by real workers."""
    rules = edge.pop("rules", PoolRules(wait_s=30.0))
    check = ConstraintCheck(vocabulary_file(folder), rules, metrics())
    await check.start()
    try:
        async with housing(FakeShard(), judges=check, **edge) as house, house.client as client:
            yield client
    finally:
        await check.close()


async def test_texts_are_judged_in_their_order(tmp_path: Path) -> None:
    async with checking(tmp_path) as client:
        body = {"grammar": DIGITS, "texts": ["12", "1é", ""]}
        answer = await client.post("/constraints/check", json=body)
        assert answer.status_code == 200
        checked = ConstraintCheckResponse.model_validate_json(answer.content, strict=True)
        assert (checked.shortest, checked.shortest_tokens) == ("00", 2)
        assert [each.text for each in checked.results] == body["texts"]
        assert [each.accepted for each in checked.results] == [True, False, False]
        assert [each.position for each in checked.results] == [None, 1, 0]
        assert checked.results[1].expected == ["a digit"]
        assert checked.results[1].num_legal_tokens == 10


async def test_one_text_may_stand_for_a_list_and_none_asks_for_the_grammar_alone(
    tmp_path: Path,
) -> None:
    async with checking(tmp_path) as client:
        one = await client.post("/constraints/check", json={"grammar": DIGITS, "text": "12"})
        assert [each["accepted"] for each in one.json()["results"]] == [True]
        none = await client.post("/constraints/check", json={"grammar": DIGITS})
        assert none.json()["results"] == []


async def test_what_a_lenient_schema_leaves_out_is_named_and_judged(tmp_path: Path) -> None:
    async with checking(tmp_path) as client:
        value = {"type": "array", "contains": {"const": 1}}
        grammar = {"type": "json", "value": value, "lenient": True}
        body = {"grammar": grammar, "texts": ["[1]", "[2]", "{}"]}
        answer = (await client.post("/constraints/check", json=body)).json()
        assert answer["not_enforced"] == ["/contains"]
        kept, broken, other = answer["results"]
        assert kept["accepted"]
        assert not broken["accepted"]
        assert broken["position"] == 3
        assert "does not contain items" in broken["error"]
        assert not other["accepted"]
        assert "error" not in other


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ({"type": "regex", "value": "a["}, "malformed"),
        ({"type": "json", "value": {"contains": {"const": 1}}}, "not_enforced"),
        (
            {"type": "json", "value": {"type": "integer", "minimum": 2, "maximum": 1}},
            "contradiction",
        ),
    ],
)
async def test_a_grammar_that_cannot_be_kept_is_refused_with_its_reason(
    tmp_path: Path, grammar: dict[str, Any], reason: str
) -> None:
    async with checking(tmp_path) as client:
        answer = await client.post("/constraints/check", json={"grammar": grammar, "text": "1"})
        assert answer.status_code == 422
        assert answer.json()["constraint"]["reason"] == reason


async def test_a_grammar_that_takes_too_long_is_refused(tmp_path: Path) -> None:
    async with checking(
        tmp_path, rules=PoolRules(cpu_s=0.02, wait_s=30.0), max_body_len=2_000_000
    ) as client:
        value = json.loads(costly(num_choices=20_000).spec.text)
        body = {"grammar": {"type": "choice", "value": value}, "text": "1"}
        answer = await client.post("/constraints/check", json=body)
        assert answer.status_code == 422
        assert answer.json()["constraint"]["reason"] == "too_complex"


@pytest.mark.parametrize(
    "body",
    [
        {"grammar": DIGITS, "text": "1", "texts": ["1"]},
        {"grammar": DIGITS, "texts": ["1"] * 257},
        {"grammar": DIGITS, "texts": [1]},
        {"grammar": {"type": "bnf", "value": "x"}},
        {"text": "1"},
    ],
)
async def test_a_body_that_breaks_a_rule_is_refused(tmp_path: Path, body: dict[str, Any]) -> None:
    async with checking(tmp_path) as client:
        answer = await client.post("/constraints/check", json=body)
        assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")


async def test_the_route_asks_for_the_key(tmp_path: Path) -> None:
    async with checking(tmp_path, api_keys=["secret"]) as client:
        body = {"grammar": DIGITS, "text": "12"}
        assert (await client.post("/constraints/check", json=body)).status_code == 401
        headers = {"authorization": "Bearer secret"}
        answer = await client.post("/constraints/check", json=body, headers=headers)
        assert answer.status_code == 200


async def test_a_server_that_takes_no_grammars_judges_none(tmp_path: Path) -> None:
    async with checking(tmp_path, takes_grammars=False) as client:
        answer = await client.post("/constraints/check", json={"grammar": DIGITS, "text": "12"})
        assert answer.status_code == 422


async def test_a_schema_in_a_string_may_have_no_key_twice(tmp_path: Path) -> None:
    async with checking(tmp_path) as client:
        value = '{"type": "integer", "type": "string"}'
        answer = await client.post(
            "/constraints/check", json={"grammar": {"type": "json", "value": value}}
        )
        assert answer.status_code == 422
        assert "the key 'type' stands twice in one object" in answer.text


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ({"type": "choice", "value": ["", "a"]}, ""),
        ({"type": "json", "value": True}, "[1]"),
        ({"type": "json", "value": "true"}, "[1]"),
    ],
)
async def test_an_empty_choice_and_a_schema_of_anything_are_grammars(
    tmp_path: Path, grammar: dict[str, Any], text: str
) -> None:
    async with checking(tmp_path) as client:
        answer = await client.post("/constraints/check", json={"grammar": grammar, "text": text})
        assert [each["accepted"] for each in answer.json()["results"]] == [True]
