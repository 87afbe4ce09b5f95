"""The engine's masks against the oracle's: every bit, end tokens and budgets included."""

import random

import pytest

from constraints.where.parser import parse
from tests.constraints.where.expressions import END_ID, EXPRESSIONS, TOKENS
from tests.constraints.where.large import LARGE, compiled
from tests.constraints.where.oracle import Oracle
from tests.constraints.where.test_engine import legal


@pytest.mark.parametrize("written", EXPRESSIONS)
def test_masks_are_those_of_the_oracle(written: str) -> None:
    language = compiled(written)
    oracle = Oracle(parse(written), TOKENS, (END_ID,))
    draw = random.Random(written)
    for _ in range(6):
        matcher = language.matcher()
        prefix: list[int] = []
        for _ in range(10):
            allowed = legal(matcher, LARGE)
            assert allowed == oracle.legal(prefix), prefix
            assert matcher.is_complete == oracle.is_complete(prefix)
            assert matcher.is_over == (allowed == {END_ID})
            further = sorted(allowed - {END_ID})
            if not further:
                break
            token_id = draw.choice(further)
            assert matcher.num_legal([token_id]) == 1
            matcher.advance(token_id)
            prefix.append(token_id)


@pytest.mark.parametrize("written", EXPRESSIONS)
def test_masks_within_a_budget_are_those_of_the_oracle(written: str) -> None:
    language = compiled(written)
    oracle = Oracle(parse(written), TOKENS, (END_ID,))
    draw = random.Random(written)
    for budget in (1, 2, 3, 5):
        matcher = language.matcher()
        prefix: list[int] = []
        shortest = matcher.shortest(budget)
        assert (None if shortest is None else len(shortest)) == oracle.shortest_len([], budget)
        for left in range(budget, -1, -1):
            allowed = legal(matcher, LARGE, left)
            assert allowed == oracle.legal(prefix, left), (prefix, left)
            further = sorted(allowed - {END_ID})
            if not further:
                break
            prefix.append(draw.choice(further))
            matcher.advance(prefix[-1])
            completion = matcher.shortest(left - 1)
            assert completion is not None
            assert len(completion) == oracle.shortest_len(prefix, left - 1)
            assert matcher.num_legal((*completion, END_ID)) == len(completion) + 1
