"""Separates the calls in an answer from its text while it streams.

    text as it comes --CallReader--> TextPiece | CallBegun | CallArguments, in their order
    a whole text --CallFormat.read--> what was said, and the calls

The answer is made under the grammar of `grammar.py`, so that a call, once begun, is right as
far as it goes. Only an end before its time (a deadline, a length that cuts) leaves one unfinished.
An answer that ends behind whole calls has ended well, though at its last token: that there was no
room for another call is nobody's loss. It knows no requests and no frames.
"""

import re
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass, replace

from proto.contract import FinishReason
from router.request.request import Finished
from router.text.template_traits import CallSyntax

# What can end a JSON object, or hide what would.
_STRUCTURAL = re.compile(r'["{}\\]')
_LETTERS = string.ascii_letters + string.digits
_ID_LEN = 24


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text beside the calls."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """The next call, by the name of its tool; calls are counted from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments, which joined are a JSON object."""

    index: int
    text: str


Piece = TextPiece | CallBegun | CallArguments
_Step = Callable[[list[Piece]], bool]


class CallReader:
    """Reads one answer. Owner of the text that is not sent yet."""

    def __init__(self, syntax: CallSyntax, *, allows_text: bool) -> None:
        self._syntax = syntax
        self._begun = syntax.opening + syntax.head
        self._unread = ""
        self._step: _Step = self._free if allows_text else self._begin
        self._at_start = True
        self._depth = 0
        self._in_string = False
        self.num_calls = 0

    def push(self, text: str) -> list[Piece]:
        """What the answer's next text tells, with what was kept of those before it."""
        self._unread += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """What is left at the answer's end: text that might have become a call."""
        if self._step != self._free or not self._unread:
            return []
        rest = self._unread
        self._unread = ""
        return [TextPiece(rest)]

    @property
    def has_begun(self) -> bool:
        """Whether calls have begun, if only with what stands before the first one's name."""
        return self._step != self._free

    @property
    def is_cut(self) -> bool:
        """Whether the last call's arguments are not whole."""
        return self._step == self._arguments

    def settled(self, end: Finished) -> Finished:
        """The answer's end as clients see it, after `finish`.

        Where its tokens were used up right behind a whole call, it is that of a complete answer.
        """
        if end.reason is not FinishReason.LENGTH or not end.constraint_satisfied:
            return end
        is_whole = self._step == self._between and self._unread.rstrip() == self._syntax.closing
        return replace(end, reason=FinishReason.CONSTRAINT_COMPLETE) if is_whole else end

    # Each step reads some of `_unread`, and answers whether another may follow.

    def _free(self, pieces: list[Piece]) -> bool:
        """Text, up to where calls begin."""
        trigger = self._syntax.trigger
        unread = self._unread
        if self._syntax.only_at_start and not self._at_start:
            place = -1
            held = 0
        elif self._syntax.only_at_start:
            place = 0 if unread.startswith(trigger) else -1
            held = len(unread) if trigger.startswith(unread) else 0
        else:
            place = unread.find(trigger)
            held = _overlap(unread, trigger)
        said = unread[:place] if place >= 0 else unread[: len(unread) - held]
        if said:
            pieces.append(TextPiece(said))
            self._at_start = False
        self._unread = unread[len(said) :]
        if place >= 0:
            self._step = self._begin
        return place >= 0

    def _begin(self, pieces: list[Piece]) -> bool:
        """What stands before the first call's name."""
        return self._skip(self._begun, self._name)

    def _name(self, pieces: list[Piece]) -> bool:
        """The name of the tool, and what stands between it and the arguments."""
        name, quote, rest = self._unread.partition('"')
        middle = self._syntax.middle
        if not quote or len(quote + rest) < len(middle):
            return False
        pieces.append(CallBegun(self.num_calls, name))
        self.num_calls += 1
        self._unread = rest[len(middle) - 1 :]
        self._step = self._arguments
        return True

    def _arguments(self, pieces: list[Piece]) -> bool:
        """An object, up to the brace that ends it."""
        end = self._scan()
        text = self._unread[:end]
        self._unread = self._unread[end:]
        if text:
            pieces.append(CallArguments(self.num_calls - 1, text))
        if self._depth or not text:
            return False
        self._step = self._tail
        return True

    def _tail(self, pieces: list[Piece]) -> bool:
        """What ends a call."""
        return self._skip(self._syntax.tail, self._between)

    def _between(self, pieces: list[Piece]) -> bool:
        """Another call, unless the answer ends here."""
        separator = self._syntax.separator
        return separator is not None and self._skip(separator + self._syntax.head, self._name)

    def _skip(self, expected: str, step: _Step) -> bool:
        if not self._unread.startswith(expected):
            return False
        self._unread = self._unread[len(expected) :]
        self._step = step
        return True

    def _scan(self) -> int:
        """How much of `_unread` is of the arguments; keeps count of braces and quotes."""
        unread = self._unread
        place = 0
        while (found := _STRUCTURAL.search(unread, place)) is not None:
            place = found.end()
            mark = found.group()
            if mark == "\\":
                if place == len(unread):  # what it hides is still to come
                    return place - 1
                place += 1
            elif mark == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if mark == "{" else -1
                if self._depth == 0:
                    return place
        return len(unread)


def _overlap(text: str, trigger: str) -> int:
    """How many characters at the end of `text` may be the beginning of `trigger`."""
    longest = min(len(text), len(trigger) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(trigger[:length])), 0)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a whole answer. Without `is_whole` its arguments are the beginning of an object."""

    name: str
    arguments: str
    is_whole: bool


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How an answer calls: in the model's syntax, perhaps behind some text."""

    syntax: CallSyntax
    allows_text: bool

    def reader(self) -> CallReader:
        return CallReader(self.syntax, allows_text=self.allows_text)

    def new_id(self, prefix: str) -> str:
        """What a call is called by; without the API's prefix where the template insists on it."""
        if self.syntax.id_len is None:
            return prefix + _letters(_ID_LEN)
        return _letters(self.syntax.id_len)

    def read(self, text: str) -> tuple[str, list[Call]]:
        """What a whole answer says beside its calls, and these."""
        reader = self.reader()
        said = ""
        calls = []
        for piece in reader.push(text) + reader.finish():
            if isinstance(piece, TextPiece):
                said += piece.text
            elif isinstance(piece, CallBegun):
                calls.append([piece.name, ""])
            else:
                calls[-1][1] += piece.text
        last = len(calls) - 1 if reader.is_cut else None
        return said, [
            Call(name, arguments, is_whole=index != last)
            for index, (name, arguments) in enumerate(calls)
        ]

    def settled(self, end: Finished) -> Finished:
        """The end of a whole answer as clients see it; see `CallReader.settled`."""
        if end.reason is not FinishReason.LENGTH:
            return end
        reader = self.reader()
        reader.push(end.text)
        return reader.settled(end)


def _letters(length: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(length))
