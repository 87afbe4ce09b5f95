"""A schema's language with what the engine does not remember: the items that differ, keys counted.

The mask is the engine's, without the tokens that a watch (`constraints.schema.watched`) forbids.
Which tokens may be forbidden depends on where they begin: inside of a string only those that end
it, elsewhere those that end a value. Of arrays whose items are listed, tokens that lead to no other
item are forbidden as well; other values may run out, and an output is led around that by searches.

Where a text has got to, and what is remembered of it, is followed byte by byte. The engine decides
what JSON of the schema is, so a text is read here as if it were that, and only what watches forbid
is found: a byte that ends an item which is there already, a key too many.
"""

import json
import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Collection, Hashable, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from constraints.bitmask import Bitmask, allowed_ids, clear_bits, is_set, row_of
from constraints.engine import GrammarLanguage, GrammarMatcher, Original
from constraints.errors import EngineFailed, IllegalToken
from constraints.schema.reading import hashable
from constraints.schema.validation import judge_of, loads
from constraints.schema.watched import OF_ARRAYS, OF_OBJECTS, Watch, read
from constraints.vocabulary import Vocabulary, kept_with_vocabulary

_STRING_END = re.compile(rb'["\\]')
_NUMBER_END = re.compile(rb"[^0-9.eE+-]")
_LITERALS = {ord("t"): b"true", ord("f"): b"false", ord("n"): b"null"}
_UNWATCHED = Watch()
# The most items of which is remembered whether they are wanted, and values that were judged.
_MAX_WANTED = 4096
_MAX_JUDGED = 256


class Mode(Enum):
    """Where in JSON the next byte is; behind a key is as behind a value."""

    VALUE = "at a value"
    KEY = "at a key"
    AFTER = "after a value"
    STRING = "in a string"
    IN_KEY = "in a key"
    NUMBER = "in a number"


class Frame(NamedTuple):
    """An array or object that is open.

    watch:    of this place
    start:    where it begins in the text
    number:   the index of the present item, or the place of the present member
    seen:     the items or keys that are complete, where they are watched
    counts:   how many items were of each wanted schema
    """

    is_array: bool
    watch: Watch
    start: int
    number: int | None = 0
    seen: frozenset[Hashable] = frozenset()
    counts: tuple[int, ...] = ()


class Watches:
    """All places of one schema, and what says whether items are wanted. Shared by threads."""

    def __init__(self, text: str) -> None:
        """`text`: as `watch.written` writes it."""
        watched = read(text)
        self.checked_at_close = watched.checked_at_close
        self.arrays = [place.only(OF_ARRAYS) for place in watched.places]
        self.objects = [place.only(OF_OBJECTS) for place in watched.places]
        self.judged = [place.judged for place in watched.places]
        wanted = [each.schema for place in watched.places for each in place.wanted]
        schemas = {*wanted, *(each for some in self.judged for each in some)}
        judges = {schema: judge_of(watched.document, schema) for schema in schemas}

        def is_instance(schema: str, value: bytes) -> bool:
            return judges[schema](value.decode())

        # Many tokens may end the same value, which may be the whole text.
        self.is_wanted = lru_cache(_MAX_WANTED)(is_instance)
        self.is_instance = lru_cache(_MAX_JUDGED)(is_instance)


class Position:
    """The state behind a text; it does not change once it was read.

    mode:      what the next byte belongs to
    frames:    the open arrays and objects
    num_watched: those in which something is watched
    """

    def __init__(self, watches: Watches) -> None:
        self.watches = watches
        self.frames: tuple[Frame, ...] = ()
        self.mode = Mode.VALUE
        self.num_watched = 0
        self._text = b""
        # Where the present value or key begins in it, and how much of it was read; and one byte
        # more where that is escaped.
        self._start = 0
        self._at = 0
        self._judges = True

    def behind(self, more: bytes, *, judges: bool = True) -> "Position | None":
        """The place behind some more bytes; None: a watch forbids one of them.

        judges: whether values are judged where they end
        """
        return self.legal_part(more, judges=judges)[1]

    def legal_part(self, more: bytes, *, judges: bool = True) -> "tuple[int, Position | None]":
        """How many of the bytes may follow, and the place behind them if all may."""
        after = copy(self)
        after._judges = judges
        num_legal = after._read(more)
        return num_legal, after if num_legal == len(more) else None

    @property
    def is_in_string(self) -> bool:
        """Whether a quotation mark ends a string or a key."""
        return self.mode in (Mode.STRING, Mode.IN_KEY) and self._at == len(self._text)

    @property
    def may_end(self) -> bool:
        """Whether a text that is JSON may end here: a number has no last byte."""
        return self.mode is not Mode.NUMBER or self.behind(b" ") is not None

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
        """How the string that has begun, an item or a key, could go on to be one there already.

        Without its quotation mark; as it is written without escapes.
        """
        frame = self.frames[-1]
        if self.mode is Mode.STRING and not frame.watch.differ:
            return []
        begun = self._text[self._start + 1 :]
        texts = [
            each.encode(errors="surrogatepass") for each in frame.seen if isinstance(each, str)
        ]
        return [text[len(begun) :] for text in texts if text.startswith(begun)]

    @property
    def is_listed(self) -> bool:
        """Whether what begins or has begun is a listed key or value: then few tokens are legal."""
        if not self.frames:
            return False
        watch = self.frames[-1].watch
        is_key = self.mode in (Mode.KEY, Mode.IN_KEY)
        return bool(watch.values) or (bool(watch.names) and is_key)

    @property
    def has_name_left(self) -> bool:
        """Whether a key that begins or has begun may lead to the end of an object of few names."""
        if self.mode not in (Mode.KEY, Mode.IN_KEY):
            return True
        frame = self.frames[-1]
        names = _names_left(frame)
        if names is None or (self.mode is Mode.KEY and not frame.seen and not frame.watch.least):
            return True
        begun = b"" if self.mode is Mode.KEY else self._text[self._start + 1 :]
        # Control characters have several spellings.
        spelt = (json.dumps(name, ensure_ascii=False)[1:].encode() for name in names)
        return rb"\u" in begun or any(name.startswith(begun) for name in spelt)

    @property
    def has_value_left(self) -> bool:
        """Whether a listed value may be the item that begins or has begun; where none are, any."""
        if self.mode is Mode.AFTER or not self.frames or not self.frames[-1].watch.values:
            return True
        begun = b"" if self.mode is Mode.VALUE else self._text[self._start :]
        listed = (value.encode() for value in self.frames[-1].watch.values)
        # White space ends a number.
        return any(
            value.startswith(begun) and self.behind(value[len(begun) :] + b" ") is not None
            for value in listed
        )

    def _read(self, more: bytes) -> int:
        """Returns how many of the bytes a watch allows."""
        begun_at = len(self._text)
        self._text += more
        while self._at < len(self._text):
            is_number = self.mode is Mode.NUMBER
            if not self._step():
                # The byte behind a number ends it, and is not read yet.
                return self._at - begun_at - (not is_number)
        return len(more)

    def _step(self) -> bool:
        """Read on to the end of a string or number, or one byte; whether a watch allows it."""
        match self.mode:
            case Mode.STRING | Mode.IN_KEY:
                return self._in_string()
            case Mode.NUMBER:
                found = _NUMBER_END.search(self._text, self._at)
                self._at = len(self._text) if found is None else found.start()
                return found is None or self._done(self._text[self._start : self._at])
        byte = self._text[self._at]
        self._at += 1
        match byte:
            case 0x22:  # "
                self.mode = Mode.IN_KEY if self.mode is Mode.KEY else Mode.STRING
                self._start = self._at - 1
                return self.mode is Mode.STRING or not _is_full(self.frames[-1])
            case 0x5B | 0x7B:  # [ {
                self._open(is_array=byte == 0x5B)
            case 0x5D | 0x7D:  # ] }
                return self._close()
            case 0x3A:  # :
                self.mode = Mode.VALUE
            case 0x2C:  # ,
                frame = self.frames[-1]
                self.mode = Mode.VALUE if frame.is_array else Mode.KEY
                if not frame.is_array:
                    return not _is_full(frame)
                number = (frame.number or 0) + 1
                self.frames = (*self.frames[:-1], frame._replace(number=number))
            case 0x74 | 0x66 | 0x6E:  # t f n: complete, as nothing else has them
                return self._done(_LITERALS[byte])
            case _ if byte in b"-0123456789":
                self.mode = Mode.NUMBER
                self._start = self._at - 1
        return True

    def _in_string(self) -> bool:
        found = _STRING_END.search(self._text, self._at)
        if found is None:
            self._at = len(self._text)
            return True
        self._at = found.end()
        if found[0] != b'"':
            # What is escaped may be yet to come.
            self._at += 1
            return True
        if self.mode is Mode.IN_KEY:
            return self._key_done()
        return self._done(self._text[self._start : self._at])

    def _key_done(self) -> bool:
        frame = self.frames[-1]
        self.mode = Mode.AFTER
        if frame.watch is _UNWATCHED:
            return True
        key = json.loads(self._text[self._start : self._at])
        names = _names_left(frame)
        if key in frame.seen or (names is not None and key not in names):
            return False
        counted = {key} if frame.watch.is_watched else frozenset()
        frame = frame._replace(number=frame.watch.member(key), seen=frame.seen | counted)
        self.frames = (*self.frames[:-1], frame)
        return True

    def _open(self, *, is_array: bool) -> None:
        number = self._number_of_value()
        places = self.watches.arrays if is_array else self.watches.objects
        watch = _UNWATCHED if number is None else places[number]
        self.num_watched += watch.is_watched
        counts = (0,) * len(watch.wanted)
        self.frames = (*self.frames, Frame(is_array, watch, self._at - 1, counts=counts))
        self.mode = Mode.VALUE if is_array else Mode.KEY

    def _number_of_value(self) -> int | None:
        """The place of the value that begins; None: nothing is watched there."""
        if not self.frames:
            return 0
        frame = self.frames[-1]
        if frame.is_array:
            return frame.watch.item(frame.number or 0)
        return None if frame.watch is _UNWATCHED else frame.number

    def _close(self) -> bool:
        frame = self.frames[-1]
        watch = frame.watch
        if not frame.is_array and (
            len(frame.seen) < watch.least or not frame.seen.issuperset(watch.required)
        ):
            return False
        if any(
            count < each.least for count, each in zip(frame.counts, frame.watch.wanted, strict=True)
        ):
            return False
        self.frames = self.frames[:-1]
        self.num_watched -= frame.watch.is_watched
        return self._done(self._text[frame.start : self._at])

    def _done(self, value: bytes) -> bool:
        """A value is complete: it is looked at, as an instance or an item of a watched array."""
        self.mode = Mode.AFTER
        number = self._number_of_value() if self._judges else None
        for schema in () if number is None else self.watches.judged[number]:
            if not self.watches.is_instance(schema, value):
                return False
        frame = self.frames[-1] if self.frames else None
        if frame is None or not frame.watch.reads_items:
            return True
        if frame.watch.differ:
            equal = hashable(loads(value.decode()))
            if equal in frame.seen:
                return False
            frame = frame._replace(seen=frame.seen | {equal})
        counts = self._counted(frame, value)
        if counts is None:
            return False
        self.frames = (*self.frames[:-1], frame._replace(counts=counts))
        return True

    def _counted(self, frame: Frame, item: bytes) -> tuple[int, ...] | None:
        """How many of each kind with this item; None: too many of one, or too few can follow."""
        watch = frame.watch
        counts = tuple(
            count + self.watches.is_wanted(each.schema, item)
            for count, each in zip(frame.counts, watch.wanted, strict=True)
        )
        room = None if watch.longest is None else watch.longest - (frame.number or 0) - 1
        for count, each in zip(counts, watch.wanted, strict=True):
            if each.most is not None and count > each.most:
                return None
            if room is not None and each.least - count > room:
                return None
        return counts


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
    if watch.unordered:
        return [name for name in watch.names if name not in frame.seen]
    last = max((watch.names.index(name) for name in frame.seen), default=-1)
    later = watch.names[last + 1 :]
    return [
        name
        for index, name in enumerate(later)
        if len(frame.seen) + len(later) - index >= watch.least
    ]


# Tokens that end no value: a part of a number, a string that begins.
_INERT = re.compile(rb'[0-9.eE+-]+|[ \t\r\n]*"[^"]*')
# Tokens that open an array and end an item of it.
_COMPOUND = re.compile(rb"(?s).*\[.*,")
# What may stand behind the end of a string and ends no further value but those around it.
_PLAIN = re.compile(rb'[ \t\r\n\]}]*[,:]?[ \t\r\n\[{]*(?:"[^"\\]*)?')
_FIRST_QUOTE = re.compile(rb'([^"\\]*)"')
# Tokens that end a string are tried one by one up to so many, and else by what stands behind it.
_MAX_TRIED = 48
# Searches under a judge have the limits of one behind so many failures; dives have these, and some
# for each leaf of the schema.
_JUDGED_FAILED = 8
_JUDGED_TRIES = 40


@dataclass(frozen=True, slots=True, eq=False)
class _Endings:
    """The tokens of a vocabulary that may be forbidden, by where they begin.

    elsewhere: outside of strings
    compound:  where nothing watched is open
    quoting:   ids of those that have a quotation mark, as read within a string
    number:    of each, by what stands behind the mark
    afters:    that, by these numbers
    is_alone:  by these numbers, whether each token has to be tried
    by_before: the ids by what stands before the mark
    """

    elsewhere: Bitmask
    compound: Bitmask
    quoting: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]
    afters: tuple[bytes, ...]
    is_alone: npt.NDArray[np.bool_]
    by_before: dict[bytes, list[int]]


@kept_with_vocabulary(1)
def endings_of(vocabulary: Vocabulary) -> _Endings:
    """The tokens that end values; takes a tenth of a second once."""
    by_text = {token: index for index, token in enumerate(vocabulary.tokens) if token}
    numbers: dict[int, int] = {}
    afters: dict[bytes, int] = {}
    by_before: defaultdict[bytes, list[int]] = defaultdict(list)
    for token, token_id in by_text.items():
        if b'"' in token:
            found = _FIRST_QUOTE.match(token)
            # A token with an escape is one of its own kind.
            after = token[found.end() :] if found else token
            if found:
                by_before[found[1]].append(token_id)
            numbers[token_id] = afters.setdefault(after, len(afters))
    elsewhere = [index for token, index in by_text.items() if not _INERT.fullmatch(token)]
    compound = [index for token, index in by_text.items() if _COMPOUND.match(token)]
    return _Endings(
        row_of(elsewhere, vocabulary.num_words),
        row_of(compound, vocabulary.num_words),
        np.array([*numbers], dtype=np.int64),
        np.array([*numbers.values()], dtype=np.int64),
        tuple(afters),
        np.array([not _PLAIN.fullmatch(after) for after in afters], dtype=np.bool_),
        dict(by_before),
    )


class WatchedLanguage(GrammarLanguage):
    """A language of JSON in which something is watched."""

    may_have_dead_ends = True

    @property
    def checked_at_close(self) -> tuple[str, ...]:
        """Pointers of what masks do not keep; a wrong value has no end."""
        return self._watches.checked_at_close

    @cached_property
    def _watches(self) -> Watches:
        return Watches(self.watch)

    def _copy_of(self, original: Original) -> "WatchedMatcher":
        return WatchedMatcher(self, original, original.matcher.deep_copy(), Position(self._watches))


class WatchedMatcher(GrammarMatcher):
    """The state of one output. See `constraints.matcher.Matcher`."""

    def __init__(
        self, language: GrammarLanguage, original: Original, inner: LLMatcher, place: Position
    ) -> None:
        super().__init__(language, original, inner)
        self._vocabulary = language.vocabulary
        self._position = place

    def fill_mask(self, row: Bitmask, max_len: int | None = None) -> None:
        """Overwrite `row` with the legal tokens; `max_len` is ignored."""
        super().fill_mask(row)
        if not self._position.frames and not self.is_complete:
            clear_bits(row, self._end_ids)
        tried = self._endings(row)
        clear_bits(row, [each for each in tried if not self._may_follow(self._tokens[each])])

    def _endings(self, row: Bitmask) -> list[int]:
        """The legal tokens that may be forbidden; those that certainly are are cleared."""
        endings = endings_of(self._vocabulary)
        legal = row
        if self._position.is_listed:
            pass  # few are legal
        elif not self._position.num_watched:
            legal = row & endings.compound
        elif self._position.is_in_string:
            return self._string_endings(row, endings)
        else:
            legal = row & endings.elsewhere
        return allowed_ids(legal).tolist() if legal.any() else []

    def _string_endings(self, row: Bitmask, endings: _Endings) -> list[int]:
        ids = endings.quoting
        has_bit = (row[ids >> 5] >> (ids & 31).astype(np.int32)) & 1 > 0
        ids = ids[has_bit]
        if len(ids) <= _MAX_TRIED:
            return list(map(int, ids))
        numbers = endings.number[has_bit]
        # Whatever the string is, unless it is one that is there.
        position = self._position
        is_alone = endings.is_alone.copy()
        other = b"~" * position.longest_len + b'"'
        within = position.is_within_item
        wanted = position.frames[-1].watch.wanted
        for number in np.unique(numbers).tolist():
            after = endings.afters[number]
            if is_alone[number]:
                continue
            behind = position.behind(other + after, judges=False)
            is_legal = behind is not None and behind.has_name_left
            if (within and (b"]" in after or b"}" in after)) or (
                wanted and (not is_legal or any(each.most is not None for each in wanted))
            ):
                is_alone[number] = True
            elif not is_legal:
                clear_bits(row, ids[numbers == number].tolist())
        same = [each for text in position.contents for each in endings.by_before.get(text, ())]
        return [*ids[is_alone[numbers]].tolist(), *(each for each in same if is_set(row, each))]

    def _may_follow(self, token: bytes) -> bool:
        # What a judge would say of each token, is said of the one that is drawn.
        after = self._position.behind(token, judges=False)
        return after is not None and after.has_name_left and after.has_value_left

    def advance(self, token_id: int) -> None:
        """Accept a token. Raises IllegalToken and then changes nothing."""
        after = self._behind((token_id,))
        if after is None:
            raise IllegalToken(f"token {token_id} is not legal behind the items or keys before it")
        super().advance(token_id)
        self._position = after

    def shortest(
        self, max_len: int, tails: Sequence[tuple[int, ...]] = (), num_failed: int = 0
    ) -> tuple[int, ...] | None:
        """Tokens that complete the text from here, at most `max_len`; None: none found."""
        if self._position.watches.checked_at_close and self._made:
            # Many a token leads to where the judge agrees to nothing that a search tries.
            num_failed = max(num_failed, _JUDGED_FAILED)
            self._max_tries = _JUDGED_TRIES + 16 * len(self._language.hints.all())
        return super().shortest(max_len, tails, num_failed)

    def num_legal(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens could be accepted in sequence."""
        num_legal = super().num_legal(token_ids)
        if num_legal == 0:
            return 0
        tokens = [self._tokens[each] for each in token_ids[:num_legal]]
        legal_len, after = self._position.legal_part(b"".join(tokens))
        if after is None:
            return bisect(list(accumulate(map(len, tokens))), legal_len)
        is_end = token_ids[num_legal - 1] in self._end_ids
        return num_legal - int(is_end and not after.may_end)

    def _behind(self, token_ids: Sequence[int]) -> Position | None:
        tokens = self._tokens
        known = [tokens[each] for each in token_ids if 0 <= each < len(tokens)]
        after = self._position.behind(b"".join(known))
        if after is None or self._end_ids.isdisjoint(token_ids) or after.may_end:
            return after
        return None

    @property
    def is_complete(self) -> bool:
        """Whether the text so far is in the language."""
        return super().is_complete and self._position.may_end

    def follow(self, token_ids: Sequence[int]) -> None:
        """Accept several tokens that are known to be legal."""
        super().follow(token_ids)
        after = self._behind(token_ids)
        if after is None:
            raise EngineFailed("a legal text has an item twice")
        self._position = after

    def deterministic_suffix(self) -> bytes:
        """The bytes with which every legal text continues, or the first of them."""
        forced = super().deterministic_suffix()
        return forced if self._position.behind(forced) is not None else b""
