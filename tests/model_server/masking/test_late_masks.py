"""Engines that hang, break or panic: their outputs fail alone, and soon."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from constraints.bitmask import Bitmask
from constraints.errors import EngineFailed
from constraints.matcher import Language, Matcher
from constraints.spec import ConstraintSpec, Kind
from constraints.vocabulary import Vocabulary
from model_server.masking.guided_output import TOO_SLOW
from model_server.masking.languages import Languages
from model_server.request import FinishReason, SamplingParams
from tests.model_server.driver import Driver
from tests.model_server.masking.shard import Shard, of, save

PROMPT = tuple(range(300, 320))
HOT = SamplingParams(do_sample=True, temperature=1.5, seed=1)
LETTERS = of(Kind.REGEX, "[a-z]+")
# Read by the languages below: the same letters, followed by an engine with a fault.
FAULTY = of(Kind.REGEX, "[a-z]+ ")


class FaultyMatcher:
    """A matcher that calls `fault` before each mask after the first few."""

    def __init__(self, matcher: Matcher, fault: Callable[[], None], num_good: int) -> None:
        self._matcher = matcher
        self._fault = fault
        self._num_good = num_good

    def fill_mask(self, row: Bitmask, max_len: int | None = None) -> None:
        if self._num_good <= 0:
            self._fault()
        self._num_good -= 1
        self._matcher.fill_mask(row, max_len)

    def fork(self) -> "FaultyMatcher":
        return FaultyMatcher(self._matcher.fork(), self._fault, self._num_good)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


class FaultyLanguage:
    """A language with such matchers."""

    def __init__(self, language: Language, fault: Callable[[], None], num_good: int) -> None:
        self._language = language
        self._fault = fault
        self._num_good = num_good

    def matcher(self) -> FaultyMatcher:
        return FaultyMatcher(self._language.matcher(), self._fault, self._num_good)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._language, name)


class FaultyLanguages(Languages):
    """The languages of a shard, one of which has a fault."""

    def __init__(self, languages: Languages, fault: Callable[[], None], num_good: int) -> None:
        self._languages = languages
        self._fault = fault
        self._num_good = num_good

    def vocabulary(self) -> Vocabulary:
        return self._languages.vocabulary()

    def compile(self, spec: ConstraintSpec) -> Language:
        language = self._languages.compile(spec)
        if spec != FAULTY.spec:
            return language
        return FaultyLanguage(language, self._fault, self._num_good)


class Panic(BaseException):
    """As what an engine in another language raises: no Exception."""


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    folder: Path = save(tmp_path_factory.mktemp("model"))
    return Shard.load(folder)


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


def assert_the_others_are_as_ever(shard: Shard, driver: Driver) -> None:
    undisturbed = shard.driver()
    undisturbed.add(2, PROMPT, 12, sampling=HOT, constraint=LETTERS)
    undisturbed.add(3, PROMPT, 12, sampling=HOT)
    undisturbed.run()
    assert {i: driver.outputs[i] for i in (2, 3)} == undisturbed.outputs


@pytest.mark.parametrize("num_good", [0, 3])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_mask_that_never_comes_ends_its_row_alone(
    shard: Shard, release: threading.Event, num_good: int, num_threads: int
) -> None:
    driver = driver_with(
        shard,
        lambda: assert_waited(release),
        num_good,
        num_threads=num_threads,
        fill_limit_s=0.1,
        open_limit_s=0.1,
    )
    began_s = time.monotonic()
    driver.run()
    assert time.monotonic() - began_s < 10.0
    last = driver.requests[1].generations[-1]
    assert last.finish_reason is FinishReason.ERROR
    assert last.error == TOO_SLOW
    assert len(driver.outputs[1]) >= num_good
    assert_the_others_are_as_ever(shard, driver)


@pytest.mark.parametrize("num_good", [0, 3])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (EngineFailed("step fuel is used up"), "step fuel is used up"),
        (Panic("index out of range"), "the engine of its constraint broke: Panic: index out"),
        (ZeroDivisionError("a bug"), "the engine of its constraint broke: ZeroDivisionError"),
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


def test_an_engine_that_is_slow_at_every_token_ends_its_row_alone(shard: Shard) -> None:
    """Each mask is in time for itself; together they would hold the others up for seconds."""
    driver = driver_with(shard, lambda: time.sleep(0.4), 1, fill_limit_s=30.0)
    driver.run()
    last = driver.requests[1].generations[-1]
    assert (last.finish_reason, last.error) == (FinishReason.ERROR, TOO_SLOW)
    assert 1 < len(driver.outputs[1]) < 8
    assert_the_others_are_as_ever(shard, driver)


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


def assert_waited(release: threading.Event) -> None:
    assert release.wait(60.0)
