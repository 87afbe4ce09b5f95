"""Lower and upper bounds of a condition, as constraints on the current hole.

    lower  <=  the condition  <=  upper

Both are expressions of `constraints.where`, combined with truth values simplified away. If they are
equal, the condition is expressed exactly; otherwise the upper one is a mask that is never too
strict, and the condition is checked afterwards.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never

from client.query.conditions.kinds import HoleKind
from client.query.conditions.terms import (
    All,
    AnyOf,
    Calculated,
    Called,
    Compared,
    Not,
    Opaque,
    Ref,
    Term,
    Value,
)
from client.query.conditions.values import Values
from client.query.errors import BadCondition, Place
from constraints.where import terms as where

FALSE = where.Constant(False)
TRUE = where.Constant(True)


def all_of(parts: Iterable[where.Expression]) -> where.Expression:
    """The conjunction without duplicates and truth values."""
    kept = dict.fromkeys(part for part in parts if part != TRUE)
    return FALSE if FALSE in kept else where.all_of(kept)


def any_of(parts: Iterable[where.Expression]) -> where.Expression:
    """The disjunction without duplicates and truth values."""
    kept = dict.fromkeys(part for part in parts if part != FALSE)
    return TRUE if TRUE in kept else where.any_of(kept)


def opposite(expression: where.Expression) -> where.Expression:
    """The negation."""
    match expression:
        case where.Constant(value):
            return where.Constant(not value)
        case where.Not(part):
            return part
    return where.Not(expression)


@dataclass(frozen=True, slots=True)
class Bounds:
    """A sufficient and a necessary constraint."""

    lower: where.Expression
    upper: where.Expression

    @property
    def is_exact(self) -> bool:
        """Whether the condition is expressed exactly."""
        return self.lower == self.upper


OPEN = Bounds(FALSE, TRUE)


@dataclass(frozen=True, slots=True)
class CurrentHole:
    """The hole for which conditions are evaluated.

    values: finished holes by name, without this one
    """

    name: str
    kind: HoleKind
    values: Values


def names_of(term: Term) -> frozenset[str]:
    """The holes in a term."""
    match term:
        case Value():
            return frozenset()
        case Ref(name):
            return frozenset((name,))
        case Opaque(names):
            return frozenset(names)
        case Not(part):
            return names_of(part)
        case All(parts) | AnyOf(parts) | Called(arguments=parts):
            return frozenset().union(*map(names_of, parts))
        case Compared(left, _, right) | Calculated(left, _, right):
            return names_of(left) | names_of(right)
    assert_never(term)


def conjuncts_of(term: Term) -> Iterator[Term]:
    """The parts of nested `and`s."""
    if not isinstance(term, All):
        yield term
        return
    for part in term.parts:
        yield from conjuncts_of(part)


def exactly(expression: where.Expression | None) -> Bounds:
    """Exact bounds; None: no bounds."""
    return OPEN if expression is None else Bounds(expression, expression)


def negated(inner: Bounds) -> Bounds:
    """The bounds of `not`."""
    return Bounds(opposite(inner.upper), opposite(inner.lower))


def require_text(name: str, kind: HoleKind, place: Place) -> None:
    """Raise BadCondition for an operator on text if the hole's text is JSON."""
    if kind.schema is not None:
        raise BadCondition(
            f"`{name}` is about texts, and the hole is {kind.name}, whose text is JSON: say it in"
            " its type or schema, or with a function of its value",
            place,
        )
