"""Masks that take microseconds, and say so: by what they are made of, and for whom they wait."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from constraints.where.transition_cache import TransitionCache
from tests.constraints.where.large import LARGE, compiled


def test_a_mask_is_quick_where_its_tables_are_there() -> None:
    language = compiled("len(words(X)) < 9 and len(X) < 60")
    matcher = language.matcher()
    assert matcher.is_quick(100)

    language.transition_cache = TransitionCache(
        language.trie, language.table, language.counter_grid
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
    assert not matcher.is_quick(14)


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
