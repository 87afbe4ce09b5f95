"""What a server may write and the checks let pass is what Python says is true, no more, no less."""

import re
from collections.abc import Callable, Mapping
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from client.query.conditions.evaluate import Finished
from client.query.conditions.planner import StopMode, plan
from client.query.conditions.terms import Term
from client.query.errors import Unsatisfiable
from tests.client.query.conditions.clauses import (
    Conditions,
    Made,
    RandomHole,
    Text,
    admits,
    all_hold,
    clause_about,
    holds,
    judged,
    random_text,
    term,
    witness_of,
    witnesses,
)
from tests.hypothesis_profiles import more_examples

randoms = st.randoms(use_true_random=False)


def finished(texts: Mapping[str, Text]) -> dict[str, Finished]:
    return {name: Finished(str(text), text, text.num_tokens) for name, text in texts.items()}


def passes(
    terms: tuple[Term, ...], name: str, texts: Mapping[str, Text], stops: StopMode
) -> tuple[bool, tuple[Term, ...]]:
    """Whether the hole may have its text, the others being finished, and what is left for later."""
    text = texts[name]
    others = finished({other: texts[other] for other in texts if other != name})
    try:
        made = plan(terms, name, None, others, stops)
    except Unsatisfiable:
        return False, ()
    is_passed = admits(made, text, text.num_tokens) and all_hold(made.checks, finished(texts))
    return is_passed, tuple(check.term for check in made.deferred)


def several_texts(random: Random, witness: Text) -> list[Text]:
    """Texts near the witness and far from it, all but it with any number of tokens."""
    cut = random.randint(0, len(witness))
    near = witness[:cut] + random.choice(["", "a", ".", "\n", "so", " b", "7"]) + witness[cut:]
    texts = [witness[:cut], near, random_text(random), str(random.randint(-12, 12))]
    return [witness, *(Text.of(text, random.randint(0, 6)) for text in texts)]


@given(randoms, st.sampled_from(StopMode))
@more_examples(3)
def test_one_hole_beside_a_finished_one(random: Random, stops: StopMode) -> None:
    known = witnesses(random, "XY")
    clause = Conditions(random, known).clause("X", "Y")

    for text in several_texts(random, known["X"]):
        texts = {"X": text, "Y": known["Y"]}
        is_passed, deferred = passes((term(clause),), "X", texts, stops)
        assert (is_passed, deferred) == (holds(clause, texts), ()), (clause, texts)


@pytest.mark.slow
@given(randoms, st.sampled_from(StopMode))
@more_examples(3)
def test_a_hole_that_speaks_of_one_to_come(random: Random, stops: StopMode) -> None:
    known = witnesses(random, "XZ")
    clause = Conditions(random, known).clause("X", "Z")
    clauses = (term(clause),)

    for text in several_texts(random, known["X"]):
        is_passed, deferred = passes(clauses, "X", {"X": text}, stops)
        for later in several_texts(random, known["Z"]):
            texts = {"X": text, "Z": later}
            is_passed_later, left = passes(deferred, "Z", texts, stops)
            assert left == ()
            both = is_passed and is_passed_later
            assert both == holds(clause, texts), (clause, texts)


KINDS: dict[str, object] = {
    "int": int,
    "float": float,
    "bool": bool,
    "['ab', 'so', '7']": ["ab", "so", "7"],
    "r'[a-z]{2,6}'": "[a-z]{2,6}",
}
NUMERALS = ("7", "-3", "007", "-0", "12", "0.5", "2.50", "-1.25", "True", "False", "ab", "so", "")


@given(randoms, st.sampled_from(sorted(KINDS)))
@more_examples(3)
def test_a_hole_of_a_type(random: Random, kind: str) -> None:
    hole = RandomHole("X", kind)
    clause = clause_about(random, hole, [], {"X": witness_of(random, hole)})
    try:
        made = plan((term(clause),), "X", KINDS[kind], {}, StopMode.CUT)
    except Unsatisfiable:
        made = None

    for text in (*NUMERALS, str(random.randint(-12, 16)), random_text(random, 1)):
        is_passed = made is not None and admits(made, text, 2)
        if made is not None and is_passed:
            holes = {"X": Finished(made.value(text), text, 2)}
            is_passed = all_hold(made.checks, holes)
        assert is_passed == is_true(hole, clause, text), (clause, text)


def is_true(hole: RandomHole, clause: str, text: str) -> bool:
    """Whether the text is one of the hole's type and satisfies the clause."""
    pattern = {
        "int": r"0|-?[1-9]\d*",
        "float": r"-?(0|[1-9]\d*)(\.\d+)?",
        "bool": "True|False",
    }.get(hole.kind)
    allowed = pattern or KINDS[hole.kind]
    if text not in allowed if isinstance(allowed, list) else not re.fullmatch(str(allowed), text):
        return False
    values: dict[str, Callable[[str], object]] = {"int": int, "float": float, "bool": "True".__eq__}
    value = values[hole.kind](text) if hole.kind in values else text
    return holds(clause, {"X": judged(hole, Made(value, text, 2))})


@given(randoms)
@more_examples(2)
def test_a_refused_text_is_left_out_and_no_other(random: Random) -> None:
    known = witnesses(random, "X")
    clause = Conditions(random, known, checks=False).clause("X")
    refused = random_text(random)
    # What stands in front of a phrase that is dropped is what was written, and so refused.
    assume("stops_before" not in clause or holds(clause, {"X": Text.of(refused, 2)}))
    try:
        made = plan((term(clause),), "X", None, {}, StopMode.CUT, (refused,))
    except Unsatisfiable:
        return

    for text in [*several_texts(random, known["X"]), Text.of(refused, 2)]:
        wanted = holds(clause, {"X": text}) and text != refused
        assert admits(made, text, text.num_tokens) == wanted, (clause, text, refused)


@pytest.mark.parametrize("seed", range(3))
def test_most_random_clauses_can_be_satisfied(seed: int) -> None:
    random = Random(seed)
    satisfied = 0
    for _ in range(200):
        known = witnesses(random, "XY")
        satisfied += holds(Conditions(random, known).clause("X", "Y"), known)
    assert 100 < satisfied < 200
