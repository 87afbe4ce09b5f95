"""Engines that are slow, hang, break or panic: their outputs draw later or fail, and alone."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from constraints.errors import EngineFailed
from model_server.masking.guided_output import TOO_SLOW
from proto.contract import FinishReason, Generation, LogprobParams, SamplingParams
from tests.model_server.engine.driver import Driver
from tests.model_server.masking.faulty import FAULTY, LETTERS, FaultyLanguages
from tests.model_server.masking.shard import Shard

PROMPT = tuple(range(300, 320))
HOT = SamplingParams(do_sample=True, temperature=1.5, seed=1)


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
    driver.add(1, PROMPT, 12, sampling=HOT, constraint=FAULTY)
    driver.add(2, PROMPT, 12, sampling=HOT, constraint=LETTERS)
    driver.add(3, PROMPT, 12, sampling=HOT)
    return driver


def hanging(shard: Shard, release: threading.Event, num_good: int, **options: Any) -> Driver:
    """Masks of its first request hang until they are released; steps do not wait for long."""
    return driver_with(shard, lambda: assert_waited(release), num_good, hold_s=0.02, **options)


def assert_the_others_are_as_ever(shard: Shard, driver: Driver) -> None:
    undisturbed = shard.driver()
    undisturbed.add(2, PROMPT, 12, sampling=HOT, constraint=LETTERS)
    undisturbed.add(3, PROMPT, 12, sampling=HOT)
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
def test_an_engine_that_breaks_ends_its_row_alone(
    shard: Shard, error: BaseException, said: str, num_good: int
) -> None:
    def fail() -> None:
        raise error

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


@pytest.mark.alone
def test_a_mask_under_way_does_not_hold_up_the_end_of_its_request(
    shard: Shard, release: threading.Event
) -> None:
    driver = driver_with(shard, lambda: assert_waited(release), 1, num_threads=2)
    driver.step()
    began_s = time.monotonic()
    driver.preempt(1)
    assert time.monotonic() - began_s < 5.0
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
    undisturbed.add(1, PROMPT, 12, sampling=HOT, constraint=FAULTY)
    undisturbed.run()
    assert driver.outputs[1] == undisturbed.outputs[1]
    assert_the_others_are_as_ever(shard, driver)


def test_a_step_waits_for_a_few_slow_masks_and_no_longer_for_many(
    shard: Shard, release: threading.Event
) -> None:
    guides = Shard(shard.model, FaultyLanguages(shard.languages, lambda: assert_waited(release), 1))
    driver = shard.driver(guides.guides(num_threads=1, hold_s=0.05))
    for request_id in range(7):
        driver.add(request_id, PROMPT, 12, sampling=HOT, constraint=FAULTY)
    driver.add(7, PROMPT, 12, sampling=HOT)
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
        each.add(1, PROMPT, 3, sampling=HOT, logprobs=asked, constraint=FAULTY)
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
