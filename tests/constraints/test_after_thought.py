"""Behind its thought an output satisfies its constraint, and the thought leaves room for it.

A thought ends where its closer stands, however that is cut into tokens, or where its budget is used
up; what follows is the constraint's and the stop strings', and nothing before it is.
"""

import random
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLTokenizer, TokenizerWrapper

from constraints.after_thought import (
    AfterThought,
    OutputState,
    ThoughtTable,
    output_state,
)
from constraints.bitmask import allowed_ids
from constraints.errors import DoesNotFit, IllegalToken, NotEnforced
from constraints.output_constraint import NO_STOPS
from constraints.spec import MAX_SPACES, Budget, ConstraintSpec, Kind, StopRule, ThoughtRule
from constraints.vocabulary import Vocabulary, is_mark, mark_of
from tests.constraints.cases import (
    CASES,
    byte_vocabulary,
    demo_vocabulary,
    drawn,
    judge_of,
    language_of,
    legal_ids,
    needed_len,
    vocabulary_of,
)

THINK = ThoughtRule("<think>", "</think>", is_begun=True)
MAYBE = ThoughtRule("<think>", "</think>", is_begun=False)
# As harmony has it: of special tokens and a word.
CHANNEL = ThoughtRule("<|ch|>analysis<|msg|>", "<|end|><|start|>assistant", is_begun=True)
ANY = ConstraintSpec(Kind.TEXT, "")
LETTERS = ConstraintSpec(Kind.REGEX, "[a-z]{2,9}")
OBJECT = ConstraintSpec(Kind.JSON_SCHEMA, '{"type": "object"}')
GBNF = ConstraintSpec(Kind.GBNF, 'root ::= "yes" | "no" [0-9]+')
KINDS = {**CASES, "gbnf": GBNF}
# One of each kind.
FEW = ("flat", "[a-z]{3}-[0-9]{4}", "query", "choice", "gbnf", "len(words(X)) == 3")

_LONGER = (
    *(b"<think>", b"</think>", b"</think>\n\n", b"</think>{", b"</think> {", b"</", b"think", b">"),
    *(b">\n\n", b">{", b">ab", b"\n\n", b" {", b" ab", b"ab", b"{}", b"assistant", b"analysis"),
)
_NAMES = [b"<|end|>", b"<|start|>", b"<|ch|>", b"<|msg|>", b"<eos>"]


class LongestTokens:
    """A tokenizer with special tokens, that takes the longest token each time."""

    tokens = (*(bytes([byte]) for byte in range(256)), *_LONGER, *_NAMES)
    eos_token_id = len(tokens) - 1
    bos_token_id = None
    special_token_ids = tuple(range(len(tokens) - len(_NAMES), len(tokens)))

    def __call__(self, text: bytes | str) -> list[int]:
        rest = text.encode() if isinstance(text, str) else text
        token_ids = []
        while rest:
            plain = range(self.special_token_ids[0])
            fitting = [each for each in plain if rest.startswith(self.tokens[each])]
            token_ids.append(max(fitting, key=lambda each: len(self.tokens[each])))
            rest = rest[len(self.tokens[token_ids[-1]]) :]
        return token_ids


@lru_cache(maxsize=1)
def marked_vocabulary() -> Vocabulary:
    """All bytes, tokens that are or have the marks of a thought, and special tokens."""
    tokenizer = LongestTokens()
    backend = LLTokenizer(TokenizerWrapper(tokenizer), n_vocab=len(tokenizer.tokens))
    plain = tokenizer.tokens[: -len(_NAMES)]
    tokens = (*plain, *map(mark_of, tokenizer.special_token_ids[:-1]), b"")
    return Vocabulary(tokens, (tokenizer.eos_token_id,), backend)


END = LongestTokens.eos_token_id


def id_of(token: str) -> int:
    return len(LongestTokens.tokens) - 1 - LongestTokens.tokens[::-1].index(token.encode())


def ids_of(*tokens: str) -> tuple[int, ...]:
    return tuple(map(id_of, tokens))


def state_of(
    spec: ConstraintSpec,
    rule: ThoughtRule = THINK,
    max_len: int = 60,
    vocabulary: Vocabulary | None = None,
    stops: StopRule = NO_STOPS,
    min_len: int = 0,
) -> OutputState:
    vocabulary = vocabulary or marked_vocabulary()
    language = language_of(spec, vocabulary)
    return output_state(language, vocabulary, Budget(max_len, min_len), stops, rule)


def advanced(state: OutputState, *tokens: str) -> OutputState:
    for token_id in ids_of(*tokens):
        assert token_id in legal_ids(state, marked_vocabulary()), token_id
        assert state.check(token_id)
        state.advance(token_id)
    return state


def legal(state: OutputState) -> set[int]:
    return set(legal_ids(state, marked_vocabulary()))


def bytes_of(token_ids: Sequence[int], vocabulary: Vocabulary) -> bytes:
    """With the names of special tokens."""
    tokens = [(each, vocabulary.tokens[each]) for each in token_ids]
    return b"".join(
        token if token and not is_mark(token) else vocabulary.backend.decode_bytes([each])
        for each, token in tokens
    )


def is_good_behind(text: bytes, spec: ConstraintSpec, num_tokens: int) -> bool:
    """Whether the answer satisfies its constraint; white space before it may be no part of it."""
    if spec is GBNF:
        spec = ConstraintSpec(Kind.REGEX, "yes|no[0-9]+")
    judge = judge_of(spec)
    answer = text.decode()
    most = min(4, len(answer) - len(answer.lstrip()))
    return any(
        _holds(judge, answer[start:], num_tokens - dropped)
        for start in range(most + 1)
        for dropped in range(start + 1)
    )


def _holds(judge, text: str, num_tokens: int) -> bool:  # type: ignore[no-untyped-def]
    try:
        return bool(judge(text, num_tokens))
    except ValueError:
        return False


def closer_end(output: Sequence[int], vocabulary: Vocabulary, rule: ThoughtRule) -> int:
    """The number of tokens up to the one that completes the closer."""
    closer = rule.closer.encode()
    return next(
        count
        for count in range(1, len(output) + 1)
        if closer in bytes_of(output[:count], vocabulary)
    )


def closer_ids(vocabulary: Vocabulary) -> list[int]:
    return vocabulary.spell(THINK.closer.encode())


@given(
    seed=st.integers(0, 10**9),
    name=st.sampled_from(sorted(KINDS)),
    slack=st.integers(0, 30),
    budget=st.none() | st.integers(0, 12),
    closes=st.floats(0, 0.5),
    vocabulary=st.sampled_from([marked_vocabulary(), demo_vocabulary()]),
)
def test_every_output_satisfies_its_constraint_behind_its_thought(
    seed: int, name: str, slack: int, budget: int | None, closes: float, vocabulary: Vocabulary
) -> None:
    spec = KINDS[name]
    most = needed_len(spec, vocabulary) + len(closer_ids(vocabulary)) + slack
    rule = ThoughtRule("<think>", "</think>", is_begun=bool(seed % 2), max_len=budget)
    state = state_of(spec, rule, most, vocabulary)
    # The marks, and tokens with a part of them.
    wanted = {*_LONGER, *(bytes([byte]) for byte in b"<>/think\n")}
    favoured = {each: closes for each, token in enumerate(vocabulary.tokens) if token in wanted}
    output = drawn(state, vocabulary, most, random.Random(seed), 0.2, favoured)
    assert state.is_satisfied
    assert len(output) <= most
    text = bytes_of(output, vocabulary)
    begins = text.lstrip(b" \t\r\n").startswith(b"<think>")
    if not rule.is_begun and not begins:
        assert is_good_behind(text, spec, len(output))
        return
    num_thought = closer_end(output, vocabulary, rule)
    answer = text.split(b"</think>", 1)[1]
    assert is_good_behind(answer, spec, len(output) - num_thought), (text, spec)


@pytest.mark.parametrize("vocabulary", [marked_vocabulary(), byte_vocabulary(), demo_vocabulary()])
@pytest.mark.parametrize("budget", [0, 1, 7])
def test_a_thought_ends_at_its_budget_with_the_closers_own_tokens(
    vocabulary: Vocabulary, budget: int
) -> None:
    rule = ThoughtRule("<think>", "</think>", is_begun=True, max_len=budget)
    for spec in (LETTERS, ANY):
        state = state_of(spec, rule, 60, vocabulary)
        word = next(each for each, token in enumerate(vocabulary.tokens) if token == b"q")
        for _ in range(budget):
            assert len(legal_ids(state, vocabulary)) > 200
            state.advance(word)
        closing = closer_ids(vocabulary)
        for token_id in closing:
            assert legal_ids(state, vocabulary) == [token_id]
            with pytest.raises(IllegalToken):
                state.advance(word)
            state.advance(token_id)
        assert len(legal_ids(state, vocabulary)) > 1


def test_a_thought_leaves_room_for_the_closer_and_the_shortest_answer() -> None:
    spec = ConstraintSpec(Kind.REGEX, "x{5}")
    state = state_of(spec, max_len=10)
    thought = advanced(state, *"abcd")
    assert legal(thought) == {id_of("</think>")}
    assert advanced(thought, "</think>", *"xxxxx").is_satisfied


def test_a_state_that_cuts_lets_a_thought_use_all_tokens() -> None:
    vocabulary = marked_vocabulary()
    budget = Budget(3, may_truncate=True)
    state = output_state(language_of(LETTERS, vocabulary), vocabulary, budget, NO_STOPS, THINK)
    assert not advanced(state, *"abc").is_satisfied


def test_what_cannot_fit_is_refused_with_the_closer_counted() -> None:
    spec = ConstraintSpec(Kind.REGEX, "x{5}")
    for max_len in (0, 5):
        with pytest.raises(DoesNotFit) as refused:
            state_of(spec, max_len=max_len)
        assert (refused.value.needed_len, refused.value.max_len) == (6, max_len)
    assert state_of(spec, max_len=6).needed_len == 6
    # Without a thought it fits.
    assert legal(state_of(spec, MAYBE, max_len=5)) == {ord("x")}


@pytest.mark.parametrize("spec", [LETTERS, ANY])
def test_no_end_and_no_special_token_is_legal_in_a_thought(spec: ConstraintSpec) -> None:
    stops = StopRule(token_ids=(ord("q"),))
    state = state_of(spec, stops=stops)
    closing_more = set(ids_of("</think>{", "</think> {"))
    assert legal(state) == set(range(256 + len(_LONGER))) - {ord("q")} - closing_more


@pytest.mark.parametrize(
    "pieces",
    [
        ("</think>",),
        ("</", "think", ">"),
        tuple("</think>"),
        ("<", "</think>"),
        ("</", "</", "think", ">"),
        ("</", "think", "</think>"),
        ("</", "think", ">\n\n"),
        ("</think>\n\n",),
        ("</think>", "\n\n", " ", " "),
    ],
)
def test_a_closer_ends_the_thought_however_it_is_cut(pieces: tuple[str, ...]) -> None:
    state = advanced(state_of(LETTERS), "a", *pieces)
    num_spaces = len("".join(pieces)) - len("".join(pieces).rstrip())
    letters = {*range(ord("a"), ord("z") + 1), *ids_of("ab", "think", "assistant", "analysis")}
    spaces = set(map(ord, " \t\r\n")) if num_spaces < 4 else set()
    spaces |= set(ids_of("\n\n")) if num_spaces < 3 else set()
    assert legal(state) == letters | spaces


def test_no_token_closes_the_thought_and_begins_the_answer() -> None:
    assert not legal(state_of(OBJECT)) & set(ids_of("</think>{", "</think> {"))
    behind = advanced(state_of(OBJECT), "</", "think")
    assert legal(behind) & set(ids_of(">", ">{", ">ab", ">\n\n")) == set(ids_of(">", ">\n\n"))


def test_white_space_before_an_answer_is_no_part_of_it() -> None:
    spec = ConstraintSpec(Kind.REGEX, "[ab ]{2}")
    assert advanced(state_of(spec), "</think>", " ", "ab").is_over
    assert advanced(state_of(OBJECT, MAYBE), "\n\n", " ", "{", "}").is_over


def test_white_space_that_an_answer_has_to_begin_with_is_its_own() -> None:
    state = advanced(state_of(ConstraintSpec(Kind.REGEX, "\n[a-z]")), "</think>", "\n")
    assert legal(state) == set(range(ord("a"), ord("z") + 1))


def test_an_answer_without_a_thought_is_the_answer_alone() -> None:
    state = advanced(state_of(LETTERS, MAYBE), "ab")
    assert legal(state) == legal(advanced(state_of(LETTERS), "</think>", "ab"))
    assert state.is_satisfied


@pytest.mark.parametrize(
    "opening", [("<think>",), tuple("<think>"), ("\n\n", " ", "<", "think", ">")]
)
def test_an_opener_begins_a_thought_however_it_is_cut(opening: tuple[str, ...]) -> None:
    state = advanced(state_of(LETTERS, MAYBE), *opening)
    assert END not in legal(state)
    assert {ord("{"), ord("q"), id_of("</think>")} <= legal(state)
    assert legal(advanced(state, "</think>", "ab")) == legal(
        advanced(state_of(LETTERS), "</think>", "ab")
    )


def test_an_answer_may_begin_as_the_opener_does() -> None:
    spec = ConstraintSpec(Kind.REGEX, "<t[a-z]{3}")
    state = advanced(state_of(spec, MAYBE), *"<t")
    assert advanced(state.fork(), *"abc").is_over
    assert END not in legal(advanced(state, *"hink>"))


def test_an_opener_without_room_for_its_thought_is_masked() -> None:
    spec = ConstraintSpec(Kind.REGEX, "x{5}")
    assert id_of("<think>") not in legal(state_of(spec, MAYBE, max_len=6))
    state = advanced(state_of(spec, MAYBE, max_len=20), "<")
    while not state.is_over:
        token_id = state.completion_token()
        assert token_id in legal(state)
        state.advance(token_id)
        state.take_forced()
    assert state.is_satisfied


@pytest.mark.parametrize("opening", [("<think>",), tuple("<think>")])
def test_what_begins_as_a_thought_is_one_or_illegal(opening: tuple[str, ...]) -> None:
    spec = ConstraintSpec(Kind.WHERE, 'len(X) < 30 and "fox" in X')
    assert id_of(opening[-1]) in legal(advanced(state_of(spec, MAYBE), *opening[:-1]))
    state = advanced(state_of(spec, MAYBE, max_len=len(opening) + 3), *opening[:-1])
    assert id_of(opening[-1]) not in legal(state)
    assert not state.check(id_of(opening[-1]))


def test_special_tokens_of_a_closer_close_and_nothing_comes_between_them() -> None:
    state = advanced(state_of(LETTERS, CHANNEL), *"q<|end|")
    assert not legal(state) & set(ids_of("<|start|>", "<|ch|>", "<|msg|>", "<eos>"))
    advanced(state, "<|end|>")
    assert legal(state) == {id_of("<|start|>")}
    advanced(state, "<|start|>")
    assert legal(state) == {id_of("assistant")}
    assert advanced(state, "assistant", "ab").is_satisfied


def test_special_tokens_of_an_opener_open_a_thought() -> None:
    rule = ThoughtRule(CHANNEL.opener, CHANNEL.closer, is_begun=False, max_len=0)
    state = advanced(state_of(LETTERS, rule), "<|ch|>")
    assert legal(state) <= {ord("a"), *ids_of("analysis", "a")}
    state = advanced(state, "analysis", "<|msg|>")
    for token in ("<|end|>", "<|start|>", "assistant"):
        assert legal(state) == {id_of(token)}
        state.advance(id_of(token))
    assert advanced(state, "ab").is_satisfied


def test_a_closer_spelled_as_text_is_seen_as_readers_see_it() -> None:
    state = advanced(state_of(LETTERS, CHANNEL), *"<|end|>")
    while not state.is_satisfied:
        token_id = state.completion_token()
        assert token_id in legal(state)
        state.advance(token_id)
    assert state.is_satisfied


def test_a_mark_that_ends_outputs_or_that_no_tokens_spell_is_refused() -> None:
    with pytest.raises(NotEnforced, match="'<eos>', which ends an answer"):
        state_of(LETTERS, ThoughtRule("<think>", "<eos>", is_begun=True))
    poor = vocabulary_of([*(bytes([each]) for each in b"</thin>"), b""], [7])
    with pytest.raises(NotEnforced, match="cannot spell '<think>'"):
        output_state(language_of(ANY, poor), poor, Budget(9), NO_STOPS, THINK)


@pytest.mark.parametrize("kept", [True, False])
def test_stop_strings_are_for_the_answer_alone(kept: bool) -> None:
    stops = StopRule(("b",), kept)
    spec = ConstraintSpec(Kind.REGEX, "[a-z]{2}")
    state = advanced(state_of(spec, stops=stops), *"abba", "</think>")
    assert ord("b") not in legal(state)
    assert ord("b") in legal(advanced(state, "a"))
    assert not state.is_over


def test_any_answer_is_legal_behind_a_thought_without_a_constraint() -> None:
    state = advanced(state_of(ANY), "q", "</think>")
    assert legal(state) == set(range(len(LongestTokens.tokens)))
    assert state.is_satisfied
    assert advanced(state, "<|end|>", "<eos>").is_over


@pytest.mark.parametrize(
    ("spec", "stops", "end"),
    [
        (ConstraintSpec(Kind.REGEX, "[a-z]+"), NO_STOPS, END),
        (ANY, StopRule(("a",), token_ids=(ord("q"),)), ord("q")),
    ],
)
def test_an_end_waits_for_min_len_with_the_thought_counted(
    spec: ConstraintSpec, stops: StopRule, end: int
) -> None:
    state = advanced(state_of(spec, min_len=4, stops=stops), "b", "</think>", "c")
    assert end not in legal(state)
    assert end in legal(advanced(state, "b"))


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("is_begun", [True, False])
def test_a_state_is_a_function_of_its_tokens(name: str, is_begun: bool) -> None:
    vocabulary = marked_vocabulary()
    rule = ThoughtRule("<think>", "</think>", is_begun, max_len=6)
    spec = KINDS[name]
    most = needed_len(spec, vocabulary) + 30
    state = state_of(spec, rule, most)
    rng = random.Random(name)
    masks: list[list[int]] = []
    output: list[int] = []
    first = () if is_begun else ids_of("\n", "<think>")
    while not state.is_over:
        masks.append(legal_ids(state, vocabulary))
        few = first[len(output) : len(output) + 1] or rng.sample(masks[-1], min(4, len(masks[-1])))
        token_id = next((each for each in few if state.check(each)), state.completion_token())
        if token_id is None or token_id == END:
            break
        state.advance(token_id)
        run = state.take_forced()
        masks += [[]] * len(run)
        output += (token_id, *run)
    for count in range(len(output)):
        replayed = state_of(spec, rule, most)
        replayed.replay(tuple(output[:count]))
        if masks[count]:
            assert legal_ids(replayed, vocabulary) == masks[count]
        else:
            assert replayed.completion_token() == output[count]


def test_copies_go_on_by_themselves() -> None:
    state = state_of(LETTERS, MAYBE)
    for token in ("\n", "<think>", "q", "</think>", "ab"):
        before = legal(state)
        twin = state.fork()
        advanced(twin, token)
        assert legal(state) == before
        twin = twin.fork()
        assert legal(twin) == legal(advanced(state, token))


def test_a_state_starts_again_without_what_another_has_accepted() -> None:
    first = state_of(LETTERS, MAYBE)
    again = first.restart()
    advanced(first, "ab")
    assert legal(again) == legal(state_of(LETTERS, MAYBE))
    with pytest.raises(AssertionError):
        first.restart()


def test_a_mask_in_a_thought_is_made_once_for_each_part_of_the_closer() -> None:
    state = state_of(LETTERS)
    assert isinstance(state, AfterThought)
    assert state.is_quick
    row = np.zeros(marked_vocabulary().num_words, dtype=np.int32)
    for token in ("a", "<", "a", "<"):
        advanced(state, token)
        state.fill(row)
        assert state.is_quick


texts = st.text("ab<", min_size=1, max_size=4)


def vocabulary_with(longer: list[str]) -> Vocabulary:
    singles = [b"a", b"b", b"<", b" ", b"\n", b"\t", b"\r"]
    tokens = dict.fromkeys([*singles, *(text.encode() for text in longer)])
    return vocabulary_of([*tokens, b""], [len(tokens)])


@given(closer=texts, longer=st.lists(texts), before=texts)
def test_tokens_complete_a_closer_where_the_text_does_and_end_there(
    closer: str, longer: list[str], before: str
) -> None:
    vocabulary = vocabulary_with(longer)
    if any(closer.endswith(closer[:count]) for count in range(1, len(closer))):
        with pytest.raises(NotEnforced, match="ends as it begins"):
            ThoughtTable(vocabulary, "", closer)
        return
    table = ThoughtTable(vocabulary, "", closer)
    closing, _ = table.read_closing(0, before.encode())
    if closer in before:
        assert closing == table.closed
        return
    legal = allowed_ids(table.thought_row(closing))
    for token_id, token in enumerate(vocabulary.tokens[:-1]):
        text = before + token.decode()
        after, _ = table.read_closing(closing, token)
        assert (after == table.closed) == (closer in text)
        assert (token_id in legal) == (not text.partition(closer)[2].strip())
    text = before
    for token_id in table.closing_ids(closing):
        assert closer not in text
        text += vocabulary.tokens[token_id].decode()
    assert text.endswith(closer)


@given(
    opener=texts,
    longer=st.lists(st.text("ab< \n", min_size=1, max_size=5)),
    begun=st.text("ab< \n"),
)
def test_an_opener_is_read_as_the_text_has_it(opener: str, longer: list[str], begun: str) -> None:
    vocabulary = vocabulary_with(longer)
    table = ThoughtTable(vocabulary, opener, "<b")
    opening = 0
    for letter in begun.encode():
        read = table.read_opening(opening, vocabulary.tokens.index(bytes([letter])))
        if read is None or read[0] == table.opened:
            return
        opening = read[0]
    legal, completing = table.opening_rows(opening)
    for token_id, token in enumerate(vocabulary.tokens[:-1]):
        body = (begun + token.decode()).lstrip(" \n\t\r")
        num_spaces = len(begun) + len(token) - len(body)
        is_prefix = num_spaces <= MAX_SPACES and opener.startswith(body)
        is_opened = num_spaces <= MAX_SPACES and body.startswith(opener)
        assert (token_id in allowed_ids(completing)) == is_opened
        is_closed = is_opened and "<b" in body[len(opener) :]
        assert (token_id in allowed_ids(legal)) == ((is_prefix or is_opened) and not is_closed)
