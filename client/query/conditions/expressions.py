"""Expressions of the server's language put together, without truth values wherever one decides."""

from collections.abc import Iterable

from constraints.where import terms as where

FALSE, TRUE = where.Constant(False), where.Constant(True)


def all_of(parts: Iterable[where.Expression]) -> where.Expression:
    """All parts, without truth values unless one decides; each once."""
    kept = dict.fromkeys(part for part in parts if part != TRUE)
    return FALSE if FALSE in kept else where.all_of(kept)


def any_of(parts: Iterable[where.Expression]) -> where.Expression:
    """At least one part, without truth values unless one decides; each once."""
    kept = dict.fromkeys(part for part in parts if part != FALSE)
    return TRUE if TRUE in kept else where.any_of(kept)


def opposite(expression: where.Expression) -> where.Expression:
    """The expression does not hold."""
    match expression:
        case where.Constant(value):
            return where.Constant(not value)
        case where.Not(part):
            return part
    return where.Not(expression)
