"""Where a JSON text has got to, and what is remembered of it; followed byte by byte.

The engine decides what JSON of the schema is. So a text is read here as if it were that, and only
what watches forbid is found: a byte that ends an item which is there already, a key too many.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from constraints.grammars.schema_validation import judge_of
from constraints.grammars.watching.watch import Supply, Watch, read

# Equal for values that are equal in JSON Schema.
_Equal: TypeAlias = Any
_STRING_END = re.compile(rb'["\\]')
_NUMBER_END = re.compile(rb"[^0-9.eE+-]")
_QUOTE = ord('"')
_LITERALS = {ord("t"): b"true", ord("f"): b"false", ord("n"): b"null"}
_UNWATCHED = Watch()
# The most items of which is remembered whether they are wanted.
_MAX_JUDGED = 4096
# The whole numbers that no longer one begins with.
ZEROS = frozenset((b"0", b"-0"))


class _Number(NamedTuple):
    """A number without zeros at its ends; of any size."""

    digits: str
    exponent: int


_ZERO = _Number("", 0)


class Mode(IntEnum):
    """What the next byte belongs to."""

    VALUE = 0
    STRING = 1
    ESCAPE = 2
    NUMBER = 3
    AFTER = 4
    KEY = 5
    IN_KEY = 6
    ESCAPE_IN_KEY = 7
    COLON = 8


class Frame(NamedTuple):
    """An array or object that is open.

    watch:    of this place
    start:    where it begins in the text
    number:   the index of the present item, or the place of the present member
    seen:     the items or keys that are complete, where they are watched
    texts:    the items as they are written, where values may run out
    counts:   how many items were of each wanted schema
    """

    is_array: bool
    watch: Watch
    start: int
    number: int | None = 0
    seen: frozenset[_Equal] = frozenset()
    texts: frozenset[bytes] = frozenset()
    counts: tuple[int, ...] = ()


class Watches:
    """All places of one schema, and what says whether items are wanted. Shared by threads."""

    def __init__(self, text: str) -> None:
        """`text`: as `watch.written` writes it."""
        places, document = read(text)
        self.arrays = [place.of_arrays for place in places]
        self.objects = [place.of_objects for place in places]
        wanted = [each.schema for place in places for each in place.wanted]
        judges = {schema: judge_of(document, schema) for schema in wanted}

        # Many tokens may end the same item.
        @lru_cache(_MAX_JUDGED)
        def is_wanted(schema: str, item: bytes) -> bool:
            return judges[schema](item.decode())

        self.is_wanted = is_wanted


@dataclass(frozen=True, slots=True)
class Position:
    """The state behind a text.

    start:     where the present value or key begins in it
    num_watched: the open frames in which something is watched
    """

    watches: Watches
    text: bytes = b""
    frames: tuple[Frame, ...] = ()
    mode: Mode = Mode.VALUE
    start: int = 0
    num_watched: int = 0

    def behind(self, more: bytes) -> "Position | None":
        """The place behind some more bytes; None: a watch forbids one of them."""
        reading = _Reading(self, more)
        return reading.end() if reading.run() else None

    @property
    def is_within_item(self) -> bool:
        """Whether the end of an array or object may end an item that is looked at as a whole."""
        return any(
            frame.watch.wanted or (frame.watch.differ and frame.seen) for frame in self.frames[:-1]
        )

    @property
    def longest_len(self) -> int:
        """More bytes than any string has that must not be there again."""
        texts = [each for frame in self.frames for each in frame.seen if isinstance(each, str)]
        return 1 + max(map(len, texts), default=0)

    @property
    def contents(self) -> list[bytes]:
        """How the string that has begun as an item could go on to be one that is there already.

        Without its quotation mark; as it is written without escapes.
        """
        frame = self.frames[-1]
        if not frame.watch.differ:
            return []
        begun = self.text[self.start + 1 :]
        texts = [
            each[1:].encode(errors="surrogatepass") for each in frame.seen if isinstance(each, str)
        ]
        return [text[len(begun) :] for text in texts if text.startswith(begun)]

    @property
    def item(self) -> tuple[frozenset[_Equal], int | None, bytes] | None:
        """The items before it, its index and beginning, of an item whose values may run out."""
        if self.mode is Mode.AFTER or not self.frames:
            return None
        if not self.frames[-1].texts and not self.frames[-1].watch.values:
            return None
        begun = b"" if self.mode is Mode.VALUE else self.text[self.start :]
        return self.frames[-1].seen, self.frames[-1].number, begun

    @property
    def is_listed(self) -> bool:
        """Whether what begins or has begun is a listed key or value: then few tokens are legal."""
        if not self.frames:
            return False
        watch = self.frames[-1].watch
        is_in_value = self.mode in (Mode.STRING, Mode.ESCAPE)
        return bool(watch.values) or (bool(watch.names) and not is_in_value)

    @property
    def has_name_left(self) -> bool:
        """Whether a key that begins or has begun may lead to the end of an object of few names."""
        if self.mode not in (Mode.KEY, Mode.IN_KEY):
            return True
        frame = self.frames[-1]
        names = _names_left(frame)
        if names is None or (self.mode is Mode.KEY and not frame.seen and not frame.watch.least):
            return True
        begun = b"" if self.mode is Mode.KEY else self.text[self.start + 1 :]
        return any(name.encode().startswith(begun) for name in names)

    @property
    def has_value_left(self) -> bool | None:
        """Whether a listed value may be the item that begins or has begun; None: not known."""
        if self.item is None or not self.frames[-1].watch.values:
            return None
        begun = self.item[2]
        listed = (value.encode() for value in self.frames[-1].watch.values)
        # White space ends a number.
        return any(
            value.startswith(begun) and self.behind(value[len(begun) :] + b" ") is not None
            for value in listed
        )

    def rests(self) -> list[bytes]:
        """How the item that begins or has begun could go on to become one that is there already.

        None where values do not run out.
        """
        if self.item is None:
            return []
        begun = self.item[2]
        return [text[len(begun) :] for text in self.frames[-1].texts if text.startswith(begun)]


class _Reading:
    """One piece of text being read."""

    def __init__(self, place: Position, more: bytes) -> None:
        self._watches = place.watches
        self._text = place.text + more
        self._at = len(place.text)
        self._frames = place.frames
        self._mode = place.mode
        self._start = place.start
        self._num_watched = place.num_watched

    def end(self) -> Position:
        return Position(
            self._watches, self._text, self._frames, self._mode, self._start, self._num_watched
        )

    def run(self) -> bool:
        """Read to the end; False: a watch forbids it."""
        steps = _STEPS
        while self._at < len(self._text):
            if not steps[self._mode](self):
                return False
        return True

    def _in_string(self) -> bool:
        is_key = self._mode is Mode.IN_KEY
        found = _STRING_END.search(self._text, self._at)
        if found is None:
            self._at = len(self._text)
            return True
        self._at = found.end()
        if self._text[self._at - 1] != _QUOTE:
            self._mode = Mode.ESCAPE_IN_KEY if is_key else Mode.ESCAPE
            return True
        return self._key_done() if is_key else self._value_done(self._start)

    def _escaped(self) -> bool:
        self._at += 1
        self._mode = Mode.IN_KEY if self._mode is Mode.ESCAPE_IN_KEY else Mode.STRING
        return True

    def _in_number(self) -> bool:
        found = _NUMBER_END.search(self._text, self._at)
        if found is None:
            self._at = len(self._text)
            return True
        self._at = found.start()
        return self._value_done(self._start)

    def _value(self) -> bool:
        """The first byte of a value, or the end of an array without items."""
        byte = self._text[self._at]
        self._at += 1
        match byte:
            case 0x20 | 0x09 | 0x0A | 0x0D:
                return True
            case 0x5D:  # ]
                return self._close()
            case 0x5B | 0x7B:  # [ {
                self._open(is_array=byte == 0x5B)
                return True
            case 0x22:
                self._mode = Mode.STRING
            case 0x74 | 0x66 | 0x6E:  # t f n: complete, as nothing else begins so
                return self._done(_LITERALS[byte])
            case _:
                self._mode = Mode.NUMBER
        self._start = self._at - 1
        return True

    def _after(self) -> bool:
        """What follows a value; also the rest of a literal."""
        byte = self._text[self._at]
        self._at += 1
        if byte == 0x2C:
            frame = self._frames[-1]
            if frame.is_array:
                self._mode = Mode.VALUE
                number = (frame.number or 0) + 1
                self._frames = (*self._frames[:-1], frame._replace(number=number))
                return True
            self._mode = Mode.KEY
            return not _is_full(frame)
        return self._close() if byte in (0x5D, 0x7D) else True

    def _key(self) -> bool:
        """A key's first byte, or the end of an object without members."""
        byte = self._text[self._at]
        self._at += 1
        if byte == 0x7D:
            return self._close()
        if byte != _QUOTE:
            return True
        self._mode = Mode.IN_KEY
        self._start = self._at - 1
        return not _is_full(self._frames[-1])

    def _key_done(self) -> bool:
        frame = self._frames[-1]
        self._mode = Mode.COLON
        if frame.watch is _UNWATCHED:
            return True
        key = json.loads(self._text[self._start : self._at])
        names = _names_left(frame)
        if key in frame.seen or (names is not None and key not in names):
            return False
        counted = {key} if frame.watch.is_watched else frozenset()
        frame = frame._replace(number=frame.watch.member(key), seen=frame.seen | counted)
        self._frames = (*self._frames[:-1], frame)
        return True

    def _colon(self) -> bool:
        if self._text[self._at] == 0x3A:
            self._mode = Mode.VALUE
        self._at += 1
        return True

    def _open(self, *, is_array: bool) -> None:
        number = self._number_of_value()
        places = self._watches.arrays if is_array else self._watches.objects
        watch = _UNWATCHED if number is None else places[number]
        self._num_watched += watch.is_watched
        counts = (0,) * len(watch.wanted)
        self._frames = (*self._frames, Frame(is_array, watch, self._at - 1, counts=counts))
        self._mode = Mode.VALUE if is_array else Mode.KEY

    def _number_of_value(self) -> int | None:
        """The place of the value that begins; None: nothing is watched there."""
        if not self._frames:
            return 0
        frame = self._frames[-1]
        if frame.is_array:
            return frame.watch.item(frame.number or 0)
        return None if frame.watch is _UNWATCHED else frame.number

    def _close(self) -> bool:
        frame = self._frames[-1]
        if not frame.is_array and len(frame.seen) < frame.watch.least:
            return False
        if any(
            count < each.least for count, each in zip(frame.counts, frame.watch.wanted, strict=True)
        ):
            return False
        self._frames = self._frames[:-1]
        self._num_watched -= frame.watch.is_watched
        return self._value_done(frame.start)

    def _value_done(self, start: int) -> bool:
        """A value that begins at `start` ends before the present byte."""
        self._mode = Mode.AFTER
        if not self._frames or not self._frames[-1].watch.reads_items:
            return True
        return self._done(self._text[start : self._at])

    def _done(self, value: bytes) -> bool:
        """A value is complete: it is looked at where it is an item of a watched array."""
        self._mode = Mode.AFTER
        frame = self._frames[-1] if self._frames else None
        if frame is None or not frame.watch.reads_items:
            return True
        after = self._remembered(frame, value) if frame.watch.differ else frame
        if after is not None and frame.watch.wanted:
            after = self._counted(after, value)
        if after is None:
            return False
        self._frames = (*self._frames[:-1], after)
        return True

    def _remembered(self, frame: Frame, item: bytes) -> Frame | None:
        """The frame with this item; None: it is there already."""
        equal = _equal(json.loads(item, parse_int=_number, parse_float=_number))
        if equal in frame.seen:
            return None
        texts = frame.texts
        if equal == _ZERO and frame.watch.supply is not Supply.NONE:
            texts |= ZEROS
        elif frame.watch.supply is Supply.SOME:
            texts |= {item}
        return frame._replace(seen=frame.seen | {equal}, texts=texts)

    def _counted(self, frame: Frame, item: bytes) -> Frame | None:
        """The frame with this item counted; None: too many of a kind, or too few can follow."""
        watch = frame.watch
        counts = tuple(
            count + self._watches.is_wanted(each.schema, item)
            for count, each in zip(frame.counts, watch.wanted, strict=True)
        )
        room = None if watch.longest is None else watch.longest - (frame.number or 0) - 1
        for count, each in zip(counts, watch.wanted, strict=True):
            if each.most is not None and count > each.most:
                return None
            if room is not None and each.least - count > room:
                return None
        return frame._replace(counts=counts)


_STEPS = {
    Mode.VALUE: _Reading._value,
    Mode.STRING: _Reading._in_string,
    Mode.ESCAPE: _Reading._escaped,
    Mode.NUMBER: _Reading._in_number,
    Mode.AFTER: _Reading._after,
    Mode.KEY: _Reading._key,
    Mode.IN_KEY: _Reading._in_string,
    Mode.ESCAPE_IN_KEY: _Reading._escaped,
    Mode.COLON: _Reading._colon,
}


def _is_full(frame: Frame) -> bool:
    return frame.watch.most is not None and len(frame.seen) >= frame.watch.most


def _names_left(frame: Frame) -> Collection[str] | None:
    """What may be the next key, so that neither too few nor too many follow; None: any."""
    watch = frame.watch
    missing = {*watch.required} - frame.seen
    if watch.most is not None and len(frame.seen) + len(missing) >= watch.most:
        return missing
    if not watch.names:
        return None
    last = max((watch.names.index(name) for name in frame.seen), default=-1)
    later = watch.names[last + 1 :]
    return [
        name
        for index, name in enumerate(later)
        if len(frame.seen) + len(later) - index >= watch.least
    ]


def _number(text: str) -> _Number:
    mantissa, _, power = text.lower().partition("e")
    whole, _, part = mantissa.partition(".")
    sign = "-" if whole.startswith("-") else ""
    digits = (whole.removeprefix("-") + part).lstrip("0")
    kept = digits.rstrip("0")
    if not kept:
        return _ZERO
    return _Number(sign + kept, int(power or 0) - len(part) + len(digits) - len(kept))


def _equal(value: Any) -> _Equal:
    match value:
        case dict():
            return frozenset((key, _equal(member)) for key, member in value.items())
        case list():
            return tuple(map(_equal, value))
        case bool() | None:
            return json.dumps(value)
        case str():
            return f'"{value}'
    return value
