"""The streams of OpenAI's routes: chunks of several choices, ended by `[DONE]`.

It knows neither chats nor completions: what a choice's chunk looks like, `ChoiceFrames` says.
"""

from collections.abc import Sequence
from typing import Protocol

import orjson

from router.http.errors import problem_of
from router.http.openai.reply import Envelope, RunningUsage, Usage
from router.http.request_record import RequestRecord
from router.http.server.errors import Dialect
from router.request.errors import RouterError
from router.request.events import Event, Failed, Finished, PromptScored, TokenGenerated

_DONE = b"data: [DONE]\n\n"
# The end of a chunk, and of nothing else: JSON's texts hold no line breaks.
_NO_USAGE = b'"usage":null}\n\n'


class ChoiceFrames(Protocol):
    """The chunks of one choice; empty bytes when there is nothing to say."""

    def scored(self, event: PromptScored, /) -> bytes:
        """The prompt's log-probabilities."""

    def token(self, event: TokenGenerated, /) -> bytes:
        """A token."""

    def finished(self, event: Finished, /) -> bytes:
        """The end."""


class OpenAiFrames:
    """Frames of one stream. `choices` are in the order of the draws.

    With `running` each chunk tells the usage so far, in the place of null.
    """

    def __init__(
        self,
        record: RequestRecord,
        envelope: Envelope,
        choices: Sequence[ChoiceFrames],
        usage: Usage,
        *,
        includes_usage: bool,
        running: RunningUsage | None = None,
    ) -> None:
        self._exchange = record
        self._envelope = envelope
        self._choices = choices
        self._usage = usage
        self._includes_usage = includes_usage
        self._running = running

    def render(self, index: int, burst: Sequence[Event]) -> bytes:
        """The chunks of what happened to a choice."""
        if self._running is not None:
            return b"".join([self._counted(index, event, self._running) for event in burst])
        if len(burst) == 1:
            return self._chunks(index, burst[0])
        return b"".join([self._chunks(index, event) for event in burst])

    def fail(self, error: RouterError) -> bytes:
        """An error event, then the end."""
        problem = problem_of(error, Dialect.OPENAI)
        self._exchange.error_type = problem.error_type
        return problem.frame() + _DONE

    def end(self) -> bytes:
        """The usage, if it was asked for, and the end."""
        if not self._includes_usage:
            return _DONE
        usage = orjson.dumps(self._usage.fields())
        return self._envelope.chunk_head() + b'],"usage":' + usage + b"}\n\n" + _DONE

    def _counted(self, index: int, event: Event, running: RunningUsage) -> bytes:
        if isinstance(event, TokenGenerated):
            running.add_token()
        usage = b'"usage":' + orjson.dumps(running.fields()) + b"}\n\n"
        return self._chunks(index, event).replace(_NO_USAGE, usage)

    def _chunks(self, index: int, event: Event) -> bytes:
        choice = self._choices[index]
        if isinstance(event, TokenGenerated):
            return choice.token(event)
        if isinstance(event, Finished):
            self._usage.add(index, event)
            self._exchange.finished(event)
            return choice.finished(event)
        if isinstance(event, Failed):
            raise event.error
        return choice.scored(event)
