"""Stop strings under an output state: an output ends at one only where the constraint holds."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.errors import Contradiction, IllegalToken, TooComplex
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind, StopRule
from constraints.vocabulary import Vocabulary
from router.text.output_text import StopMatcher
from tests.constraints.cases import CASES
from tests.constraints.walks import (
    byte_vocabulary,
    demo_vocabulary,
    drawn,
    judge_of,
    language_of,
    legal_ids,
    needed_len,
    text_of,
)

BYTES = byte_vocabulary()


def state_of(
    pattern: str, *strings: str, kept: bool = True, max_len: int = 30, may_truncate: bool = False
) -> OutputConstraintState:
    language = language_of(ConstraintSpec(Kind.REGEX, pattern), BYTES)
    return OutputConstraintState(
        language, BYTES, Budget(max_len, may_truncate=may_truncate), StopRule(strings, kept)
    )


def after(output_state: OutputConstraintState, text: bytes) -> OutputConstraintState:
    output_state.replay(tuple(text))
    return output_state


def legal_texts(output_state: OutputConstraintState) -> list[bytes]:
    return [BYTES.tokens[token_id] for token_id in legal_ids(output_state, BYTES)]


def as_shown(output: str, stops: StopRule) -> str:
    """The text that a router makes of an output: it ends at the first stop string."""
    stopping = StopMatcher(stops.strings, stops.kept)
    return stopping.push(output) + stopping.flush()


STRINGS = st.lists(
    st.sampled_from(["\n", "\n\n", " ", ":", ",", "0", "1", "x", "e", "ab", "the", "ca", "}", "é"]),
    min_size=1,
    max_size=3,
    unique=True,
)


@given(
    name=st.sampled_from(sorted(CASES)),
    strings=STRINGS,
    kept=st.booleans(),
    slack=st.integers(0, 12),
    seed=st.integers(0, 10**6),
    is_demo=st.booleans(),
)
def test_what_is_left_of_an_output_at_its_first_stop_string_satisfies_the_constraint(
    name: str, strings: list[str], kept: bool, slack: int, seed: int, is_demo: bool
) -> None:
    vocabulary: Vocabulary = demo_vocabulary() if is_demo else BYTES
    spec, stops = CASES[name], StopRule(tuple(strings), kept)
    try:
        max_len = needed_len(spec, vocabulary, stops) + slack
    except (Contradiction, TooComplex):
        return
    output_state = OutputConstraintState(
        language_of(spec, vocabulary), vocabulary, Budget(max_len), stops
    )
    output = drawn(output_state, vocabulary, max_len, random.Random(seed))
    assert output_state.is_satisfied
    assert len(output) <= max_len
    shown = as_shown(text_of(output, vocabulary), stops)
    # What is cut off took a token or more, so that the count of tokens is that of the output.
    assert judge_of(spec)(shown, len(output)), shown


def test_a_kept_string_ends_a_text_that_is_complete_with_it() -> None:
    output_state = after(state_of("a+b|a+bc", "b"), b"aa")
    assert b"b" in legal_texts(output_state)
    output_state.advance(ord("b"))
    assert output_state.is_over
    assert legal_ids(output_state, BYTES) == [256]


def test_a_kept_string_is_masked_where_the_text_goes_on() -> None:
    output_state = after(state_of("[ab]+c", "b"), b"a")
    assert sorted(legal_texts(output_state)) == [b"a", b"c"]
    with pytest.raises(IllegalToken):
        output_state.advance(ord("b"))


def test_a_dropped_string_ends_a_text_that_was_complete_before_it() -> None:
    output_state = after(state_of("a(bcd)?", "bc", kept=False), b"ab")
    assert legal_texts(output_state) == [b"c"]
    output_state.advance(ord("c"))
    assert output_state.is_over


def test_a_dropped_string_is_masked_where_the_text_before_it_is_not_complete() -> None:
    output_state = after(state_of("a(bcd|be)", "bc", kept=False), b"ab")
    assert legal_texts(output_state) == [b"e"]


def test_a_dropped_string_may_begin_inside_a_token() -> None:
    output_state = state_of("a(bcd)?", "bc", kept=False)
    output_state.advance(BYTES.tokens.index(b"ab"))
    assert legal_texts(output_state) == [b"c"]


def test_a_token_that_runs_past_a_string_is_masked() -> None:
    output_state = state_of("[a-z ]+", "th")
    assert b"the" not in legal_texts(output_state)
    assert b"h" in legal_texts(after(output_state, b"t"))


@pytest.mark.parametrize(("strings", "is_legal"), [(("c", "bc"), True), (("c",), False)])
def test_of_strings_that_end_at_the_same_byte_the_longest_is_dropped(
    strings: tuple[str, ...], is_legal: bool
) -> None:
    output_state = after(state_of("xa|xabc|xabd", *strings, kept=False), b"xab")
    assert (b"c" in legal_texts(output_state)) is is_legal


def test_a_constraint_that_needs_a_stop_string_inside_is_a_contradiction() -> None:
    with pytest.raises(Contradiction, match='"b"') as refused:
        state_of("ab+c", "b", "zz")
    assert refused.value.parts == ("b", "zz")


def test_a_pattern_that_goes_on_without_end_before_a_stop_string_is_a_contradiction() -> None:
    with pytest.raises(Contradiction, match='"b"'):
        state_of("[ac]*bc", "b")
    with pytest.raises(Contradiction, match='"a"'):
        state_of("[ab]*a", "a", kept=False)
    assert not state_of("[ab]*a", "a").is_over


def test_what_was_not_found_is_not_called_a_contradiction() -> None:
    language = language_of(ConstraintSpec(Kind.LARK, 'start: /[ac]/* "bc"'), BYTES)
    with pytest.raises(TooComplex, match='"b"'):
        OutputConstraintState(language, BYTES, Budget(30), StopRule(("b",)))


def test_no_token_leads_where_only_a_stop_string_could_follow() -> None:
    output_state = state_of("ab*c!|d", "c", "!")
    assert [output_state.check(ord(letter)) for letter in "ad"] == [False, True]


def test_a_state_that_cuts_its_budget_keeps_out_of_dead_ends_all_the_same() -> None:
    output_state = state_of("ab*c|d", "c", kept=False, max_len=3, may_truncate=True)
    assert [output_state.check(ord(letter)) for letter in "ad"] == [False, True]


def test_forced_runs_end_before_a_stop_string() -> None:
    output_state = state_of("abcdx?|abcdy", "cd")
    forced = b"".join(BYTES.tokens[token_id] for token_id in output_state.take_forced())
    assert forced == b"abc"
    assert legal_texts(output_state) == [b"d"]


def test_text_after_the_beginning_of_a_stop_string_is_followed_however_long() -> None:
    output_state = state_of("a*(b|c)", "aaab", kept=False, max_len=60)
    after(output_state, b"a" * 40)
    assert b"b" not in legal_texts(output_state)
    assert b"c" in legal_texts(output_state)


def test_forks_meet_stop_strings_of_their_own() -> None:
    output_state = after(state_of("[abc]+", "bc"), b"ab")
    twin = output_state.fork()
    output_state.advance(ord("c"))
    twin.advance(ord("a"))
    assert output_state.is_over
    assert not twin.is_over


def test_where_tokens_are_counted_longer_ones_are_found_that_keep_clear() -> None:
    vocabulary, stops = demo_vocabulary(), StopRule(("e", "x"), kept=False)
    spec = ConstraintSpec(Kind.WHERE, "len(tokens(X)) < 5 and len(X) > 12")
    output_state = OutputConstraintState(
        language_of(spec, vocabulary), vocabulary, Budget(4), stops
    )
    output = drawn(output_state, vocabulary, 4, random.Random(2))
    assert judge_of(spec)(as_shown(text_of(output, vocabulary), stops), len(output))


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    ("kind", "text", "strings", "needed_len"),
    [
        (Kind.WHERE, '"fox" in X', (" ",), 3),
        (Kind.WHERE, 'ends_with(X, "fox")', (" ", "a"), 3),
        (Kind.WHERE, '"fox" in X and "cat" in X', (" ",), 6),
        (Kind.WHERE, '"fox" in X and len(X) >= 9', (" ", "\n"), 5),
        (Kind.WHERE, "len(words(X)) >= 6", (" ",), 6),
        (Kind.WHERE, "len(tokens(X)) == 7", ("e", " "), 7),
        (Kind.REGEX, ".*fox.*", (" ",), 3),
        (Kind.REGEX, ".+ .+|fox-[a-z]+", (" ",), 5),
    ],
)
def test_a_shortest_text_that_meets_a_stop_string_gives_way_to_one_that_meets_none(
    kind: Kind, text: str, strings: tuple[str, ...], needed_len: int, kept: bool
) -> None:
    spec, stops = ConstraintSpec(kind, text), StopRule(strings, kept)
    output_state = OutputConstraintState(language_of(spec, BYTES), BYTES, Budget(40), stops)
    assert output_state.needed_len <= needed_len
    output = drawn(output_state, BYTES, 40, random.Random(text))
    assert output_state.is_satisfied
    assert judge_of(spec)(as_shown(text_of(output, BYTES), stops), len(output))


def test_stop_tokens_and_strings_hold_together() -> None:
    spec, stops = ConstraintSpec(Kind.REGEX, "a|b|c{4}"), StopRule(("a",), False, (ord("b"),))
    output_state = OutputConstraintState(language_of(spec, BYTES), BYTES, Budget(9), stops)
    assert output_state.needed_len == 4
    assert legal_texts(output_state) == [b"c"]


@pytest.mark.alone
def test_many_long_stop_strings_beside_a_pattern_take_little_time() -> None:
    language = language_of(ConstraintSpec(Kind.REGEX, "[a-z ]{20,400}"), BYTES)
    strings = ("a", *(f"{chr(98 + i)}{'xyzzy' * 12}" for i in range(16)))
    began_s = time.thread_time()
    OutputConstraintState(language, BYTES, Budget(400), StopRule(strings))
    assert time.thread_time() - began_s < 0.5
