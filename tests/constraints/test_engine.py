"""The contract of matchers over llguidance: masks to the bit, errors raised, nothing shared.

A choice is one of its strings, to the letter.
"""

import json
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLParserLimits

from constraints import engine
from constraints.compiler import Compiler
from constraints.engine import HEADER, LIMITS, GrammarLanguage, GrammarMatcher, limits_of
from constraints.errors import EngineFailed, IllegalToken, TooComplex
from constraints.matcher import Matcher
from constraints.spec import ConstraintSpec, Kind
from constraints.vocabulary import Vocabulary
from tests.constraints.cases import (
    ROOT,
    byte_vocabulary,
    demo_vocabulary,
    legal_of,
    wide_schema,
    wide_text,
)
from tests.constraints.grammars.rig import accepts, compiled, compiler, legal

DEMO = ROOT / "models" / "demo" / "tokenizer.json"


def language_of(
    vocabulary: Vocabulary, grammar: str, limits: LLParserLimits = LIMITS
) -> GrammarLanguage:
    return GrammarLanguage(vocabulary, HEADER + grammar, limits=limits)


def bits(matcher: GrammarMatcher, vocabulary: Vocabulary) -> set[int]:
    return set(legal_of(matcher, vocabulary))


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "hello world"',
        "start: /[a-z ]{3,9}(é|日)?/",
        'start: "{" "a" ("," "b")* "}"',
        'start: %json {"type": "object", "properties": {"name": {"type": "string"}}}',
    ],
)
def test_a_token_is_allowed_if_and_only_if_a_text_goes_on_with_it(grammar: str) -> None:
    vocabulary = demo_vocabulary()
    matcher = language_of(vocabulary, grammar).matcher()
    draw = np.random.default_rng(1)
    for _ in range(12):
        allowed = bits(matcher, vocabulary)
        # The longer way round: every token by itself, and what could follow its bytes.
        one_by_one = {each for each in range(len(vocabulary.tokens)) if matcher.num_legal([each])}
        assert allowed == one_by_one
        texts = sorted(allowed - set(vocabulary.end_ids))
        if not texts:
            break
        matcher.advance(int(draw.choice(texts)))


def test_all_end_tokens_are_allowed_where_the_text_is_complete_and_nowhere_else() -> None:
    vocabulary = Vocabulary.load(DEMO, None, [0, 5])
    a, b = (vocabulary.tokens.index(letter) for letter in (b"a", b"b"))
    matcher = language_of(vocabulary, 'start: "a" "b"?').matcher()
    assert bits(matcher, vocabulary) == {a}
    matcher.advance(a)
    assert bits(matcher, vocabulary) == {b, 0, 5}
    matcher.advance(b)
    assert bits(matcher, vocabulary) == {0, 5}
    assert matcher.is_over


def test_columns_beyond_the_tokenizer_are_never_allowed() -> None:
    vocabulary = Vocabulary.load(DEMO, 4100, [0])
    matcher = language_of(vocabulary, "start: /(?s:.*)/").matcher()
    assert max(bits(matcher, vocabulary)) < 4096


def matcher_of(kind: Kind, pattern: str) -> Matcher:
    """Of the engine for grammars, or of our own for conditions."""
    text = pattern if kind is Kind.REGEX else f"regex(X, {pattern!r})"
    return compiler().compile(ConstraintSpec(kind, text)).matcher()


EACH_ENGINE = pytest.mark.parametrize("kind", [Kind.REGEX, Kind.WHERE])


@EACH_ENGINE
def test_an_illegal_token_changes_nothing(kind: Kind) -> None:
    matcher = matcher_of(kind, "ax")
    for token in (ord("x"), 256, 9999, -1):
        with pytest.raises(IllegalToken):
            matcher.advance(token)
    assert legal(matcher) == [ord("a")]
    matcher.advance(ord("a"))
    assert legal(matcher) == [ord("x")]


def test_nothing_follows_an_end_token() -> None:
    matcher = compiled(Kind.REGEX, "a*").matcher()
    matcher.advance(256)
    assert legal(matcher) == []
    assert matcher.num_legal([ord("a")]) == 0
    assert matcher.is_complete
    with pytest.raises(IllegalToken):
        matcher.advance(ord("a"))


@EACH_ENGINE
def test_tokens_are_counted_up_to_the_first_that_is_illegal(kind: Kind) -> None:
    matcher = matcher_of(kind, "axc")
    a, b, c = b"axc"
    assert matcher.num_legal([]) == 0
    assert matcher.num_legal([a, b, c, 256]) == 4
    assert matcher.num_legal([a, b, c, 256, a]) == 4
    assert matcher.num_legal([a, 256]) == 1
    assert matcher.num_legal([a, c]) == 1
    assert matcher.num_legal([256]) == 0
    assert matcher.num_legal([a, 9999, b]) == 1
    assert legal(matcher) == [a]
    for token in (a, b, c):
        matcher.advance(token)
    assert matcher.num_legal([256]) == 1
    assert matcher.num_legal([a]) == 0


def test_of_a_long_text_that_is_forced_a_search_gets_the_beginning() -> None:
    """Rules that double make one of millions of bytes, of which a search took as many steps."""
    rules = "\n".join(f"r{number}: r{number + 1} r{number + 1}" for number in range(16))
    grammar = f'start: r0\n{rules}\nr16: "a"\n'
    assert language_of(byte_vocabulary(), grammar).matcher().deterministic_suffix() == 4096 * b"a"


@EACH_ENGINE
def test_forced_bytes_go_up_to_the_first_choice(kind: Kind) -> None:
    matcher = matcher_of(kind, "abc(d|e)")
    assert matcher.deterministic_suffix() == b"abc"
    for token in b"abc":
        matcher.advance(token)
    assert matcher.deterministic_suffix() == b""


@EACH_ENGINE
def test_nothing_is_forced_where_the_text_may_end(kind: Kind) -> None:
    matcher = matcher_of(kind, "a(bc)?")
    matcher.advance(ord("a"))
    assert matcher.is_complete
    assert matcher.deterministic_suffix() == b""


@EACH_ENGINE
def test_a_fork_goes_its_own_way(kind: Kind) -> None:
    matcher = matcher_of(kind, "a(b|c)")
    matcher.advance(ord("a"))
    fork = matcher.fork()
    fork.advance(ord("b"))
    assert fork.is_over
    assert legal(matcher) == [ord("b"), ord("c")]


WORN_OUT = "start: A\nA: /(?s:.*)a.{30}/ | /(?s:.*)b.{29}/"


def run_until_it_breaks(matcher: GrammarMatcher) -> None:
    for token in b"abababbabaabbabababbababababababab":
        matcher.advance(token)
        legal(matcher)


def test_a_matcher_that_breaks_says_so_and_never_ends_early() -> None:
    language = language_of(byte_vocabulary(), WORN_OUT, limits_of(max_states=60))
    with pytest.raises(EngineFailed, match="too many states") as failure:
        run_until_it_breaks(language.matcher())
    assert "\n" not in str(failure.value)


def test_a_language_outlives_the_lexers_that_outputs_wear_out() -> None:
    language = language_of(byte_vocabulary(), WORN_OUT, limits_of(max_states=60))
    for _ in range(5):
        matcher = language.matcher()
        assert 256 not in legal(matcher)
        with pytest.raises(EngineFailed):
            run_until_it_breaks(matcher)


def test_a_step_beyond_its_limits_is_too_complex_before_anything_is_generated() -> None:
    grammar = "start: A\nA: /(?s:.*)a.{30}/ & ~/(?s:.*)b.{29}/ & ~/(?s:.*)c.{28}(?s:.*)/"
    with pytest.raises(TooComplex):
        language_of(byte_vocabulary(), grammar, limits_of(step_fuel=10))


def test_outputs_of_one_language_are_spread_over_originals() -> None:
    language = language_of(byte_vocabulary(), "start: /[a-z]+/")
    matchers = [language.matcher() for _ in range(20)]
    assert 1 <= len(language._originals) <= engine._MAX_ORIGINALS
    for matcher in matchers:
        matcher.advance(ord("a"))
    loads = [len(original.clones) for original in language._originals]
    assert sum(loads) == 20
    assert max(loads) - min(loads) <= 20 // len(loads) + 1
    del matchers, matcher
    assert sum(len(original.clones) for original in language._originals) == 0


def test_matchers_of_one_language_may_be_used_by_threads_at_once() -> None:
    language = language_of(byte_vocabulary(), "start: /([a-z]{1,9} )+/")
    failures: list[BaseException] = []

    def generate(seed: int) -> None:
        draw = np.random.default_rng(seed)
        try:
            for _ in range(20):
                matcher = language.matcher()
                for _ in range(15):
                    texts = [each for each in legal(matcher) if each != 256]
                    matcher.advance(int(draw.choice(texts)))
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=generate, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_engine_still_fills_masks_after_errors() -> None:
    """What our checks are there for; if this fails, they may be looked at again."""
    matcher = LLMatcher(byte_vocabulary().backend, "start: /(/", log_level=0)
    row = np.zeros(byte_vocabulary().num_words, dtype=np.int32)
    matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
    assert matcher.is_error()
    assert row.any()


WORDS = st.text(st.sampled_from('ab"\\/\n|é😀\x00&~()[]'), max_size=4)


@given(st.lists(WORDS, min_size=1, max_size=6), st.lists(WORDS, max_size=6))
def test_the_strings_are_accepted_and_no_others(choices: list[str], others: list[str]) -> None:
    language = compiled(Kind.CHOICE, json.dumps(choices))
    assert all(accepts(language, choice) for choice in choices)
    assert not any(accepts(language, other) for other in others if other not in choices)


def test_a_choice_may_go_on_as_another_one() -> None:
    matcher = compiled(Kind.CHOICE, '["ab", "abc"]').matcher()
    for token in b"ab":
        matcher.advance(token)
    assert matcher.is_complete
    assert not matcher.is_over
    assert legal(matcher) == [ord("c"), 256]


def test_the_empty_string_is_over_at_once() -> None:
    matcher = compiled(Kind.CHOICE, '[""]').matcher()
    assert matcher.is_complete
    assert matcher.is_over
    assert legal(matcher) == [256]


def test_fifty_thousand_strings_are_a_choice() -> None:
    choices = [f"choice {number} of many" for number in range(50_000)]
    language = compiled(Kind.CHOICE, json.dumps(choices))
    assert accepts(language, "choice 49999 of many")
    assert not accepts(language, "choice 50000 of many")


def test_a_string_that_no_answer_can_hold_is_refused_before_it_is_compiled() -> None:
    with pytest.raises(TooComplex, match="choice 1 has 1000000 bytes, and at most 50000 are"):
        compiled(Kind.CHOICE, json.dumps(["a", "é" * 500_000]))


def test_a_long_text_is_followed_without_masks_and_breaks_no_output_beside_it() -> None:
    vocabulary = demo_vocabulary()
    token_ids = vocabulary.spell(wide_text().encode())
    assert len(token_ids) > 4000
    language = Compiler(vocabulary).compile(wide_schema())
    assert isinstance(language, GrammarLanguage)
    beside = language.matcher()
    for _ in range(2):
        matcher = language.matcher()
        assert matcher.num_legal([*token_ids, 0]) == len(token_ids) + 1
        assert matcher.num_legal([*token_ids, token_ids[0]]) == len(token_ids)
        for token_id in token_ids:
            matcher.advance(token_id)
        assert matcher.is_complete
        assert bits(beside, vocabulary)
