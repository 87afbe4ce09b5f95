"""The grammar of an expression against the oracle: every bit of every mask, end tokens included."""

import random

import pytest

from constraints.engine import LIMITS, GrammarLanguage, error_of
from constraints.errors import Contradiction, NotEnforced, TooComplex
from constraints.spec import Kind
from constraints.where.fallback import to_grammar
from constraints.where.parser import parse
from tests.constraints.where.expressions import END_ID, EXPRESSIONS, LARGE, TOKENS, legal
from tests.constraints.where.oracle import Oracle

BEYOND = [each for each in EXPRESSIONS if "tokens(" in each or "stops_before" in each]
WITHIN = [each for each in EXPRESSIONS if each not in BEYOND]


def compiled(written: str) -> GrammarLanguage:
    limits = LIMITS[Kind.WHERE]
    return GrammarLanguage(LARGE, to_grammar(parse(written), written), limits, error_of)


@pytest.mark.parametrize("written", WITHIN[::2])
def test_masks_are_those_of_the_oracle(written: str) -> None:
    language = compiled(written)
    oracle = Oracle(parse(written), TOKENS, (END_ID,))
    draw = random.Random(written)
    matcher = language.matcher()
    prefix: list[int] = []
    for _ in range(8):
        allowed = legal(matcher, LARGE)
        assert allowed == oracle.legal(prefix), prefix
        further = sorted(allowed - {END_ID})
        if not further:
            break
        token_id = draw.choice(further)
        matcher.advance(token_id)
        prefix.append(token_id)


@pytest.mark.parametrize("written", BEYOND)
def test_what_it_cannot_say_is_refused(written: str) -> None:
    with pytest.raises(TooComplex):
        to_grammar(parse(written), written)


@pytest.mark.parametrize(
    "written", ["len(X) < 3 and len(X) > 4", '"ab" in X and not ("a" in X and "b" in X)', "X in []"]
)
def test_a_contradiction_is_told(written: str) -> None:
    with pytest.raises(Contradiction):
        compiled(written)


@pytest.mark.parametrize(
    ("written", "place"),
    [
        (r'len(X) < 5 and regex(X, r"(a)\1")', r'\1")'),
        (r'len(X) < 5 and regex(X, "(a)\\1")', r'"(a)\\1")'),
        (r'X == "(a)\\1" or regex(X, r"(a)\1")', r'\1")'),
        ("len(X) < 5\n  and not regex(X, r'''(a)\\1''')", r"\1''')"),
    ],
)
def test_a_pattern_that_is_refused_is_shown_in_the_expression(written: str, place: str) -> None:
    with pytest.raises(NotEnforced, match="a reference back is not supported") as refused:
        to_grammar(parse(written), written)
    assert refused.value.position == written.index(place)
    shown, caret = str(refused.value).splitlines()[1:]
    assert shown[caret.index("^") :].startswith(place)
