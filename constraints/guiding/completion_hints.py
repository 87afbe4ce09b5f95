"""Texts that a search tries, some of them made only when one is begun.

A text of the whole constraint is what every output begins with. Those of its parts are for searches
from the middle, which come later, or never: nobody waits for them before the first token.
"""

import threading
from collections.abc import Callable


class CompletionHints:
    """Owner of a constraint's hints; shared by threads.

    first: those that are there from the beginning, the best one first. Of a schema and of a
           pattern that is a whole text of it, where one was seen
    """

    def __init__(
        self, first: tuple[bytes, ...] = (), more: Callable[[], tuple[bytes, ...]] | None = None
    ) -> None:
        """`more` makes those behind `first`, and is called once at most."""
        self.first = first
        self._more = more
        self._all = first
        self._lock = threading.Lock()

    @property
    def are_made(self) -> bool:
        """Whether `all` answers at once."""
        return self._more is None

    def all(self) -> tuple[bytes, ...]:
        """Each once, the best first."""
        if self._more is not None:
            with self._lock:
                if self._more is not None:
                    self._all = tuple(dict.fromkeys((*self.first, *self._more())))
                    self._more = None
        return self._all
