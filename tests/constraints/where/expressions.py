"""Expressions and the vocabulary by which masks are judged against the oracle.

Bounds are small, so that outputs of a few tokens come to them; phrases overlap themselves and each
other, have characters of several bytes and stand across tokens.

    EXPRESSIONS        sixty, written, of sixty.txt
    expressions        random ones, over a few characters, with every kind of term and its corners:
                       empty lists, patterns with quotes
    LARGE              the vocabulary: many-byte and split-character tokens
    follow             an output under masks, each of which has to be the oracle's
"""

import random
from pathlib import Path

from hypothesis import strategies as st

from constraints.matcher import Matcher
from constraints.vocabulary import Vocabulary
from constraints.where.engine import WhereLanguage, compile_where
from constraints.where.parser import parse
from constraints.where.terms import (
    And,
    Compare,
    Constant,
    Contains,
    EndsWith,
    Expression,
    IsFloat,
    IsInt,
    Matches,
    Measure,
    Not,
    OneOf,
    Or,
    Relation,
    StartsWith,
    StopsAt,
    StopsBefore,
)
from tests.constraints.cases import legal_of, vocabulary_of
from tests.constraints.where.oracle import Oracle, PlainOracle

END_ID = 256
_PIECES: tuple[bytes, ...] = (
    *b"a b c ab ba aa aaa aab abab the The fox .The fo x. ox fox. 0 1 12 007 - -1 .5 3.14".split(),
    *(b" ", b"  ", b" a", b" b", b" the", b" fox", b" ab", b". ", b". The", b"..", b".\n"),
    *(b"a. b.", b"\n", b"\n\n", b"a\n", b"\t", b" \t", b"\x1c", b"\r\n", b"\x0b a"),
    *"ä,äö,ß, ü,é,日,日本,本,。,😀,😀 ,a😀".encode().split(b","),
    # Whitespace of several bytes: next line, no-break, em space, ideographic.
    *"\x85,\xa0,\u2003,\u3000,a\u3000b,\u3000\u3000".encode().split(b","),
    # Beginnings, middles and ends of characters.
    *(b"\xc3", b"\xa4", b"a\xc3", b"\xa4b", b"\xc3\xa4\xc3", b"\xb6\xc3", b" \xc2", b"\x85x"),
    *(b"\xe3", b"\xe3\x80", b"\x80\x80", b"\xe6\x97", b"\xa5\xe6\x9c", b"\xac", b"\xf0\x9f"),
    *(b"\x98\x80", b"\xf0\x9f\x98", b"\x80\xf0\x9f", b"\xed\x9f", b"\xe0\xa4", b"\xf4\x8f"),
    # What is no UTF-8.
    *(b"\xc0\x80", b"\xff\xfe", b"a\x80", b"\xed\xa0", b"\xf4\x90", b"\xc3a"),
)
# Every byte, an end token, and tokens with several characters, parts of characters, or both.
TOKENS = tuple(dict.fromkeys((*(bytes([byte]) for byte in range(256)), b"", *_PIECES)))

# A line each, below what they have in common.
EXPRESSIONS = tuple(
    line
    for line in Path(__file__).with_name("sixty.txt").read_text().splitlines()
    if not line.startswith("# ")
)

LARGE = vocabulary_of(TOKENS, (END_ID,))


def compiled(written: str) -> WhereLanguage:
    """The language of an expression over LARGE."""
    return compile_where(parse(written), LARGE)


def legal(matcher: Matcher, vocabulary: Vocabulary, max_len: int | None = None) -> frozenset[int]:
    return frozenset(legal_of(matcher, vocabulary, max_len))


def follow(
    matcher: Matcher,
    oracle: Oracle,
    vocabulary: Vocabulary,
    draw: random.Random,
    num_steps: int,
    max_len: int | None = None,
) -> None:
    """An output of so many tokens, or within `max_len`; fails where a mask is not the oracle's.

    Within `max_len` it may lack tokens that end inside of a character, unless tokens are counted.
    """
    end_ids, prefix = frozenset(vocabulary.end_ids), list[int]()
    for made_len in range(num_steps):
        left = None if max_len is None else max_len - made_len
        allowed = legal(matcher, vocabulary, left)
        wanted = oracle.legal(prefix, left)
        if left is not None and not oracle.follows_tokens:
            assert allowed <= wanted, (prefix, left)
            wanted -= {each for each in wanted - allowed if oracle.is_inside([*prefix, each])}
        assert allowed == wanted, (prefix, left)
        if not isinstance(oracle, PlainOracle):
            _assert_complete(matcher, oracle, prefix, allowed <= end_ids, left)
        further = sorted(allowed - end_ids)
        if not further or left == 0:
            return
        prefix.append(draw.choice(further))
        assert matcher.num_legal(prefix[-1:]) == 1
        matcher.advance(prefix[-1])


def _assert_complete(
    matcher: Matcher, oracle: Oracle, prefix: list[int], is_last: bool, left: int | None
) -> None:
    if left is None:
        assert matcher.is_complete == oracle.is_complete(prefix)
        assert matcher.is_over == is_last
        return
    found = matcher.shortest(left)
    fewest = oracle.shortest_len(prefix, left)
    if oracle.is_inside(prefix) and not oracle.follows_tokens:
        assert found is None or (fewest is not None and len(found) >= fewest)
    else:
        assert (None if found is None else len(found)) == fewest
    ends = found is None or (*found, oracle.end_ids[0])
    assert ends is True or matcher.num_legal(ends) == len(ends)


def joined(parts: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    pairs = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.one_of(st.builds(And, pairs), st.builds(Or, pairs), st.builds(Not, parts))


PHRASES = ("a", "b", "ab", "aab", " a", ".", "a.", "ä", "日", "1", "-1")
PATTERNS = ("a*b", "(ab|a)*", r"\S+ \S+", "[^b]{1,3}", "a?ä?", r"\d*", r".*\n", "", '"\\\\"')

texts = st.text(alphabet="ab .\n1-ä\u3000", max_size=6)
phrases = st.sampled_from(PHRASES)
several = st.lists(st.one_of(phrases, phrases, texts), max_size=3, unique=True).map(tuple)
stops = st.lists(phrases, min_size=1, max_size=2, unique=True).map(tuple)
counted = st.builds(
    Compare,
    st.sampled_from((Measure.CHARS, Measure.WORDS, Measure.SENTENCES, Measure.TOKENS)),
    st.sampled_from(Relation),
    st.integers(-1, 6),
)
atoms = st.one_of(
    counted,
    counted,
    st.builds(Compare, st.just(Measure.INT), st.sampled_from(Relation), st.integers(-11, 11)),
    st.builds(Contains, st.one_of(phrases, texts)),
    st.builds(StartsWith, several),
    st.builds(EndsWith, several),
    st.builds(StopsAt, stops),
    st.builds(OneOf, several),
    st.builds(Matches, st.sampled_from(PATTERNS)),
    st.sampled_from((IsInt(), IsFloat(), Constant(True), Constant(False))),
)


conditions: st.SearchStrategy[Expression] = st.recursive(atoms, joined, max_leaves=5)
expressions: st.SearchStrategy[Expression] = st.one_of(
    conditions,
    st.builds(StopsBefore, stops),
    st.builds(lambda part, stop: And((part, StopsBefore(stop))), conditions, stops),
)
