"""Whatever is sampled under an output's masks and checks ends satisfied, within the budget."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLTokenizer, TokenizerWrapper

from constraints.errors import DoesNotFit, IllegalToken
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind, StopRule
from constraints.vocabulary import Vocabulary
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
from tests.constraints.where.vocabularies import TokenList, vocabulary_of

VOCABULARIES = {"demo": demo_vocabulary, "bytes": byte_vocabulary}
FLAT = CASES["flat"]


def state_of(
    spec: ConstraintSpec, budget: Budget, vocabulary: Vocabulary | None = None, **more: object
) -> OutputConstraintState:
    vocabulary = vocabulary or demo_vocabulary()
    language = language_of(spec, vocabulary)
    return OutputConstraintState(language, vocabulary, budget, **more)  # type: ignore[arg-type]


def spelled(text: str) -> list[int]:
    return demo_vocabulary().backend.tokenize_str(text)


@pytest.mark.parametrize("slack", [0, 1, 5, 30])
@pytest.mark.parametrize("vocabulary_name", VOCABULARIES)
@pytest.mark.parametrize("name", CASES)
def test_every_output_satisfies_its_constraint_in_its_budget(
    name: str, vocabulary_name: str, slack: int
) -> None:
    vocabulary, spec = VOCABULARIES[vocabulary_name](), CASES[name]
    max_len = needed_len(spec, vocabulary) + slack
    output_state = state_of(spec, Budget(max_len), vocabulary, takes_forced=slack != 5)
    output = drawn(output_state, vocabulary, max_len, random.Random(f"{name} {slack}"))
    assert output_state.is_satisfied
    assert len(output) <= max_len
    assert judge_of(spec)(text_of(output, vocabulary), len(output)), text_of(output, vocabulary)


@given(seed=st.integers(0, 10**9), name=st.sampled_from(sorted(CASES)), slack=st.integers(0, 30))
def test_no_seed_leads_into_a_dead_end(seed: int, name: str, slack: int) -> None:
    vocabulary, spec = byte_vocabulary(), CASES[name]
    max_len = needed_len(spec, vocabulary) + slack
    output_state = state_of(spec, Budget(max_len), vocabulary)
    output = drawn(output_state, vocabulary, max_len, random.Random(seed), end_odds=0.05)
    assert judge_of(spec)(text_of(output, vocabulary), len(output))


@pytest.mark.parametrize("name", [name for name in CASES if name != "anything"])
def test_a_budget_below_the_shortest_text_found_is_refused_with_both_numbers(name: str) -> None:
    spec = CASES[name]
    with pytest.raises(DoesNotFit) as refused:
        state_of(spec, Budget(0))
    needed = refused.value.needed_len
    assert state_of(spec, Budget(needed)).needed_len == needed
    with pytest.raises(DoesNotFit) as refused:
        state_of(spec, Budget(needed - 1))
    assert (refused.value.needed_len, refused.value.max_len) == (needed, needed - 1)


def test_a_state_that_cuts_lets_the_budget_run_out() -> None:
    output_state = state_of(FLAT, Budget(3, may_truncate=True))
    for token_id in spelled('{"name":')[:3]:
        assert output_state.check(token_id)
        output_state.advance(token_id)
    assert not output_state.is_satisfied


@pytest.mark.parametrize("name", ["regex", "where"])
@pytest.mark.parametrize("max_len", [1, 4])
def test_a_state_that_cuts_takes_no_forced_token_beyond_the_budget(name: str, max_len: int) -> None:
    spec = {
        "regex": ConstraintSpec(Kind.REGEX, "[xy]a{70}b"),
        "where": ConstraintSpec(Kind.WHERE, f'X in ["x{"a" * 70}b", "y{"a" * 70}b"]'),
    }[name]
    output_state = state_of(spec, Budget(max_len, may_truncate=True), byte_vocabulary())
    output_state.advance(ord("x"))
    assert len(output_state.take_forced()) == max_len - 1
    assert output_state.take_forced() == ()
    assert not output_state.is_satisfied


def test_only_the_end_follows_a_text_that_is_over() -> None:
    output_state = state_of(ConstraintSpec(Kind.REGEX, "ab"), Budget(9))
    assert output_state.take_forced()
    assert output_state.is_over
    assert legal_ids(output_state, demo_vocabulary()) == [0]


def test_the_end_is_masked_before_min_len_while_anything_else_is_legal() -> None:
    output_state = state_of(
        ConstraintSpec(Kind.REGEX, "a{1,3}"), Budget(9, min_len=9), byte_vocabulary()
    )
    output_state.advance(ord("a"))
    assert legal_ids(output_state, byte_vocabulary()) == [ord("a")]
    output_state.advance(ord("a"))
    output_state.advance(ord("a"))
    assert legal_ids(output_state, byte_vocabulary()) == [256]


def test_a_stop_token_ends_a_complete_text_and_is_no_text_itself() -> None:
    vocabulary, spec = byte_vocabulary(), ConstraintSpec(Kind.REGEX, "[ax]{1,3}|xxxxc")
    output_state = state_of(spec, Budget(9), vocabulary, stops=StopRule(token_ids=(ord("x"),)))
    assert legal_ids(output_state, vocabulary) == [ord("a")]
    output_state.advance(ord("a"))
    assert legal_ids(output_state, vocabulary) == [ord("a"), ord("x"), 256]
    output_state.advance(ord("x"))
    assert output_state.is_satisfied
    assert output_state.is_over


def test_a_witness_keeps_clear_of_stop_tokens() -> None:
    vocabulary, spec = byte_vocabulary(), ConstraintSpec(Kind.REGEX, "b|aaa")
    output_state = state_of(
        spec, Budget(9), vocabulary, stops=StopRule(token_ids=(ord("b"),)), takes_forced=False
    )
    assert output_state.needed_len == 3
    assert output_state.completion_token() == ord("a")


def test_an_illegal_token_changes_nothing() -> None:
    vocabulary = byte_vocabulary()
    output_state = state_of(ConstraintSpec(Kind.REGEX, "[ab]{3}"), Budget(3), vocabulary)
    for token_id in (ord("c"), 256):
        with pytest.raises(IllegalToken):
            output_state.advance(token_id)
    assert drawn(output_state, vocabulary, 3, random.Random(1))


def test_a_token_after_which_nothing_fits_is_refused() -> None:
    vocabulary, spec = byte_vocabulary(), ConstraintSpec(Kind.REGEX, "ad|be{20}|cf{3}")
    output_state = state_of(spec, Budget(4), vocabulary)
    assert [output_state.check(ord(letter)) for letter in "abc"] == [True, False, True]
    with pytest.raises(IllegalToken):
        output_state.advance(ord("b"))


def test_a_budget_that_the_witness_fills_leaves_the_tokens_that_are_known_to_fit() -> None:
    vocabulary, spec = byte_vocabulary(), ConstraintSpec(Kind.REGEX, "[ab]c[0-9]*d")
    output_state = state_of(spec, Budget(3), vocabulary)
    assert set(legal_ids(output_state, vocabulary)) <= {
        ord("a"),
        ord("b"),
        vocabulary.tokens.index(b"bc"),
    }
    output_state.advance(ord("a"))
    output_state.advance(ord("c"))
    assert legal_ids(output_state, vocabulary) == [ord("d")]


@pytest.mark.parametrize("name", CASES)
def test_a_replayed_state_stands_where_the_first_one_stood(name: str) -> None:
    vocabulary, spec = demo_vocabulary(), CASES[name]
    budget, rng = Budget(needed_len(spec, vocabulary) + 3), random.Random(name)
    written = drawn(state_of(spec, budget), vocabulary, budget.max_len, rng)
    for length in (len(written) // 2, len(written)):
        first, again = (state_of(spec, budget, takes_forced=False) for _ in range(2))
        for token_id in written[:length]:
            for other in rng.sample(legal_ids(first, vocabulary), 1):
                first.check(other)  # what was tried leaves no trace
            first.advance(token_id)
        again.replay(tuple(written[:length]))
        assert again.needed_len == first.needed_len
        assert legal_ids(again, vocabulary) == legal_ids(first, vocabulary)
        assert (again.is_satisfied, again.is_over) == (first.is_satisfied, first.is_over)


# Those whose drawn outputs come to no place where only one token is legal.
WITHOUT_RUNS = {
    "additional", "(ab)*c", "[0-9a-f]{32}", "arithmetic", 'len(X) < 20 and "fox" in X',
    "len(words(X)) == 3", "int(X) > 41", "len(tokens(X)) < 5 and len(X) > 6",
    'stops_at(X, ".") and len(words(X)) >= 4', "len(sentences(X)) == 2",
}  # fmt: skip


def drawn_with_runs(
    name: str, budget: Budget
) -> tuple[list[int], list[tuple[int, tuple[int, ...]]]]:
    """An output in which runs were forced, and where each of them begins."""
    vocabulary, rng = demo_vocabulary(), random.Random(name)
    for _ in range(50):
        output_state = state_of(CASES[name], budget)
        written: list[int] = []
        runs: list[tuple[int, tuple[int, ...]]] = []
        while not output_state.is_over and (legal := legal_ids(output_state, vocabulary)):
            token_id = rng.choice([each for each in legal if output_state.check(each)])
            if token_id in vocabulary.end_ids:
                break
            output_state.advance(token_id)
            run = output_state.take_forced()
            runs += [(len(written) + 1, run)]
            written += [token_id, *run]
        if any(run for _, run in runs):
            return written, runs
    raise AssertionError("nothing was forced in 50 outputs")


@pytest.mark.parametrize("name", [name for name in CASES if name not in WITHOUT_RUNS])
def test_an_output_that_breaks_off_within_a_forced_run_goes_on_with_that_run(name: str) -> None:
    vocabulary, spec = demo_vocabulary(), CASES[name]
    budget = Budget(needed_len(spec, vocabulary) + 3)
    written, runs = drawn_with_runs(name, budget)
    for start, run in runs:
        for num_made in range(len(run)):
            again = state_of(spec, budget)
            again.replay(tuple(written[: start + num_made]))
            due = run[num_made:]
            assert legal_ids(again, vocabulary) == [due[0]]
            assert (again.is_over, again.is_satisfied) == (False, False)
            assert not again.check(due[0] + 1)
            again.advance(due[0])
            assert again.take_forced() == due[1:] or len(due) == 1
            assert again.needed_len == _after(spec, budget, written[: start + len(run)])


def _after(spec: ConstraintSpec, budget: Budget, written: list[int]) -> int:
    output_state = state_of(spec, budget, takes_forced=False)
    output_state.replay(tuple(written))
    return output_state.needed_len


def test_forks_go_their_own_ways() -> None:
    vocabulary, spec = demo_vocabulary(), CASES["optional"]
    output_state = state_of(spec, Budget(60))
    rng = random.Random(3)
    for token_id in spelled('{"')[:2]:
        output_state.advance(token_id)
    twins = [output_state.fork() for _ in range(5)]
    prefix = spelled('{"')[:2]
    outputs = [prefix + drawn(twin, vocabulary, 58, rng) for twin in twins]
    assert len({tuple(output) for output in outputs}) > 1
    assert all(judge_of(spec)(text_of(output, vocabulary), 0) for output in outputs)
    assert not output_state.is_satisfied


def test_a_restarted_state_shares_no_place_with_the_first() -> None:
    first = state_of(FLAT, Budget(99))
    second = first.restart()
    first.take_forced()
    assert second.take_forced() == state_of(FLAT, Budget(99)).take_forced()


def test_forced_bytes_are_spelled_as_the_model_would() -> None:
    output_state = state_of(ConstraintSpec(Kind.REGEX, "the farmer and the fox"), Budget(50))
    run = output_state.take_forced()
    assert list(run) == spelled("the farmer and the fox")
    assert output_state.is_over


@pytest.mark.parametrize("name", CASES)
def test_forced_runs_are_the_beginning_of_what_the_model_would_spell(name: str) -> None:
    vocabulary, spec = demo_vocabulary(), CASES[name]
    output_state = state_of(spec, Budget(needed_len(spec, vocabulary) + 100))
    run = list(output_state.take_forced())
    for seed in range(5):
        written = run + drawn(output_state.fork(), vocabulary, 100, random.Random(seed))
        # It may break off within a character.
        text = b"".join(vocabulary.tokens[each] for each in written).decode(errors="ignore")
        assert spelled(text)[: len(run)] == run


def test_nothing_is_forced_where_every_token_is_to_be_sampled() -> None:
    output_state = state_of(ConstraintSpec(Kind.REGEX, "the fox"), Budget(50), takes_forced=False)
    assert output_state.take_forced() == ()


def test_a_forced_run_is_bounded_and_keeps_to_the_budget() -> None:
    vocabulary, spec = byte_vocabulary(), ConstraintSpec(Kind.REGEX, "x{200}")
    output_state = state_of(spec, Budget(200), vocabulary)
    runs = [len(output_state.take_forced()) for _ in range(4)]
    assert runs == [64, 64, 64, 8]
    assert output_state.is_over


def test_a_forced_run_is_not_taken_where_the_rest_would_not_fit_behind_it() -> None:
    vocabulary = vocabulary_of([*(bytes([byte]) for byte in range(256)), b"", b"ab", b"bcd"], [256])
    short, roomy = (
        state_of(ConstraintSpec(Kind.WHERE, 'X == "abcd"'), Budget(max_len), vocabulary)
        for max_len in (3, 4)
    )
    assert roomy.take_forced() == tuple(b"abcd"), "as this tokenizer spells it"
    assert short.take_forced() == ()
    assert legal_ids(short, vocabulary) == [ord("a"), 257]


def test_a_budget_without_slack_is_spent_in_one_run() -> None:
    output_state = state_of(
        CASES["min-length"], Budget(needed_len(CASES["min-length"], demo_vocabulary()))
    )
    while not output_state.is_over:
        assert output_state.take_forced() or output_state.check(
            output_state.completion_token() or 0
        )
        token_id = output_state.completion_token()
        if token_id is not None:
            output_state.advance(token_id)
    assert output_state.is_satisfied


LIKE_SPECIAL = [
    ConstraintSpec(Kind.WHERE, '"<|user|>" in X and len(X) < 20'),
    ConstraintSpec(Kind.WHERE, 'ends_with(X, "<|user|>.") and len(X) <= 12'),
    ConstraintSpec(Kind.WHERE, 'X in ["the cat<|end|>", "dog<|pad|> x"]'),
    ConstraintSpec(Kind.REGEX, r"(a|b)<\|user\|>(c|d)"),
    ConstraintSpec(Kind.REGEX, r"(?=[ab])(a|b)<\|user\|>(c|d)"),
    ConstraintSpec(Kind.JSON_SCHEMA, '{"const": "<|user|>x"}'),
    ConstraintSpec(Kind.LARK, 'start: ("a" | "b") "<|user|>" ("c" | "d")'),
]


@pytest.mark.parametrize("may_truncate", [False, True])
@pytest.mark.parametrize("spec", LIKE_SPECIAL, ids=lambda spec: spec.text)
def test_forced_text_that_looks_like_a_special_token_is_spelled(
    spec: ConstraintSpec, may_truncate: bool
) -> None:
    vocabulary = demo_vocabulary()
    for seed in range(4):
        output_state = state_of(spec, Budget(60, may_truncate=may_truncate))
        output = drawn(output_state, vocabulary, 60, random.Random(seed))
        assert judge_of(spec)(text_of(output, vocabulary), len(output))


def test_a_tokenizer_that_puts_a_space_in_front_forces_nothing_else() -> None:
    class Spaced(TokenList):
        def __call__(self, text: bytes | str) -> list[int]:
            return super().__call__(b" " + (text.encode() if isinstance(text, str) else text))

    tokens = [*(bytes([byte]) for byte in range(256)), b""]
    backend = LLTokenizer(TokenizerWrapper(Spaced(tokens, 256)), n_vocab=257)
    vocabulary = Vocabulary(tuple(tokens), (256,), "with spaces", backend)
    output_state = state_of(
        ConstraintSpec(Kind.REGEX, "[ab]cd[xy]"), Budget(9, may_truncate=True), vocabulary
    )
    output_state.advance(ord("a"))
    assert output_state.take_forced() == ()
    assert legal_ids(output_state, vocabulary) == [ord("c")]


def test_a_mask_is_not_quick_where_the_budget_leaves_room_for_one_completion_alone() -> None:
    spec = ConstraintSpec(Kind.WHERE, r'regex(X, r"\w{40} [a-c]{60}")')
    needed_len = state_of(spec, Budget(10_000)).needed_len

    roomy, tight = (state_of(spec, Budget(max_len)) for max_len in (2 * needed_len, needed_len))

    assert needed_len > 0
    assert roomy.is_quick
    assert not tight.is_quick
