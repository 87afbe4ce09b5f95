"""What is told of texts: how far they stand, and what was expected there."""

import json
import re
from typing import Any

import pytest

from constraints.check import TextJudge, judge
from constraints.spec import ConstraintSpec, Judgement, Kind, Whitespace
from constraints.vocabulary import Vocabulary
from tests.constraints.cases import (
    Json,
    TokenList,
    byte_vocabulary,
    demo_vocabulary,
    language_of,
    vocabulary_of,
    wide_schema,
    wide_text,
)


def judgements(
    spec: ConstraintSpec, *texts: str, vocabulary: Vocabulary | None = None
) -> tuple[Judgement, ...]:
    vocabulary = vocabulary or demo_vocabulary()
    return judge(language_of(spec, vocabulary), vocabulary, spec, texts, 200).judgements


def test_what_may_follow_is_told_where_only_a_longer_token_is_legal() -> None:
    spec = ConstraintSpec(Kind.WHERE, 'len(tokens(X)) == 1 and X in ["ab", "the"]')
    language = language_of(spec, byte_vocabulary())
    judged = TextJudge(language, byte_vocabulary(), by_tokens=True).judge("x")
    assert judged.failure is None
    assert (judged.accepted, judged.position, judged.num_legal) == (False, 0, 2)
    assert judged.expected == ("'a'", "'t'")


def test_a_phrase_that_speaks_of_tokens_does_not_have_them_counted() -> None:
    spec = ConstraintSpec(Kind.WHERE, 'X in ["Once thex tokens(", "b"]')
    assert judgements(spec, "Once there was")[0].position == len("Once the")


def test_a_text_that_looks_like_a_special_token_is_text_where_tokens_are_counted() -> None:
    spec = ConstraintSpec(Kind.WHERE, "len(tokens(X)) <= 30")
    judged = judgements(spec, "a<|user|>b", "hello<|end|>", "x" * 40)
    assert [each.accepted for each in judged] == [True, True, False]
    assert (judged[2].position, judged[2].expected) == (30, ("the end",))


@pytest.mark.parametrize(
    ("spec", "text", "position", "expected"),
    [
        (ConstraintSpec(Kind.WHERE, 'X in ["café", "cafè"]'), "cafe", 3, ("'è'", "'é'")),
        (ConstraintSpec(Kind.CHOICE, '["日本", "日曜"]'), "日x", 1, ("'曜'", "'本'")),
        (ConstraintSpec(Kind.JSON_SCHEMA, '{"enum": ["é", "è"]}'), '"e"', 1, ("'è\"'", "'é\"'")),
        (ConstraintSpec(Kind.LARK, 'start: "é" | "è"'), "e", 0, ("'è'", "'é'")),
        (ConstraintSpec(Kind.CHOICE, '["日本", "日本x"]'), "日x", 1, ("'本'",)),
        (ConstraintSpec(Kind.REGEX, "a[à-ÿ]"), "ab", 1, ("characters beyond ASCII",)),
    ],
)
def test_characters_that_begin_with_the_same_byte_are_told_each(
    spec: ConstraintSpec, text: str, position: int, expected: tuple[str, ...]
) -> None:
    (judged,) = judgements(spec, text)
    assert (judged.position, judged.expected) == (position, expected)


def test_where_a_token_ends_inside_a_character_the_place_is_before_it() -> None:
    class Longest(TokenList):
        """Takes `x` together with the first byte of what follows."""

        def __call__(self, text: bytes | str) -> list[int]:
            encoded = text.encode() if isinstance(text, str) else text
            pieces = re.findall(rb"x\xc3|[\x00-\xff]", encoded)
            return [self.tokens.index(piece) for piece in pieces]

    tokens = [*(bytes([byte]) for byte in range(256)), b"", b"x\xc3"]
    vocabulary = vocabulary_of(tokens, [256], Longest)
    spec = ConstraintSpec(Kind.WHERE, 'len(tokens(X)) == 2 and X in ["xé", "xè"]')
    (judged,) = judgements(spec, "xê", vocabulary=vocabulary)
    assert (judged.accepted, judged.position, judged.expected) == (False, 0, ("'x'",))


def test_a_long_text_under_a_wide_schema_is_judged_to_its_end() -> None:
    text = wide_text()
    judged = judgements(wide_schema(), text, text[:-1], text + "x")
    assert [each.accepted for each in judged] == [True, False, False]
    assert [each.position for each in judged] == [None, len(text) - 1, len(text)]


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "born": {"type": "string", "format": "date"},
        "home": {"properties": {"city": {"type": "string"}, "zip": {"type": "integer"}}},
        "size": {"type": "number", "multipleOf": 0.25},
    },
    "required": ["name"],
}


def judged(
    schema: Any, *texts: str, whitespace: Whitespace = Whitespace.FLEXIBLE
) -> tuple[Judgement, ...]:
    return judgements(ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(schema), whitespace), *texts)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ('{"born": "2000-02-29", "name": "A"}', 2),
        ('{"name": "A", "home": {"zip": 1, "city": "B"}}', 38),
        ('{"name": "A", "size": 5e-1}', 23),
        ('{"name": "A", "home": {"zip": 10.0}}', 32),
        (r'{"name": "\u0041"}', 11),
        (r'{"name": "\u0001"}', 11),
        ('{"name": "A"}\n', 13),
    ],
)
def test_an_instance_that_masks_write_otherwise_is_accepted_with_a_note(
    text: str, position: int
) -> None:
    (judgement,) = judged(PERSON, text)
    assert (judgement.accepted, judgement.position) == (True, None)
    assert judgement.note is not None
    assert judgement.note.position == position
    assert judgement.note.message.startswith("an instance; masks write it otherwise")


def test_what_masks_write_has_no_note() -> None:
    assert judged(PERSON, '{"name": "A", "size": 0.50}')[0].note is None


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ('{"born": "2000-02-30", "name": "A"}', "at /born: '2000-02-30' is not a 'date'"),
        ('{"home": {"zip": 1.5}, "name": "A"}', "at /home/zip: 1.5 is not of type 'integer'"),
        ('{"size": 0.3, "name": "A"}', "at /size: 0.3 is not a multiple of 0.25"),
        ('{"born": "2000-02-29"}', "'name' is a required property"),
        ('{"name": "A", "born": "2000-02-29", "name": "A"}', None),
        ('{"born": "2000-02-29", ', None),
    ],
)
def test_what_is_no_instance_in_any_order_is_refused_with_what_it_violates(
    text: str, failure: str | None
) -> None:
    (judgement,) = judged(PERSON, text)
    assert (judgement.accepted, judgement.failure, judgement.note) == (False, failure, None)
    assert judgement.expected


DRAFTS = [
    {},
    *({"$schema": f"http://json-schema.org/draft-0{number}/schema#"} for number in (4, 6, 7)),
    *(
        {"$schema": f"https://json-schema.org/draft/{name}/schema"}
        for name in ("2019-09", "2020-12")
    ),
]


@pytest.mark.parametrize("draft", DRAFTS, ids=str)
@pytest.mark.parametrize(
    ("value", "right", "wrong"),
    [
        ({"const": 5}, 5, 6),
        ({"minimum": 0, "exclusiveMinimum": True}, 0.5, 0),
        ({"minimum": 3, "exclusiveMinimum": 5}, 6, 4),
        ({"dependencies": {"a": ["b"]}}, {"b": 1, "a": 1}, {"a": 1}),
        ({"dependentRequired": {"a": ["b"]}}, {"b": 1, "a": 1}, {"a": 1}),
        ({"items": [{"type": "integer"}], "additionalItems": False}, [1], [1, 2]),
        ({"prefixItems": [{"type": "integer"}], "items": {"type": "null"}}, [1, None], [1, 2]),
        ({"contains": {"const": 1}, "minContains": 2}, [1, 1], [1]),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"a": 1}, {"b": 1}),
    ],
    ids=str,
)
def test_a_keyword_means_the_same_in_any_draft_to_masks_and_to_what_judges_beside_them(
    draft: Json, value: Json, right: Json, wrong: Json
) -> None:
    schema = {**draft, "properties": {"x": {}, "value": value}}
    texts = [json.dumps({"x": 1, "value": each}) for each in (right, wrong)]
    in_another_order = [json.dumps({"value": each, "x": 1}) for each in (right, wrong)]
    accepted = [each.accepted for each in judged(schema, *texts, *in_another_order)]
    assert accepted == [True, False, True, False]


def test_a_number_that_may_go_on_is_unfinished() -> None:
    (judgement,) = judged({"type": "integer", "minimum": 10}, "1")
    assert (judgement.accepted, judgement.position, judgement.failure) == (False, 1, None)


def test_white_space_that_was_asked_for_is_part_of_the_constraint() -> None:
    texts = [
        '{"born":"2000-02-29","name":"A: B, C"}',
        '{"born": "2000-02-29", "name": "A:B,C"}',
        '{"born":"2000-02-29", "name": "A"}',
        ' {"name":"A"}',
    ]
    accepted = {
        whitespace: [each.accepted for each in judged(PERSON, *texts, whitespace=whitespace)]
        for whitespace in Whitespace
    }
    assert accepted == {
        Whitespace.FLEXIBLE: [True, True, True, True],
        Whitespace.COMPACT: [True, False, False, False],
        Whitespace.SPACED: [False, True, False, False],
        Whitespace.OPTIONAL: [True, True, True, False],
    }
