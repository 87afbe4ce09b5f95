"""What one compiler found of a constraint is all that another one needs."""

import random

import numpy as np
import pytest

from constraints.bitmask import allowed_ids
from constraints.compiler import Compiler
from constraints.errors import Malformed
from constraints.grammars.engine import GrammarLanguage
from constraints.matcher import Language
from constraints.output_constraint import ANY_LEN
from constraints.spec import ConstraintSpec, Kind
from constraints.translation import Translation
from tests.constraints.cases import CASES
from tests.constraints.walks import demo_vocabulary

NUM_STEPS = 12
TRANSLATED = [name for name, spec in CASES.items() if spec.kind is not Kind.WHERE]
LENIENT = '{"type": "array", "items": {"type": "integer"}, "uniqueItems": true, "maxItems": 2}'
MORE = {
    "lenient": ConstraintSpec(Kind.JSON_SCHEMA, LENIENT, lenient=True),
    "gbnf": ConstraintSpec(Kind.GBNF, 'root ::= "a" [0-9]+ | "b" root'),
    "runs on": ConstraintSpec(Kind.LARK, 'start: "a"+ "b"'),
    "where, beyond automata": ConstraintSpec(Kind.WHERE, 'regex(X, r".*a.{30}")'),
}


def compiled(spec: ConstraintSpec, translation: Translation | None = None) -> Language:
    return Compiler(demo_vocabulary()).compile(spec, translation)


def masks(language: Language, seed: int) -> list[bytes]:
    """Along one text, whose tokens a generator of this seed chooses."""
    vocabulary, matcher, chooser = demo_vocabulary(), language.matcher(), random.Random(seed)
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    seen = []
    for _ in range(NUM_STEPS):
        matcher.fill_mask(row)
        seen.append(row.tobytes())
        legal = [each for each in allowed_ids(row).tolist() if each not in vocabulary.end_ids]
        if not legal:
            break
        matcher.advance(chooser.choice(legal))
    return seen


@pytest.mark.parametrize("name", [*TRANSLATED, *MORE])
def test_a_language_that_was_translated_elsewhere_has_the_same_masks(name: str) -> None:
    spec = {**CASES, **MORE}[name]
    first = compiled(spec)
    completion = first.matcher().shortest(ANY_LEN)
    translation = first.translation
    assert translation is not None
    second = compiled(spec, translation)
    assert isinstance(second, GrammarLanguage)
    assert second.translation == Translation(
        translation.grammar, translation.not_enforced, translation.hints, translation.may_run_on
    )
    assert second.matcher().shortest(ANY_LEN) == completion == translation.completion
    assert second.translation == translation
    assert second.not_enforced == first.not_enforced
    assert masks(second, 1) == masks(first, 1)


def test_the_constraint_itself_is_not_read_again() -> None:
    spec = ConstraintSpec(Kind.REGEX, "(never closed")
    with pytest.raises(Malformed):
        compiled(spec)
    good = compiled(ConstraintSpec(Kind.REGEX, "[ab]{3}")).translation
    assert masks(compiled(spec, good), 1) == masks(
        compiled(ConstraintSpec(Kind.REGEX, "[ab]{3}")), 1
    )


@pytest.mark.parametrize("completion", [(), (5, 6, 7), (1 << 20,)])
def test_a_text_that_is_none_is_looked_for_again(completion: tuple[int, ...]) -> None:
    spec = ConstraintSpec(Kind.REGEX, "[ab]{3}")
    first = compiled(spec)
    found = first.matcher().shortest(ANY_LEN)
    assert isinstance(first, GrammarLanguage)
    wrong = Translation(first.grammar, completion=completion)
    assert compiled(spec, wrong).matcher().shortest(ANY_LEN) == found


def test_what_our_own_automata_follow_has_no_translation() -> None:
    assert compiled(ConstraintSpec(Kind.WHERE, "len(X) < 5")).translation is None
