"""Generated tokens on their way to be reported, until it is known how much of their text is shown.

    text of the tokens:  | a | bc | d | ef |
    shown so far:        | a | b......        "cd" may become a stop string
    told:                | a |                 "bc" waits

A token is told once its whole text is shown. When a stop string ends the text, those that wait are
told with what is shown of theirs, so that nothing past the stop can be read off the tokens. It
knows no stop string and no reader.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from router.request.events import TokenGenerated


class ReportedTokens:
    """The tokens that wait, oldest first. `keeps_alternatives`: those of cut tokens, too."""

    __slots__ = ("_keeps_alternatives", "_num_shown", "_waiting")

    def __init__(self, *, keeps_alternatives: bool) -> None:
        self._keeps_alternatives = keeps_alternatives
        self._waiting: deque[tuple[TokenGenerated, int]] = deque()
        # Characters that are shown, and belong to tokens that wait.
        self._num_shown = 0

    def add(self, event: TokenGenerated, text_len: int) -> None:
        """The next token, of so many characters."""
        self._waiting.append((event, text_len))

    def show(self, num_characters: int) -> None:
        """So much more of the text is shown."""
        self._num_shown += num_characters

    def whole(self) -> Iterator[TokenGenerated]:
        """The tokens of which all is shown; they wait no longer."""
        while self._waiting and self._waiting[0][1] <= self._num_shown:
            event, text_len = self._waiting.popleft()
            self._num_shown -= text_len
            yield event

    def cut(self) -> Iterator[TokenGenerated]:
        """All that wait, with what is shown of their texts."""
        while self._waiting:
            yield from self.whole()
            if self._waiting:
                event, _ = self._waiting.popleft()
                yield self._cut(event, self._num_shown)
                self._num_shown = 0

    def all(self) -> Iterator[TokenGenerated]:
        """All that wait, whole: for a pause, behind which nothing is known to be cut off."""
        while self._waiting:
            yield self._waiting.popleft()[0]

    def _cut(self, event: TokenGenerated, num_shown: int) -> TokenGenerated:
        text = event.token.text[:num_shown]
        token = replace(event.token, text=text, hidden=event.token.hidden or not text)
        top_tokens = event.top_tokens if self._keeps_alternatives else ()
        return replace(event, token=token, top_tokens=top_tokens)
