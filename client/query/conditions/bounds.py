"""What is said of the current hole: bounds around a condition.

    lower  <=  the condition  <=  upper

Both are expressions of `constraints.where`. Where they are the same the condition is said exactly;
elsewhere the upper one is a mask that is never too strict, and the condition is left to be checked.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import assert_never

from client.query.conditions.expressions import FALSE, TRUE, opposite
from client.query.conditions.kinds import HoleKind
from client.query.conditions.linear import Quantity
from client.query.conditions.ranges import Range
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
from client.query.errors import BadCondition
from client.query.place import Place
from constraints.where import terms as where


@dataclass(frozen=True, slots=True)
class Bounds:
    """What surely suffices, and what is surely needed."""

    lower: where.Expression
    upper: where.Expression

    @property
    def is_exact(self) -> bool:
        """Whether the condition itself is said."""
        return self.lower == self.upper


OPEN = Bounds(FALSE, TRUE)


@dataclass(frozen=True, slots=True)
class FutureBounds:
    """What is known of holes that are still to come: their kinds, and where their numbers lie.

    needed: if all conditions are to hold, those on the current hole among them
    sure:   whatever the current hole is; its own conditions imply nothing by themselves
    """

    kinds: Mapping[str, HoleKind] = field(default_factory=lambda: MappingProxyType({}))
    needed: Mapping[Quantity, Range] = field(default_factory=lambda: MappingProxyType({}))
    sure: Mapping[Quantity, Range] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class CurrentHole:
    """The hole at which conditions are read.

    values: finished holes by name, this one not among them
    """

    name: str
    kind: HoleKind
    values: Values
    future: FutureBounds = field(default_factory=FutureBounds)

    def kind_of(self, hole: str) -> HoleKind | None:
        """The kind of a hole that is not finished; None: not known."""
        return self.kind if hole == self.name else self.future.kinds.get(hole)

    @property
    def negated(self) -> "CurrentHole":
        """The same for what stands under `not`: there, what has to hold is no longer given."""
        return replace(self, future=replace(self.future, needed=self.future.sure))


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
    """What `and` joins, however deep."""
    if not isinstance(term, All):
        yield term
        return
    for part in term.parts:
        yield from conjuncts_of(part)


def exactly(expression: where.Expression | None) -> Bounds:
    """Said as it is; None: not said at all."""
    return OPEN if expression is None else Bounds(expression, expression)


def negated(inner: Bounds) -> Bounds:
    """What `not` says."""
    return Bounds(opposite(inner.upper), opposite(inner.lower))


def require_text(name: str, kind: HoleKind, place: Place) -> None:
    """Raise BadCondition for an operator on texts where the hole's text is JSON."""
    if kind.schema is not None:
        raise BadCondition(
            f"`{name}` is about texts, and the hole is {kind.name}, whose text is JSON: say it in"
            " its type or schema, or with a function of its value",
            place,
        )
