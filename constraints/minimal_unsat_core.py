"""Finds a minimal set of parts that exclude each other, with few satisfiability checks.

By bisection, as in Junker's QuickXplain: k of n parts are found with some 2 k log(n / k) checks.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Part = TypeVar("Part")


def minimal_unsat_core(
    parts: Sequence[Part], is_empty: Callable[[Sequence[Part]], bool | None]
) -> tuple[Part, ...]:
    """A minimal set of parts that nothing satisfies together, in order.

    parts:    unsatisfiable together; of equal conflicts the first one is returned
    is_empty: whether nothing satisfies some of them; None: no further answers, so the parts that
              are not yet known to be unnecessary stay in the result
    """
    return tuple(_Halving(is_empty).needed([], list(parts), is_new=False))


class _Halving(Generic[Part]):
    def __init__(self, is_empty: Callable[[Sequence[Part]], bool | None]) -> None:
        self._is_empty = is_empty
        self._is_over = False

    def needed(self, given: list[Part], parts: list[Part], *, is_new: bool) -> list[Part]:
        """A minimal subset that conflicts with `given`; `is_new`: `given` was not checked yet."""
        if is_new and not self._is_over:
            answer = self._is_empty(given)
            if answer:
                return []
            self._is_over = self._is_over or answer is None
        if len(parts) == 1 or self._is_over:
            return parts
        first = parts[: len(parts) // 2]
        second = parts[len(parts) // 2 :]
        of_second = self.needed(given + first, second, is_new=True)
        return self.needed(given + of_second, first, is_new=bool(of_second)) + of_second
