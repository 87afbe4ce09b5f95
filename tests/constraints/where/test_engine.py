"""Languages and matchers of `where` expressions: masks against the oracle, every bit of them."""

import itertools
import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.compiler import Compiler
from constraints.errors import Contradiction, IllegalToken, OutOfReach, TooComplex
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind
from constraints.token_trie import trie_of
from constraints.vocabulary import Vocabulary
from constraints.where.engine import WhereLanguage, compile_where
from constraints.where.evaluate import holds
from constraints.where.parser import parse
from constraints.where.terms import Expression
from constraints.where.token_transitions import TransitionCache
from tests.constraints.cases import legal_ids, vocabulary_of
from tests.constraints.where.expressions import (
    END_ID,
    EXPRESSIONS,
    LARGE,
    TOKENS,
    compiled,
    expressions,
    follow,
    legal,
)
from tests.constraints.where.oracle import Oracle
from tests.hypothesis_profiles import more_examples


def test_after_an_end_nothing_is_legal_but_the_end() -> None:
    matcher = compiled("len(X) < 3").matcher()
    matcher.advance(END_ID)
    assert matcher.is_over
    assert matcher.is_complete
    assert legal(matcher, LARGE) == {END_ID}
    assert matcher.num_legal([ord("a")]) == 0
    with pytest.raises(IllegalToken):
        matcher.advance(ord("a"))


def test_an_end_is_legal_only_where_the_expression_holds() -> None:
    matcher = compiled("len(X) == 2").matcher()
    with pytest.raises(IllegalToken):
        matcher.advance(END_ID)
    matcher.advance(ord("a"))
    matcher.advance(ord("b"))
    assert matcher.is_over
    assert matcher.num_legal([END_ID, END_ID]) == 1


@pytest.mark.parametrize(
    ("written", "prefix", "forced"),
    [
        ('X in ["The fox", "The dog"]', "", "The "),
        ('X in ["The fox", "The dog"]', "The d", "og"),
        ('X in ["日本", "日曜"]', "", "日"),
        ('X in ["The", "The dog"]', "The", ""),
        ('"fox" in X', "", ""),
        ('starts_with(X, "äö") and len(X) == 2', "", "äö"),
        ('stops_before(X, "\\n") and X == "a"', "", "a"),
        ('len(tokens(X)) < 3 and X == "aab"', "", ""),
    ],
)
def test_forced_bytes(written: str, prefix: str, forced: str) -> None:
    matcher = compiled(written).matcher()
    for token_id in prefix.encode():
        matcher.advance(token_id)
    suffix = matcher.deterministic_suffix()
    assert suffix.startswith(forced.encode())
    assert len(suffix) - len(forced.encode()) in (0, 1, 2)
    if suffix != forced.encode():
        # Bytes that both of two characters begin with are forced, too.
        with pytest.raises(UnicodeDecodeError):
            suffix.decode()


@pytest.mark.parametrize(
    "written",
    [
        'len(words(X)) < 9 and "fox" in X and stops_at(X, ".")',
        r'regex(X, r"(?!.*\b(?:fox|dog)\b)[a-zä ]{5,40}")',
        "len(X) < 30 and len(sentences(X)) > 2",
    ],
)
def test_many_places_look_out_as_each_does_by_itself(written: str) -> None:
    language = compiled(written)
    places = list(range(1, min(language.table.num_places, 200)))
    tables = trie_of(LARGE), language.table, language.counter_grid
    alone = TransitionCache(*tables)
    for place, transitions in TransitionCache(*tables).transitions_of(places):
        wanted = alone.transitions(place)
        for target in np.unique(wanted.targets):
            mine, its = transitions.targets == target, wanted.targets == target
            assert (transitions.mask(mine) == wanted.mask(its)).all()
            assert transitions.first_token(mine) == wanted.first_token(its)
            gained = sorted(map(tuple, transitions.gains[mine].tolist()))
            assert gained == sorted(map(tuple, wanted.gains[its].tolist()))
        assert transitions.num_kinds == wanted.num_kinds


def test_a_pattern_of_a_thousand_states_knows_distances() -> None:
    matcher = compiled(r'regex(X, r"(?!.*\b(?:fox|dog)\b)[a-z ]{150,200}")').matcher()
    shortest = matcher.shortest(200)
    assert shortest is not None
    assert len(shortest) == 38  # of " the", the longest token that is legal
    assert legal(matcher, LARGE, 37) == set()


def test_a_long_phrase_ends_an_output_without_a_table_for_each_of_its_beginnings() -> None:
    phrase = "the quick brown fox jumps over the lazy dog and " * 40
    began_s = time.thread_time()
    language = compiled(f"stops_before(X, {phrase!r}) and len(X) < 3000")
    assert time.thread_time() - began_s < 30, "it takes less than one, or minutes"
    text = b"the fox, " + phrase.encode()
    matcher = language.matcher()
    for byte in text[:-1]:
        matcher.advance(byte)
    assert matcher.is_complete
    assert not matcher.is_over
    matcher.advance(text[-1])
    assert matcher.is_over


def test_dropped_phrases_are_told() -> None:
    language = compiled('stops_before(X, "\\n", "END") and stops_before(X, "a") and len(X) < 9')
    assert language.dropped_phrases == ("\n", "END", "a")
    assert compiled("len(X) < 9").dropped_phrases == ()


def test_long_outputs_end_in_time() -> None:
    expression = parse('300 <= len(X) < 340 and len(words(X)) < 90 and "fox" in X')
    language = compile_where(expression, LARGE)
    assert language.knows_distances
    draw = random.Random(1)
    for _ in range(3):
        matcher, made = language.matcher(), b""
        for left in range(120, -1, -1):
            allowed = legal(matcher, LARGE, left)
            assert allowed
            token_id = draw.choice(sorted(allowed))
            if token_id == END_ID:
                break
            matcher.advance(token_id)
            made += TOKENS[token_id]
        assert matcher.is_complete
        assert holds(expression, made.decode())


def test_threads_share_a_language() -> None:
    written = 'len(tokens(X)) > 3 and len(words(X)) < 30 and len(X) < 100 and "fox" in X'

    def walked(language: WhereLanguage, seed: int) -> list[int]:
        draw, matcher, made = random.Random(seed), language.matcher(), list[int]()
        for left in range(40, -1, -1):
            further = sorted(legal(matcher, LARGE, left) - {END_ID})
            if not further:
                break
            made.append(draw.choice(further))
            matcher.advance(made[-1])
        return made

    alone = [walked(compiled(written), seed) for seed in range(6)]
    shared = compiled(written)
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda seed: walked(shared, seed), range(6))) == alone


def test_a_completion_is_found_where_distances_are_not_known() -> None:
    language = compiled("len(words(X)) == 3000")
    assert not language.knows_distances
    completion = language.matcher().shortest(4000)
    assert completion is not None
    assert language.matcher().num_legal((*completion, END_ID)) == len(completion) + 1
    assert language.matcher().shortest(2000) is None


def test_too_many_counts_are_refused_at_once() -> None:
    bounds = itertools.cycle(("len(X)", "len(words(X))", "len(sentences(X))", "len(tokens(X))"))
    written = " and ".join(
        f"{measure} != {30_000 + 7 * index}"
        for index, measure in zip(range(8), bounds, strict=False)
    )
    began = time.thread_time()
    with pytest.raises(TooComplex, match="too many counts to tell apart at once"):
        compiled(written)
    assert time.thread_time() - began < 3


def test_counts_are_told_apart_at_each_place_inside_of_a_character() -> None:
    counts = "1 < len(X) < 1500 and 1 < len(words(X)) < 20"
    compiled(f'{counts} and regex(X, r"([a-z]+ ){{3,}}[^é]*")')
    # There are hundreds of these places: of two numbers for each a gigabyte.
    with pytest.raises(TooComplex, match="too many counts to tell apart at once"):
        compiled(f'{counts} and regex(X, r"(\\w+ ){{3,}}[^é]*")')


@pytest.mark.parametrize(
    "written",
    [
        'regex(X, r"(a)\\1")',
        'regex(X, r"(?<=a(?=b)).*")',
        'regex(X, r".*a.{30}")',
        'regex(X, r"((a{1,30}){1,30}){1,30}")',
        " and ".join(f'"{index} x" in X' for index in range(14)),
    ],
)
def test_what_is_out_of_reach_is_left_to_others(written: str) -> None:
    with pytest.raises(OutOfReach):
        compiled(written)


# Every fifth by day: together they take as long as all else here.
JUDGED = [
    pytest.param(written, marks=pytest.mark.nightly) if index % 5 else written
    for index, written in enumerate(EXPRESSIONS)
]


@pytest.mark.parametrize("written", JUDGED)
def test_masks_are_those_of_the_oracle(written: str) -> None:
    language, draw = compiled(written), random.Random(written)
    oracle = Oracle(parse(written), TOKENS, (END_ID,))
    for _ in range(6):
        follow(language.matcher(), oracle, LARGE, draw, 10)
    for max_len in (1, 2, 3, 5):
        follow(language.matcher(), oracle, LARGE, draw, 10, max_len)


def accepts(language: WhereLanguage, text: str) -> bool:
    tokens = (*text.encode(), END_ID)
    return language.matcher().num_legal(tokens) == len(tokens)


@pytest.mark.parametrize(
    ("written", "joined_by"),
    [
        ('X == "w{}"', "or"),
        ('X in ["w{}", "v"]', "or"),
        ('starts_with(X, "w{}.")', "or"),
        ('ends_with(X, "w{}")', "or"),
        ('"w{}." in X', "or"),
        ('X != "w{}"', "and"),
        ('not starts_with(X, "w{}.")', "and"),
        ('not ends_with(X, "w{}")', "and"),
        ('not "w{}." in X', "and"),
    ],
)
@pytest.mark.parametrize("number", [33, 65, 400])
def test_as_many_as_can_be_written_are_followed_by_our_own_automata(
    written: str, joined_by: str, number: int
) -> None:
    each = [written.replace("{}", str(index)) for index in range(number)]
    expression = parse(f" {joined_by} ".join(each))
    language = compile_where(expression, LARGE)
    for text in ("w7", "w7.", "v", "w7.w32", "x"):
        assert accepts(language, text) is holds(expression, text)


FEW_END_ID = 0
# 日 is E6 97 A5, 本 is E6 9C AC, ä is C3 A4; there is no token to go on with after `a\xe6`.
FEW_TOKENS = (b"", b"a", b"b", b"ab", b" ", b"\xe6\x97", b"\xa5", b"a\xe6", b"\xc3", b"\xa4b")
FEW = vocabulary_of(FEW_TOKENS, (FEW_END_ID,))
SPELLED_PIECES = (
    *(b"a", b"b", b"ab", b"ba", b"aab", b" ", b" a", b".", b". a", b"1", b"-1", b"0", b"-"),
    *(b"\xc3", b"\xa4", "ä".encode(), b"a\xc3", b"\xa4b", b"\xe6", b"\x97", b"\xa5", b"\xe6\x97"),
    *(b"\x97\xa5", b"\xa5b", "日".encode(), b"\xc2", b"\xa0", b"\xf0\x9f", b"\xff"),
)


def mask_of(written: str, *prefix: bytes) -> set[bytes]:
    matcher = compile_where(parse(written), FEW).matcher()
    for token in prefix:
        matcher.advance(FEW_TOKENS.index(token))
    return {FEW_TOKENS[token_id] for token_id in legal(matcher, FEW)}


def state_that_may_be_cut(
    kind: Kind, text: str, vocabulary: Vocabulary = FEW
) -> OutputConstraintState:
    """An output state of a text that may be cut."""
    language = Compiler(vocabulary).compile(ConstraintSpec(kind, text))
    return OutputConstraintState(language, vocabulary, Budget(8, may_truncate=True))


@more_examples(2)
@given(
    expressions,
    st.lists(st.sampled_from(SPELLED_PIECES), min_size=2, max_size=20, unique=True),
    st.randoms(use_true_random=False),
)
def test_masks_are_those_of_the_oracle_whatever_tokens_can_spell(
    expression: Expression, pieces: list[bytes], draw: random.Random
) -> None:
    tokens = (b"", *pieces)
    vocabulary = vocabulary_of(tokens, (FEW_END_ID,))
    oracle = Oracle(expression, tokens, (FEW_END_ID,))
    try:
        language = compile_where(expression, vocabulary)
    except Contradiction:
        language = None
    assert (language is None) == (oracle.legal([]) == frozenset())
    if language is not None:
        follow(language.matcher(), oracle, vocabulary, draw, 5)
        follow(language.matcher(), oracle, vocabulary, draw, 7, draw.randint(1, 6))


def test_a_token_that_none_can_complete_is_masked() -> None:
    assert mask_of('X in ["a日", "ab"]') == {b"a", b"ab"}
    assert mask_of('X in ["a日", "ab"]', b"a") == {b"b", b"\xe6\x97"}
    # ä ends in a token that has more than ä, å does not.
    assert mask_of("len(X) == 2", b"a") == {b"a", b"b", b" ", b"\xe6\x97", b"\xc3"}
    assert mask_of("len(X) == 2", b"a", b"\xc3") == {b"\xa5"}
    assert mask_of("len(X) == 2", b"\xc3") == {b"\xa4b", b"\xa5"}


def test_a_text_that_tokens_cannot_spell_is_refused_and_the_reason_told() -> None:
    with pytest.raises(Contradiction, match="no tokens that spell such a text"):
        compile_where(parse('len(X) > 1 and ends_with(X, "本")'), FEW)
    with pytest.raises(Contradiction, match=r"^nothing satisfies both `len\(X\) > 1` and `len"):
        compile_where(parse("len(X) > 1 and len(X) < 1"), FEW)


def test_no_bytes_are_forced_that_tokens_may_be_unable_to_spell() -> None:
    matcher = compile_where(parse('X == "äb"'), FEW).matcher()
    assert matcher.deterministic_suffix() == b""
    output_state = state_that_may_be_cut(Kind.WHERE, 'X == "äb"')
    assert output_state.take_forced() == ()


@pytest.mark.parametrize(
    ("kind", "text"),
    [(Kind.REGEX, "a日|ab"), (Kind.CHOICE, '["a日", "ab"]'), (Kind.WHERE, 'X in ["a日", "ab"]')],
)
def test_a_text_that_may_be_cut_takes_no_token_that_none_can_complete(
    kind: Kind, text: str
) -> None:
    output_state = state_that_may_be_cut(kind, text)
    token_id = FEW_TOKENS.index(b"a\xe6")
    assert token_id not in legal_ids(output_state, FEW) or (
        output_state.has_dead_ends and not output_state.check(token_id)
    )
    with pytest.raises(IllegalToken):
        output_state.advance(FEW_TOKENS.index(b"a\xe6"))
    for token in (b"a", b"\xe6\x97", b"\xa5"):
        assert output_state.check(FEW_TOKENS.index(token))
        output_state.advance(FEW_TOKENS.index(token))
    assert output_state.is_satisfied
