"""Constrained outputs of a real model: always valid, always in budget, nobody else disturbed.

Whether masks are made by other threads or between steps, in time, late or never; step by step,
ahead of a step in flight, and on two ranks.
"""

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from constraints.errors import EngineFailed
from constraints.spec import Kind
from model_server.engine.distributed import World
from model_server.engine.runner import Runner
from model_server.errors import InvalidStep
from model_server.masking.guided_output import TOO_SLOW, GuidedOutput
from model_server.masking.mask_scheduler import Job, MaskScheduler, MaskThreadPool
from model_server.sampling.sampler import Sampler
from proto.contract import (
    FinishReason,
    Generation,
    LogprobParams,
    NewSequence,
    OutputConstraint,
    SamplingParams,
)
from tests.model_server.engine.driver import (
    AheadDriver,
    Driver,
    Request,
    load,
    on_two_ranks,
    warmed_up,
)
from tests.model_server.engine.test_distributed import ShadowDriver
from tests.model_server.engine.test_runner import new
from tests.model_server.masking.shard import (
    EOS_ID,
    FAULTY,
    LETTERS,
    NUM_BLOCKS,
    FaultyLanguages,
    Shard,
    of,
    save,
    save_hybrid,
)

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


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    """Its states are another's whenever a token is computed again from the wrong one."""
    return Shard.load(save_hybrid(tmp_path_factory.mktemp("hybrid")), attention="cpu")


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
    assert driver.requests[1].generations[-1].constraint_satisfied is True


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
        runner.step([new(1, constraint=constraint), new(2, constraint=constraint)])
    # After a restart the router gives the same ids to other requests.
    output = runner.step([new(1, constraint=constraint)])
    assert output.request_ids == (1,)


def test_quick_masks_made_between_steps_are_those_made_in_the_next_one(shard: Shard) -> None:
    texts = []
    num_unprepared = 0
    for is_made_between in (True, False):
        driver = shard.driver()
        for request_id in range(3):
            sampling = replace(HOT, seed=request_id)
            driver.add(request_id, PROMPT, 40, sampling=sampling, constraint=SENTENCE)
        while any(request.finish_reason is None for request in driver.requests.values()):
            driver.step()
            num_unprepared += not driver.runner.is_prepared
            if is_made_between:
                driver.runner.prepare()
                assert driver.runner.is_prepared
        texts.append([shard.text(driver.outputs[request_id]) for request_id in range(3)])

    assert num_unprepared > 10
    assert texts[0] == texts[1]
    assert all(map(is_sentence, texts[0]))


def test_no_other_thread_is_asked_for_a_mask_that_is_quick(shard: Shard) -> None:
    guides = shard.guides()
    driver = shard.driver(guides)
    driver.add(1, PROMPT, 40, sampling=HOT, constraint=SENTENCE)
    driver.add(2, PROMPT, 40, sampling=HOT, constraint=PERSON)
    driver.step()
    driver.step()
    assert set(guides._jobs) == {2}


def test_an_output_that_is_gone_between_steps_has_no_mask_made(shard: Shard) -> None:
    driver = shard.driver()
    for request_id in (1, 2):
        driver.add(request_id, PROMPT, 40, sampling=HOT, constraint=SENTENCE)
    driver.step()
    driver.preempt(1)
    driver.runner.prepare()
    driver.run()
    assert all(is_sentence(shard.text(driver.outputs[i])) for i in (1, 2))
    assert driver.outputs[1] == driver.outputs[2]


SEEDED = SamplingParams(do_sample=True, temperature=1.5, seed=1)


class Panic(BaseException):
    """As what an engine in another language raises: no Exception."""


@pytest.fixture
def release() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def driver_with(shard: Shard, fault: Callable[[], None], num_good: int, **options: Any) -> Driver:
    faulty = Shard(shard.model, FaultyLanguages(shard.languages, fault, num_good))
    driver = shard.driver(faulty.guides(**options))
    driver.add(1, PROMPT, 12, sampling=SEEDED, constraint=FAULTY)
    driver.add(2, PROMPT, 12, sampling=SEEDED, constraint=LETTERS)
    driver.add(3, PROMPT, 12, sampling=SEEDED)
    return driver


def hanging(shard: Shard, release: threading.Event, num_good: int, **options: Any) -> Driver:
    """Masks of its first request hang until they are released; steps do not wait for long."""
    return driver_with(shard, lambda: assert_waited(release), num_good, hold_s=0.02, **options)


def assert_the_others_are_as_ever(shard: Shard, driver: Driver) -> None:
    undisturbed = shard.driver()
    undisturbed.add(2, PROMPT, 12, sampling=SEEDED, constraint=LETTERS)
    undisturbed.add(3, PROMPT, 12, sampling=SEEDED)
    undisturbed.run()
    assert {i: driver.outputs[i] for i in (2, 3)} == undisturbed.outputs


@pytest.mark.parametrize(("num_good", "num_threads"), [(0, 1), (3, 2)])
def test_a_mask_that_never_comes_ends_its_row_alone(
    shard: Shard, release: threading.Event, num_good: int, num_threads: int
) -> None:
    # Those of the others hold under them on a busy machine, too.
    limits = {"fill_limit_s": 0.5, "open_limit_s": 1.0}
    driver = hanging(shard, release, num_good, num_threads=num_threads, **limits)
    began_s = time.monotonic()
    driver.run()
    assert time.monotonic() - began_s < 20.0
    last = driver.requests[1].generations[-1]
    assert last.finish_reason is FinishReason.ERROR
    assert last.error == TOO_SLOW
    assert len(driver.outputs[1]) >= num_good
    assert_the_others_are_as_ever(shard, driver)


@pytest.mark.parametrize(
    ("num_good", "error", "said"),
    [
        (0, EngineFailed("step fuel is used up"), "step fuel is used up"),
        (3, Panic("index out of range"), "the engine of its constraint broke: Panic: index out"),
        (3, ZeroDivisionError("a bug"), "the engine of its constraint broke: ZeroDivisionError"),
    ],
)
def test_an_engine_that_breaks_ends_its_row_alone_and_is_asked_no_more(
    shard: Shard,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    said: str,
    num_good: int,
) -> None:
    accepts = GuidedOutput.accepts

    def accepts_unbroken(self: GuidedOutput, token_id: int, words: Any) -> bool:
        assert self.error is None
        return accepts(self, token_id, words)

    def fail() -> None:
        raise error

    monkeypatch.setattr(GuidedOutput, "accepts", accepts_unbroken)
    driver = driver_with(shard, fail, num_good)
    driver.run()
    last = driver.requests[1].generations[-1]
    assert last.finish_reason is FinishReason.ERROR
    assert said in (last.error or "")
    assert_the_others_are_as_ever(shard, driver)


@pytest.mark.parametrize("hold_s", [0.01, 10.0], ids=["gone on without", "waited for"])
def test_an_engine_that_is_slow_at_every_token_ends_its_row_alone(
    shard: Shard, hold_s: float
) -> None:
    """Each mask is in time for itself; together they would hold the others up for seconds."""
    driver = driver_with(shard, lambda: compute(0.25), 1, fill_limit_s=30.0, hold_s=hold_s)
    driver.run()
    last = driver.requests[1].generations[-1]
    assert (last.finish_reason, last.error) == (FinishReason.ERROR, TOO_SLOW)
    assert 0 < len(driver.outputs[1]) < 8
    assert_the_others_are_as_ever(shard, driver)


def test_a_mask_under_way_does_not_hold_up_the_end_of_its_request(
    shard: Shard, release: threading.Event
) -> None:
    driver = driver_with(shard, lambda: assert_waited(release), 1, num_threads=2)
    driver.step()
    began_s = time.monotonic()
    driver.preempt(1)
    assert time.monotonic() - began_s < 30.0
    driver.requests[1].finish_reason = FinishReason.ERROR
    driver.run()
    assert_the_others_are_as_ever(shard, driver)


@pytest.mark.parametrize(("num_good", "num_threads"), [(0, 2), (3, 1)])
def test_a_late_mask_holds_nobody_up_and_changes_no_text(
    shard: Shard, release: threading.Event, num_good: int, num_threads: int
) -> None:
    driver = hanging(shard, release, num_good, num_threads=num_threads)
    for _ in range(num_good + 4):
        driver.step()
    # The second one's masks may be late on a busy machine, too.
    assert [len(driver.outputs[i]) for i in (1, 3)] == [num_good, num_good + 4]
    assert len(driver.outputs[2]) > num_good
    assert driver.requests[1].generations[-1] == Generation(1, is_late=True)
    release.set()
    driver.run()
    undisturbed = shard.driver()
    undisturbed.add(1, PROMPT, 12, sampling=SEEDED, constraint=FAULTY)
    undisturbed.run()
    assert driver.outputs[1] == undisturbed.outputs[1]
    assert_the_others_are_as_ever(shard, driver)


def test_a_step_waits_for_a_few_slow_masks_and_no_longer_for_many(
    shard: Shard, release: threading.Event
) -> None:
    guides = Shard(shard.model, FaultyLanguages(shard.languages, lambda: assert_waited(release), 1))
    driver = shard.driver(guides.guides(num_threads=1, hold_s=0.05))
    for request_id in range(7):
        driver.add(request_id, PROMPT, 12, sampling=SEEDED, constraint=FAULTY)
    driver.add(7, PROMPT, 12, sampling=SEEDED)
    driver.step()
    waited_s = driver.step().mask_wait_ns / 1e9
    jobs = driver.runner._guides._jobs.values()  # type: ignore[union-attr]
    assert 0 < sum(job.is_detached for job in jobs) <= 5
    assert waited_s >= 0.05
    assert [len(driver.outputs[i]) for i in (0, 6, 7)] == [1, 1, 2]


def test_a_late_draw_reports_the_score_of_the_token_that_is_computed_again(
    shard: Shard, release: threading.Event
) -> None:
    guides = Shard(shard.model, FaultyLanguages(shard.languages, lambda: assert_waited(release), 0))
    driver = shard.driver(guides.guides(hold_s=0.02))
    undisturbed = shard.driver()
    for each in (driver, undisturbed):
        asked = LogprobParams(prompt=True, num_top_tokens=2)
        each.add(1, PROMPT, 3, sampling=SEEDED, logprobs=asked, constraint=FAULTY)
    driver.step()
    driver.step()
    release.set()
    driver.run()
    undisturbed.run()
    (whole, *_) = undisturbed.requests[1].generations
    generations = driver.requests[1].generations
    first, second, *_ = generations
    assert (first.prompt_logprobs, first.prompt_top_tokens) == (
        whole.prompt_logprobs,
        whole.prompt_top_tokens,
    )
    assert len(first.prompt_logprobs) == len(PROMPT) - 1
    assert second.is_late
    drawn = next(generation for generation in generations if generation.tokens)
    for again in (second, drawn):
        assert again.prompt_logprobs == whole.prompt_logprobs[-1:]
        assert again.prompt_top_tokens == whole.prompt_top_tokens[-1:]
    assert driver.outputs == undisturbed.outputs


def compute(for_s: float) -> None:
    until_s = time.thread_time() + for_s
    while time.thread_time() < until_s:
        pass


def assert_waited(release: threading.Event) -> None:
    assert release.wait(60.0)


PENALISED = replace(HOT, repetition_penalty=1.3, frequency_penalty=0.5, watermark=True)
# Most of what a row draws among many candidates is found only when all are looked at.
FILTERED = replace(HOT, temperature=1.2, top_p=0.8)


def ahead_of(shard: Shard, seed: int = 0, guides: MaskScheduler | None = None) -> AheadDriver:
    runner = shard.runner(guides, runs_ahead=True)
    block_size = shard.model.block_size
    return AheadDriver(runner, NUM_BLOCKS, block_size, seed, num_states=shard.num_states)


def add_mixed(driver: Driver, seed: int, samplings: tuple[SamplingParams, ...]) -> None:
    """Constrained requests, some of which end early, beside free ones."""
    for request_id, constraint in enumerate((DATE, None, COLOUR, PERSON, SENTENCE, None)):
        driver.add(
            request_id,
            range(300 + request_id, 310 + request_id),
            30 + 15 * (request_id % 3),
            sampling=replace(samplings[request_id % len(samplings)], seed=seed + request_id),
            constraint=constraint,
        )


@pytest.mark.parametrize(
    ("seed", "samplings", "step_tokens"),
    [
        (0, (HOT,), 1 << 20),
        (1, (PENALISED, HOT), 9),
        (2, (FILTERED, PENALISED, HOT), 1 << 20),
        (3, (FILTERED, PENALISED, HOT), 9),
    ],
)
def test_constrained_and_free_requests_get_the_tokens_that_they_get_step_by_step(
    shard: Shard, seed: int, samplings: tuple[SamplingParams, ...], step_tokens: int
) -> None:
    ahead = ahead_of(shard, seed)
    step_by_step = shard.driver()
    for driver in (ahead, step_by_step):
        add_mixed(driver, seed, samplings)
        driver.run(step_tokens)
    assert ahead.outputs == step_by_step.outputs
    assert ahead.num_ahead > 20
    for request_id, request in ahead.requests.items():
        expected = step_by_step.requests[request_id]
        assert request.finish_reason is expected.finish_reason
        last = request.generations[-1]
        expected_last = expected.generations[-1]
        assert last.constraint_satisfied is expected_last.constraint_satisfied


def test_steps_of_constrained_rows_alone_are_launched_behind_one_in_flight(shard: Shard) -> None:
    driver = ahead_of(shard)
    for request_id in range(4):
        driver.add(request_id, (300, 301), 40, sampling=HOT, constraint=PERSON)
    driver.run()
    num_steps = max(len(request.generations) for request in driver.requests.values())
    # All but the first, whose masks come from a worker, and those that wait for nothing to follow.
    assert driver.num_ahead > 0.8 * num_steps


def refuse_every_third(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Guides refuse every third token that each of their outputs draws."""
    num_asked: dict[GuidedOutput, int] = {}
    refused: list[int] = []
    accepts = GuidedOutput.accepts

    def accepts_fewer(self: GuidedOutput, token_id: int, words: object) -> bool:
        asked = num_asked[self] = num_asked.get(self, 0) + 1
        allowed = words.view("u4")  # type: ignore[attr-defined]
        if asked % 3 == 0 and sum(int(word).bit_count() for word in allowed) > 1:
            allowed[token_id // 32] &= ~(1 << (token_id % 32)) & 0xFFFFFFFF
            refused.append(self.request_id)
            return False
        return accepts(self, token_id, words)  # type: ignore[arg-type]

    monkeypatch.setattr(GuidedOutput, "accepts", accepts_fewer)
    return refused


@pytest.mark.parametrize("name", ["shard", "hybrid"])
def test_rows_that_draw_again_or_later_say_what_they_would_have(
    request: pytest.FixtureRequest, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late mask of one token, a token that is refused behind a launched step, forced runs."""
    shard: Shard = request.getfixturevalue(name)
    slow = FaultyLanguages(shard.languages, lambda: time.sleep(0.06), num_good=2)
    outputs = []
    num_late = 0
    for make in (
        lambda: ahead_of(shard, guides=Shard(shard.model, slow).guides(hold_s=0.001)),
        lambda: Shard(shard.model, slow).driver(),
    ):
        with monkeypatch.context() as patch:
            refused = refuse_every_third(patch)
            driver: Driver = make()
            add_mixed(driver, 3, (HOT,))
            driver.add(6, range(300, 310), 9, sampling=HOT, constraint=FAULTY)
            driver.run(9)
        outputs.append(driver.outputs)
        late = [r.generations for r in driver.requests.values()]
        num_late += sum(generation.is_late for made in late for generation in made)
        assert len(refused) > 5
        # Free rows wait for nobody.
        assert not any(generation.is_late for made in (late[1], late[5]) for generation in made)
        assert any(num_forced(request) > 1 for request in driver.requests.values())
    assert outputs[0] == outputs[1]
    assert num_late > 5


def test_a_hybrids_prompt_waits_for_its_mask_and_its_tokens_do_not(hybrid: Shard) -> None:
    """Of a chunk of many tokens no last one can be computed again alone."""
    slow = FaultyLanguages(hybrid.languages, lambda: time.sleep(0.1), num_good=0)
    driver = Shard(hybrid.model, slow).driver(Shard(hybrid.model, slow).guides(hold_s=0.001))
    undisturbed = hybrid.driver()
    for each in (driver, undisturbed):
        each.add(1, PROMPT, 6, sampling=HOT, constraint=FAULTY)
        each.add(2, PROMPT, 30, sampling=HOT)
    driver.run()
    undisturbed.run()
    first, *others = driver.requests[1].generations
    assert not first.is_late
    assert any(generation.is_late for generation in others)
    assert driver.outputs == undisturbed.outputs


@pytest.mark.parametrize("constraint", [None, PERSON])
def test_who_is_dropped_while_a_step_is_in_flight_is_not_missed(
    shard: Shard, constraint: OutputConstraint | None
) -> None:
    ahead = ahead_of(shard)
    alone = shard.driver()
    for driver in (ahead, alone):
        driver.add(1, (300, 301), 30, sampling=PENALISED, constraint=constraint)
    ahead.add(2, (300, 302), 30, sampling=PENALISED, constraint=PERSON)
    for _ in range(6):
        ahead._begin(64)
    ahead.drop(2)
    ahead.run()
    alone.run()
    assert ahead.outputs[1] == alone.outputs[1]
    assert ahead.requests[2].finish_reason is None


def test_a_row_without_a_constraint_that_draws_again_is_never_late(shard: Shard) -> None:
    """Its step begins anew: the router takes no late answer for such a row."""
    ahead = ahead_of(shard)
    step_by_step = shard.driver()
    for driver in (ahead, step_by_step):
        for request_id in range(3):
            sampling = replace(FILTERED, seed=request_id)
            driver.add(request_id, (300, 301), 40, sampling=sampling)
    ahead.run()
    step_by_step.run()
    assert ahead.outputs == step_by_step.outputs
    assert ahead.num_redrawn > 0
    for request in ahead.requests.values():
        assert request.finish_reason is FinishReason.LENGTH
        assert not any(generation.is_late for generation in request.generations)


CONSTRAINTS = (
    FIXED,
    COLOUR,
    FAULTY,
    None,
    # Cannot be compiled: its row fails on both ranks.
    of(Kind.REGEX, "a(b"),
)


class _Serve:
    """Constrained requests beside others, until all have ended; what this rank holds of them."""

    def __init__(self, folder: Path, constraints: Sequence[OutputConstraint | None]) -> None:
        self.folder = folder
        self.constraints = constraints

    def __call__(self, world: World) -> Any:
        if world.is_first:
            shard = Shard.load(self.folder, world)
        else:
            # Nothing of a constraint is read here.
            shard = Shard(load(self.folder, world), None)  # type: ignore[arg-type]
        guides = None
        if world.is_first:
            faulty = FaultyLanguages(shard.languages, lambda: time.sleep(0.05), 1)
            guides = Shard(shard.model, faulty).guides(hold_s=0.01)
        runner = shard.runner(guides, world)
        driver = ShadowDriver(runner, NUM_BLOCKS, shard.model.block_size)
        for request_id, constraint in enumerate(self.constraints):
            driver.add(
                request_id,
                PROMPT,
                40,
                sampling=replace(HOT, seed=request_id),
                constraint=constraint,
            )
        num_steps = 0
        while not all(request.finish_reason for request in driver.requests.values()):
            driver.step(step_tokens=48)
            num_steps += 1
        requests = driver.requests.values()
        texts = [shard.text(driver.outputs[i]) for i in (0, 1, 2)] if world.is_first else []
        return [r.output for r in requests], [r.finish_reason for r in requests], texts, num_steps


@pytest.mark.slow
def test_both_ranks_hold_the_same_tokens_and_end_together(tmp_path: Path) -> None:
    """Also where a mask is late: both go on without it, and compute its token again."""
    first, second = on_two_ranks(_Serve(save(tmp_path), CONSTRAINTS))
    assert isinstance(first, tuple), first
    assert isinstance(second, tuple), second
    outputs, reasons, texts, num_steps = first
    assert re.fullmatch(FIXED.spec.text, texts[0])
    assert texts[1] in COLOURS
    assert re.fullmatch("[a-z]+ ?", texts[2])
    assert reasons[:2] == [FinishReason.CONSTRAINT_COMPLETE] * 2
    assert FinishReason.ERROR not in reasons[2:-1]
    assert reasons[-1] is FinishReason.ERROR
    assert len(outputs[0]) > 10
    # Forced tokens took no steps of their own; each mask that was waited for in vain took one.
    assert second[3] == num_steps > 40
    for mine, shadow in zip(outputs, second[0], strict=True):
        # The other rank does not get the last tokens of ended sequences; it has a 0 in their place.
        assert mine[: len(shadow) - 1] == shadow[:-1]


LONG_S = 30.0
NEVER_NS = 1 << 63


def test_jobs_are_done_and_their_errors_kept() -> None:
    pool = MaskThreadPool(2)
    done: list[int] = []
    good = [Job(lambda number=number: done.append(number), LONG_S) for number in range(20)]  # type: ignore[misc]
    bad = Job(lambda: 1 // 0, LONG_S)  # type: ignore[arg-type]
    for job in (*good, bad):
        pool.submit(job)
    assert all(pool.wait(job, LONG_S, NEVER_NS) for job in (*good, bad))
    assert sorted(done) == list(range(20))
    assert isinstance(bad.error, ZeroDivisionError)
    assert good[0].error is None
    pool.close()


def test_a_pool_without_jobs_has_no_threads() -> None:
    before = threading.active_count()
    MaskThreadPool(8).close()
    assert threading.active_count() == before


def test_a_job_that_hangs_keeps_its_hand_and_the_others_are_done() -> None:
    pool = MaskThreadPool(1)
    release = threading.Event()
    stuck = Job(lambda: assert_released(release), 0.1)
    others = [Job(lambda: None, 0.1) for _ in range(3)]
    try:
        for job in (stuck, *others):
            pool.submit(job)
        # The first one asked for waits behind the stuck one, and is not to blame for it.
        assert all(pool.wait(job, 1.0, NEVER_NS) for job in others)
        assert not pool.wait(stuck, 0.05, NEVER_NS)
        assert stuck.is_over_limit()
        assert stuck.is_detached
    finally:
        release.set()
    assert stuck.is_done(LONG_S)
    assert pool.wait(stuck, 0.0, NEVER_NS)
    pool.close()


def test_what_a_job_took_before_it_was_waited_for_does_not_count() -> None:
    pool = MaskThreadPool(1)
    job = Job(lambda: time.sleep(2.0), LONG_S)
    pool.submit(job)
    time.sleep(1.5)
    assert pool.wait(job, 1.5, NEVER_NS)
    assert not job.is_detached
    pool.close()


def test_a_job_behind_many_quick_ones_is_not_waited_for_beyond_its_time() -> None:
    pool = MaskThreadPool(1)
    for _ in range(50):
        pool.submit(Job(lambda: time.sleep(0.02), LONG_S))
    last = Job(lambda: None, LONG_S)
    pool.submit(last)
    assert not pool.wait(last, LONG_S, time.perf_counter_ns() + 100_000_000)
    assert not last.is_detached
    assert pool.wait(last, LONG_S, NEVER_NS)
    pool.close()


def test_a_job_of_a_detached_worker_is_not_awaited_for_ever() -> None:
    pool = MaskThreadPool(1)
    began = threading.Event()
    release = threading.Event()

    def slow() -> None:
        began.set()
        assert_released(release)

    job = Job(slow, LONG_S)
    pool.submit(job)
    assert began.wait(LONG_S)
    pool.close()
    try:
        began_s = time.monotonic()
        assert not pool.wait(job, 0.05, NEVER_NS)
        assert time.monotonic() - began_s < LONG_S / 3
        assert job.is_detached
    finally:
        release.set()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
def test_a_hand_that_is_left_to_its_job_steps_back_and_is_no_idle_work() -> None:
    pool = MaskThreadPool(1)
    began = threading.Event()
    release = threading.Event()
    found: dict[str, tuple[int, int]] = {}

    def priority() -> tuple[int, int]:
        thread_id = threading.get_native_id()
        return os.sched_getscheduler(thread_id), os.getpriority(os.PRIO_PROCESS, thread_id)

    def slow() -> None:
        began.set()
        assert_released(release)
        found["slow"] = priority()

    def quick() -> None:
        found["quick"] = priority()

    stuck = Job(slow, LONG_S)
    other = Job(quick, LONG_S)
    pool.submit(stuck)
    assert began.wait(LONG_S)
    assert not pool.wait(stuck, 0.01, NEVER_NS)
    pool.submit(other)
    assert pool.wait(other, LONG_S, NEVER_NS)
    release.set()
    assert stuck.is_done(LONG_S)
    pool.close()
    policy, niceness = found["quick"]
    assert policy == os.SCHED_OTHER
    assert found["slow"] == (os.SCHED_OTHER, min(niceness + 5, 19))


def assert_released(release: threading.Event) -> None:
    assert release.wait(LONG_S)


# Few tokens fit, so that what came before is often right; and a run of them is forced.
REPETITIVE = of(Kind.REGEX, "((yes|no), ){12}that is all, my friend[.]")


def answered(
    shard: Shard,
    guides: MaskScheduler,
    num_drafts: int,
    sampling: SamplingParams,
    logprobs: LogprobParams,
) -> Driver:
    """A driver with the answers to two constrained requests and a free one."""
    driver = shard.driver(guides)
    driver.num_drafts = num_drafts
    for request_id, constraint in enumerate((REPETITIVE, PERSON, None)):
        driver.add(
            request_id,
            PROMPT,
            60,
            sampling=replace(sampling, seed=request_id),
            logprobs=logprobs,
            constraint=constraint,
        )
    driver.run()
    return driver


@pytest.mark.parametrize(
    ("name", "sampling", "logprobs"),
    [
        pytest.param("shard", SamplingParams(), LogprobParams(), id="greedy"),
        pytest.param("shard", PENALISED, LogprobParams(), id="penalised"),
        pytest.param(
            "shard", HOT, LogprobParams(raw=True, num_top_tokens=2), id="without forced tokens"
        ),
        pytest.param("hybrid", FILTERED, LogprobParams(), id="hybrid", marks=pytest.mark.nightly),
    ],
)
def test_constrained_outputs_are_the_same_with_drafts(
    request: pytest.FixtureRequest, name: str, sampling: SamplingParams, logprobs: LogprobParams
) -> None:
    shard = request.getfixturevalue(name)
    plain = answered(shard, shard.guides(), 0, sampling, logprobs)
    drafted = answered(shard, shard.guides(), 7, sampling, logprobs)
    assert sampled_tokens(drafted) == sampled_tokens(plain)
    ends = [each.generations[-1] for each in plain.requests.values()]
    for each, end in zip(drafted.requests.values(), ends, strict=True):
        last = each.generations[-1]
        assert last.finish_reason is end.finish_reason
        assert last.constraint_satisfied == end.constraint_satisfied
    assert [num_forced(each) for each in drafted.requests.values()] == [
        num_forced(each) for each in plain.requests.values()
    ]


def test_accepted_drafts_of_constrained_outputs_save_steps(shard: Shard) -> None:
    """Forced tokens that were guessed count, and what is sampled behind them."""
    drafted, plain = (
        answered(shard, shard.guides(), num_drafts, SamplingParams(), LogprobParams())
        for num_drafts in (7, 0)
    )
    generations = drafted.requests[0].generations
    assert any(each.num_forced and 1 < each.num_accepted < each.num_drafts for each in generations)
    assert len(generations) < len(plain.requests[0].generations)


def test_a_late_mask_behind_a_draft_ends_the_step_there(shard: Shard) -> None:
    slow = FaultyLanguages(shard.languages, lambda: time.sleep(0.02), num_good=4)
    answers = []
    for num_drafts in (0, 7):
        guides = Shard(shard.model, slow).guides(hold_s=0.001)
        driver = shard.driver(guides)
        driver.num_drafts = num_drafts
        driver.add(1, PROMPT, 20, sampling=FILTERED, constraint=FAULTY)
        driver.run()
        answers.append(driver.outputs)
    assert answers[0] == answers[1]


def sampled_tokens(driver: Driver) -> list[list[Any]]:
    return [
        [token for generation in request.generations for token in generation.tokens]
        for request in driver.requests.values()
    ]
