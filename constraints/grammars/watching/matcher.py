"""A schema's language with what the engine does not remember: see `Watch`.

The mask is the engine's, without the tokens that a watch forbids. Which tokens may be forbidden
depends on where they begin: inside of a string only those that end it, elsewhere those that end a
value. Of arrays whose items may run out, tokens that lead to no other item are forbidden as well.
"""

import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

from constraints.bitmask import Bitmask, allowed_ids, clear_bits, is_set, row_of
from constraints.errors import EngineFailed, IllegalToken
from constraints.grammars.engine import GrammarLanguage, GrammarMatcher, Original
from constraints.grammars.watching.position import ZEROS, Mode, Position, Watches
from constraints.guiding.alphabet import byte_vocabulary
from constraints.guiding.completion import text_of
from constraints.vocabulary import Vocabulary
from constraints.vocabulary_cache import kept_with_vocabulary

# Tokens that end no value: a part of a number, a string that begins.
_INERT = re.compile(rb'[0-9.eE+-]+|[ \t\r\n]*"[^"]*')
# Tokens that open an array and end an item of it.
_COMPOUND = re.compile(rb"(?s).*\[.*,")
# What may stand behind the end of a string and ends no further value but those around it.
_PLAIN = re.compile(rb'[ \t\r\n\]}]*[,:]?[ \t\r\n\[{]*(?:"[^"\\]*)?')
_FIRST_QUOTE = re.compile(rb'([^"\\]*)"')
# Tokens that end a string are tried one by one up to so many, and else by what stands behind it.
_MAX_TRIED = 48
# The most places that are looked at for another item, and tokens behind which there may be none.
_MAX_LOOKS = 64
_MAX_ENDS = 32
_IN_STRING = (Mode.STRING, Mode.IN_KEY)
_SPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True, eq=False)
class _Quoting:
    """The tokens that have a quotation mark, as read within a string.

    token_ids: of them
    number:    by what stands behind the mark
    afters:    that, by these numbers
    is_alone:  by these numbers, whether each token has to be tried
    by_before: the tokens by what stands before the mark
    """

    token_ids: npt.NDArray[np.int64]
    number: npt.NDArray[np.int64]
    afters: tuple[bytes, ...]
    is_alone: npt.NDArray[np.bool_]
    by_before: dict[bytes, list[int]]


@dataclass(frozen=True, slots=True, eq=False)
class _Endings:
    """The tokens of a vocabulary that may be forbidden, by where they begin.

    quoting:   within a string
    elsewhere: outside of strings
    compound:  where nothing watched is open
    by_text:   all tokens by their bytes
    """

    quoting: _Quoting
    elsewhere: Bitmask
    compound: Bitmask
    by_text: dict[bytes, int]


@kept_with_vocabulary(1)
def endings_of(vocabulary: Vocabulary) -> _Endings:
    """The tokens that end values; takes a tenth of a second once."""
    by_text = {token: index for index, token in enumerate(vocabulary.tokens) if token}

    def row(found: Iterator[int]) -> Bitmask:
        return row_of(list(found), vocabulary.num_words)

    return _Endings(
        _quoting(by_text),
        row(index for token, index in by_text.items() if not _INERT.fullmatch(token)),
        row(index for token, index in by_text.items() if _COMPOUND.match(token)),
        by_text,
    )


def _quoting(by_text: dict[bytes, int]) -> _Quoting:
    ids: list[int] = []
    numbers: list[int] = []
    afters: dict[bytes, int] = {}
    by_before: defaultdict[bytes, list[int]] = defaultdict(list)
    for token, token_id in by_text.items():
        if b'"' in token:
            found = _FIRST_QUOTE.match(token)
            # A token with an escape is one of its own kind.
            after = token[found.end() :] if found else token
            if found:
                by_before[found[1]].append(token_id)
            ids.append(token_id)
            numbers.append(afters.setdefault(after, len(afters)))
    is_alone = [not _PLAIN.fullmatch(after) for after in afters]
    return _Quoting(
        np.array(ids, dtype=np.int64),
        np.array(numbers, dtype=np.int64),
        tuple(afters),
        np.array(is_alone, dtype=np.bool_),
        dict(by_before),
    )


class WatchedLanguage(GrammarLanguage):
    """A language of JSON in which something is watched."""

    may_have_dead_ends = True

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
        # The same over single bytes, and how many of the tokens it has followed.
        self._twin: WatchedMatcher | None = None
        self._num_followed = 0

    def fill_mask(self, row: Bitmask, max_len: int | None = None) -> None:
        """Overwrite `row` with the legal tokens; `max_len` is ignored."""
        super().fill_mask(row)
        # What is known of items that begin behind a token: white space makes many of the same.
        known: dict[object, bool] = {}
        tried = self._endings(row)
        clear_bits(row, [each for each in tried if not self._may_follow(self._tokens[each], known)])
        last = [each for each in self._last_values() if is_set(row, each)]
        clear_bits(row, [each for each in last if not self._may_follow(self._tokens[each], known)])

    def _endings(self, row: Bitmask) -> list[int]:
        """The legal tokens that may be forbidden; those that certainly are are cleared."""
        endings = endings_of(self._vocabulary)
        legal = row
        if self._position.is_listed:
            pass  # few are legal
        elif not self._position.num_watched:
            legal = row & endings.compound
        elif self._position.mode in _IN_STRING:
            return self._string_endings(row, endings.quoting)
        else:
            legal = row & endings.elsewhere
        return allowed_ids(legal).tolist() if legal.any() else []

    def _string_endings(self, row: Bitmask, quoting: _Quoting) -> list[int]:
        ids = quoting.token_ids
        has_bit = (row[ids >> 5] >> (ids & 31).astype(np.int32)) & 1 > 0
        if np.count_nonzero(has_bit) <= _MAX_TRIED:
            return list(map(int, ids[has_bit]))
        numbers = quoting.number[has_bit]
        ids = ids[has_bit]
        # Whatever the string is, unless it is one that is there.
        position = self._position
        is_alone = quoting.is_alone.copy()
        other = b"~" * position.longest_len + b'"'
        within = position.is_within_item
        wanted = position.frames[-1].watch.wanted
        for number in np.unique(numbers).tolist():
            after = quoting.afters[number]
            if is_alone[number]:
                continue
            behind = position.behind(other + after)
            is_legal = behind is not None and behind.has_name_left
            if (within and (b"]" in after or b"}" in after)) or (
                wanted and (not is_legal or any(each.most is not None for each in wanted))
            ):
                is_alone[number] = True
            elif not is_legal:
                clear_bits(row, ids[numbers == number].tolist())
        contents = position.contents if position.mode is Mode.STRING else []
        same = [each for text in contents for each in quoting.by_before.get(text, ())]
        return [*ids[is_alone[numbers]].tolist(), *(each for each in same if is_set(row, each))]

    def _may_follow(self, token: bytes, known: dict[object, bool]) -> bool:
        after = self._position.behind(token)
        if after is None or after.item is None:
            return after is not None and after.has_name_left
        is_left = after.has_value_left
        if is_left is not None:
            return is_left
        if after.item not in known:
            known[after.item] = self._leads_on(token)
        return known[after.item]

    def _last_values(self) -> list[int]:
        """Tokens that end no value, but behind which only one may follow that is there already."""
        rests = [] if self._position.is_listed else self._position.rests()
        longest = sorted(rests, key=len, reverse=True)[:_MAX_ENDS]
        begun = {rest.removesuffix(b'"') for rest in (*ZEROS.intersection(rests), *longest)}
        if self._position.mode is Mode.VALUE:
            begun |= {b" " + text for text in begun}
        by_text = endings_of(self._vocabulary).by_text
        return [by_text[text] for text in begun if text in by_text]

    def _leads_on(self, token: bytes) -> bool:
        """Whether an item that is not there yet may follow behind this token."""
        ahead = self._bytewise_here()
        if ahead is None:
            return True
        ahead.follow(tuple(token))
        return ahead.has_another(iter(range(_MAX_LOOKS)))

    def _bytewise_here(self) -> "WatchedMatcher | None":
        """A copy at this place over single bytes, if there is one."""
        if self._vocabulary is byte_vocabulary():
            return self.fork()
        if self._twin is None:
            language = self._language.in_bytes()
            twin = None if language is None else language.matcher()
            if not isinstance(twin, WatchedMatcher):
                return None
            self._twin = twin
        made = self._made[self._num_followed :]
        self._twin.follow(tuple(text_of(tuple(made), self._vocabulary)))
        self._num_followed += len(made)
        return self._twin.fork()

    def has_another(self, looks: Iterator[int]) -> bool:
        """Of bytes: whether the item here may become one that is not there; True if not known."""
        rests = self._position.rests()
        if not rests or next(looks, None) is None:
            return True
        taken = {rest[0] for rest in rests if rest}
        row = np.zeros(self._vocabulary.num_words, dtype=np.int32)
        super().fill_mask(row)
        later = []
        for byte in allowed_ids(row).tolist():
            is_space = self._position.mode is Mode.VALUE and byte in _SPACE
            if is_space or self._position.behind(self._tokens[byte]) is None:
                continue
            if byte not in taken:
                return True
            later.append(byte)
        for byte in later:
            ahead = self.fork()
            ahead.follow((byte,))
            if ahead.has_another(looks):
                return True
        return False

    def advance(self, token_id: int) -> None:
        """Accept a token. Raises IllegalToken and then changes nothing."""
        after = self._behind((token_id,))
        if after is None:
            raise IllegalToken(f"token {token_id} is not legal behind the items or keys before it")
        super().advance(token_id)
        self._position = after

    def num_legal(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens could be accepted in sequence."""
        num_legal = super().num_legal(token_ids)
        if self._behind(token_ids[:num_legal]) is not None:
            return num_legal
        sizes = range(1, num_legal + 1)
        return bisect(sizes, False, key=lambda size: self._behind(token_ids[:size]) is None)

    def _behind(self, token_ids: Sequence[int]) -> Position | None:
        tokens = self._tokens
        known = [tokens[each] for each in token_ids if 0 <= each < len(tokens)]
        return self._position.behind(b"".join(known))

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

    def fork(self) -> "WatchedMatcher":
        """A copy, which shares the lexer and its lock."""
        copy = WatchedMatcher(
            self._language, self._original, self._inner.deep_copy(), self._position
        )
        copy._made = self._made.copy()
        copy._has_ended = self._has_ended
        return copy
