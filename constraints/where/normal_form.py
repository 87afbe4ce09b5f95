"""Normal forms of expressions, and which parts of an expression exclude each other.

    expression --to_nnf--> `not` only before atoms --group_phrases--> fewer atoms

Phrases are grouped, so that one automaton searches for all of them:

"a" in X or "b" in X            ContainsAny(a, b)
"a" not in X and "b" not in X   not ContainsAny(a, b)
X != "a" and X != "b"           X not in ["a", "b"]
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from constraints.errors import Contradiction, TooComplex, minimal_unsat_core
from constraints.regex.limits import OutOfReach
from constraints.where.terms import (
    And,
    Compare,
    Constant,
    Contains,
    EndsWith,
    Expression,
    IsInt,
    Measure,
    Not,
    OneOf,
    Or,
    Relation,
    StartsWith,
    StopsAt,
    all_of,
    any_of,
    text,
)

_OPPOSITES = {
    Relation.LT: Relation.GE,
    Relation.LE: Relation.GT,
    Relation.EQ: Relation.NE,
    Relation.NE: Relation.EQ,
    Relation.GE: Relation.LT,
    Relation.GT: Relation.LE,
}


def to_nnf(expression: Expression) -> Expression:
    """Negation normal form: `not` only before atoms that are no comparison and no constant.

    Nested conjunctions are flattened, duplicates and truth values removed (unless nothing else is
    left). Under `or`, lists of texts, of beginnings and of endings are joined: there may be
    hundreds.
    """
    match expression:
        case And(parts):
            return _conjunction(map(to_nnf, parts))
        case Or(parts):
            return _disjunction(map(to_nnf, parts))
        case Not(part):
            return _opposite(part)
        case _:
            return expression


def _opposite(expression: Expression) -> Expression:
    """The normal form of the negation."""
    match expression:
        case And(parts):
            return _disjunction(map(_opposite, parts))
        case Or(parts):
            return _conjunction(map(_opposite, parts))
        case Not(part):
            return to_nnf(part)
        case Constant(value):
            return Constant(not value)
        case Compare(Measure.INT, relation, bound):
            # A text that is no integer satisfies no comparison.
            return Or((Not(IsInt()), Compare(Measure.INT, _OPPOSITES[relation], bound)))
        case Compare(measure, relation, bound):
            return Compare(measure, _OPPOSITES[relation], bound)
        case _:
            return Not(expression)


def _conjunction(parts: Iterable[Expression]) -> Expression:
    flat = _flat(parts, And)
    if Constant(False) in flat:
        return Constant(False)
    return all_of(part for part in flat if part != Constant(True))


def _disjunction(parts: Iterable[Expression]) -> Expression:
    flat = _flat(parts, Or)
    if Constant(True) in flat:
        return Constant(True)
    return any_of(with_lists_joined(part for part in flat if part != Constant(False)))


def with_lists_joined(parts: Iterable[Expression]) -> list[Expression]:
    """The parts of an `or` with one list of each kind; these lists come first."""
    listed: dict[type[OneOf | StartsWith | EndsWith], dict[str, None]] = {}
    others: list[Expression] = []
    for part in parts:
        match part:
            case OneOf(texts) | StartsWith(texts) | EndsWith(texts):
                listed.setdefault(type(part), {}).update(dict.fromkeys(texts))
            case _:
                others.append(part)
    return [*(kind(tuple(texts)) for kind, texts in listed.items()), *others]


def _flat(parts: Iterable[Expression], joined: type[And] | type[Or]) -> dict[Expression, None]:
    """The flattened parts, each once, in their order."""
    found: dict[Expression, None] = {}
    for part in parts:
        found.update(dict.fromkeys(part.parts if isinstance(part, joined) else (part,)))
    return found


@dataclass(frozen=True, slots=True)
class ContainsAny:
    """At least one of the phrases occurs in the output. An atom without syntax."""

    phrases: tuple[str, ...]


def group_phrases(expression: Expression) -> Expression:
    """The normal form with grouped phrases; some atoms are ContainsAny."""
    return _group_phrases(to_nnf(expression))


def _group_phrases(expression: Expression) -> Expression:
    match expression:
        case Or(parts):
            phrases = [part.phrase for part in parts if isinstance(part, Contains)]
            others = [_group_phrases(part) for part in parts if not isinstance(part, Contains)]
            return any_of([*_any_of_phrases(phrases), *others])
        case And(parts):
            return all_of(_grouped_conjunction(parts))
        case _:
            return expression


def _grouped_conjunction(parts: Sequence[Expression]) -> list[Expression]:
    excluded: list[str] = []
    lists: list[Expression] = []
    stops: list[str] = []
    others: list[Expression] = []
    for part in parts:
        match part:
            case Not(Contains(phrase)):
                excluded.append(phrase)
            case Not(OneOf() | StartsWith() | EndsWith() as atom):
                lists.append(atom)
            case StopsAt(phrases):
                stops.extend(phrases)
            case _:
                others.append(_group_phrases(part))
    none = [Not(each) for each in (*_any_of_phrases(excluded), *with_lists_joined(lists))]
    return [*others, *none, *([StopsAt(tuple(stops))] if stops else [])]


def _any_of_phrases(phrases: list[str]) -> list[Expression]:
    if len(phrases) < 2:
        return [Contains(phrase) for phrase in phrases]
    # Only the automata see it, as an atom like others.
    return [cast(Expression, ContainsAny(tuple(dict.fromkeys(phrases))))]


# A query has the same conditions again and again.
@lru_cache(maxsize=256)
def is_plainly_empty(expression: Expression) -> bool:
    """Whether no text satisfies the expression; False where that is not known.

    Takes milliseconds.
    """
    # Clients that ask nothing do without numpy.
    from constraints.where.counter_grid import is_empty  # noqa: PLC0415

    try:
        return is_empty(expression)
    except (OutOfReach, TooComplex):
        return False


# Of more than these only the first are named in a message.
_MAX_NAMED = 20


def conflicting(
    expression: Expression, excludes_itself: Callable[[Expression], bool | None]
) -> tuple[Expression, ...]:
    """A minimal set of parts that nothing satisfies together.

    expression: an unsatisfiable one
    excludes_itself: called with some parts of the top-level conjunction; if it returns None, it
                is not called again
    """
    return minimal_unsat_core(top_parts(expression), lambda parts: excludes_itself(all_of(parts)))


def contradiction(
    expression: Expression, excludes_itself: Callable[[Expression], bool | None]
) -> Contradiction:
    """The error for an expression that nothing satisfies."""
    parts = tuple(map(text, conflicting(expression, excludes_itself)))
    if len(parts) == 1:
        return Contradiction(f"nothing satisfies `{parts[0]}`", parts)
    if len(parts) > _MAX_NAMED:
        listed = ", ".join(f"`{part}`" for part in parts[:_MAX_NAMED])
        others = len(parts) - _MAX_NAMED
        return Contradiction(f"nothing satisfies all of {listed} and {others} others", parts)
    listed = ", ".join(f"`{part}`" for part in parts[:-1])
    return Contradiction(f"nothing satisfies both {listed} and `{parts[-1]}`", parts)


def top_parts(expression: Expression) -> tuple[Expression, ...]:
    """The parts of the top-level `and`, with chained comparisons split."""
    if not isinstance(expression, And):
        return (expression,)
    return tuple(part for joined in expression.parts for part in top_parts(joined))
