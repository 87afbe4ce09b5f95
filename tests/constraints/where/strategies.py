"""Random expressions over a few characters, small bounds and phrases that overlap."""

from hypothesis import strategies as st

from constraints.where.terms import (
    And,
    Compare,
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


def joined(parts: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    pairs = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.one_of(st.builds(And, pairs), st.builds(Or, pairs), st.builds(Not, parts))


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
