"""Programs of several holes: control flow, distributions, nested and parallel queries."""

import asyncio
import json
import math
from collections.abc import Awaitable

import lmql
import pytest

from tests.conformance.lmql.asking import greedy_text, log_probabilities, run, within
from tests.conformance.serving import Served

ODD = "Q: Pick the odd word out: skirt, dress, pen, jacket.\\nA:"


async def test_a_distribution_is_that_of_the_mean_log_probabilities(
    served: Served, model: lmql.LLM
) -> None:
    values = [" skirt", " pen", " jacket"]
    made = await run(
        f'argmax "{ODD}[REASONING] So the odd one is[X]" '
        f'where STOPS_BEFORE(REASONING, " So") distribution X in {values}',
        model,
    )
    prompt = ODD.replace("\\n", "\n") + made.variables["REASONING"] + " So the odd one is"
    scores = [log_probabilities(served, prompt, value) for value in values]
    weights = [math.exp(sum(score) / len(score)) for score in scores]
    told = dict(made.variables["P(X)"])
    for value, weight in zip(values, weights, strict=True):
        assert told[value] == pytest.approx(weight / sum(weights), abs=1e-3)
    assert made.variables["X"] == " pen"


async def test_holes_behind_each_other_see_what_is_before_them(
    served: Served, model: lmql.LLM
) -> None:
    made = await run(
        'argmax "Q: Tell me a story about a fox.\\nA:[FIRST] And then[SECOND]" '
        'where STOPS_AT(FIRST, ".") and STOPS_AT(SECOND, ".")',
        model,
    )
    prompt = "Q: Tell me a story about a fox.\nA:"
    first = made.variables["FIRST"]
    assert first == greedy_text(served, prompt, 60).partition(".")[0] + "."
    second = greedy_text(served, f"{prompt}{first} And then", 60).partition(".")[0] + "."
    assert made.variables["SECOND"] == second


@lmql.query
async def shouting(word):  # type: ignore[no-untyped-def]
    """lmql
    "The word {word} has [N] letters." where N in ["two", "three", "four"]
    return N
    """


@lmql.query
async def outer():  # type: ignore[no-untyped-def]
    """lmql
    "First: [N: shouting('fox')], then: [M: shouting('bear')]."
    return context.prompt, N, M
    """


async def test_a_nested_query_leaves_its_value_alone(model: lmql.LLM) -> None:
    answered = await within(outer(model=model))
    prompt, first, second = answered
    assert prompt == f"First: {first}, then: {second}."
    assert {first, second} <= {"two", "three", "four"}


@lmql.query
async def calculator(question):  # type: ignore[no-untyped-def]
    """lmql
    "Q: {question}\\nA:"
    for i in range(4):
        "[WORK]" where STOPS_BEFORE(WORK, "=")
        if "the answer is" in WORK:
            break
        "=<<[TERM]" where STOPS_AT(TERM, "=")
        result = eval(TERM[:-1])
        "{result}>>"
    return WORK.rpartition(" ")[2].rstrip(".")
    """


QUESTION = "Fata has {} boxes with {} shells in each. How many shells are there?"


async def test_a_loop_with_a_tool_answers_by_the_tool(model: lmql.LLM) -> None:
    answered = await within(calculator(QUESTION.format(5, 9), model=model))
    assert answered == "45"


async def test_queries_at_the_same_time_answer_as_alone(model: lmql.LLM, served: Served) -> None:
    factors = [(5, 9), (3, 7), (8, 8), (2, 11), (6, 9), (12, 4), (7, 7), (4, 9)]

    def asked(pair: tuple[int, int]) -> Awaitable[str]:
        fresh = lmql.model(served.model, endpoint=served.url, tokenizer=served.model)
        answer: Awaitable[str] = calculator(QUESTION.format(*pair), model=fresh)
        return answer

    together = await within(asyncio.gather(*map(asked, factors)), 90.0)
    assert together == [await within(asked(pair)) for pair in factors]
    assert together == [str(a * b) for a, b in factors]


async def test_a_certificate_names_the_model(
    model: lmql.LLM, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    await run('argmax(certificate=True) "It is [X]." where X in ["cat", "dog"]', model)
    certificate = json.loads(capsys.readouterr().out)
    generate, result = certificate["events"]
    assert generate["data"]["model"]["model"] == served.model
    assert result["data"][0]["variables"]["X"] in ("cat", "dog")
