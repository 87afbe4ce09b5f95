"""Texts that a search tries; some of them are made only when a search begins.

Every output starts from a text of the whole constraint. Texts of its parts are for searches from
the middle, which come later or never, so they do not delay the first token.
"""

import threading
from collections.abc import Callable


class CompletionHints:
    """The hints of a constraint; shared by threads.

    first: hints known from the beginning, the best one first. For a schema or a pattern that is a
           whole text of it, if one was found
    """

    def __init__(
        self, first: tuple[bytes, ...] = (), more: Callable[[], tuple[bytes, ...]] | None = None
    ) -> None:
        """`more` makes the hints behind `first`; it is called at most once."""
        self.first = first
        self._more = more
        self._all = first
        self._lock = threading.Lock()

    @property
    def are_made(self) -> bool:
        """Whether `all` returns without computing."""
        return self._more is None

    def all(self) -> tuple[bytes, ...]:
        """All hints, each once, the best first."""
        if self._more is not None:
            with self._lock:
                if self._more is not None:
                    self._all = tuple(dict.fromkeys((*self.first, *self._more())))
                    self._more = None
        return self._all
