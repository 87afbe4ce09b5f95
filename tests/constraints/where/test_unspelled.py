"""Vocabularies in which some bytes are no tokens: not every text can be spelled."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.compiler import Compiler
from constraints.errors import Contradiction, IllegalToken
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind
from constraints.token_trie import TokenTrie
from constraints.vocabulary import Vocabulary
from constraints.where.compile import compile_where
from constraints.where.parser import parse
from constraints.where.terms import Expression
from tests.constraints.where.oracle import Oracle
from tests.constraints.where.strategies import expressions
from tests.constraints.where.vocabularies import vocabulary_of

FEW_END_ID = 0
# 日 is E6 97 A5, 本 is E6 9C AC, ä is C3 A4; there is no token to go on with after `a\xe6`.
FEW_TOKENS = (b"", b"a", b"b", b"ab", b" ", b"\xe6\x97", b"\xa5", b"a\xe6", b"\xc3", b"\xa4b")
FEW = vocabulary_of(FEW_TOKENS, (FEW_END_ID,))
SPELLED_PIECES = (
    *(b"a", b"b", b"ab", b"ba", b"aab", b" ", b" a", b".", b". a", b"1", b"-1", b"0", b"-"),
    *(b"\xc3", b"\xa4", "ä".encode(), b"a\xc3", b"\xa4b", b"\xe6", b"\x97", b"\xa5", b"\xe6\x97"),
    *(b"\x97\xa5", b"\xa5b", "日".encode(), b"\xc2", b"\xa0", b"\xf0\x9f", b"\xff"),
)


def ids_in(filled: np.ndarray[tuple[int], np.dtype[np.int32]]) -> frozenset[int]:
    return frozenset(np.flatnonzero(np.unpackbits(filled.view(np.uint8), bitorder="little")))


def mask_of(written: str, *prefix: bytes) -> set[bytes]:
    matcher = compile_where(parse(written), FEW).matcher()
    for token in prefix:
        matcher.advance(FEW_TOKENS.index(token))
    row = np.zeros(FEW.num_words, dtype=np.int32)
    matcher.fill_mask(row)
    return {FEW_TOKENS[token_id] for token_id in ids_in(row)}


def state_that_may_be_cut(
    kind: Kind, text: str, vocabulary: Vocabulary = FEW
) -> OutputConstraintState:
    """An output state of a text that may be cut."""
    language = Compiler(vocabulary).compile(ConstraintSpec(kind, text))
    return OutputConstraintState(language, vocabulary, Budget(8, may_truncate=True))


@given(
    expressions,
    st.lists(st.sampled_from(SPELLED_PIECES), min_size=2, max_size=12, unique=True),
    st.randoms(use_true_random=False),
)
def test_masks_are_those_of_the_oracle_whatever_tokens_can_spell(
    expression: Expression, pieces: list[bytes], draw: random.Random
) -> None:
    tokens = (b"", *pieces)
    vocabulary = vocabulary_of(tokens, (FEW_END_ID,))
    oracle = Oracle(expression, tokens, (FEW_END_ID,))
    try:
        matcher = compile_where(expression, vocabulary, TokenTrie(vocabulary)).matcher()
    except Contradiction:
        assert oracle.ids_in([]) == frozenset()
        return
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    prefix = list[int]()
    for left in range(4, -1, -1):
        matcher.fill_mask(row, left)
        assert ids_in(row) == oracle.ids_in(prefix, left)
        matcher.fill_mask(row)
        assert ids_in(row) == oracle.ids_in(prefix)
        assert matcher.is_over == (oracle.ids_in(prefix) == {FEW_END_ID})
        further = sorted(ids_in(row) - {FEW_END_ID})
        if not further:
            break
        prefix.append(draw.choice(further))
        matcher.advance(prefix[-1])


def test_a_token_that_none_can_complete_is_masked() -> None:
    assert mask_of('X in ["a日", "ab"]') == {b"a", b"ab"}
    assert mask_of('X in ["a日", "ab"]', b"a") == {b"b", b"\xe6\x97"}
    # ä ends in a token that has more than ä, å does not.
    assert mask_of("len(X) == 2", b"a") == {b"a", b"b", b" ", b"\xe6\x97", b"\xc3"}
    assert mask_of("len(X) == 2", b"a", b"\xc3") == {b"\xa5"}
    assert mask_of("len(X) == 2", b"\xc3") == {b"\xa4b", b"\xa5"}


def test_a_text_that_tokens_cannot_spell_is_refused_and_the_reason_told() -> None:
    with pytest.raises(Contradiction, match="no tokens that spell such a text") as caught:
        compile_where(parse('len(X) > 1 and ends_with(X, "本")'), FEW)
    assert caught.value.parts == ('ends_with(X, ["本"])',)
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
    row = np.zeros(FEW.num_words, dtype=np.int32)
    output_state.fill(row)
    token_id = FEW_TOKENS.index(b"a\xe6")
    assert token_id not in ids_in(row) or (
        output_state.has_dead_ends and not output_state.check(token_id)
    )
    with pytest.raises(IllegalToken):
        output_state.advance(FEW_TOKENS.index(b"a\xe6"))
    for token in (b"a", b"\xe6\x97", b"\xa5"):
        assert output_state.check(FEW_TOKENS.index(token))
        output_state.advance(FEW_TOKENS.index(token))
    assert output_state.is_satisfied
