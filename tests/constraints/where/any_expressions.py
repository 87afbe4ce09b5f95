"""Every kind of term, corners included (empty lists, patterns with quotes), and short texts."""

from hypothesis import strategies as st

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

texts = st.text(alphabet="ab .\n1-ä\u3000", max_size=6)
# What a literal must be able to say.
any_text = st.text(st.characters(codec="utf-8"), max_size=6)
several = st.lists(texts, max_size=3, unique=True).map(tuple)
phrases = st.lists(texts.filter(bool), min_size=1, max_size=2, unique=True).map(tuple)

atoms: st.SearchStrategy[Expression] = st.one_of(
    st.builds(Compare, st.sampled_from(Measure), st.sampled_from(Relation), st.integers(-3, 12)),
    st.builds(OneOf, several),
    st.builds(Contains, st.one_of(texts, any_text)),
    st.builds(StartsWith, several),
    st.builds(EndsWith, several),
    st.builds(Matches, st.sampled_from((r"[ab]+", r"\d*", r"(a|b)?\.", "", r".*\n", '"\\\\"'))),
    st.just(IsInt()),
    st.just(IsFloat()),
    st.builds(StopsAt, phrases),
    st.builds(Constant, st.booleans()),
)


def _joined(parts: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    two_or_three = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.one_of(
        st.builds(And, two_or_three), st.builds(Or, two_or_three), st.builds(Not, parts)
    )


conditions: st.SearchStrategy[Expression] = st.recursive(atoms, _joined, max_leaves=6)
expressions: st.SearchStrategy[Expression] = st.one_of(
    conditions,
    st.builds(StopsBefore, phrases),
    st.builds(lambda condition, stop: And((condition, StopsBefore(stop))), conditions, phrases),
)
