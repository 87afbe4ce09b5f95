"""Completions along many places, and quick masks."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind
from constraints.token_trie import trie_of
from constraints.where.evaluate import holds
from constraints.where.parser import parse
from constraints.where.terms import Matches, text
from constraints.where.token_transitions import TransitionCache
from tests.constraints.cases import demo_vocabulary, drawn, judge_of, language_of, text_of
from tests.constraints.where.expressions import END_ID, LARGE, TOKENS, compiled
from tests.constraints.where.oracle import Oracle


def where(pattern: str) -> str:
    return text(Matches(pattern))


@pytest.mark.parametrize(
    ("written", "needed_len"),
    [
        (where(r"\w{20}"), 2),
        (where(r"\w{100}"), 8),
        (where(r"[\w ]{100}"), 8),
        (where(r"[A-Z]\w{24,}"), 2),
        (where(r"(?i)\w{40}"), 4),
        (where(r"\w+ \w{40}"), 5),
        (where(r"\w{40}") + " and len(X) < 100", 4),
        (where(r"\w{20}日\w{20}"), 7),
    ],
)
def test_a_text_of_many_unicode_characters_is_known_to_need_few_tokens(
    written: str, needed_len: int
) -> None:
    vocabulary = demo_vocabulary()
    language = language_of(ConstraintSpec(Kind.WHERE, written), vocabulary)
    output_state = OutputConstraintState(language, vocabulary, Budget(needed_len))
    assert output_state.needed_len <= needed_len
    output = drawn(output_state, vocabulary, needed_len, random.Random(written))
    assert len(output) <= needed_len
    assert holds(parse(written), text_of(output, vocabulary))


@pytest.mark.slow
@pytest.mark.parametrize(
    "written",
    [
        where(r"\w{12}日\w{12}"),
        pytest.param(where(r"\w+ \w{24,}\."), marks=pytest.mark.nightly),
        where(r"[^\W\d_]{10}ß") + ' and "ox" in X',
    ],
)
def test_completions_are_legal_and_nearly_as_short_as_those_of_the_oracle(written: str) -> None:
    matcher = compiled(written).matcher()
    oracle = Oracle(parse(written), TOKENS, (END_ID,))
    draw = random.Random(written)
    prefix: list[int] = []
    while not matcher.is_over and len(prefix) < 8:
        legal = sorted(oracle.legal(prefix) - {END_ID})
        completion = matcher.shortest(100)
        assert completion is not None
        assert matcher.num_legal((*completion, END_ID)) == len(completion) + 1
        fewest = oracle.shortest_len(prefix, len(completion))
        assert fewest is not None
        # Inside a character its last bytes may have to be written one by one.
        assert len(completion) - fewest <= (2 if oracle.is_inside(prefix) else 0)
        assert matcher.shortest(len(completion)) == completion
        assert fewest == 0 or matcher.shortest(fewest - 1) is None
        prefix.append(draw.choice(legal))
        matcher.advance(prefix[-1])


@pytest.mark.parametrize("slack", [0, 1, 7])
def test_a_text_is_complete_within_its_budget(slack: int) -> None:
    written = where(r"\w{12}(日|😀)[\w ]{12,}") + ' and ends_with(X, "ä")'
    spec = ConstraintSpec(Kind.WHERE, written)
    max_len = OutputConstraintState(compiled(written), LARGE, Budget(200)).needed_len + slack
    for seed in range(20):
        output_state = OutputConstraintState(compiled(written), LARGE, Budget(max_len))
        output = drawn(output_state, LARGE, max_len, random.Random(seed))
        assert output_state.is_satisfied
        assert len(output) <= max_len
        assert judge_of(spec)(text_of(output, LARGE), len(output))


def test_a_mask_is_quick_where_its_tables_are_there() -> None:
    language = compiled("len(words(X)) < 9 and len(X) < 60")
    matcher = language.matcher()
    assert matcher.is_quick(100)

    language.transition_cache = TransitionCache(
        trie_of(LARGE), language.table, language.counter_grid
    )
    unseen = language.matcher()
    before = unseen.is_quick(100)
    unseen.transitions()
    assert (before, unseen.is_quick(100)) == (False, True)


@pytest.mark.parametrize("written", ["len(tokens(X)) == 9", "len(tokens(X)) < 9 and len(X) > 3"])
def test_a_mask_that_depends_on_the_tokens_made_is_not_quick(written: str) -> None:
    assert not compiled(written).matcher().is_quick(100)


def test_a_mask_near_the_end_of_its_budget_is_not_quick_where_it_is_put_together() -> None:
    matcher = compiled("len(words(X)) == 12").matcher()
    assert matcher.is_quick(1_000)
    assert not matcher.is_quick(12)


def test_a_quick_mask_waits_for_nobody_who_makes_tables() -> None:
    language = compiled("len(words(X)) < 9 and len(X) < 60")
    matcher = language.matcher()
    row = np.zeros(LARGE.num_words, dtype=np.int32)
    assert language.distances is not None
    is_held, release = threading.Event(), threading.Event()

    def make_tables() -> None:
        with language.transition_cache._lock, language.distances._lock:  # type: ignore[union-attr]
            is_held.set()
            assert release.wait(60.0)

    with ThreadPoolExecutor(2) as threads:
        making = threads.submit(make_tables)
        assert is_held.wait(60.0)
        try:
            assert matcher.is_quick(100)
            threads.submit(matcher.fill_mask, row, 100).result(timeout=30.0)
        finally:
            release.set()
        making.result()
    assert row.any()
