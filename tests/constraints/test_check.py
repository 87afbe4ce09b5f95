"""What is told of texts: how far they stand, and what was expected there."""

import re

import pytest
from llguidance import LLTokenizer, TokenizerWrapper

from constraints.check import TextJudge, judge
from constraints.spec import ConstraintSpec, Kind
from constraints.vocabulary import Vocabulary
from tests.constraints.cases import (
    TokenList,
    byte_vocabulary,
    demo_vocabulary,
    language_of,
    wide_schema,
    wide_text,
)


def test_what_may_follow_is_told_where_only_a_longer_token_is_legal() -> None:
    spec = ConstraintSpec(Kind.WHERE, 'len(tokens(X)) == 1 and X in ["ab", "the"]')
    language = language_of(spec, byte_vocabulary())
    judged = TextJudge(language, byte_vocabulary(), by_tokens=True).judge("x")
    assert judged.failure is None
    assert (judged.accepted, judged.position, judged.num_legal) == (False, 0, 2)
    assert judged.expected == ("'a'", "'t'")


def test_a_phrase_that_speaks_of_tokens_does_not_have_them_counted() -> None:
    spec = ConstraintSpec(Kind.WHERE, 'X in ["Once thex tokens(", "b"]')
    language = language_of(spec, demo_vocabulary())
    judged = judge(language, demo_vocabulary(), spec, ["Once there was"], 40)
    assert judged.judgements[0].position == len("Once the")


def test_a_text_that_looks_like_a_special_token_is_text_where_tokens_are_counted() -> None:
    spec = ConstraintSpec(Kind.WHERE, "len(tokens(X)) <= 30")
    language = language_of(spec, demo_vocabulary())
    texts = ["a<|user|>b", "hello<|end|>", "x" * 40]
    judged = judge(language, demo_vocabulary(), spec, texts, 40).judgements
    assert [each.accepted for each in judged] == [True, True, False]
    assert (judged[2].position, judged[2].expected) == (30, ("the end",))


@pytest.mark.parametrize(
    ("spec", "text", "position", "expected"),
    [
        (ConstraintSpec(Kind.WHERE, 'X in ["café", "cafè"]'), "cafe", 3, ("'è'", "'é'")),
        (ConstraintSpec(Kind.CHOICE, '["日本", "日曜"]'), "日x", 1, ("'曜'", "'本'")),
        (ConstraintSpec(Kind.JSON_SCHEMA, '{"enum": ["é", "è"]}'), '"e"', 1, ("'è'", "'é'")),
        (ConstraintSpec(Kind.LARK, 'start: "é" | "è"'), "e", 0, ("'è'", "'é'")),
        (ConstraintSpec(Kind.CHOICE, '["日本", "日本x"]'), "日x", 1, ("'本'",)),
        (ConstraintSpec(Kind.REGEX, "a[à-ÿ]"), "ab", 1, ("characters beyond ASCII",)),
    ],
)
def test_characters_that_begin_with_the_same_byte_are_told_each(
    spec: ConstraintSpec, text: str, position: int, expected: tuple[str, ...]
) -> None:
    language = language_of(spec, demo_vocabulary())
    (judged,) = judge(language, demo_vocabulary(), spec, [text], 40).judgements
    assert (judged.position, judged.expected) == (position, expected)


@pytest.mark.parametrize(
    ("most", "position", "expected"),
    [("<= 9", 1, ("'è'", "'é'")), ("== 2", 0, ("'x'",))],
)
def test_where_a_token_ends_inside_a_character_the_place_is_before_it(
    most: str, position: int, expected: tuple[str, ...]
) -> None:
    class Longest(TokenList):
        """Takes `x` together with the first byte of what follows."""

        def __call__(self, text: bytes | str) -> list[int]:
            encoded = text.encode() if isinstance(text, str) else text
            pieces = re.findall(rb"x\xc3|[\x00-\xff]", encoded)
            return [self.tokens.index(piece) for piece in pieces]

    tokens = [*(bytes([byte]) for byte in range(256)), b"", b"x\xc3"]
    backend = LLTokenizer(TokenizerWrapper(Longest(tokens, 256)), n_vocab=258)
    vocabulary = Vocabulary(tuple(tokens), (256,), "a token inside a character", backend)
    spec = ConstraintSpec(Kind.WHERE, f'len(tokens(X)) {most} and X in ["xé", "xè"]')
    (judged,) = judge(language_of(spec, vocabulary), vocabulary, spec, ["xê"], 9).judgements
    assert (judged.accepted, judged.position) == (False, position)
    assert judged.expected == expected


def test_a_long_text_under_a_wide_schema_is_judged_to_its_end() -> None:
    text = wide_text()
    texts = [text, text[:-1], text + "x"]
    language = language_of(wide_schema(), demo_vocabulary())
    judged = judge(language, demo_vocabulary(), wide_schema(), texts, 40).judgements
    assert [each.accepted for each in judged] == [True, False, False]
    assert [each.position for each in judged] == [None, len(text) - 1, len(text)]
