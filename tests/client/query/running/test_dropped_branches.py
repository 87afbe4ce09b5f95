"""What becomes of the runs of branches that a search drops."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from client.beams import BeamsAnswer, BeamsCall, BeamsReport
from client.query.program import Context
from tests.client.query.running.programs import hole, one_of, run_bodies, say
from tests.client.query.running.tree_model import TreeModel

WORDS = ("a", "b", "ab", "ba", "aab")
NUM_HOLES, WIDTH = 40, 4


class Watched(TreeModel):
    """Notes at each search how many tasks there are, and how many bodies have not ended."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.num_running = 0
        self.seen: list[tuple[int, int]] = []

    async def search(self, call: BeamsCall) -> AsyncGenerator[BeamsReport | BeamsAnswer, None]:
        self.seen.append((len(asyncio.all_tasks()), self.num_running))
        async for part in super().search(call):
            yield part


async def test_a_long_beam_search_has_a_task_for_each_live_beam() -> None:
    model = Watched(3)

    async def body(context: Context) -> None:
        model.num_running += 1
        try:
            for number in range(NUM_HOLES):
                say(context, f"{number}:")
                await context.hole(hole("X", one_of("X", *WORDS)))
        finally:
            # Who ends a body waits for its last words.
            await asyncio.sleep(0)
            model.num_running -= 1

    num_tasks = len(asyncio.all_tasks())
    results = await run_bodies(body, model, "beam", n=WIDTH)

    assert len(results) == WIDTH
    assert len(model.seen) > NUM_HOLES
    assert max(tasks for tasks, _ in model.seen) <= num_tasks + WIDTH
    assert max(running for _, running in model.seen) <= WIDTH
    assert (len(asyncio.all_tasks()), model.num_running) == (num_tasks, 0)


@pytest.mark.parametrize("told_by", ["the planner", "the server"])
async def test_runs_end_that_came_to_an_impossible_hole(told_by: str) -> None:
    model = Watched(5)
    nothing = () if told_by == "the planner" else ("c",)

    async def body(context: Context) -> None:
        model.num_running += 1
        try:
            first = await context.hole(hole("X", one_of("X", *WORDS)))
            say(context, "-")
            await context.hole(hole("Y", one_of("Y", *(("a",) if first == "aab" else nothing))))
            await context.hole(hole("Z", one_of("Z", "a", "b")))
        finally:
            model.num_running -= 1

    results = await run_bodies(body, model, "beam", n=len(WORDS))

    assert {result["X"] for result in results} == {"aab"}
    assert model.seen[-1][1] <= 1
    assert model.num_running == 0
