"""Which parts of an expression exclude each other: what a refusal tells its author."""

from collections.abc import Callable

from constraints.errors import Contradiction, TooComplex
from constraints.where.normal import disjuncts
from constraints.where.terms import And, Expression, all_of
from constraints.where.writing import text


def is_plainly_empty(expression: Expression) -> bool:
    """Arithmetic shows that nothing satisfies the expression; False where it does not."""
    try:
        return not disjuncts(expression)
    except TooComplex:
        return False


def conflicting(
    expression: Expression, is_empty: Callable[[Expression], bool]
) -> tuple[Expression, ...]:
    """Parts that nothing satisfies together, none of which can be left out.

    expression: one that `is_empty` says nothing satisfies
    is_empty:   asked once for each part of the conjunction at the top; where it raises TooComplex,
                the part stays
    """
    kept = list(top_parts(expression))
    # Backwards, so that of equal conflicts the one is told that was written first.
    for index in range(len(kept) - 1, -1, -1):
        fewer = kept[:index] + kept[index + 1 :]
        if fewer and _is_surely(all_of(fewer), is_empty):
            kept = fewer
    return tuple(kept)


def contradiction(expression: Expression, is_empty: Callable[[Expression], bool]) -> Contradiction:
    """The error for an expression that nothing satisfies."""
    parts = tuple(map(text, conflicting(expression, is_empty)))
    if len(parts) == 1:
        return Contradiction(f"nothing satisfies `{parts[0]}`", parts)
    listed = ", ".join(f"`{part}`" for part in parts[:-1])
    return Contradiction(f"nothing satisfies both {listed} and `{parts[-1]}`", parts)


def top_parts(expression: Expression) -> tuple[Expression, ...]:
    """What `and` joins at the top, the parts of chained comparisons one by one."""
    if not isinstance(expression, And):
        return (expression,)
    return tuple(part for joined in expression.parts for part in top_parts(joined))


def _is_surely(expression: Expression, is_empty: Callable[[Expression], bool]) -> bool:
    if is_plainly_empty(expression):
        return True
    try:
        return is_empty(expression)
    except TooComplex:
        return False
