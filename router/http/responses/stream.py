"""The stream of a response: typed events, numbered, each with its name on a line of its own.

    created in_progress (output_item.added ... output_item.done)+ (completed | incomplete)
      a message:  content_part.added output_text.delta* output_text.done content_part.done
      a call:     function_call_arguments.delta* function_call_arguments.done
    or, at any time, error failed

What happens with every token is a constant, the text as JSON, and its number. No `[DONE]`.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from router.http.responses.items import message_fields, output_part
from router.http.responses.reply import Output, Piece, Reply, Text, status_of
from router.http.server.errors import Problem
from router.http.tools.calls import CallBegun
from router.request.errors import RouterError
from router.request.request import Finished, TokenGenerated


class ResponseEncoder:
    """The events of one response.

    `keep` gets the response as it ended, with its status, before the client.
    """

    def __init__(
        self,
        reply: Reply,
        output: Output,
        keep: Callable[[dict[str, Any], str], None],
    ) -> None:
        self._reply = reply
        self._output = output
        self._keep = keep
        self._num_items = 0
        self._num_events = 0
        place = orjson.dumps(self._part_place())
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
        """What the token tells; nothing while it is held back."""
        return b"".join([self._events_of(piece) for piece in self._output.token(event)])

    def finished(self, event: Finished) -> bytes:
        """What was held back, then the open item and the response, whole."""
        events = [self._events_of(piece) for piece in self._output.finish(event)]
        if self._num_items == 0:
            events.append(self._begin_message())
        end = self._output.settled(event)
        status = status_of(end)
        output = self._output.fields(status)
        events.append(self._close(output))
        response = self._reply.ended(end, output, int(time.time()))
        self._keep(response, status)
        events.append(self._event(f"response.{status}", {"response": response}))
        return b"".join(events)

    def failed(self, error: RouterError, problem: Problem) -> bytes:
        """An error event, then the response as failed."""
        fault = {"code": problem.error_type, "message": str(error), "param": None}
        response = self._reply.failed(str(error))
        self._keep(response, "failed")
        return self._event("error", fault) + self._event("response.failed", {"response": response})

    def _events_of(self, piece: Piece) -> bytes:
        if isinstance(piece, Text):
            return self._text(piece)
        if isinstance(piece, CallBegun):
            return self._begin_call(piece.index)
        item_id = self._output.calls[piece.index].item_id
        place = {"item_id": item_id, "output_index": self._num_items - 1}
        return self._event("response.function_call_arguments.delta", place | {"delta": piece.text})

    def _text(self, piece: Text) -> bytes:
        begin = b"" if self._num_items else self._begin_message()
        number = self._num_events
        self._num_events += 1
        return b'%b%b%b,"logprobs":%b,"sequence_number":%d}\n\n' % (
            begin,
            self._delta,
            orjson.dumps(piece.text),
            orjson.dumps(piece.logprobs),
            number,
        )

    def _begin_message(self) -> bytes:
        """The message and its part, before their first text."""
        item = message_fields(self._output.message_id, "assistant", "in_progress", [])
        added = {**self._part_place(), "part": output_part("", [])}
        return self._begin(item) + self._event("response.content_part.added", added)

    def _begin_call(self, index: int) -> bytes:
        """A call without its arguments, after the end of what came before it."""
        closed = self._close(self._output.fields("completed"))
        call = replace(self._output.calls[index], arguments="", status="in_progress")
        return closed + self._begin(call.fields())

    def _begin(self, item: dict[str, Any]) -> bytes:
        self._num_items += 1
        place = {"output_index": self._num_items - 1, "item": item}
        return self._event("response.output_item.added", place)

    def _close(self, output: list[dict[str, Any]]) -> bytes:
        """The end of the last item that was begun, which is whole in `output`."""
        if self._num_items == 0:
            return b""
        item = output[self._num_items - 1]
        place = {"item_id": item["id"], "output_index": self._num_items - 1}
        if item["type"] == "function_call":
            done = {**place, "name": item["name"], "arguments": item["arguments"]}
            ends = self._event("response.function_call_arguments.done", done)
        else:
            (part,) = item["content"]
            events = {"text": part["text"], "logprobs": part["logprobs"]}
            place = self._part_place()
            ends = self._event("response.output_text.done", place | events)
            ends += self._event("response.content_part.done", place | {"part": part})
        done = {"output_index": self._num_items - 1, "item": item}
        return ends + self._event("response.output_item.done", done)

    def _part_place(self) -> dict[str, Any]:
        """Of the one part of the message, which is the first item if there is one."""
        return {"item_id": self._output.message_id, "output_index": 0, "content_index": 0}

    def _event(self, name: str, fields: dict[str, Any]) -> bytes:
        data = orjson.dumps({"type": name, **fields, "sequence_number": self._num_events})
        self._num_events += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
