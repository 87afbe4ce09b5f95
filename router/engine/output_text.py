"""One output's text: its tokens joined to characters, and ended by its stop strings.

    token ids -> Detokenizer -> StopMatcher -> what may be shown now

An output that was cut and is gone on with has tokens that were made before. Their text was shown
by then, all but what was held back: bytes of a character that is not complete, and what may become
a stop string that is dropped. Those are shown with the tokens that follow, so the pieces of all
parts, without what a part flushed at its end, are the text of the whole, wherever it was cut. It
knows no events and no reader.
"""

from collections.abc import Iterable
from copy import copy

from router.request.request import GenerateRequest
from router.text.detokenizer import Detokenizer
from router.text.stop_strings import StopMatcher
from router.text.tokenizer import Tokenizer


class OutputText:
    """The text of a request's output; begins behind the tokens that were made before."""

    __slots__ = ("_detokenizer", "_matcher", "text_before")

    def __init__(self, request: GenerateRequest, tokenizer: Tokenizer) -> None:
        stop, constraint = request.stop, request.constraint
        self._detokenizer = Detokenizer(
            tokenizer,
            request.skip_special_tokens,
            request.prompt_ids,
            is_whole=constraint is not None,
        )
        dropped = () if constraint is None else constraint.dropped_phrases
        self._matcher = (
            StopMatcher(stop.stop_strings, stop.keep_stop_string, dropped)
            if stop.stop_strings or dropped
            else None
        )
        # What was shown of them.
        self.text_before = self._replay(request.output_ids)

    def fork(self) -> "OutputText":
        """Another one that stands where this one stands: neither hears of the other's tokens."""
        other = copy(self)
        other._detokenizer = self._detokenizer.fork()
        other._matcher = None if self._matcher is None else self._matcher.fork()
        return other

    def grown(self, token_id: int) -> "OutputText":
        """The text of the output that has one token more which was made before."""
        other = self.fork()
        other.text_before += other.push(token_id)[1]
        return other

    def standing(self) -> tuple[str, str]:
        """What was shown of the tokens made before, and what was held back if no other comes."""
        return self.text_before, self.fork().flush()

    @property
    def is_watched(self) -> bool:
        """There are strings that may end it."""
        return self._matcher is not None

    @property
    def matched(self) -> str | None:
        """The stop string that ended it."""
        return None if self._matcher is None else self._matcher.matched

    def push(self, token_id: int) -> tuple[str, str]:
        """The text that a token adds, and what may be shown now."""
        pushed = self._detokenizer.push(token_id)
        return pushed, pushed if self._matcher is None else self._matcher.push(pushed)

    def flush(self) -> str:
        """What was held back, when no further token comes; it may complete a stop string."""
        if self.matched is not None:
            return ""
        tail = self._detokenizer.flush()
        if self._matcher is not None:
            tail = self._matcher.push(tail) + self._matcher.flush()
        return tail

    def _replay(self, token_ids: Iterable[int]) -> str:
        return "".join([self.push(token_id)[1] for token_id in token_ids])
