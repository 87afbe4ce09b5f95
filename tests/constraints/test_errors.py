"""Of parts that exclude each other a minimal set is told, found with few questions."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from constraints.errors import minimal_unsat_core

NUM_PARTS = 12
SETS = st.frozensets(st.integers(0, NUM_PARTS - 1), min_size=1, max_size=4)


@given(st.lists(SETS, min_size=1, max_size=4))
def test_what_is_told_is_a_conflict_with_no_part_too_many(conflicts: list[frozenset[int]]) -> None:
    def is_empty(parts: Sequence[int]) -> bool:
        return any(conflict <= set(parts) for conflict in conflicts)

    found = minimal_unsat_core(range(NUM_PARTS), is_empty)
    assert frozenset(found) in conflicts
    assert list(found) == sorted(found)
    assert not any(is_empty(found[:index] + found[index + 1 :]) for index in range(len(found)))


def test_of_equal_conflicts_the_one_is_told_that_comes_first() -> None:
    pairs = [{2, 5}, {3, 4}, {8, 9}]
    assert minimal_unsat_core(
        range(NUM_PARTS), lambda parts: any(p <= set(parts) for p in pairs)
    ) == (3, 4)


def test_few_questions_find_two_of_three_thousand() -> None:
    asked = []

    def is_empty(parts: Sequence[int]) -> bool:
        asked.append(len(parts))
        return {17, 2900} <= set(parts)

    assert minimal_unsat_core(range(3000), is_empty) == (17, 2900)
    assert len(asked) < 40


def test_what_nobody_answers_for_stays() -> None:
    answers = iter([False, True])
    found = minimal_unsat_core(range(NUM_PARTS), lambda parts: next(answers, None))
    assert found == tuple(range(9))


def test_a_single_part_is_told_without_a_question() -> None:
    assert minimal_unsat_core(["a"], lambda parts: None) == ("a",)
