"""Constraints, stop strings and budgets of answers behind a thought, kept by a real engine."""

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from constraints.spec import ConstraintSpec, Kind, ThoughtRule
from launcher import BUNDLED_MODEL
from proto.contract import FinishReason, SamplingParams, StopParams
from router.request.request import Constraint, GenerateRequest
from tests.integration.engine import Engine, running_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")

THINK = ThoughtRule("<think>", "</think>", is_begun=True)
SCHEMA = (
    '{"type": "object", "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type":'
    ' "integer"}}, "required": ["name", "age"], "additionalProperties": false}'
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Engine]:
    async with running_engine(BUNDLED_MODEL) as engine:
        yield engine


def asking(
    engine: Engine,
    spec: ConstraintSpec,
    thought: ThoughtRule,
    *,
    max_new_tokens: int = 60,
    seed: int = 7,
    **stop: Any,
) -> GenerateRequest:
    text = "Who came to dinner?\n<think>"
    return GenerateRequest(
        prompt_ids=tuple(engine.tokenizer.encode(text)),
        prompt_text=text,
        sampling=SamplingParams(do_sample=True, temperature=1.2, seed=seed),
        stop=StopParams(max_new_tokens, **stop),
        constraint=Constraint(spec, is_quick=True),
        thought=thought,
    )


@pytest.mark.parametrize("budget", [0, 6, None])
@pytest.mark.parametrize(
    ("spec", "pattern"),
    [
        (ConstraintSpec(Kind.JSON_SCHEMA, SCHEMA), r"\{.*\}"),
        (ConstraintSpec(Kind.REGEX, "[a-z]{3,6}-[0-9]"), "[a-z]{3,6}-[0-9]"),
        (ConstraintSpec(Kind.WHERE, "len(words(X)) == 3"), r"\S+(\s+\S+){2}\s*"),
    ],
)
async def test_an_answer_satisfies_its_constraint_behind_a_thought_that_ends_in_time(
    engine: Engine, spec: ConstraintSpec, pattern: str, budget: int | None
) -> None:
    thought = replace(THINK, max_len=budget)
    requests = [asking(engine, spec, thought, seed=seed) for seed in range(4)]
    for told in await engine.told_all(requests):
        assert told.end.constraint_satisfied
        assert told.end.num_generated_tokens <= 60
        before, _, answer = told.end.text.partition("</think>")
        assert re.fullmatch(pattern, answer.lstrip(), re.DOTALL), answer
        if spec.kind is Kind.JSON_SCHEMA:
            assert json.loads(answer)["name"] in ("Ann", "Bob")
        if budget is not None:
            assert before == "".join(told.pieces[:budget])


async def test_a_budget_without_a_constraint_ends_the_thought_and_nothing_else(
    engine: Engine,
) -> None:
    thought = replace(THINK, max_len=5)
    told = await engine.told(asking(engine, ConstraintSpec(Kind.TEXT, ""), thought))
    assert told.end.text.startswith("".join(told.pieces[:5]) + "</think>")
    assert told.end.constraint_satisfied is None


@pytest.mark.parametrize("kind", [Kind.TEXT, Kind.REGEX])
async def test_stop_strings_end_the_answer_and_no_thought(engine: Engine, kind: Kind) -> None:
    spec = ConstraintSpec(kind, "" if kind is Kind.TEXT else "[a-z ]+")
    thought = replace(THINK, max_len=20)
    stops = ("e", "a", "t")
    requests = [
        asking(engine, spec, thought, seed=seed, stop_strings=stops, keep_stop_string=False)
        for seed in range(4)
    ]
    answers = await engine.told_all(requests)
    assert any(set("eat").intersection("".join(told.pieces[:20])) for told in answers)
    for told in answers:
        assert told.end.reason in (FinishReason.STOP_STRING, FinishReason.EOS)
        answer = told.end.text.partition("</think>")[2]
        assert not set("eat").intersection(answer)
