"""Groups phrases, so that one automaton searches for all of them.

"a" in X or "b" in X            ContainsAny(a, b)
"a" not in X and "b" not in X   not ContainsAny(a, b)
X != "a" and X != "b"           X not in ["a", "b"]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from constraints.where.normal_form import to_nnf, with_lists_joined
from constraints.where.terms import (
    And,
    Contains,
    EndsWith,
    Expression,
    Not,
    OneOf,
    Or,
    StartsWith,
    StopsAt,
    all_of,
    any_of,
)


@dataclass(frozen=True, slots=True)
class ContainsAny:
    """At least one of the phrases occurs in the output. Internal: it has no syntax."""

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
            return all_of(_conjunction(parts))
        case _:
            return expression


def _conjunction(parts: Sequence[Expression]) -> list[Expression]:
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
