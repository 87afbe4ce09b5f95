"""What best_k asks of a server: as little as it can, and no more than it may."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.query.program import Context
from client.words import GenerateCall
from tests.client.query.running.programs import checked, hole, one_of, run_all, say
from tests.client.query.running.test_beams import (
    WORDS,
    Trace,
    best,
    branching,
    ends,
    expected,
    found,
    joined,
    traces_of_branching,
)
from tests.client.query.running.tree_model import TreeModel, text_of

seeds = st.integers(0, 10**6)


def body_of_two(*, first_is_last: bool) -> Any:
    """Two holes; only of the second it is true that it is the last."""

    async def body(context: Context) -> None:
        say(context, "P:")
        await context.hole(hole("X", one_of("X", *WORDS), is_last=first_is_last))
        say(context, " and")
        await context.hole(hole("Y", one_of("Y", "a", "b", "ab"), is_last=True))

    return body


def traces_of_two(model: TreeModel) -> list[Trace]:
    return best(
        joined(first, second)
        for first in ends(model, "P:", WORDS)
        for second in ends(model, f"P:{first.texts[0]} and", ("a", "b", "ab"))
    )


@settings(deadline=None, max_examples=25)
@given(seed=seeds, k=st.integers(1, 30), width=st.integers(1, 5), max_tokens=st.integers(1, 3))
async def test_a_program_of_one_hole_is_one_request(
    seed: int, k: int, width: int, max_tokens: int
) -> None:
    async def body(context: Context) -> None:
        say(context, "Q")
        await context.hole(hole("X", is_last=True))

    model = TreeModel(seed)
    call = GenerateCall(prompt="Q", max_tokens=max_tokens)
    every = best(Trace((text_of(ids),), lp, len(ids)) for ids, lp in model.outputs(call))
    results = await run_all(
        body, model, "best_k", k=k, width=width, budget=999, max_tokens=max_tokens
    )
    assert found(results) == expected(every[:k])
    assert model.num_searches == 1
    assert [request.kind for request in results[0].requests] == ["best"]


@settings(deadline=None, max_examples=25)
@given(seed=seeds, k=st.integers(1, 12))
async def test_each_hole_that_others_follow_is_one_request_more_at_most(seed: int, k: int) -> None:
    model = TreeModel(seed)
    every = traces_of_two(model)
    results = await run_all(body_of_two(first_is_last=False), model, "best_k", k=k, budget=10_000)
    assert found(results) == expected(every[:k])
    # Not before a first hole is more probable than the last result, its trace is gone on with.
    num_first = sum(
        first.logprob >= every[:k][-1].logprob - 1e-9 for first in ends(model, "P:", WORDS)
    )
    assert model.num_searches <= 1 + num_first


@settings(deadline=None, max_examples=15)
@given(seed=seeds, k=st.integers(1, 12))
async def test_a_hole_that_turns_out_not_to_be_the_last_costs_no_result(seed: int, k: int) -> None:
    model = TreeModel(seed)
    results = await run_all(body_of_two(first_is_last=True), model, "best_k", k=k, budget=10_000)
    assert found(results) == expected(traces_of_two(model)[:k])


@settings(deadline=None, max_examples=25)
@given(seed=seeds, k=st.integers(1, 4), budget=st.integers(5, 30))
async def test_no_more_tokens_are_asked_for_than_the_budget_says(
    seed: int, k: int, budget: int
) -> None:
    model = TreeModel(seed)
    results = await run_all(branching, model, "best_k", k=k, budget=budget)
    searches = {request for result in results for request in result.requests}
    num_asked = sum(each.usage.num_output_tokens for each in searches if each.kind == "best")
    assert num_asked <= budget
    assert len(results) == k
    assert set(found(results)) <= set(expected(best(traces_of_branching(model))))


@pytest.mark.parametrize("budget", [2, 10_000])
async def test_no_run_of_a_program_is_left(budget: int) -> None:
    num_running = 0

    async def body(context: Context) -> None:
        nonlocal num_running
        num_running += 1
        try:
            for number in range(12):
                say(context, f"{number}:")
                await context.hole(hole("X", one_of("X", "a", "b", "ab")))
        finally:
            num_running -= 1

    results = await run_all(body, TreeModel(3), "best_k", k=2, budget=budget)
    assert len(results) == 2
    assert num_running == 0


async def test_texts_that_end_when_the_budget_does_are_still_held_to_their_checks() -> None:
    async def body(context: Context) -> None:
        say(context, "P:")
        await context.hole(hole("X", checked("X", lambda text: "b" not in text)))

    for seed in range(10):
        for budget in (1, 2, 5):
            results = await run_all(
                body, TreeModel(seed), "best_k", k=3, budget=budget, max_tokens=2
            )
            assert all("b" not in str(result["X"]) for result in results)
            assert results


class Undecided(TreeModel):
    """Thinks the same of every token."""

    def _score(self, prompt: str, ids: Sequence[int], token_id: int) -> float:
        return 0.0


async def test_traces_that_are_equally_probable_are_found_too() -> None:
    async def body(context: Context) -> None:
        for name in "XYZ":
            say(context, f"{name}:")
            await context.hole(hole(name, one_of(name, "a", "b", "ab", "ba")))

    for k in (1, 3, 15):
        results = await run_all(body, Undecided(), "best_k", k=k, budget=10_000, width=2)
        logprobs = [result.logprob for result in results]
        assert len(logprobs) == k
        assert logprobs == sorted(logprobs, reverse=True)
