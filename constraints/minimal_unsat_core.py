"""Which of many parts exclude each other, found in few questions; it does not know what parts are.

By halves, as in Junker's QuickXplain: where k of n parts exclude each other, some 2 k log(n / k)
questions find them.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Part = TypeVar("Part")


def minimal_unsat_core(
    parts: Sequence[Part], is_empty: Callable[[Sequence[Part]], bool | None]
) -> tuple[Part, ...]:
    """Parts that nothing satisfies together, in order, none of which can be left out.

    parts:    which nothing satisfies together; of equal conflicts the first one is returned
    is_empty: whether nothing satisfies some of them; None: no more is answered, and all stay that
              were not yet found to be needless
    """
    return tuple(_Halving(is_empty).needed([], list(parts), is_new=False))


class _Halving(Generic[Part]):
    def __init__(self, is_empty: Callable[[Sequence[Part]], bool | None]) -> None:
        self._is_empty = is_empty
        self._is_over = False

    def needed(self, given: list[Part], parts: list[Part], *, is_new: bool) -> list[Part]:
        """Of `parts` those that `given` lacks to be empty; `is_new`: nobody asked of it alone."""
        if is_new and not self._is_over:
            answer = self._is_empty(given)
            if answer:
                return []
            self._is_over = self._is_over or answer is None
        if len(parts) == 1 or self._is_over:
            return parts
        first, second = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        of_second = self.needed(given + first, second, is_new=True)
        return self.needed(given + of_second, first, is_new=bool(of_second)) + of_second
