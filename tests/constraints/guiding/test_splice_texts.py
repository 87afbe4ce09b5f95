"""Pieces: hints, their ends, and what is left of one that has begun."""

import json

import pytest

from constraints.guiding.bytewise import byte_vocabulary
from constraints.guiding.splice_texts import NO_SPLICE_TEXTS, ends_of, splice_texts_of
from constraints.matcher import Matcher
from constraints.spec import ConstraintSpec, Kind
from tests.constraints.cases import STRING, record
from tests.constraints.walks import language_of

OBJECT = b'{"a":"","b":"}"}'
ANY_BYTE = frozenset(range(256))


def matcher_behind(text: bytes) -> Matcher:
    """In an object of strings a and b."""
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(record({"a": STRING, "b": STRING})))
    matcher = language_of(spec, byte_vocabulary()).matcher()
    for byte in text:
        matcher.advance(byte)
    return matcher


def legal_behind(text: bytes, allowed: bytes) -> list[bytes]:
    pieces = splice_texts_of((OBJECT, b"plain"))
    return list(map(bytes, pieces.legal(matcher_behind(text), frozenset(allowed))))


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        (b"", OBJECT),
        (b"{", b'"a":"","b":"}"}'),
        (b'{"a":"what the model wrote",', b'"b":"}"}'),
        (b'{ "a" : "" , ', b'"b":"}"}'),
    ],
)
def test_an_end_of_a_hint_stands_wherever_a_member_may(text: bytes, piece: bytes) -> None:
    assert legal_behind(text, b' "{') == [piece]


def test_a_string_stands_where_a_value_may_and_not_for_a_key() -> None:
    spec = ConstraintSpec(Kind.JSON_SCHEMA, '{"type": "object", "required": ["a"]}')
    matcher = language_of(spec, byte_vocabulary()).matcher()
    pieces, found = splice_texts_of((b'"day"',)), []
    for byte in b'{"a":"",':
        found.append(pieces.legal(matcher, frozenset(b'"')))
        matcher.advance(byte)
    assert pieces.legal(matcher, frozenset(b'"')) == ()
    assert found == [(), (), (), (), (), (tuple(b'"day"'),), (), ()]


def test_json_is_not_looked_for_within_free_text() -> None:
    assert legal_behind(b'{"a":"', bytes(range(128))) == [b"plain"]


def test_what_does_not_begin_with_a_legal_byte_is_not_asked_for() -> None:
    assert legal_behind(b"", b" ") == []


def test_the_rest_of_what_was_forced_is_told_the_outermost_first() -> None:
    pieces = splice_texts_of((OBJECT, b'"a"'))
    forced = b'{"a":"'
    rests = pieces.begun(matcher_behind(forced), forced)
    assert list(map(bytes, rests)) == [b'","b":"}"}', b'a"']


def test_without_hints_there_are_no_pieces() -> None:
    assert NO_SPLICE_TEXTS.legal(matcher_behind(b""), ANY_BYTE) == ()
    assert NO_SPLICE_TEXTS.begun(matcher_behind(b"{"), b"{") == ()


def test_a_text_is_cut_where_something_may_just_be_done() -> None:
    assert list(ends_of(b'x","b":1}', 9)) == [
        *(b'x","b":1}', b'","b":1}', b',"b":1}', b'"b":1}', b'":1}', b"}"),
    ]
    assert list(ends_of(b'x","b":1}', 2)) == [b'x","b":1}', b'","b":1}']
