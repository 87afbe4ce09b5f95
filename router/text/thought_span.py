"""Where an answer begins in a text that may have a thought before it.

Stop strings are for the answer; this says which part of a text they are looked for in.
"""

from constraints.spec import MAX_SPACES, SPACES, ThoughtRule


class ThoughtSpan:
    """Follows one text up to where its answer begins."""

    __slots__ = ("_has_closed", "_held", "_is_open", "_is_over", "_num_spaces", "_rule")

    def __init__(self, rule: ThoughtRule) -> None:
        self._rule = rule
        self._is_open = rule.is_begun
        self._has_closed = False
        # The end of the thought that may begin its closer; before it what may begin its opener.
        self._held = ""
        self._num_spaces = 0
        # The answer has begun.
        self._is_over = False

    def push(self, text: str) -> tuple[str, str]:
        """What the text adds before the answer, and to it. What may be an opener is kept."""
        if self._is_over:
            return "", text
        if self._is_open:
            return self._in_thought(text)
        if self._has_closed:
            return self._behind_spaces("", text)
        text = self._held + text
        body = text[_num_spaces(text, MAX_SPACES) :]
        opener = self._rule.opener
        if body.startswith(opener):
            self._is_open = True
            self._held = ""
            opening = text[: len(text) - len(body) + len(opener)]
            before, answer = self._in_thought(body[len(opener) :])
            return opening + before, answer
        if opener.startswith(body):
            self._held = text
            return "", ""
        self._held = ""
        return self._behind_spaces("", text)

    def flush(self) -> str:
        """What was kept, when no further text comes: it is the answer's."""
        return "" if self._is_open else self._held

    def _in_thought(self, text: str) -> tuple[str, str]:
        closer = self._rule.closer
        window = self._held + text
        start = window.find(closer)
        if start < 0:
            self._held = window[max(0, len(window) - len(closer) + 1) :]
            return text, ""
        end = start + len(closer) - len(self._held)
        self._held = ""
        self._is_open = False
        self._has_closed = True
        return self._behind_spaces(text[:end], text[end:])

    def _behind_spaces(self, before: str, text: str) -> tuple[str, str]:
        num_spaces = _num_spaces(text, MAX_SPACES - self._num_spaces)
        self._num_spaces += num_spaces
        self._is_over = num_spaces < len(text)
        return before + text[:num_spaces], text[num_spaces:]


def answer_in(text: str, rule: ThoughtRule) -> str:
    """What of a finished text is the answer."""
    span = ThoughtSpan(rule)
    _, answer = span.push(text)
    return answer + span.flush()


def _num_spaces(text: str, most: int) -> int:
    """White space at the beginning of a text, at most so much."""
    return len(text[:most]) - len(text[:most].lstrip(SPACES))
