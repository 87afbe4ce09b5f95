"""One output's text: tokens to text, up to a stop string."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import copy

from router.request.request import GenerateRequest, TokenGenerated
from router.text.detokenizer import Detokenizer
from router.text.thought_span import ThoughtSpan
from router.text.tokenizer import Tokenizer


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
        window = self._tail + text
        first = len(self._tail) - self._num_held
        end = self._find_end(window)
        if end is None:
            # What was not held back before begins no dropped string.
            self._num_held = _pending_len(window, first, self._dropped)
            tail_len = max(self._num_held, _pending_len(window, 0, self._kept))
            self._tail = window[len(window) - tail_len :]
            end = len(window) - self._num_held
        return window[first:end]

    def pass_by(self, text: str) -> str:
        """Append a text in which no stop string is looked for, nor one that goes across it."""
        held = self.flush()
        self._tail = ""
        return held if self.matched is not None else held + text

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


class OutputText:
    """The text of a request's output; begins behind the tokens that were made before."""

    __slots__ = ("_detokenizer", "_matcher", "_shown_ids", "_span", "text_before")

    def __init__(self, request: GenerateRequest, tokenizer: Tokenizer) -> None:
        stop = request.stop
        constraint = request.constraint
        self._detokenizer = Detokenizer(
            tokenizer,
            request.skip_special_tokens,
            request.prompt_ids,
            is_whole=request.has_rule,
            shown_ids=request.shown_ids,
        )
        dropped = () if constraint is None else constraint.dropped_phrases
        self._shown_ids = request.shown_ids
        self._matcher = (
            StopMatcher(stop.stop_strings, stop.keep_stop_string, dropped)
            if stop.stop_strings or dropped
            else None
        )
        # Stop strings are for the answer alone.
        thought = None if self._matcher is None else request.thought
        self._span = None if thought is None else ThoughtSpan(thought)
        # What was shown of them.
        self.text_before = "" if request.is_moved else self._replay(request.output_ids)

    def fork(self) -> "OutputText":
        """An independent copy."""
        other = copy(self)
        other._detokenizer = self._detokenizer.fork()
        other._matcher = None if self._matcher is None else self._matcher.fork()
        other._span = copy(self._span)
        return other

    def grown(self, token_id: int) -> "OutputText":
        """A copy with one more token made before."""
        other = self.fork()
        other.text_before += other.push(token_id)[1]
        return other

    def standing(self) -> str:
        """The text of the tokens made before, if it ends there."""
        return self.text_before + self.fork().flush()

    @property
    def is_watched(self) -> bool:
        """True if strings may end it."""
        return self._matcher is not None

    @property
    def matched(self) -> str | None:
        """The stop string that ended it."""
        return None if self._matcher is None else self._matcher.matched

    def push(self, token_id: int) -> tuple[str, str]:
        """The text that a token adds, and what may be shown now."""
        pushed = self._detokenizer.push(token_id)
        if self._matcher is None:
            return pushed, pushed
        before, answer = ("", pushed) if self._span is None else self._span.push(pushed)
        # The marks of a format are no text of the answer.
        takes = self._matcher.pass_by if token_id in self._shown_ids else self._matcher.push
        return pushed, before + takes(answer)

    def flush(self) -> str:
        """What was held back, when no further token comes; it may complete a stop string."""
        if self.matched is not None:
            return ""
        tail = self._detokenizer.flush()
        if self._matcher is None:
            return tail
        if self._span is None:
            return self._matcher.push(tail) + self._matcher.flush()
        before, answer = self._span.push(tail)
        return before + self._matcher.push(answer + self._span.flush()) + self._matcher.flush()

    def _replay(self, token_ids: Iterable[int]) -> str:
        return "".join([self.push(token_id)[1] for token_id in token_ids])


class HeldTokens:
    """Generated tokens, oldest first, that wait until it is known how much of their text is shown.

        text of the tokens:  | a | bc | d | ef |
        shown so far:        | a | b......        "cd" may become a stop string
        reported:            | a |                "bc" waits

    A token is reported once its whole text is shown. When a stop string ends the text, those that
    wait are reported with what is shown of theirs, so that the tokens reveal nothing past the stop.
    `keeps_alternatives`: those of cut tokens are reported, too.
    """

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
        """So many further characters of the text are shown."""
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
        token = event.token._replace(text=text, hidden=event.token.hidden or not text)
        top_tokens = event.top_tokens if self._keeps_alternatives else ()
        return event._replace(token=token, top_tokens=top_tokens)
