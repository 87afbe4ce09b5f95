"""Constrained outputs of a real model: always valid, always in budget, nobody else disturbed."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from constraints.spec import Kind
from model_server.engine.distributed import World
from model_server.engine.runner import Runner
from model_server.errors import InvalidStep
from model_server.masking.mask_scheduler import MaskScheduler
from model_server.sampling.sampler import Sampler
from proto.contract import (
    FinishReason,
    LogprobParams,
    NewSequence,
    OutputConstraint,
    SamplingParams,
)
from tests.model_server.engine.driver import Request
from tests.model_server.engine.shards import warmed_up
from tests.model_server.engine.test_runner import new
from tests.model_server.masking.shard import EOS_ID, Shard, of, save

PROMPT = tuple(range(300, 320))
HOT = SamplingParams(do_sample=True, temperature=1.5)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PERSON = of(Kind.JSON_SCHEMA, json.dumps(SCHEMA))
DATE_PATTERN = r"[0-9]{4}-[0-9]{2}-[0-9]{2}( at [a-z]+)?"
DATE = of(Kind.REGEX, DATE_PATTERN)
COLOURS = ["crimson red", "crimson blue", "deep ocean green", "white"]
COLOUR = of(Kind.CHOICE, json.dumps(COLOURS))

SENTENCE = of(Kind.WHERE, 'len(words(X)) > 2 and len(X) < 60 and "q" not in X and stops_at(X, ".")')


def is_person(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


def is_sentence(text: str) -> bool:
    counts = len(text.split()) > 2 and len(text) < 60
    return counts and "q" not in text and "." not in text[:-1]


CHECKED: list[tuple[OutputConstraint, Callable[[str], object]]] = [
    (PERSON, is_person),
    (DATE, lambda text: re.fullmatch(DATE_PATTERN, text)),
    (COLOUR, lambda text: text in COLOURS),
    (SENTENCE, lambda text: is_sentence(text)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def shard(folder: Path) -> Shard:
    return Shard.load(folder)


def num_forced(request: Request) -> int:
    return sum(generation.num_forced for generation in request.generations)


@pytest.mark.parametrize(
    ("sampling", "step_tokens"),
    [
        pytest.param(SamplingParams(), 1 << 20, id="greedy"),
        pytest.param(HOT, 5, id="hot"),
        pytest.param(replace(HOT, top_p=0.9, top_k=20), 1 << 20, id="filtered"),
        pytest.param(
            replace(HOT, repetition_penalty=1.3, frequency_penalty=0.5, watermark=True),
            5,
            id="penalised",
        ),
    ],
)
def test_every_output_satisfies_its_constraint(
    shard: Shard, sampling: SamplingParams, step_tokens: int
) -> None:
    driver = shard.driver()
    for request_id in range(8):
        constraint, _ = CHECKED[request_id % 4]
        driver.add(
            request_id,
            PROMPT,
            60,
            sampling=replace(sampling, seed=request_id),
            constraint=constraint,
        )
    driver.run(step_tokens)
    for request_id, request in driver.requests.items():
        text = shard.text(request.output)
        assert CHECKED[request_id % 4][1](text), text
        assert request.generations[-1].constraint_satisfied is True
        assert request.finish_reason is not FinishReason.ERROR
        assert len(request.output) <= 60
        assert request.output[:-1].count(EOS_ID) == 0


@pytest.mark.parametrize(("constraint", "check"), CHECKED)
@pytest.mark.parametrize("seed", range(2))
def test_a_budget_that_just_suffices_is_met(
    shard: Shard, constraint: OutputConstraint, check: Callable[[str], object], seed: int
) -> None:
    shortest = shard.languages.compile(constraint.spec).matcher().shortest(1000)
    assert shortest is not None
    driver = shard.driver()
    for request_id, spare in enumerate((0, 1, 5)):
        budget = len(shortest) + spare
        driver.add(
            request_id, PROMPT, budget, sampling=replace(HOT, seed=seed), constraint=constraint
        )
    driver.run()
    for request in driver.requests.values():
        assert request.generations[-1].error is None
        assert check(shard.text(request.output))
        assert request.generations[-1].constraint_satisfied is True


def test_an_output_that_nothing_may_follow_ends_without_another_step(shard: Shard) -> None:
    driver = shard.driver()
    request = driver.add(1, PROMPT, 50, sampling=HOT, constraint=COLOUR)
    driver.run()
    assert request.finish_reason is FinishReason.CONSTRAINT_COMPLETE
    assert EOS_ID not in request.output


def test_an_output_that_may_end_or_go_on_ends_by_the_end_token_or_by_its_length(
    shard: Shard,
) -> None:
    """Any run of letters may end anywhere; the end is one token among thousands."""
    driver = shard.driver()
    letters = of(Kind.REGEX, "[a-z]+")
    driver.add(1, PROMPT, 7, sampling=HOT, constraint=letters)
    towards_end = replace(HOT, logit_bias={EOS_ID: 100.0})
    driver.add(2, PROMPT, 7, sampling=towards_end, constraint=letters)
    driver.add(3, PROMPT, 7, sampling=towards_end, constraint=letters, ignore_eos=True)
    driver.add(4, PROMPT, 7, sampling=towards_end, constraint=letters, min_new_tokens=4)
    driver.run()
    ends = {i: (r.finish_reason, len(r.output)) for i, r in driver.requests.items()}
    assert ends == {
        1: (FinishReason.LENGTH, 7),
        2: (FinishReason.EOS, 2),
        3: (FinishReason.LENGTH, 7),
        4: (FinishReason.EOS, 5),
    }
    assert all(r.generations[-1].constraint_satisfied for r in driver.requests.values())


def test_a_least_length_gives_way_where_only_the_end_is_left(shard: Shard) -> None:
    driver = shard.driver()
    request = driver.add(1, PROMPT, 50, sampling=HOT, constraint=COLOUR, min_new_tokens=40)
    driver.run()
    assert shard.text(request.output) in COLOURS
    assert request.finish_reason is FinishReason.CONSTRAINT_COMPLETE


def test_a_stop_token_is_legal_only_where_the_text_may_end(shard: Shard) -> None:
    """Token 200 is no text of the pattern; with the bias it would come first."""
    driver = shard.driver()
    biased = replace(HOT, logit_bias={200: 50.0})
    request = driver.add(1, PROMPT, 40, sampling=biased, constraint=DATE, stop_token_ids=(200,))
    driver.run()
    assert request.finish_reason is FinishReason.STOP_TOKEN
    assert re.fullmatch(DATE_PATTERN, shard.text(request.output[:-1]))
    assert request.generations[-1].constraint_satisfied is True


def test_a_cut_output_says_that_its_constraint_does_not_hold(shard: Shard) -> None:
    driver = shard.driver()
    request = driver.add(
        1, PROMPT, 3, sampling=HOT, constraint=of(Kind.JSON_SCHEMA, json.dumps(SCHEMA), cuts=True)
    )
    driver.run()
    assert request.finish_reason is FinishReason.LENGTH
    assert request.generations[-1].constraint_satisfied is False


def test_bans_lower_legal_tokens_and_never_empty_a_mask(shard: Shard) -> None:
    everywhere = dict.fromkeys(range(4096), -100.0)
    driver = shard.driver()
    request = driver.add(
        1, PROMPT, 30, sampling=replace(HOT, logit_bias=everywhere), constraint=COLOUR
    )
    driver.run()
    assert shard.text(request.output) in COLOURS


def test_batch_mates_without_a_constraint_are_not_changed_by_a_bit(shard: Shard) -> None:
    free = [replace(HOT, seed=1), replace(HOT, seed=2, top_p=0.9), SamplingParams()]
    alone = shard.driver()
    mixed = shard.driver()
    for driver in (alone, mixed):
        for request_id, sampling in enumerate(free):
            driver.add(
                request_id, PROMPT, 20, sampling=sampling, logprobs=LogprobParams(num_top_tokens=3)
            )
    for request_id in range(10, 16):
        mixed.add(
            request_id,
            PROMPT,
            40,
            sampling=replace(HOT, seed=request_id),
            constraint=CHECKED[request_id % 4][0],
        )
    alone.run()
    mixed.run()
    for request_id in range(len(free)):
        answers = [
            [
                token
                for generation in driver.requests[request_id].generations
                for token in generation.tokens
            ]
            for driver in (alone, mixed)
        ]
        assert answers[0] == answers[1]
        assert mixed.requests[request_id].generations[-1].constraint_satisfied is None


@pytest.mark.parametrize(("constraint", "check"), CHECKED)
def test_a_seed_means_the_same_alone_and_in_company(
    shard: Shard, constraint: OutputConstraint, check: Callable[[str], object]
) -> None:
    """Also where the budget is tight, so that tokens are refused and drawn anew."""
    shortest = shard.languages.compile(constraint.spec).matcher().shortest(1000)
    assert shortest is not None
    budget = len(shortest) + 3
    alone = shard.driver()
    mixed = shard.driver()
    for driver in (alone, mixed):
        driver.add(1, PROMPT, budget, sampling=replace(HOT, seed=5), constraint=constraint)
    for request_id in range(10, 15):
        mixed.add(
            request_id,
            PROMPT[: request_id - 3],
            30,
            sampling=replace(HOT, seed=request_id),
            constraint=CHECKED[request_id % 4][0] if request_id % 2 else None,
        )
    alone.run()
    mixed.run(step_tokens=24)
    assert mixed.outputs[1] == alone.outputs[1]
    assert check(shard.text(alone.outputs[1]))


@pytest.mark.parametrize("num_steps", [1, 4])
@pytest.mark.parametrize(("constraint", "check"), CHECKED)
def test_a_preempted_output_goes_on_as_it_would_have(
    shard: Shard, constraint: OutputConstraint, check: Callable[[str], object], num_steps: int
) -> None:
    warm = replace(HOT, seed=7, repetition_penalty=1.2)
    alone = shard.driver()
    driver = shard.driver()
    for one in (alone, driver):
        one.add(1, PROMPT, 45, sampling=warm, constraint=constraint)
    alone.run()
    for _ in range(num_steps):
        if driver.requests[1].finish_reason is None:
            driver.step()
    if driver.requests[1].finish_reason is None:
        driver.preempt(1)
    driver.run(step_tokens=9)
    assert driver.outputs[1] == alone.outputs[1]
    assert check(shard.text(driver.outputs[1]))


LITERAL = '{"a very long and fixed beginning":'
FIXED = of(Kind.REGEX, re.escape(LITERAL) + "[0-9]{3}" + re.escape(', "and a fixed end": true}'))


def test_forced_tokens_come_in_runs_and_save_steps(shard: Shard) -> None:
    driver = shard.driver()
    request = driver.add(1, PROMPT, 100, sampling=HOT, constraint=FIXED)
    driver.run()
    text = shard.text(request.output)
    assert re.fullmatch(FIXED.spec.text, text)
    assert num_forced(request) > len(request.output) / 2
    assert len(request.generations) == len(request.output) - num_forced(request)
    for generation in request.generations:
        forced = generation.tokens[len(generation.tokens) - generation.num_forced :]
        assert [token.logprob for token in forced] == [0.0] * generation.num_forced


@pytest.mark.parametrize(
    "logprobs", [LogprobParams(raw=True), LogprobParams(num_top_tokens=2)], ids=repr
)
def test_nothing_is_forced_on_those_who_ask_for_what_only_a_forward_knows(
    shard: Shard, logprobs: LogprobParams
) -> None:
    driver = shard.driver()
    request = driver.add(1, PROMPT, 100, sampling=HOT, constraint=FIXED, logprobs=logprobs)
    driver.run()
    assert num_forced(request) == 0
    assert re.fullmatch(FIXED.spec.text, shard.text(request.output))


@pytest.mark.parametrize("step_tokens", [1, 3, 1 << 20])
def test_a_run_computed_in_pieces_is_the_same_run(shard: Shard, step_tokens: int) -> None:
    """The keys and values of forced tokens are those of any other token."""
    whole = shard.driver()
    pieces = shard.driver()
    warm = replace(HOT, seed=2, frequency_penalty=0.3, watermark=True)
    for driver in (whole, pieces):
        driver.add(1, PROMPT, 100, sampling=warm, constraint=FIXED)
    whole.run()
    pieces.run(step_tokens)
    assert pieces.outputs[1] == whole.outputs[1]
    logprobs = [
        [token.logprob for g in driver.requests[1].generations for token in g.tokens]
        for driver in (whole, pieces)
    ]
    assert logprobs[0] == logprobs[1]


def test_what_follows_a_run_is_what_a_model_says_that_was_given_it(shard: Shard) -> None:
    """The output up to a run, handed in as a prompt, has the same logits behind it."""
    driver = shard.driver()
    request = driver.add(1, PROMPT, 100, constraint=FIXED)
    driver.run()
    first = request.generations[0]
    assert first.num_forced > 0
    given = [token.token_id for token in first.tokens]
    rest = of(Kind.REGEX, FIXED.spec.text[len(re.escape(shard.text(given))) :])
    fresh = shard.driver()
    other = fresh.add(1, (*PROMPT, *given), 100, constraint=rest)
    fresh.run()
    assert [*given, *other.output] == request.output


def test_a_constraint_that_breaks_fails_its_row_alone(shard: Shard) -> None:
    driver = shard.driver()
    driver.add(1, PROMPT, 20, sampling=HOT, constraint=of(Kind.REGEX, "a(b"))
    driver.add(2, PROMPT, 20, sampling=HOT, constraint=COLOUR)
    driver.add(3, PROMPT, 20, sampling=HOT)
    driver.add(4, PROMPT, 2, sampling=HOT, constraint=PERSON)
    driver.run()
    broken = driver.requests[1].generations[-1]
    unfit = driver.requests[4].generations[-1]
    assert broken.finish_reason is FinishReason.ERROR
    assert broken.constraint_satisfied is False
    assert broken.tokens == ()
    assert unfit.error is not None
    assert "at most 2 may be generated" in unfit.error
    assert shard.text(driver.outputs[2]) in COLOURS
    assert len(driver.outputs[3]) == 20


def test_a_step_reports_the_time_of_its_masks(shard: Shard) -> None:
    driver = shard.driver()
    driver.add(1, PROMPT, 20, sampling=HOT, constraint=DATE)
    driver.add(2, PROMPT, 20, sampling=HOT)
    output = driver.step()
    assert output.num_masked_rows == 1
    assert output.mask_ns > 0
    assert 0 <= output.mask_wait_ns < output.total_ns


def test_a_shard_without_guides_refuses_constraints(shard: Shard) -> None:
    runner = warmed_up(shard.model)
    driver = shard.driver()
    driver.runner = runner
    driver.add(1, PROMPT, 5, constraint=DATE)
    with pytest.raises(InvalidStep, match="request 1: constraints are not served here"):
        driver.step()


class _RefusingScheduler(MaskScheduler):
    """Has no thread for the second request that it is to open."""

    def open(self, new: NewSequence) -> None:
        if new.request_id == 2:
            raise RuntimeError("can't start new thread")
        super().open(new)


def test_a_guide_that_does_not_open_leaves_no_row_in_the_sampler(shard: Shard) -> None:
    model = shard.model
    sampler = Sampler(model.vocab_size, model.device, model.eos_token_ids, max_rows=8)
    guides = _RefusingScheduler(
        shard.languages, model.vocab_size, model.eos_token_ids, num_threads=1
    )
    runner = Runner(model, sampler, World(), guides=guides)
    runner.warmup(max_step_tokens=64, max_batch_size=4, max_total_len=None, num_blocks=64)
    constraint = of(Kind.REGEX, "[a-z]+")
    with pytest.raises(RuntimeError, match="can't start new thread"):
        runner.prefill(1, [new(1, constraint=constraint), new(2, constraint=constraint)], None, ())
    # After a restart the router gives the same ids to other requests.
    output = runner.prefill(1, [new(1, constraint=constraint)], None, ())
    assert output.request_ids == (1,)
