"""The stream of a response: typed events, numbered, each with its name on a line of its own.

    created in_progress output_item.added content_part.added output_text.delta* output_text.done
    content_part.done output_item.done (completed | incomplete), or error failed

What happens with every token is a constant, the text as JSON, and its number. No `[DONE]`.
"""

import time
from collections.abc import Callable
from typing import Any

import orjson

from router.errors import RouterError
from router.events import Finished, TokenGenerated
from router.http.errors import Problem
from router.http.openai.logprobs import ChatLogprobs
from router.http.openai.responses.items import message_fields, output_part
from router.http.openai.responses.reply import Reply, logprobs_of, status_of


class ResponseWords:
    """The events of one response.

    `keep` gets the whole response and its end before the client. Without `logprobs` none are told.
    """

    def __init__(
        self,
        reply: Reply,
        keep: Callable[[dict[str, Any], Finished], None],
        logprobs: ChatLogprobs | None,
    ) -> None:
        self._reply = reply
        self._keep = keep
        self._logprobs = logprobs
        self._told: list[dict[str, Any]] = []
        self._has_item = False
        self._num_events = 0
        place = orjson.dumps({"item_id": reply.item_id, "output_index": 0, "content_index": 0})
        self._delta = (
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'
            + place[1:-1]
            + b',"delta":'
        )

    def opening(self) -> bytes:
        """The response without output, twice: it was made, it has begun."""
        response = {"response": self._reply.in_progress()}
        return self._event("response.created", response) + self._event(
            "response.in_progress", response
        )

    def token(self, event: TokenGenerated) -> bytes:
        """The text that may be shown now; nothing while it is held back."""
        if self._logprobs is None:
            return self._text(event.text, b"[]") if event.text else b""
        told = logprobs_of((event,), self._logprobs)
        self._told += told
        return self._text(event.text, orjson.dumps(told))

    def finished(self, event: Finished) -> bytes:
        """What was held back, then the text, its part, its message and the response, whole."""
        last = self._text(event.tail, b"[]") if event.tail else self._begin()
        item = self._reply.item(event, self._told)
        response = self._reply.ended(event, self._told, int(time.time()))
        self._keep(response, event)
        place = {"item_id": self._reply.item_id, "output_index": 0, "content_index": 0}
        return b"".join(
            (
                last,
                self._event(
                    "response.output_text.done",
                    {**place, "text": event.text, "logprobs": self._told},
                ),
                self._event("response.content_part.done", {**place, "part": item["content"][0]}),
                self._event("response.output_item.done", {"output_index": 0, "item": item}),
                self._event(f"response.{status_of(event)}", {"response": response}),
            )
        )

    def failed(self, error: RouterError, problem: Problem) -> bytes:
        """An error event, then the response as failed."""
        fault = {"code": problem.error_type, "message": str(error), "param": None}
        response = self._reply.failed(str(error))
        return self._event("error", fault) + self._event("response.failed", {"response": response})

    def _text(self, text: str, logprobs: bytes) -> bytes:
        begin = b"" if self._has_item else self._begin()
        number = self._num_events
        self._num_events += 1
        return b'%b%b%b,"logprobs":%b,"sequence_number":%d}\n\n' % (
            begin,
            self._delta,
            orjson.dumps(text),
            logprobs,
            number,
        )

    def _begin(self) -> bytes:
        """The message and its part, before their first text."""
        if self._has_item:
            return b""
        self._has_item = True
        item_id = self._reply.item_id
        place = {"item_id": item_id, "output_index": 0, "content_index": 0}
        item = message_fields(item_id, "assistant", "in_progress", [])
        return self._event(
            "response.output_item.added", {"output_index": 0, "item": item}
        ) + self._event("response.content_part.added", {**place, "part": output_part("", [])})

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        data = orjson.dumps({"type": name, **fields, "sequence_number": self._num_events})
        self._num_events += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
