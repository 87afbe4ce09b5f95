"""The same answer whatever the load: requests of every kind alone, and all at once where sequences
are preempted, prompts are cut into chunks, beginnings are shared, neighbours leave, tokens are
guessed, and each step is sent before the last one is answered."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import pytest
import pytest_asyncio

from constraints.spec import ConstraintSpec, Kind
from launcher import BUNDLED_MODEL
from proto.contract import FinishReason, LogprobParams, SamplingParams, StopParams
from router.request.request import Constraint, GenerateRequest, TokenGenerated
from tests.integration.engine import Engine, Told, running_engine

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

_NUM_REQUESTS = 7
_STORY = "Once there was a fox who lived near Eldhaven with a goat. "
_PROMPTS = (
    "Once there was",
    "The weather was",
    "Q: What is 3+4?\nA:",
    _STORY * 3,
    _STORY * 3 + "One day the fox",
)
_LANGUAGES = (
    (Kind.WHERE, 'len(words(X)) <= 12 and stops_at(X, ".")'),
    (Kind.REGEX, "( [a-z]{1,6}){3,9}"),
    (Kind.REGEX, " The number is [0-9]{3}, and that is all that can be said of it\\."),
    (Kind.CHOICE, '[" red", " blue", " black as night and as deep as the sea"]'),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def roomy() -> AsyncIterator[Engine]:
    async with running_engine(BUNDLED_MODEL, prefix_caching=False, max_steps_in_flight=1) as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tight() -> AsyncIterator[Engine]:
    async with running_engine(
        BUNDLED_MODEL, num_blocks=16, max_step_tokens=33, max_drafts=4
    ) as engine:
        yield engine


def sampling_of(dice: random.Random) -> SamplingParams:
    def perhaps(*values: float) -> float | None:
        return dice.choice(values) if dice.random() < 0.3 else None

    top_k = perhaps(1, 40, 1000)
    return SamplingParams(
        do_sample=dice.random() < 0.7,
        temperature=dice.choice([1e-6, 0.7, 1.0, 3.0]),
        top_k=None if top_k is None else int(top_k),
        top_p=perhaps(0.01, 0.5, 0.95, 0.9999),
        typical_p=perhaps(0.05, 0.5, 0.95),
        min_p=perhaps(0.05, 1.0),
        repetition_penalty=perhaps(1.2, 0.8) or 1.0,
        presence_penalty=perhaps(0.5, -1.0) or 0.0,
        frequency_penalty=perhaps(0.5, 2.0) or 0.0,
        watermark=dice.random() < 0.2,
        seed=dice.randrange(2**40),
    )


def request_of(engine: Engine, dice: random.Random) -> GenerateRequest:
    text, language = dice.choice(_PROMPTS), dice.choice([None, None, None, *_LANGUAGES])
    has_stops = dice.random() < 0.3
    return GenerateRequest(
        prompt_ids=tuple(engine.tokenizer.encode(text)),
        prompt_text=text,
        sampling=sampling_of(dice),
        stop=StopParams(
            dice.randrange(80, 140),
            min_new_tokens=dice.choice([0, 0, 20]),
            ignore_eos=dice.random() < 0.8,
            stop_strings=("goat", "e w") if has_stops else (),
            keep_stop_string=dice.random() < 0.5,
        ),
        logprobs=LogprobParams(num_top_tokens=dice.choice([0, 0, 4]), prompt=dice.random() < 0.3),
        constraint=None if language is None else Constraint(ConstraintSpec(*language)),
    )


async def in_pieces(engine: Engine, request: GenerateRequest, dice: random.Random) -> Told:
    """The answer of requests that each go on where the one before paused."""
    tokens: tuple[TokenGenerated, ...] = ()
    text = ""
    while True:
        pause_after = dice.choice([1, 5, 20])
        output_ids = tuple(event.token.token_id for event in tokens)
        part = replace(request, pause_after=pause_after, output_ids=output_ids)
        told = await engine.told(part)
        tokens += told.tokens
        text += told.end.text
        if told.end.reason is not FinishReason.PAUSED:
            return replace(told, tokens=tokens, end=replace(told.end, text=text))


async def neighbour(engine: Engine, dice: random.Random) -> None:
    """Asks, and leaves in the middle, again and again."""
    while True:
        num_bursts = dice.randrange(1, 12)
        (accepted,) = engine.infer.submit([request_of(engine, dice)])
        async with aclosing(accepted):
            async for _ in accepted:
                num_bursts -= 1
                if num_bursts == 0:
                    break


@asynccontextmanager
async def neighbours(engine: Engine, num: int) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(neighbour(engine, random.Random(seed))) for seed in range(num)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        assert all(
            isinstance(end, asyncio.CancelledError)
            for end in await asyncio.gather(*tasks, return_exceptions=True)
        )


def answer(told: Told) -> tuple[object, ...]:
    """What must not depend on the load."""
    end = told.end
    return (
        told.token_ids,
        told.logprobs,
        end.text,
        end.reason,
        end.stop_string,
        end.constraint_satisfied,
    )


async def test_answers_are_those_of_requests_alone(roomy: Engine, tight: Engine) -> None:
    dice = random.Random(11)
    requests = [request_of(roomy, dice) for _ in range(_NUM_REQUESTS)]
    alone = [await roomy.told(request) for request in requests]

    async with neighbours(tight, 3):
        whole = asyncio.gather(*(tight.told(request) for request in requests))
        pieces = asyncio.gather(
            *(in_pieces(tight, request, random.Random(i)) for i, request in enumerate(requests))
        )
        together, cut = await whole, await pieces

    assert tight.scheduler.stats().num_preemptions > 0
    assert (tight.registry.get_sample_value("tandem_accepted_tokens_total") or 0) > 0
    for request, one, beside, joined in zip(requests, alone, together, cut, strict=True):
        assert (answer(beside), beside.prompt) == (answer(one), one.prompt), request
        assert answer(joined) == answer(one), request
