"""Which expressions nothing satisfies, and which of their parts exclude each other."""

from functools import lru_cache
from time import thread_time

from constraints.errors import Contradiction, TooComplex
from constraints.regex.limits import OutOfReach
from constraints.where.terms import And, Expression, all_of, text


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


# The most CPU seconds for leaving out what a contradiction does not need.
_MAX_S = 0.5
# Of more parts than these only the first are named in a message.
_MAX_NAMED = 20


def contradiction(expression: Expression) -> Contradiction:
    """The error for an expression that nothing satisfies."""
    parts = _excluding_each_other(expression)
    listed = [f"`{part}`" for part in map(text, parts)]
    if len(listed) == 1:
        what = listed[0]
    elif len(listed) > _MAX_NAMED:
        what = f"all of {', '.join(listed[:_MAX_NAMED])} and {len(listed) - _MAX_NAMED} others"
    else:
        what = f"both {', '.join(listed[:-1])} and {listed[-1]}"
    return Contradiction(f"nothing satisfies {what}", tuple(map(text, parts)))


def _excluding_each_other(expression: Expression) -> list[Expression]:
    """The parts that nothing satisfies together, without others as far as time allows.

    All of them where tokens matter, which texts alone do not show.
    """
    parts = list(top_parts(expression))
    if not is_plainly_empty(expression):
        return parts
    began = thread_time()
    num_left_out = len(parts) // 2
    while num_left_out:
        start = 0
        while start < len(parts) and thread_time() - began < _MAX_S:
            fewer = parts[:start] + parts[start + num_left_out :]
            if fewer and is_plainly_empty(all_of(fewer)):
                parts = fewer
            else:
                start += num_left_out
        num_left_out //= 2
    return parts


def top_parts(expression: Expression) -> tuple[Expression, ...]:
    """The parts of the top-level `and`, with chained comparisons split."""
    if not isinstance(expression, And):
        return (expression,)
    return tuple(part for joined in expression.parts for part in top_parts(joined))
