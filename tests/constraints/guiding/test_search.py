"""The search for completions: what it finds, over bytes and over tokens, and what it proves."""

import random

import numpy as np
import pytest

from constraints.bitmask import allowed_ids
from constraints.guiding.alphabet import alphabet_of
from constraints.guiding.bytewise import byte_vocabulary
from constraints.guiding.completion import completes
from constraints.guiding.search import PLAN, Search, Strategy, is_provably_dead
from constraints.guiding.search import shortest_completion as shortest
from constraints.spec import ConstraintSpec, Kind
from tests.constraints.cases import CASES
from tests.constraints.walks import demo_vocabulary, judge_of, language_of, text_of
from tests.constraints.where.vocabularies import vocabulary_of

VOCABULARY = demo_vocabulary()
# A letter of many that ends a loop is not told by masks.
NEEDS_HINTS = ("[a-z]+xyz", r"[^a\n]*q[^b\n]*z")
GRAMMARS = [
    name for name, spec in CASES.items() if spec.kind is not Kind.WHERE and name not in NEEDS_HINTS
]


def pattern(text: str) -> ConstraintSpec:
    return ConstraintSpec(Kind.REGEX, text)


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_completion_is_found_without_any_hint(name: str) -> None:
    matcher = language_of(CASES[name], VOCABULARY).matcher()
    bytewise = language_of(CASES[name], byte_vocabulary()).matcher()
    found = shortest(matcher, VOCABULARY, 10_000, bytewise=bytewise)
    assert found is not None
    assert judge_of(CASES[name])(text_of(list(found), VOCABULARY), len(found))


@pytest.mark.parametrize("name", CASES)
def test_a_completion_is_found_from_wherever_an_output_stands(name: str) -> None:
    rng = random.Random(name)
    matcher = language_of(CASES[name], VOCABULARY).matcher()
    row = np.zeros(VOCABULARY.num_words, dtype=np.int32)
    made: list[int] = []
    for _ in range(12):
        matcher.fill_mask(row)
        legal = [each for each in allowed_ids(row).tolist() if each not in VOCABULARY.end_ids]
        if not legal:
            break
        made.append(rng.choice(legal))
        matcher.advance(made[-1])
        found = matcher.shortest(10_000)
        assert found is not None, made
        assert completes(matcher, VOCABULARY, found)


@pytest.mark.parametrize(
    ("spec", "max_len"),
    [
        pytest.param(pattern("[a-z ]{500}"), 100, id="letters"),
        pytest.param(pattern("(?s).{500}"), 100, id="anything"),
        pytest.param(pattern(r"(?:\w+ ){100}\w+"), 250, id="words"),
        pytest.param(
            ConstraintSpec(Kind.JSON_SCHEMA, '{"type": "string", "minLength": 400}'), 80, id="json"
        ),
        pytest.param(pattern("(?:ab){600}"), 1200, id="one-way"),
    ],
)
def test_a_text_that_has_to_be_long_is_found_in_few_tokens(
    spec: ConstraintSpec, max_len: int
) -> None:
    language = language_of(spec, VOCABULARY)
    assert language.matcher().shortest(1 << 20) is not None
    found = language.matcher().shortest(max_len)
    assert found is not None
    assert len(found) <= max_len
    assert judge_of(spec)(text_of(list(found), VOCABULARY), len(found))


def test_nothing_longer_than_asked_for_is_answered() -> None:
    matcher = language_of(pattern("a{7}|b{3}c{3}"), byte_vocabulary()).matcher()
    assert shortest(matcher, byte_vocabulary(), 5) is None
    assert shortest(matcher, byte_vocabulary(), 6) == tuple(b"bbbccc")


def test_who_failed_again_and_again_may_look_at_little() -> None:
    matcher = language_of(pattern("[ab]{40}"), byte_vocabulary()).matcher()
    assert shortest(matcher, byte_vocabulary(), 40, num_failed=1) is not None
    assert shortest(matcher, byte_vocabulary(), 40, num_failed=10) is None


def test_a_number_that_has_to_be_above_zero_ends() -> None:
    matcher = language_of(pattern(r"\{0\.[0-9]*[1-9][0-9]*, 1\}"), byte_vocabulary()).matcher()
    assert shortest(matcher, byte_vocabulary(), 20) == tuple(b"{0.1, 1}")


def test_what_has_just_begun_is_closed() -> None:
    matcher = language_of(pattern(r'x\{(?:"[a-z]*":0)?\}'), byte_vocabulary()).matcher()
    assert shortest(matcher, byte_vocabulary(), 20) == tuple(b"x{}")


def test_a_tail_is_joined_where_it_is_legal_again() -> None:
    language = language_of(pattern(r"(<[a-z]{9}>)*\.[0-9]{30}"), byte_vocabulary())
    matcher = language.matcher()
    matcher.advance(ord("<"))
    tail = tuple(b"." + b"7" * 30)
    found = shortest(matcher, byte_vocabulary(), 41, [tail])
    assert found is not None
    assert found[-31:] == tail


def test_a_hint_shows_the_way_out_of_a_loop() -> None:
    matcher = language_of(pattern("[a-z]+quit"), byte_vocabulary()).matcher()
    assert shortest(matcher, byte_vocabulary(), 20) is None
    assert shortest(matcher, byte_vocabulary(), 20, (), [b"quit"]) == tuple(b"quitquit")


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("[0-9a-f]{32}", Strategy.DIVE),
        ("(ab)*c", Strategy.NOVELTY),
        (r"[A-Z][a-z]+( [a-z]+){3,30}\.", Strategy.ROTOR),
        ("(a{90}|b{80}|c{70}){3}|zz", Strategy.LENGTH),
    ],
)
def test_every_strategy_finds_what_it_is_there_for(text: str, strategy: Strategy) -> None:
    search = Search(language_of(pattern(text), byte_vocabulary()).matcher(), byte_vocabulary())
    assert next(search.completions(strategy, dict(PLAN)[strategy]), None) is not None


def test_a_completed_place_needs_nothing() -> None:
    matcher = language_of(pattern("a*"), byte_vocabulary()).matcher()
    assert shortest(matcher, byte_vocabulary(), 0) == ()


def test_a_language_with_texts_is_not_barren() -> None:
    matcher = language_of(pattern("a{600}"), byte_vocabulary()).matcher()
    assert not is_provably_dead(matcher, byte_vocabulary())


def test_an_alphabet_has_every_byte_once_and_says_so() -> None:
    alphabet = alphabet_of(byte_vocabulary())
    assert sorted(alphabet.ids.tolist()) == list(range(256))
    assert alphabet.is_whole
    assert alphabet.singles == tuple(range(256))


def test_an_alphabet_takes_the_shortest_tokens_where_a_byte_has_none() -> None:
    tokens = [b"", b"a", b"bb", b"bbb", b"bc", b"c"]
    vocabulary = vocabulary_of(tokens, [0])
    alphabet = alphabet_of(vocabulary)
    assert {tokens[each] for each in alphabet.ids.tolist()} == {b"a", b"bb", b"bc", b"c"}
    assert not alphabet.is_whole
    assert alphabet.singles[ord("b")] is None


def test_a_word_in_either_case_is_come_by_in_any_text() -> None:
    spec = pattern("(?s:[^:]*)(?:[qQ][uU][iI][cC][kK] [fF][oO][xX])(?s:.*)")
    found = language_of(spec, VOCABULARY).matcher().shortest(12)
    assert found is not None
    assert "quick fox" in text_of(list(found), VOCABULARY)
