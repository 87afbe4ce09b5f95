"""Finds the parts of an expression that exclude each other, for error messages."""

from collections.abc import Callable, Sequence

from constraints.errors import Contradiction, TooComplex
from constraints.minimal_unsat_core import minimal_unsat_core
from constraints.where.normal_form import disjuncts
from constraints.where.terms import And, Expression, all_of
from constraints.where.writing import text

# Of more than these only the first are named in a message.
_MAX_NAMED = 20


def is_plainly_empty(expression: Expression) -> bool:
    """Whether arithmetic shows that nothing satisfies the expression; False if it does not."""
    try:
        return not disjuncts(expression)
    except TooComplex:
        return False


def conflicting(
    expression: Expression, is_empty: Callable[[Expression], bool | None]
) -> tuple[Expression, ...]:
    """A minimal set of parts that nothing satisfies together.

    expression: an unsatisfiable one
    is_empty:   called with some parts of the top-level conjunction; if it raises TooComplex, they
                count as satisfiable, if it returns None, it is not called again
    """
    return minimal_unsat_core(
        top_parts(expression), lambda parts: _is_surely(all_of(parts), is_empty)
    )


def contradiction(
    expression: Expression, is_empty: Callable[[Expression], bool | None]
) -> Contradiction:
    """The error for an expression that nothing satisfies."""
    return contradiction_of(conflicting(expression, is_empty))


def contradiction_of(conflict: Sequence[Expression]) -> Contradiction:
    """The error for expressions that nothing satisfies together."""
    parts = tuple(map(text, conflict))
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


def _is_surely(
    expression: Expression, is_empty: Callable[[Expression], bool | None]
) -> bool | None:
    if is_plainly_empty(expression):
        return True
    try:
        return is_empty(expression)
    except TooComplex:
        return False
