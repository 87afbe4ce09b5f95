"""Known completions, updated without a search."""

import pytest

from constraints.guiding.completion import completes, next_completion, rest_after, tails_of
from constraints.matcher import Matcher
from constraints.spec import ConstraintSpec, Kind
from tests.constraints.cases import byte_vocabulary, language_of

BYTES = byte_vocabulary()


def matcher_of(pattern: str) -> Matcher:
    return language_of(ConstraintSpec(Kind.REGEX, pattern), BYTES).matcher()


def token(text: bytes) -> int:
    return BYTES.tokens.index(text)


@pytest.mark.parametrize(
    ("pattern", "witness", "drawn", "rest"),
    [
        ("abc", [b"a", b"b", b"c"], b"a", b"bc"),
        # A token may take several of the witness, or a part of its first one.
        ("abc", [b"a", b"b", b"c"], b"ab", b"c"),
        ("abc", [b"ab", b"c"], b"a", b"bc"),
        ("[ab]c", [b"a", b"c"], b"b", None),
    ],
)
def test_after_a_token_the_rest_of_the_witness_is_left(
    pattern: str, witness: list[bytes], drawn: bytes, rest: bytes | None
) -> None:
    found = rest_after(matcher_of(pattern), BYTES, tuple(map(token, witness)), token(drawn))
    assert found == (None if rest is None else tuple(rest))


@pytest.mark.parametrize(
    ("pattern", "known_completion", "drawn", "max_len", "left"),
    [
        ('"[a-z]*"', b'"', "x", 5, b'"'),  # kept whole
        ("[a-z]{3}!", b"aaa!", "x", 5, b"aa!"),  # one token less
        ("[a-z]*!", b"zzz!", "x", 2, b"z!"),  # as much as fits
        ("x!|aaa!", b"aaa!", "x", 0, None),  # no room
        ("x[0-9]{4}|aaa!", b"aaa!", "x", 9, None),  # none of it is legal
    ],
)
def test_a_witness_is_kept_as_far_as_it_is_legal_and_fits(
    pattern: str, known_completion: bytes, drawn: str, max_len: int, left: bytes | None
) -> None:
    matcher = matcher_of(pattern)
    if pattern.startswith('"'):
        matcher.advance(ord('"'))
    found = next_completion(matcher, BYTES, tuple(known_completion), ord(drawn), max_len)
    assert found == (None if left is None else tuple(left))


@pytest.mark.parametrize("character", ["é", "\u0800", "\u20ac", "\ud7ff", "😀", "\U0010ffff"])
def test_a_character_that_was_begun_is_completed_first(character: str) -> None:
    matcher = matcher_of("<.*>")
    matcher.advance(ord("<"))
    known_completion: tuple[int, ...] = tuple(b">")
    for byte in character.encode():
        found = next_completion(matcher, BYTES, known_completion, byte, 9)
        assert found is not None
        matcher.advance(byte)
        assert completes(matcher, BYTES, found)
        known_completion = found
    assert known_completion == tuple(b">")


def test_a_token_that_ends_as_the_witness_begins_leaves_what_comes_then() -> None:
    matcher = matcher_of('"[a-z]*","b":[0-9]+}')
    matcher.advance(ord('"'))
    known_completion = (*b'"', *b',"b":0}')
    bytes_ahead = next_completion(matcher, BYTES, known_completion, ord('"'), 9)
    assert bytes_ahead == tuple(b',"b":0}')
    matcher = matcher_of('[a-z]*the"!')
    found = next_completion(matcher, BYTES, (token(b"the"), *b'"!'), token(b"the"), 9)
    assert found == tuple(b'"!')
    matcher = matcher_of("x*abcd")
    found = next_completion(matcher, BYTES, (token(b"ab"), *b"cd"), ord("a"), 9)
    assert found == tuple(b"bcd")


def test_tails_are_the_longest_that_fit() -> None:
    assert list(tails_of((1, 2, 3), 2)) == [(2, 3), (3,), ()]
    assert len(list(tails_of(tuple(range(100)), 100))) == 12
