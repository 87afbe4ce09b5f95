"""Tells an answer's thought, text and calls apart while it streams: one machine for every form.

    text as it comes --AnswerReader--> ThoughtPiece | TextPiece | CallBegun | CallArguments

The pieces tell the same however the text is cut. Arguments come out as JSON, whatever the form.
Models take liberties with white space: around thoughts and beside calls it is dropped, and within
the marks of calls more or less of it is the same. A call that is not in the model's form is text;
what follows the place where a begun call leaves it, too. It knows no tokens and no HTTP.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proto.contract import FinishReason
from router.request.request import Finished
from router.text.answer_format import (
    GENERIC_CALLS,
    ID,
    NUMBER,
    AnswerFormat,
    CallForm,
    Code,
    Parameters,
    ValueForm,
    spellings,
)
from router.text.parameter_values import LiteralScan, as_json, overlap, types_of

# Answers of `_match` that are no place.
_WAITS = -1
_DIFFERS = -2
_encoded = json.JSONEncoder(ensure_ascii=False).encode
_PLACE = re.compile(r"[\w.:-]+")
_NAME = re.compile(r"[\w.-]+")
# A name within an id, and what may become one.
_LABEL = re.compile(r"(?:functions\.)?(?P<name>[\w.-]+):\d+")
_LABEL_BEGUN = re.compile(r"[\w.-]+:?\d*\Z|\Z")


@dataclass(frozen=True, slots=True)
class ThoughtPiece:
    """What the model thinks before it answers."""

    text: str


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


Piece = ThoughtPiece | TextPiece | CallBegun | CallArguments
_Step = Callable[[list[Piece]], bool]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a whole answer. Without `is_whole` its arguments are the beginning of an object."""

    name: str
    arguments: str
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer."""

    thought: str
    text: str
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class _Head:
    """A call up to its arguments; `end` is where they begin, or where it ends without any."""

    form: CallForm
    name: str
    end: int
    has_arguments: bool


class AnswerReader:
    """Reads one answer. Owner of the text that is not told yet.

    `parameters_by_tool` are JSON schemas. `in_thought`: the prompt has opened the thought.
    Without `may_call` calls are text; with `calls_first` those behind a text are, which is JSON.
    `hidden` are special tokens: where they mark nothing, they are no text either.
    """

    def __init__(
        self,
        answer_format: AnswerFormat,
        parameters_by_tool: Mapping[str, Mapping[str, Any]],
        *,
        in_thought: bool,
        may_call: bool,
        calls_first: bool = False,
        hidden: Iterable[str] = (),
    ) -> None:
        self._format = answer_format
        self._parameters_by_tool = parameters_by_tool
        forms = (answer_format.calls, *answer_format.other_calls) if may_call else ()
        self._forms = [form for form in forms if form is not None]
        thought = answer_format.thought
        closer = thought.closer if thought is not None else ""
        self._openers: list[tuple[str, _Step]] = []
        if thought is not None and thought.opener:
            self._openers.append((thought.opener, self._thought))
        if thought is not None and thought.preamble:
            self._openers.append((thought.preamble, self._preamble))
        if answer_format.content_opening:
            self._openers.append((answer_format.content_opening, self._content))
        self._triggers = [form.trigger for form in self._forms if not form.is_bare]
        self._hidden = tuple(hidden)
        self._closer = closer
        self._closers = _Markers([*filter(None, [closer]), *self._hidden])
        closings = [*filter(None, [answer_format.content_closing]), *self._hidden]
        self._markers = _Markers([*self._triggers, *closings])
        self._text_markers = _Markers(closings) if calls_first else self._markers
        self._has_said = False
        self._unread = ""
        self._step: _Step = self._thought if in_thought and thought is not None else self._start
        self._is_at_end = False
        # White space that is told with the next text, and whether that before it is dropped.
        self._held = ""
        self._trims = in_thought
        # What parts the next text from a preamble.
        self._gap = ""
        self._marker = ""
        self._is_over = False
        self._is_whole = True
        # That of the call that has begun.
        self._form = GENERIC_CALLS
        self._schema: Mapping[str, Any] = {}
        self._value = ValueForm("", "", Code.JSON)
        self._terminator = ""
        self._types: frozenset[str] = frozenset()
        self._num_keys = 0
        self._scan = LiteralScan()
        self.num_calls = 0
        # How often calls began, with what stands before the first one.
        self.num_beginnings = 0

    def push(self, text: str) -> list[Piece]:
        """What the answer's next text tells, with what was kept of those before it."""
        self._unread += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return pieces

    def finish(self) -> list[Piece]:
        """What is left at the answer's end. Marks of a call that is cut are dropped."""
        self._is_at_end = True
        pieces = self.push("")
        if self._step == self._start:
            self._say(pieces, self._unread)
            self._unread = ""
        if self._held and not self.in_thought and not self.has_begun:
            pieces.append(TextPiece(self._held))
            self._held = ""
        return pieces

    def read(self, text: str) -> Answer:
        """A whole answer, by a reader that has read nothing yet."""
        thought = said = ""
        calls: list[list[str]] = []
        for piece in self.push(text) + self.finish():
            if isinstance(piece, ThoughtPiece):
                thought += piece.text
            elif isinstance(piece, TextPiece):
                said += piece.text
            elif isinstance(piece, CallBegun):
                calls.append([piece.name, ""])
            else:
                calls[-1][1] += piece.text
        cut = len(calls) - 1 if self.is_cut else None
        whole = [Call(name, told, index != cut) for index, (name, told) in enumerate(calls)]
        return Answer(thought, said, tuple(whole))

    @property
    def in_thought(self) -> bool:
        """Whether what comes next is thought."""
        return self._step == self._thought

    @property
    def has_begun(self) -> bool:
        """Whether calls have begun, if only with what stands before the first one's name."""
        return self.num_calls > 0 or self._step == self._call

    @property
    def is_cut(self) -> bool:
        """Whether the last call's arguments are not whole."""
        return not self._is_whole

    @property
    def is_over(self) -> bool:
        """Whether whole calls are the last that was told, with what ends them."""
        return self._is_over and not self._unread.strip()

    def settled(self, end: Finished) -> Finished:
        """The answer's end as clients see it, after `finish`.

        Where its tokens were used up right behind a whole call, it is that of a complete answer.
        """
        if end.reason is not FinishReason.LENGTH or not end.constraint_satisfied:
            return end
        return replace(end, reason=FinishReason.CONSTRAINT_COMPLETE) if self.is_over else end

    # Each step reads some of `_unread`, and answers whether another may follow.

    def _start(self, pieces: list[Piece]) -> bool:
        """Nothing is said yet: what opens thoughts and texts, and calls without a mark."""
        text = self._unread.lstrip()
        if not text:
            return False
        waits = False
        for marker, step in self._openers:
            place = self._match(marker, text, 0)
            waits |= place == _WAITS
            if place >= 0 and not waits:
                return self._enter(step, text[place:])
        for form in self._forms:
            head = self._head(form, form.first.lstrip(), text) if form.is_bare else _DIFFERS
            waits |= head == _WAITS
            if isinstance(head, _Head) and not waits:
                return self._begin(pieces, head, text)
        if waits and not self._is_at_end:
            return False
        if waits and text.startswith(self._hidden):
            # A mark that is cut.
            self._unread = ""
            return False
        self._step = self._content
        return True

    def _thought(self, pieces: list[Piece]) -> bool:
        """A thought, up to what closes it. Nothing within is a call."""
        place, marker = self._closers.find(self._unread, self._is_at_end)
        self._say(pieces, self._unread[:place])
        self._unread = self._unread[place:]
        if marker is None:
            return False
        if marker != self._closer:
            return self._drop(marker)
        return self._enter(self._start, self._unread[len(marker) :])

    def _preamble(self, pieces: list[Piece]) -> bool:
        """A text that ends as a thought does."""
        may_follow = self._thought(pieces)
        if self._step == self._start:
            self._gap = "\n\n"
        return may_follow

    def _content(self, pieces: list[Piece]) -> bool:
        """Text, up to where calls begin."""
        markers = self._text_markers if self._has_said else self._markers
        place, marker = markers.find(self._unread, self._is_at_end)
        self._say(pieces, self._unread[:place])
        self._unread = self._unread[place:]
        if marker is None:
            return False
        if self._has_said and markers is not self._text_markers:
            return True
        if marker == self._format.content_closing:
            return self._enter(self._start, self._unread[len(marker) :])
        if marker not in self._triggers:
            return self._drop(marker)
        self._marker = marker
        self._step = self._call
        return True

    def _call(self, pieces: list[Piece]) -> bool:
        """What stands before the first call's arguments, from its mark on."""
        heads = [
            self._head(form, form.first.lstrip(), self._unread)
            for form in self._forms
            if not form.is_bare and self._unread.startswith(form.trigger)
        ]
        if _WAITS in heads:
            return False
        for head in heads:
            if isinstance(head, _Head):
                self.num_beginnings += 1
                return self._begin(pieces, head, self._unread)
        self._say(pieces, self._marker)
        self._unread = self._unread[len(self._marker) :]
        self._step = self._content
        return True

    def _arguments(self, pieces: list[Piece]) -> bool:
        """A JSON object, up to the brace that ends it."""
        end = self._scan.end(self._unread)
        told_len = self._scan.place if end is None else end
        self._tell(pieces, self._unread[:told_len])
        self._unread = self._unread[told_len:]
        self._scan.forget(told_len)
        return end is not None and self._close()

    def _key(self, pieces: list[Piece]) -> bool:
        """A parameter's name, and what stands between it and the value."""
        each = self._parameters
        line_len = len(self._unread.partition("\n")[0])
        marks = [form.opening.strip() or form.opening for form in (each.string, each.other)]
        places = [place for mark in marks if (place := self._unread.find(mark)) >= 0]
        if not places:
            is_late = line_len + max(map(len, marks)) < len(self._unread)
            return is_late and self._leave(pieces)
        place = min(places)
        chosen = self._choose((each.string.opening, each.other.opening), place)
        if chosen is None:
            return False
        index, end = chosen
        if end < 0 or place > line_len:
            return self._leave(pieces)
        key = self._unread[:place]
        self._types = types_of(_property(self._schema, key), self._schema)
        is_text = self._types == {"string"}
        if each.string.opening != each.other.opening:
            is_text = index == 0
        self._value = each.string if is_text else each.other
        self._terminator = each.terminator(self._value)
        before = ", " if self._num_keys else "{"
        self._num_keys += 1
        self._tell(pieces, f"{before}{_encoded(key)}: ")
        self._unread = self._unread[end:]
        if is_text and self._value.code is Code.RAW:
            self._tell(pieces, '"')
            self._step = self._raw
        else:
            self._scan = LiteralScan(each.stops(self._value), each.quote)
            self._step = self._literal
        return True

    def _raw(self, pieces: list[Piece]) -> bool:
        """A string as it is, up to what stands behind it."""
        place = self._find_end()
        text_len = place
        if text_len is None:
            held = [
                overlap(self._unread, end) for end in (self._terminator, self._terminator.strip())
            ]
            text_len = len(self._unread) - (0 if self._is_at_end else max(held))
        if text_len:
            self._tell(pieces, _encoded(self._unread[:text_len])[1:-1])
            self._unread = self._unread[text_len:]
        if place is None:
            return False
        self._tell(pieces, '"')
        self._step = self._after_value
        return True

    def _literal(self, pieces: list[Piece]) -> bool:
        """A value that is told when it is whole."""
        place = self._find_end() if self._terminator else self._scan.end(self._unread)
        if place is None:
            return False
        value = self._unread[:place]
        self._tell(pieces, as_json(value, self._value.code, self._types, self._parameters.quote))
        self._unread = self._unread[place:]
        self._step = self._after_value
        return True

    def _after_value(self, pieces: list[Piece]) -> bool:
        """Another parameter, or the end of the arguments."""
        each = self._parameters
        closing = self._value.closing
        chosen = self._choose((closing + each.between, closing + each.end), 0)
        if chosen is None:
            return False
        index, end = chosen
        if end < 0:
            return self._leave(pieces)
        self._unread = self._unread[end:]
        if index == 0:
            self._step = self._key
            return True
        self._tell(pieces, "}")
        return self._close()

    def _after_call(self, pieces: list[Piece]) -> bool:
        """Another call, or what ends them."""
        form = self._form
        head: _Head | int = _DIFFERS
        if form.between is not None:
            head = self._head(form, form.between, self._unread)
        if isinstance(head, _Head):
            return self._begin(pieces, head, self._unread)
        end = self._match(form.last, self._unread, 0)
        if _WAITS in (head, end) and not self._is_at_end:
            return False
        if end == _WAITS:
            return False
        if end == _DIFFERS:
            return self._leave(pieces)
        self._is_over = True
        return self._enter(self._content, self._unread[end:])

    # What the steps share.

    @property
    def _parameters(self) -> Parameters:
        parameters = self._form.parameters
        assert parameters is not None
        return parameters

    def _drop(self, marker: str) -> bool:
        """A special token that marks nothing here."""
        self._unread = self._unread[len(marker) :]
        return True

    def _enter(self, step: _Step, rest: str) -> bool:
        """Behind a mark: white space on both sides of it is dropped."""
        self._held = ""
        self._trims = True
        self._unread = rest
        self._step = step
        return True

    def _begin(self, pieces: list[Piece], head: _Head, text: str) -> bool:
        pieces.append(CallBegun(self.num_calls, head.name))
        self.num_calls += 1
        self._form = head.form
        self._schema = self._parameters_by_tool.get(head.name, {})
        self._num_keys = 0
        self._gap = ""
        self._is_over = False
        self._is_whole = False
        is_json = head.form.parameters is None
        if is_json:
            self._scan = LiteralScan(quotes='"')
        self._enter(self._arguments if is_json else self._key, text[head.end :])
        if head.has_arguments:
            return True
        self._tell(pieces, "{}")
        return self._close()

    def _close(self) -> bool:
        self._is_whole = True
        self._step = self._after_call
        return True

    def _leave(self, pieces: list[Piece]) -> bool:
        """The call is not in the model's form: what follows is told as text."""
        return self._enter(self._content, self._unread)

    def _tell(self, pieces: list[Piece], text: str) -> None:
        if text:
            pieces.append(CallArguments(self.num_calls - 1, text))

    def _say(self, pieces: list[Piece], text: str) -> None:
        """Thought or text; white space at its end waits for what follows."""
        kept = text.rstrip()
        if not kept:
            if not self._trims:
                self._held += text
            return
        said = kept.lstrip() if self._trims else self._held + kept
        if self.in_thought:
            pieces.append(ThoughtPiece(said))
        else:
            pieces.append(TextPiece(self._gap + said))
            self._gap = ""
            self._has_said = True
        self._held = text[len(kept) :]
        self._trims = False
        self._is_over = False

    def _head(self, form: CallForm, opening: str, text: str) -> _Head | int:
        """A call at the beginning of `text`, up to its arguments."""
        place = self._match(opening, text, 0)
        if place < 0:
            return place
        while text[place : place + 1].isspace():
            place += 1
        label = (_LABEL if form.name_in_id else _NAME).match(text, place)
        if label is None or label.end() == len(text):
            may_follow = _LABEL_BEGUN.match(text, place)
            return _WAITS if label or may_follow else _DIFFERS
        name = label["name"] if form.name_in_id else label[0]
        if form.parameters is None:
            end = self._match(form.middle, text, label.end())
            rest = text[end:].lstrip()
            if end < 0 or not rest:
                return min(end, _WAITS)
            is_object = rest[0] == "{"
            return _Head(form, name, len(text) - len(rest), True) if is_object else _DIFFERS
        marks = (form.parameters.first, form.parameters.none)
        chosen = self._choose(marks, label.end(), text)
        if chosen is None:
            return _WAITS
        index, end = chosen
        return _Head(form, name, end, index == 0) if end >= 0 else _DIFFERS

    def _choose(
        self, texts: Sequence[str], start: int, unread: str | None = None
    ) -> tuple[int, int] | None:
        """Which text stands at `start`, and where it ends; the longest. None: not known yet."""
        unread = self._unread if unread is None else unread
        ends = [self._match(text, unread, start) for text in texts]
        if _WAITS in ends and not self._is_at_end:
            return None
        best = max(range(len(ends)), key=lambda index: ends[index])
        return None if ends[best] == _WAITS else (best, ends[best])

    def _match(self, literal: str, text: str, start: int) -> int:
        """Where `literal` ends that stands at `start`, in one of its spellings."""
        has_places = ID in literal or NUMBER in literal
        if not has_places and text.startswith(literal, start):
            return start + len(literal)
        return max([self._match_as_is(each, text, start) for each in spellings(literal)])

    def _match_as_is(self, literal: str, text: str, start: int) -> int:
        """As `_match`, white space aside."""
        place = start
        index = 0
        while index < len(literal):
            expected = literal[index]
            if place == len(text):
                is_rest_blank = not literal[index:].strip()
                return place if self._is_at_end and is_rest_blank else _WAITS
            if expected in (ID, NUMBER):
                found = _PLACE.match(text, place)
                if found is None:
                    return _DIFFERS
                place = found.end()
                if place == len(text) and not self._is_at_end:
                    return _WAITS
                index += 1
            elif text[place] == expected:
                place += 1
                index += 1
            elif expected.isspace():
                index += 1
            elif text[place].isspace():
                place += 1
            else:
                return _DIFFERS
        return place

    def _find_end(self) -> int | None:
        """Where a value ends, before what stands behind it."""
        terminator = self._terminator
        core = terminator.strip() or terminator
        place = self._unread.find(core)
        if place < 0:
            return None
        before = terminator[: terminator.find(core)]
        return place - len(before) if self._unread.endswith(before, 0, place) else place


class _Markers:
    """Finds the first of some texts in a text that still comes; of two there, the longer one."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = sorted(set(texts), key=len, reverse=True)
        firsts = {text[0] for text in self._texts}
        self._first = re.compile(f"[{re.escape(''.join(sorted(firsts)))}]" if firsts else "(?!)")

    def find(self, text: str, is_at_end: bool) -> tuple[int, str | None]:
        """Its place and the text; None: one may begin at the place, and none does before."""
        for found in self._first.finditer(text):
            place = found.start()
            rest_len = len(text) - place
            for each in self._texts:
                if text.startswith(each, place):
                    return place, each
                if not is_at_end and len(each) > rest_len and each.startswith(text[place:]):
                    return place, None
        return len(text), None


def _property(schema: Mapping[str, Any], key: str) -> Any:
    properties = schema.get("properties")
    return properties.get(key) if isinstance(properties, Mapping) else None
