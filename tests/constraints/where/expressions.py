"""Expressions and the vocabulary by which masks are judged against the oracle.

Bounds are small, so that outputs of a few tokens come to them; phrases overlap themselves and each
other, have characters of several bytes and stand across tokens.

    EXPRESSIONS        sixty, written
    expressions        random ones, over a few characters
    any_expressions    every kind of term, corners included: empty lists, patterns with quotes
    LARGE              the vocabulary: many-byte and split-character tokens
"""

import numpy as np
from hypothesis import strategies as st

from constraints.matcher import Matcher
from constraints.token_trie import TokenTrie
from constraints.vocabulary import Vocabulary
from constraints.where.compile import compile_where
from constraints.where.engine import WhereLanguage
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
from tests.constraints.cases import vocabulary_of

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

EXPRESSIONS: tuple[str, ...] = (
    # counters alone
    "len(X) < 5",
    "len(X) >= 3",
    "len(X) == 4",
    "len(X) != 2",
    "2 <= len(X) <= 6 and len(X) != 4",
    "len(words(X)) <= 2",
    "len(words(X)) == 2",
    "len(words(X)) > 2",
    "len(words(X)) != 1",
    "len(sentences(X)) == 1",
    "len(sentences(X)) <= 2",
    "1 < len(sentences(X)) < 4",
    "len(sentences(X)) != 2",
    "len(tokens(X)) < 4",
    "len(tokens(X)) == 3",
    "len(tokens(X)) > 2",
    "len(tokens(X)) != 2",
    # several counters
    "len(X) < 12 and len(words(X)) > 2",
    "len(X) < 9 and len(words(X)) == 3 and len(sentences(X)) == 2",
    "5 <= len(X) <= 8 and 2 <= len(words(X)) <= 3",
    "len(tokens(X)) < 5 and len(words(X)) > 2",
    "len(tokens(X)) == 2 and len(X) == 4",
    "len(tokens(X)) > 3 and len(X) < 7",
    "len(words(X)) != 2 and len(X) < 6 and len(sentences(X)) != 0",
    # phrases
    '"fox" in X',
    '"fox" not in X',
    '"aab" in X and len(X) < 7',
    '"aa" not in X and "b" not in X',
    '"日本" in X and len(X) < 6',
    '"ä" not in X and "\\n" not in X',
    '"the" in X and "fox" in X and len(words(X)) <= 3',
    'starts_with(X, "The") and len(X) < 9',
    'starts_with(X, ["a", "äö"]) and not ends_with(X, "b")',
    'ends_with(X, "fox.", "。") and len(words(X)) < 4',
    'not starts_with(X, "a", " ") and ends_with(X, ".")',
    # whole outputs
    'X in ["the fox", "The fox.", "日本", "äö", ""]',
    'X in ["abab", "aba", "ab"] and X != "aba"',
    'X not in ["a", "ab", "aab"] and len(X) < 4',
    'X == "a😀b"',
    'X != "fox"',
    # stops
    'stops_at(X, ".")',
    'stops_at(X, "aa") and len(X) < 8',
    'stops_at(X, "abab", "。") and ends_with(X, "abab", "。")',
    'stops_at(X, ".", "\\n") and 2 <= len(words(X)) <= 3',
    'stops_before(X, "\\n") and len(words(X)) >= 2',
    'stops_before(X, "aab", "。") and "fox" in X',
    # numbers and patterns
    "int(X)",
    "1 <= int(X) <= 50 and int(X) != 12",
    "int(X) < -5 and len(X) < 5",
    "int(X) != 0 and len(tokens(X)) <= 2",
    "not int(X) and len(X) <= 3",
    "float(X) and not int(X) and len(X) < 6",
    r'regex(X, r"[a-c]{2,4}(\.|\n)?")',
    r'regex(X, r"(ab|a)*b") and len(X) < 8',
    r'not regex(X, r".*\d+.*") and len(words(X)) == 2',
    r'regex(X, r"\w+\s\w+") and "ß" not in X and len(X) < 10',
    # or, not, obligations
    '"fox" in X or len(X) < 3',
    '(len(words(X)) > 1 or "日" in X) and not (len(X) > 6 or "b" in X)',
    'not ("a" in X and "b" in X) and not stops_at(X, ".")',
    '(X in ["a", "the fox"] or int(X) > 98 or stops_at(X, ".")) and len(X) != 3 and len(X) < 8',
)

LARGE = vocabulary_of(TOKENS, (END_ID,))
LARGE_WALK = TokenTrie(LARGE)


def compiled(written: str) -> WhereLanguage:
    """The language of an expression over LARGE."""
    return compile_where(parse(written), LARGE, LARGE_WALK)


def legal(matcher: Matcher, vocabulary: Vocabulary, max_len: int | None = None) -> frozenset[int]:
    """What the matcher's mask allows; no bit is set beyond the vocabulary."""
    row = np.full(vocabulary.num_words, -1, dtype=np.int32)
    matcher.fill_mask(row, max_len)
    bits = np.unpackbits(row.view(np.uint8), bitorder="little")
    assert not bits[len(vocabulary.tokens) :].any()
    return frozenset(np.flatnonzero(bits).tolist())


def joined(parts: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    pairs = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.one_of(st.builds(And, pairs), st.builds(Or, pairs), st.builds(Not, parts))


texts = st.text(alphabet="ab .\n1-ä\u3000", max_size=6)
# What a literal must be able to say.
any_text = st.text(st.characters(codec="utf-8"), max_size=6)
any_several = st.lists(texts, max_size=3, unique=True).map(tuple)
any_phrases = st.lists(texts.filter(bool), min_size=1, max_size=2, unique=True).map(tuple)

any_atoms: st.SearchStrategy[Expression] = st.one_of(
    st.builds(Compare, st.sampled_from(Measure), st.sampled_from(Relation), st.integers(-3, 12)),
    st.builds(OneOf, any_several),
    st.builds(Contains, st.one_of(texts, any_text)),
    st.builds(StartsWith, any_several),
    st.builds(EndsWith, any_several),
    st.builds(Matches, st.sampled_from((r"[ab]+", r"\d*", r"(a|b)?\.", "", r".*\n", '"\\\\"'))),
    st.just(IsInt()),
    st.just(IsFloat()),
    st.builds(StopsAt, any_phrases),
    st.builds(Constant, st.booleans()),
)


any_conditions: st.SearchStrategy[Expression] = st.recursive(any_atoms, joined, max_leaves=6)
any_expressions: st.SearchStrategy[Expression] = st.one_of(
    any_conditions,
    st.builds(StopsBefore, any_phrases),
    st.builds(
        lambda condition, stop: And((condition, StopsBefore(stop))), any_conditions, any_phrases
    ),
)


PHRASES = ("a", "b", "ab", "aab", " a", ".", "a.", "ä", "日", "1", "-1")
PATTERNS = ("a*b", "(ab|a)*", r"\S+ \S+", "[^b]{1,3}", "a?ä?")

phrases = st.sampled_from(PHRASES)
several = st.lists(phrases, min_size=1, max_size=3, unique=True).map(tuple)
counted = st.builds(
    Compare,
    st.sampled_from((Measure.CHARS, Measure.WORDS, Measure.SENTENCES, Measure.TOKENS)),
    st.sampled_from(Relation),
    st.integers(0, 5),
)
atoms = st.one_of(
    counted,
    counted,
    st.builds(Compare, st.just(Measure.INT), st.sampled_from(Relation), st.integers(-11, 11)),
    st.builds(Contains, phrases),
    st.builds(StartsWith, several),
    st.builds(EndsWith, several),
    st.builds(StopsAt, several),
    st.builds(OneOf, several),
    st.builds(Matches, st.sampled_from(PATTERNS)),
    st.sampled_from((IsInt(), IsFloat())),
)


conditions: st.SearchStrategy[Expression] = st.recursive(atoms, joined, max_leaves=4)
expressions: st.SearchStrategy[Expression] = st.one_of(
    conditions,
    st.builds(lambda part, stop: And((part, StopsBefore(stop))), conditions, several),
)
# More lists than automata can be followed side by side.
listing = st.one_of(*(st.builds(kind, several) for kind in (OneOf, StartsWith, EndsWith)))
many = st.lists(listing, min_size=32, max_size=36).map(tuple)
unions: st.SearchStrategy[Expression] = st.one_of(
    st.builds(Or, many), st.builds(lambda parts: And(tuple(map(Not, parts))), many)
)
