"""Prompts that are scored from a position on, and alternatives that are told: on a real engine."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
import torch

from constraints.spec import ConstraintSpec, Kind
from launcher import BUNDLED_MODEL
from proto.contract import LogprobParams, SamplingParams, StopParams
from router.request.request import Constraint, GenerateRequest
from tests.integration.engine import Engine, running_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT_LEN = 90


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Engine]:
    async with running_engine(BUNDLED_MODEL, max_step_tokens=48) as engine:
        yield engine


def scoring(seed: int, first: int, num_top_tokens: int = 0) -> GenerateRequest:
    ids = tuple(3 + (seed * 977 + place * place * 31) % 4000 for place in range(PROMPT_LEN))
    logprobs = LogprobParams(num_top_tokens, prompt=True, prompt_from=first)
    return GenerateRequest(ids, "", SamplingParams(), StopParams(1), logprobs)


@pytest.mark.parametrize("first", [1, 2, 16, 17, 47, 48, 49, 80, PROMPT_LEN - 1])
async def test_scores_from_a_position_on_are_those_of_the_whole_prompt(
    engine: Engine, first: int
) -> None:
    request = scoring(first, first, 2)
    scored, again = await engine.told(request), await engine.told(request)
    whole = (await engine.told(replace(request, logprobs=LogprobParams(2, prompt=True)))).prompt
    assert whole is not None
    assert scored.prompt is not None
    assert scored.prompt == again.prompt
    assert scored.prompt.tokens == whole.tokens[first:]
    assert scored.prompt.top_tokens == whole.top_tokens[first:]
    block_size = engine.model.block_size
    assert scored.end.num_cached_tokens == 0
    assert again.end.num_cached_tokens == (first - 1) // block_size * block_size


async def test_values_behind_one_prompt_are_scored_at_once(engine: Engine) -> None:
    shared = scoring(7, 0).prompt_ids
    values = [tuple((11 * index + step) % 4000 for step in range(4)) for index in range(12)]
    logprobs = LogprobParams(prompt=True, prompt_from=len(shared))
    requests = [
        GenerateRequest(shared + value, "", SamplingParams(), StopParams(1), logprobs)
        for value in values
    ]
    together = await engine.told_all(requests)
    apart = [await engine.told(request) for request in requests]
    assert [each.prompt for each in together] == [each.prompt for each in apart]
    # The first computes the shared prompt, the others read what they may of it.
    num_cached = [each.end.num_cached_tokens for each in together]
    assert num_cached[0] == 0
    assert min(num_cached[1:]) >= 48, "a whole step of the first one"
    # Two more begin in the step that is sent before the first one is answered.
    assert num_cached.count(80) >= 9
    assert all(len(each.prompt.tokens) == 4 for each in together if each.prompt)


def asking(engine: Engine, sampling: SamplingParams, pattern: str | None) -> GenerateRequest:
    spec = None if pattern is None else ConstraintSpec(Kind.REGEX, pattern)
    return GenerateRequest(
        tuple(engine.tokenizer.encode("There once was a")),
        "",
        sampling,
        StopParams(8),
        LogprobParams(num_top_tokens=64),
        None if spec is None else Constraint(spec, is_quick=True),
    )


async def test_alternatives_are_what_may_be_drawn_after_mask_bias_and_penalties(
    engine: Engine,
) -> None:
    encode = engine.tokenizer.encode
    (eos_id,) = engine.model.eos_token_ids
    banned, favoured = encode(" cat")[0], encode(" dog")[0]
    sampling = SamplingParams(logit_bias={banned: -100.0, favoured: 9.0}, presence_penalty=2.0)
    request = asking(engine, sampling, "( cat| dog| king){1,4}")
    told = await engine.told(request)
    for index, event in enumerate(told.tokens):
        tops = {top.token_id: top.logprob or 0.0 for top in event.top_tokens}
        texts = {top.text for top in event.top_tokens}
        assert tops[event.token.token_id] == event.token.logprob
        assert max(tops.values()) == event.token.logprob, "greedy takes the best"
        # Renormalised over what is left, and nothing else is in there.
        total = sum(torch.tensor(list(tops.values()), dtype=torch.float64).exp().tolist())
        assert total == pytest.approx(1.0, abs=1e-5)
        spelled = "".join(each.token.text for each in told.tokens[:index])
        for text in texts - {engine.tokenizer.token_text(eos_id)}:
            rest = (spelled + text).replace(" cat", "").replace(" dog", "").replace(" king", "")
            assert any(word.startswith(rest) for word in (" cat", " dog", " king"))
        is_complete = any(spelled.endswith(word) for word in (" cat", " dog", " king"))
        assert (eos_id in tops) == is_complete


async def test_as_many_alternatives_as_were_asked_for(engine: Engine) -> None:
    told = await engine.told(asking(engine, SamplingParams(), None))
    assert [len(event.top_tokens) for event in told.tokens] == [64] * 8
    for event in told.tokens:
        assert event.top_tokens[0].token_id == event.token.token_id
        logprobs = [top.logprob or 0.0 for top in event.top_tokens]
        assert logprobs == sorted(logprobs, reverse=True)
        assert len({top.token_id for top in event.top_tokens}) == 64


async def test_a_drawn_token_may_be_none_of_its_alternatives(engine: Engine) -> None:
    sampling = SamplingParams(do_sample=True, temperature=3.0, seed=5)
    request = asking(engine, sampling, None)
    request = replace(request, logprobs=LogprobParams(num_top_tokens=1))
    told = await engine.told(request)
    chosen = [event.token.token_id == event.top_tokens[0].token_id for event in told.tokens]
    assert not all(chosen)
    assert all(
        (event.token.logprob or 0.0) <= (event.top_tokens[0].logprob or 0.0)
        for event in told.tokens
    )
