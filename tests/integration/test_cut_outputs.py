"""Outputs that are cut and gone on with are those that nobody cut, on a real engine."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from constraints.spec import ConstraintSpec, Kind, ThoughtRule
from launcher import BUNDLED_MODEL
from proto.contract import FinishReason, LogprobParams, SamplingParams, StopParams
from router.request.errors import ConstraintRefused
from router.request.request import Constraint, GenerateRequest
from tests.integration.engine import Engine, running_engine
from tests.router.rig import end_of, error_of, events_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLED = SamplingParams(do_sample=True, temperature=0.9, seed=7)
TEXT = "The old man went to the market and"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[Engine]:
    async with running_engine(BUNDLED_MODEL) as engine:
        yield engine


def asking(
    engine: Engine,
    max_new_tokens: int = 24,
    *,
    text: str = TEXT,
    sampling: SamplingParams = SAMPLED,
    constraint: tuple[Kind, str] | None = None,
    num_top_tokens: int = 0,
    thought: ThoughtRule | None = None,
    **stop: Any,
) -> GenerateRequest:
    spec = None if constraint is None else ConstraintSpec(*constraint)
    return GenerateRequest(
        prompt_ids=tuple(engine.tokenizer.encode(text)),
        prompt_text=text,
        sampling=sampling,
        stop=StopParams(max_new_tokens, **stop),
        logprobs=LogprobParams(num_top_tokens=num_top_tokens),
        constraint=None if spec is None else Constraint(spec, is_quick=True),
        thought=thought,
    )


CASES: dict[str, dict[str, Any]] = {
    "sampled": {},
    "greedy": {"sampling": SamplingParams()},
    "filtered and penalised": {
        "sampling": replace(
            SAMPLED,
            top_p=0.9,
            top_k=40,
            repetition_penalty=1.3,
            presence_penalty=0.5,
            frequency_penalty=0.4,
        )
    },
    "watermarked": {"sampling": replace(SAMPLED, watermark=True)},
    "with a least length": {"min_new_tokens": 20, "num_top_tokens": 3},
    "with stop strings": {"stop_strings": ("e w", "ing"), "keep_stop_string": False},
    "characters of several tokens": {
        "constraint": (Kind.REGEX, "(日本|語){6}é+"),
        "max_new_tokens": 64,
    },
    "a regular expression": {"constraint": (Kind.REGEX, "[a-z]{3,9}( [a-z]{2,9}){2,6}\\.")},
    "forced runs": {"constraint": (Kind.REGEX, "(The answer is (yes|no)\\. ){2}Good bye\\.")},
    "a where expression in a tight budget": {
        "constraint": (Kind.WHERE, 'len(words(X)) >= 6 and "fish" in X and stops_at(X, ".")'),
        "max_new_tokens": 12,
    },
    "a schema": {
        "constraint": (
            Kind.JSON_SCHEMA,
            '{"type": "object", "properties": {"name": {"enum": ["Ann", "Bob"]},'
            ' "age": {"type": "integer"}}, "required": ["name", "age"]}',
        ),
        "max_new_tokens": 32,
    },
    "forced runs behind a thought": {
        "constraint": (Kind.REGEX, "(The answer is (yes|no)\\. ){2}Good bye\\."),
        "max_new_tokens": 40,
        "thought": ThoughtRule("<think>", "</think>", is_begun=True, max_len=9),
    },
    "a thought with a budget alone": {
        "constraint": (Kind.TEXT, ""),
        "stop_strings": ("e w", "ing"),
        "thought": ThoughtRule("<think>", "</think>", is_begun=True, max_len=9),
    },
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_an_output_that_is_cut_anywhere_goes_on_as_if_it_were_not(
    engine: Engine, case: dict[str, Any]
) -> None:
    request = asking(engine, **case)
    whole = await engine.told(request)
    num_tokens = len(whole.tokens)
    assert num_tokens > 3
    cuts = range(1, num_tokens)
    parts = await engine.told_all(
        [replace(request, output_ids=whole.token_ids[:cut]) for cut in cuts]
    )
    for cut, part in zip(cuts, parts, strict=True):
        assert part.token_ids == whole.token_ids[cut:]
        assert part.logprobs == whole.logprobs[cut:]
        assert part.pieces == whole.pieces[cut:]
        assert [event.top_tokens for event in part.tokens] == [
            event.top_tokens for event in whole.tokens[cut:]
        ]
        assert "".join(whole.pieces[:cut]) + part.end.text == whole.end.text
        assert part.end.reason is whole.end.reason
        assert part.end.constraint_satisfied == whole.end.constraint_satisfied
        assert part.end.num_generated_tokens == num_tokens - cut
        assert part.end.num_prompt_tokens == len(request.prompt_ids) + cut


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_an_output_that_pauses_again_and_again_is_one_that_does_not(
    engine: Engine, case: dict[str, Any], num_steps: int
) -> None:
    request = asking(engine, **case)
    whole = await engine.told(request)
    made: tuple[int, ...] = ()
    text = ""
    while True:
        paused = replace(request, pause_after=num_steps, output_ids=made)
        part = await engine.told(paused)
        made, text = made + part.token_ids, text + part.end.text
        if part.end.reason is not FinishReason.PAUSED:
            break
        assert part.end.num_generated_tokens == num_steps
        assert (part.end.tail, part.end.constraint_satisfied) == ("", None)
    assert (made, text, part.end.reason) == (whole.token_ids, whole.end.text, whole.end.reason)
    assert part.end.constraint_satisfied == whole.end.constraint_satisfied


@pytest.mark.parametrize(
    ("case", "output", "reason"),
    [
        (
            {"constraint": (Kind.REGEX, "[a-z ]+\\.")},
            "THE",
            "cannot be gone on with: .* cannot follow|cannot be gone on with: no completion",
        ),
        (
            {"constraint": (Kind.WHERE, "len(X) == 40"), "max_new_tokens": 4},
            " a a",
            "cannot be gone on with: no token that fits into what is left may follow",
        ),
    ],
    ids=["illegal", "too long"],
)
async def test_an_output_that_its_constraint_forbids_is_refused_alone(
    engine: Engine, case: dict[str, Any], output: str, reason: str
) -> None:
    made = tuple(engine.tokenizer.encode(output))
    broken, sound = replace(asking(engine, **case), output_ids=made), asking(engine, 8)
    alone = await engine.told(sound)
    streams = engine.batcher.submit_all([broken, sound])
    error = error_of(await events_of(streams[0]))
    assert isinstance(error, ConstraintRefused)
    assert re.search(reason, str(error)), str(error)
    assert end_of(await events_of(streams[1])).text == alone.end.text


async def test_an_output_that_is_over_ends_by_an_end_token(engine: Engine) -> None:
    request = asking(engine, constraint=(Kind.REGEX, "(red|blue)"), num_top_tokens=5)
    made = tuple(engine.tokenizer.encode("red"))
    told = await engine.told(replace(request, output_ids=made))
    assert told.token_ids == engine.model.eos_token_ids[:1]
    assert told.logprobs == (0.0,)
    assert [top.token_id for top in told.tokens[0].top_tokens] == [told.token_ids[0]]
    assert (told.end.text, told.end.reason) == ("", FinishReason.EOS)
    assert told.end.constraint_satisfied
