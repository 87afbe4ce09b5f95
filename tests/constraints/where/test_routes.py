"""Completions where there are too many places to know the distances of all."""

import random
import re

import pytest

from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind
from constraints.where.engine import WhereLanguage
from constraints.where.evaluate import holds
from constraints.where.parser import parse
from constraints.where.terms import Matches
from constraints.where.writing import text
from tests.constraints.walks import demo_vocabulary, drawn, judge_of, language_of, text_of
from tests.constraints.where.expressions import END_ID, TOKENS
from tests.constraints.where.large import LARGE
from tests.constraints.where.oracle import Oracle


def routed(written: str) -> WhereLanguage:
    language = language_of(ConstraintSpec(Kind.WHERE, written), LARGE)
    assert isinstance(language, WhereLanguage)
    assert language.routes is not None
    return language


def where(pattern: str) -> str:
    return text(Matches(pattern))


@pytest.mark.parametrize(
    ("written", "needed_len"),
    [
        (where(r"\w{20}"), 2),
        (where(r"\w{40}"), 4),
        (where(r"\w{64}"), 5),
        (where(r"\w{100}"), 8),
        (where(r"[\w ]{100}"), 8),
        (where(r"[A-Z]\w{24,}"), 2),
        (where(r"\w{12} \w{12}"), 3),
        (where(r"(?i)\w{40}"), 4),
        (where(r"[^\W\d]{40}"), 4),
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


@pytest.mark.parametrize(
    "written",
    [
        where(r"\w{12}日\w{12}"),
        where(r"\w+ \w{24,}\."),
        where(r"[^\W\d_]{24}ß") + ' and "ox" in X',
    ],
)
def test_completions_are_legal_and_nearly_as_short_as_those_of_the_oracle(written: str) -> None:
    matcher = routed(written).matcher()
    oracle = Oracle(parse(written), TOKENS, (END_ID,))
    draw = random.Random(written)
    prefix: list[int] = []
    while not matcher.is_over and len(prefix) < 20:
        legal = sorted(oracle.legal(prefix) - {END_ID})
        completion = matcher.shortest(100)
        assert completion is not None
        assert matcher.num_legal((*completion, END_ID)) == len(completion) + 1
        fewest = oracle.shortest_len(prefix, len(completion))
        assert fewest is not None
        # Inside a character its last bytes may have to be written one by one.
        assert len(completion) - fewest <= (2 if matcher.is_inside else 0)
        assert matcher.shortest(len(completion)) == completion
        assert fewest == 0 or matcher.shortest(fewest - 1) is None
        prefix.append(draw.choice(legal))
        matcher.advance(prefix[-1])


@pytest.mark.parametrize("slack", [0, 1, 7])
def test_a_text_is_complete_within_its_budget(slack: int) -> None:
    written = where(r"\w{12}(日|😀)[\w ]{12,}") + ' and ends_with(X, "ä")'
    spec = ConstraintSpec(Kind.WHERE, written)
    max_len = OutputConstraintState(routed(written), LARGE, Budget(200)).needed_len + slack
    for seed in range(20):
        output_state = OutputConstraintState(routed(written), LARGE, Budget(max_len))
        output = drawn(output_state, LARGE, max_len, random.Random(seed))
        assert output_state.is_satisfied
        assert len(output) <= max_len
        assert judge_of(spec)(text_of(output, LARGE), len(output))


def test_masks_keep_what_routes_do_not_lead_to() -> None:
    matcher = routed(where(r"\w{24}")).matcher()
    beginning = "äöüé日本".encode()
    assert matcher.num_legal(tuple(beginning)) == len(beginning)
    for byte in beginning[:-1]:
        matcher.advance(byte)
    completion = matcher.shortest(30)
    assert completion is not None
    written = beginning[:-1] + b"".join(TOKENS[token_id] for token_id in completion)
    assert re.fullmatch(r"\w{24}", written.decode())
