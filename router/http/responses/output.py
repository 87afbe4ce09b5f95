"""What a response's answer adds up to, token by token: a message, calls, or a message and calls.

tokens --Output--> Text | CallBegun | CallArguments, in their order; at the end, items
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from router.http.openai.logprobs import ChatLogprobs
from router.http.responses.items import (
    FunctionCall,
    Item,
    Message,
    message_fields,
    new_item_id,
    output_part,
)
from router.http.tools.calls import CallArguments, CallBegun, Calling, Said
from router.http.tools.calls import Piece as Read
from router.request.events import Finished, TokenGenerated


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the message, with what is told of its tokens."""

    text: str
    logprobs: list[dict[str, Any]]


Piece = Text | CallBegun | CallArguments


class Output:
    """One answer as it grows. Owner of its items.

    Without `calling` it is text. Of the tokens that are calls no log-probabilities are told.
    """

    def __init__(self, calling: Calling | None, logprobs: ChatLogprobs | None) -> None:
        self.message_id = new_item_id("msg")
        self.calls: list[FunctionCall] = []
        self._calling = calling
        self._reader = None if calling is None else calling.reader()
        self._logprobs = logprobs
        self._said: list[str] = []
        # Of the text so far, and of tokens whose text is held back.
        self._told: list[dict[str, Any]] = []
        self._held: list[dict[str, Any]] = []

    def token(self, event: TokenGenerated) -> list[Piece]:
        """What a token tells."""
        if self._logprobs is not None:
            self._held += logprobs_of((event,), self._logprobs)
        return self._take(event.text)

    def finish(self, end: Finished) -> list[Piece]:
        """What was held back."""
        pieces = self._take(end.tail) if end.tail else []
        if self._reader is not None:
            pieces += [self._piece(read) for read in self._reader.finish()]
        if not self._calls_have_begun:
            self._told += self._held
        return pieces

    def whole(self, tokens: Sequence[TokenGenerated], end: Finished) -> None:
        """All of an answer at once."""
        for event in tokens:
            self.token(event)
        self.finish(end)

    def settled(self, end: Finished) -> Finished:
        """The end as clients are told it, once all is taken."""
        return end if self._reader is None else self._reader.settled(end)

    def items(self, status: str) -> tuple[Item, ...]:
        """What there is so far; `status` is that of an answer that ends here."""
        calls = list(self.calls)
        if calls and self._reader is not None and self._reader.is_cut:
            calls[-1] = replace(calls[-1], status="incomplete")
        said = "".join(self._said)
        if calls and not said:
            return tuple(calls)
        message = Message(self.message_id, "assistant", (said,), "completed" if calls else status)
        return (message, *calls)

    def fields(self, status: str) -> list[dict[str, Any]]:
        """The items as OpenAI tells them."""
        return [self._fields(item) for item in self.items(status)]

    @property
    def _calls_have_begun(self) -> bool:
        return self._reader is not None and self._reader.has_begun

    def _take(self, text: str) -> list[Piece]:
        if self._reader is None:
            return [self._piece(Said(text))] if text or self._held else []
        return [self._piece(read) for read in self._reader.push(text)]

    def _piece(self, read: Read) -> Piece:
        if isinstance(read, Said):
            self._said.append(read.text)
            told, self._held = self._held, []
            self._told += told
            return Text(read.text, told)
        if isinstance(read, CallBegun):
            assert self._calling is not None
            call_id = self._calling.new_id("call_")
            self.calls.append(FunctionCall(new_item_id("fc"), call_id, read.name, ""))
        else:
            call = self.calls[-1]
            self.calls[-1] = replace(call, arguments=call.arguments + read.text)
        return read

    def _fields(self, item: Item) -> dict[str, Any]:
        if not isinstance(item, Message):
            return item.fields()
        parts = [output_part(item.parts[0], self._told)]
        return message_fields(item.item_id, item.role, item.status, parts)


def logprobs_of(tokens: Sequence[TokenGenerated], logprobs: ChatLogprobs) -> list[dict[str, Any]]:
    """The log-probabilities of tokens as in chats, but that what is no text has no bytes."""
    entries: list[dict[str, Any]] = logprobs.of(tokens)["content"]
    for entry in entries:
        for token in (entry, *entry["top_logprobs"]):
            token["bytes"] = token["bytes"] or []
    return entries
