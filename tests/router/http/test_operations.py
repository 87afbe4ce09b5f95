"""Health, from what the batcher knows; /constraints/check."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest
import pytest_asyncio

from constraints.worker.pool import PoolRules
from router.engine.batcher import BatcherLimits
from router.engine.constraints import ConstraintCheck
from router.http.operations import ConstraintCheckResponse
from router.shards.shards import ShardTimeouts
from tests.constraints.worker.pools import costly, vocabulary_file
from tests.fakes import FakeShard
from tests.router.engine.test_constraints import metrics
from tests.router.http.harness import housing
from tests.router.rig import asking, events_of

READY_PATHS = ("/health", "/health/ready", "/ping", "/")
PATHS = (*READY_PATHS, "/health/live", "/health/progress")
# Quick enough for a test, and with room for a machine that is busy with others.
IMPATIENT = BatcherLimits(
    max_concurrent_requests=8, health_s=0.05, patience_s=0.2, progress_s=0.3, tick_s=0.02
)


async def until_status(client: httpx.AsyncClient, path: str, status: int) -> httpx.Response:
    deadline_s = monotonic() + 20.0
    while True:
        answer = await client.get(path)
        if answer.status_code == status:
            return answer
        assert monotonic() < deadline_s, (path, answer.status_code, answer.text)
        await asyncio.sleep(0.02)


async def test_a_server_that_serves_answers_all_three_with_an_empty_200() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for path in PATHS:
            answer = await client.get(path)
            assert (answer.status_code, answer.content) == (200, b""), path
            assert (await client.head(path)).status_code == 200


async def test_a_draining_server_is_there_and_gets_on_but_is_not_ready() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        await house.rig.batcher.drain(1.0)
        for path in READY_PATHS:
            answer = await client.get(path)
            assert answer.status_code == 503
            assert answer.json() == {"error": "unhealthy", "error_type": "healthcheck"}
            assert (await client.head(path)).status_code == 503
        for path in ("/health/live", "/health/progress"):
            assert (await client.get(path)).status_code == 200


async def test_a_step_that_hangs_shows_at_progress_alone() -> None:
    shard = FakeShard()
    patient = ShardTimeouts(step_s=1.2, control_s=0.5)
    hung = housing(shard, batcher_limits=IMPATIENT, timeouts=patient)
    async with hung as house, house.client as client:
        shard.faults.hangs.add("Decode")
        stream = house.rig.batcher.submit(asking())
        answer = await until_status(client, "/health/progress", 503)
        assert answer.json()["error_type"] == "healthcheck"
        assert answer.json()["error"].startswith("a step has been under way for 0.")
        for path in (*READY_PATHS, "/health/live"):
            assert (await client.get(path)).status_code == 200, path
        shard.faults.hangs.clear()
        await events_of(stream)
        await until_status(client, "/health/progress", 200)


async def test_an_idle_shard_that_hangs_shows_at_ready_and_progress() -> None:
    shard = FakeShard()
    async with housing(shard, batcher_limits=IMPATIENT) as house, house.client as client:
        shard.faults.hangs.add("Health")
        for path in (*READY_PATHS, "/health/progress"):
            await until_status(client, path, 503)
        assert (await client.get("/health/live")).status_code == 200


async def test_shards_that_are_gone_show_at_ready_and_those_that_stay_away_at_progress() -> None:
    shard = FakeShard()
    limits = replace(IMPATIENT, restart_s=1.0)
    async with housing(shard, batcher_limits=limits) as house, house.client as client:
        port = shard.urls[0].rpartition(":")[2]
        await shard.stop()
        await until_status(client, "/health/ready", 503)
        # A liveness probe that fails here ends a server that recovers.
        assert (await client.get("/health/progress")).status_code == 200
        await until_status(client, "/health/progress", 503)
        assert "have not begun anew" in (await client.get("/health/progress")).json()["error"]
        await shard.start(f"127.0.0.1:{port}")
        for path in ("/health/ready", "/health/progress"):
            await until_status(client, path, 200)


@pytest.mark.parametrize("path", PATHS)
async def test_a_probe_asks_no_shard_for_anything(path: str) -> None:
    shard = FakeShard()
    async with housing(shard) as house, house.client as client:
        before = len(shard.calls)
        for _ in range(20):
            await client.get(path)
        assert len(shard.calls) == before


async def test_the_document_has_the_probes() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        paths = (await client.get("/api-doc/openapi.json")).json()["paths"]
    for path in ("/health", "/health/live", "/health/ready", "/health/progress", "/ping"):
        assert paths[path]["get"]["responses"]["200"].get("content") is None
    assert "503" in paths["/health/progress"]["get"]["responses"]
    assert "503" not in paths["/health/live"]["get"]["responses"]


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


SHARED = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def judge(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """One router whose workers are warm, for the tests that change nothing of it."""
    async with checking(tmp_path_factory.mktemp("judge")) as client:
        yield client


@SHARED
async def test_texts_are_judged_in_their_order(judge: httpx.AsyncClient) -> None:
    body = {"grammar": DIGITS, "texts": ["12", "1é", ""]}
    answer = await judge.post("/constraints/check", json=body)
    assert answer.status_code == 200
    checked = ConstraintCheckResponse.model_validate_json(answer.content, strict=True)
    assert (checked.shortest, checked.shortest_tokens) == ("00", 2)
    assert [each.text for each in checked.results] == body["texts"]
    assert [each.accepted for each in checked.results] == [True, False, False]
    assert [each.position for each in checked.results] == [None, 1, 0]
    assert checked.results[1].expected == ["a digit"]
    assert checked.results[1].num_legal_tokens == 10


@SHARED
async def test_one_text_may_stand_for_a_list_and_none_asks_for_the_grammar_alone(
    judge: httpx.AsyncClient,
) -> None:
    one = await judge.post("/constraints/check", json={"grammar": DIGITS, "text": "12"})
    assert [each["accepted"] for each in one.json()["results"]] == [True]
    none = await judge.post("/constraints/check", json={"grammar": DIGITS})
    assert none.json()["results"] == []


@SHARED
async def test_what_a_lenient_schema_leaves_out_is_named_and_judged(
    judge: httpx.AsyncClient,
) -> None:
    options = [{"contains": {"const": 1}}, {"contains": {"const": 3}}]
    value = {"type": "array", "anyOf": options}
    grammar = {"type": "json", "value": value, "lenient": True}
    body = {"grammar": grammar, "texts": ["[1]", "[2]", "{}"]}
    answer = (await judge.post("/constraints/check", json=body)).json()
    assert answer["not_enforced"] == ["/anyOf/0/contains", "/anyOf/1/contains"]
    kept, broken, other = answer["results"]
    assert kept["accepted"]
    assert not broken["accepted"]
    assert broken["position"] == 3
    assert "is not valid under any of the given schemas" in broken["error"]
    assert not other["accepted"]
    assert "is not of type 'array'" in other["error"]
    body["grammar"] = {"type": "json", "value": value}
    answer = (await judge.post("/constraints/check", json=body)).json()
    assert answer["checked_at_close"] == ["/anyOf/0/contains", "/anyOf/1/contains"]
    assert answer["not_enforced"] == []
    kept, broken, other = answer["results"]
    assert kept["accepted"]
    assert broken["position"] == 2
    assert "is not valid under any of the given schemas" in broken["error"]


@pytest.mark.parametrize(
    ("grammar", "unfinished", "wrong"),
    [
        ({"type": "choice", "value": ["yes", "no"]}, "ye", "yo"),
        (DIGITS, "1", "1x"),
        ({"type": "lark", "value": 'start: "a" "b"'}, "a", "ax"),
        ({"type": "gbnf", "value": 'root ::= "a" "b"'}, "a", "ax"),
        ({"type": "where", "value": "len(words(X)) == 3 and len(X) < 9"}, "a b ", "a b c d e"),
        ({"type": "json", "value": {"type": "object", "required": ["é"]}}, '{"é', '{"é"}'),
    ],
)
@SHARED
async def test_all_characters_of_an_unfinished_text_can_stand(
    judge: httpx.AsyncClient, grammar: dict[str, Any], unfinished: str, wrong: str
) -> None:
    body = {"grammar": grammar, "texts": [unfinished, wrong]}
    answer = (await judge.post("/constraints/check", json=body)).json()
    begun, refused = answer["results"]
    assert (begun["accepted"], begun["position"]) == (False, len(unfinished))
    assert begun["expected"]
    assert "error" not in begun
    assert refused["position"] < len(wrong)


@SHARED
async def test_an_instance_may_have_its_keys_in_any_order(judge: httpx.AsyncClient) -> None:
    value = {"properties": {"a": {"type": "integer"}, "b": {}}}
    texts = ['{"b": 1, "a": 2}', '{"b": 1, "a": "x"}']
    body = {"grammar": {"type": "json", "value": value}, "texts": texts}
    answer = await judge.post("/constraints/check", json=body)
    checked = ConstraintCheckResponse.model_validate_json(answer.content, strict=True)
    instance, other = checked.results
    assert (instance.accepted, instance.position) == (True, None)
    assert instance.note is not None
    assert instance.note.position == texts[0].index('": 2')
    assert (other.accepted, other.error) == (False, "at /a: 'x' is not of type 'integer'")


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ({"type": "regex", "value": "a["}, "malformed"),
        ({"type": "json", "value": {"$dynamicRef": "#a"}}, "not_enforced"),
        (
            {"type": "json", "value": {"type": "integer", "minimum": 2, "maximum": 1}},
            "contradiction",
        ),
    ],
)
@SHARED
async def test_a_grammar_that_cannot_be_kept_is_refused_with_its_reason(
    judge: httpx.AsyncClient, grammar: dict[str, Any], reason: str
) -> None:
    answer = await judge.post("/constraints/check", json={"grammar": grammar, "text": "1"})
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
@SHARED
async def test_a_body_that_breaks_a_rule_is_refused(
    judge: httpx.AsyncClient, body: dict[str, Any]
) -> None:
    answer = await judge.post("/constraints/check", json=body)
    assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")


async def test_the_route_asks_for_the_key_and_a_server_without_grammars_judges_none() -> None:
    body = {"grammar": DIGITS, "text": "12"}
    guarded = housing(FakeShard(), api_keys=["secret"], takes_grammars=False)
    async with guarded as house, house.client as client:
        assert (await client.post("/constraints/check", json=body)).status_code == 401
        headers = {"authorization": "Bearer secret"}
        answer = await client.post("/constraints/check", json=body, headers=headers)
        assert (answer.status_code, answer.json()["error_type"]) == (422, "validation")


@SHARED
async def test_a_schema_in_a_string_may_have_no_key_twice(judge: httpx.AsyncClient) -> None:
    value = '{"type": "integer", "type": "string"}'
    answer = await judge.post(
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
@SHARED
async def test_an_empty_choice_and_a_schema_of_anything_are_grammars(
    judge: httpx.AsyncClient, grammar: dict[str, Any], text: str
) -> None:
    answer = await judge.post("/constraints/check", json={"grammar": grammar, "text": text})
    assert [each["accepted"] for each in answer.json()["results"]] == [True]
