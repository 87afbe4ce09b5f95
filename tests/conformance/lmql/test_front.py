"""lmql against a front that loads its model when the first query names it."""

import asyncio

import lmql
import pytest

from tests.conformance.lmql.asking import greedy_text, run, within
from tests.conformance.serving import MODEL, Served

PROMPT = "Once there was a fox"


@pytest.fixture
def loaded_on_demand(front: Served) -> lmql.LLM:
    """Nothing is told to lmql but another address, and the name that the front knows."""
    return lmql.model(front.model, endpoint=front.url, tokenizer=str(MODEL))


async def test_a_query_waits_for_its_model_and_says_what_a_server_of_one_says(
    served: Served, loaded_on_demand: lmql.LLM
) -> None:
    made = await run(f'argmax "{PROMPT}[X]" where len(TOKENS(X)) < 12', loaded_on_demand)
    assert made.variables["X"]
    assert greedy_text(served, PROMPT, 12).startswith(made.variables["X"])


async def test_masks_scores_and_parallel_queries_pass_the_front(
    loaded_on_demand: lmql.LLM,
) -> None:
    program = f'argmax "{PROMPT} who liked[X]." where X in [" soup", " rain", " the sea"]'
    picked = await asyncio.gather(*(run(program, loaded_on_demand) for _ in range(4)))
    assert len({each.variables["X"] for each in picked}) == 1
    assert picked[0].variables["X"] in (" soup", " rain", " the sea")
    scores = await within(loaded_on_demand.score(PROMPT, [" who", " xq"]))
    assert scores.argmax() == " who"


async def test_a_name_that_the_front_does_not_know_is_an_exception(front: Served) -> None:
    model = lmql.model("nobody", endpoint=front.url, tokenizer=str(MODEL))
    with pytest.raises(Exception, match="'nobody' does not exist"):
        await run(f'argmax "{PROMPT}[X]" where len(TOKENS(X)) < 3', model)
