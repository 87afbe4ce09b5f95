"""Stop strings, found in the text wherever tokens begin and end.

The rule: the stop string that is complete first ends the text; of several that are complete at the
same character, a dropped one before a kept one, then the longest. So a text ends at the earliest
moment, and the same text ends the same way however it was cut into pieces.

Between pushes only the end of the text is kept that begins a stop string. Most texts have none, and
pass with one look at their characters. It knows no tokens and no streams.
"""

from collections.abc import Sequence
from copy import copy


class StopMatcher:
    """Follows one text and ends it at the first stop string.

    With `keep` the stop string stays in the text (TGI), else it is dropped (OpenAI), and so are the
    `dropped` phrases in any case. The end of the text is held back while it may become a string
    that is dropped. `matched` is the stop string that was found, or None.
    """

    def __init__(
        self, stop_strings: tuple[str, ...], keep: bool, dropped: tuple[str, ...] = ()
    ) -> None:
        self.matched: str | None = None
        self._kept = stop_strings if keep else ()
        self._dropped = dropped if keep else (*stop_strings, *dropped)
        self._first_chars = frozenset(stop[0] for stop in (*self._kept, *self._dropped))
        # The longest end of the text that begins a stop string, and how much of it is held back.
        self._tail = ""
        self._num_held = 0

    def fork(self) -> "StopMatcher":
        """Another one, for a text that has been the same so far."""
        return copy(self)

    def push(self, text: str) -> str:
        """Append `text`; returns what may be shown now: nothing once a stop string was found."""
        if self.matched is not None:
            return ""
        if not self._tail and self._first_chars.isdisjoint(text):
            return text
        window, first = self._tail + text, len(self._tail) - self._num_held
        end = self._find_end(window)
        if end is None:
            # What was not held back before begins no dropped string.
            self._num_held = _pending_len(window, first, self._dropped)
            tail_len = max(self._num_held, _pending_len(window, 0, self._kept))
            self._tail = window[len(window) - tail_len :]
            end = len(window) - self._num_held
        return window[first:end]

    def flush(self) -> str:
        """What was held back, when the text ends without a stop string."""
        if self.matched is not None:
            return ""
        held = self._tail[len(self._tail) - self._num_held :]
        self._num_held = 0
        return held

    def _find_end(self, window: str) -> int | None:
        """Find the stop string that ends the text; returns where the shown text ends."""
        found: list[tuple[int, bool, int, str]] = []
        for stops, is_kept in ((self._dropped, False), (self._kept, True)):
            for stop in stops:
                start = window.find(stop)
                if start >= 0:
                    found.append((start + len(stop), is_kept, start, stop))
        if not found:
            return None
        end, is_kept, start, self.matched = min(found)
        return end if is_kept else start


def _pending_len(window: str, first: int, stops: Sequence[str]) -> int:
    """The length of the longest end of window[first:] that begins one of `stops`."""
    pending_len = 0
    for stop in stops:
        start = window.find(stop[0], max(first, len(window) - len(stop) + 1))
        while 0 <= start < len(window) - pending_len:
            if stop.startswith(window[start:]):
                pending_len = len(window) - start
            start = window.find(stop[0], start + 1)
    return pending_len
