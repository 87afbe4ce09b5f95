"""Combines expressions of the server's language, with truth values simplified away."""

from collections.abc import Iterable

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
