"""A dive: one greedy way to the end of a JSON text, without a search.

forced bytes are taken, what is open is closed, a value is the simplest legal one or a hint

It takes the time of some dozens of masks. A schema that needs more (two patterns at once, a count
of items that excludes the simplest ones) is left to a search.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np

from constraints.bitmask import allowed_ids
from constraints.errors import IllegalToken
from constraints.guiding.alphabet import alphabet_of
from constraints.guiding.completion import KnownCompletion, completes, spelled, text_of
from constraints.matcher import Matcher
from constraints.vocabulary import Vocabulary

_MAX_STEPS = 400
# Of the hints that a dive tries, all together.
_MAX_TRIED_LEN = 100_000
_CLOSERS = (b"}", b"]")
_SIMPLE = (b"0", b"null", b"true", b'""', b"[]", b"{}")
_SIMPLE_ITEMS = tuple(each + b"," for each in _SIMPLE)
_SPACE = b" \t\r\n"
# Of the other bytes: what ends or parts values before what makes them longer.
_LIKED = tuple(bytes((byte,)) for byte in b'",:1234567890{[-aA.@/ ')
# Deeper than this, other ways are taken: the first one may lead down without end.
_MAX_PLAIN_DEPTH = 6
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_QUOTED = re.compile(rb'"[^"]*"')
_BARE = re.compile(rb"[^\s:,\[\]{}]*\Z")


def dive(
    matcher: Matcher,
    vocabulary: Vocabulary,
    max_len: int,
    hints: Sequence[bytes],
    before: bytes = b"",
) -> KnownCompletion | None:
    """Tokens that complete the text, at most `max_len`; None: none found this way.

    before: the text so far
    Raises EngineFailed where the engine cannot follow it.
    """
    try:
        made = _Dive(matcher.fork(), vocabulary, hints).to_the_end(before)
    except IllegalToken:
        return None
    if made is None:
        return None
    shorter = spelled(text_of(made, vocabulary), vocabulary)
    if shorter is not None and len(shorter) < len(made) and completes(matcher, vocabulary, shorter):
        made = shorter
    return made if len(made) <= max_len else None


class _Dive:
    """One dive; takes the matcher along."""

    def __init__(self, matcher: Matcher, vocabulary: Vocabulary, hints: Sequence[bytes]) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._hints = hints
        self._tried_len = 0

    def to_the_end(self, text: bytes) -> KnownCompletion | None:
        """Tokens that complete `text`."""
        made: list[int] = []
        for _ in range(_MAX_STEPS):
            if self._matcher.is_complete:
                return tuple(made)
            taken = self._other_item(text) or self._forced() or self._chosen(text)
            if not taken:
                return None
            for token_id in taken:
                self._matcher.advance(token_id)
            made += taken
            text += text_of(taken, self._vocabulary)
        return None

    def _other_item(self, text: bytes) -> KnownCompletion:
        """A hint behind a simple item: where that did not allow the end, it never will."""
        has_simple = text.rstrip(_SPACE).endswith(_SIMPLE_ITEMS)
        return self._first_legal(self._hints if has_simple else ())

    def _forced(self) -> KnownCompletion:
        tokens = spelled(self._matcher.deterministic_suffix(), self._vocabulary)
        return tuple(tokens[: self._matcher.num_legal(tokens)]) if tokens else ()

    def _chosen(self, text: bytes) -> KnownCompletion:
        """What comes next behind a text, where nothing is forced."""
        begun, depth = _end_of(text)
        closers: Sequence[bytes] = _CLOSERS
        if begun:
            closers = (b'"',) if begun.startswith(b'"') else (*_CLOSERS, b",")
        hints_turn = max(0, depth - _MAX_PLAIN_DEPTH) % (len(self._hints) or 1)
        hints = (*self._hints[hints_turn:], *self._hints[:hints_turn])
        # The same byte again and again may never come to an end: 1, 11, 111 are all odd.
        turn = max(0, len(begun) - 1) % len(_LIKED)
        return (
            self._first_legal(closers)
            or self._first_legal(() if begun else _SIMPLE)
            or self._first_legal(hint[len(begun) :] for hint in hints if hint.startswith(begun))
            or self._first_legal((*_LIKED[turn:], *_LIKED[:turn]))
            or self._any_legal()
        )

    def _first_legal(self, texts: Iterable[bytes]) -> KnownCompletion:
        for text in texts:
            self._tried_len += len(text)
            if self._tried_len > _MAX_TRIED_LEN:
                return ()
            tokens = spelled(text, self._vocabulary)
            if tokens and self._matcher.num_legal(tokens) == len(tokens):
                return tuple(tokens)
        return ()

    def _any_legal(self) -> KnownCompletion:
        if self._tried_len > _MAX_TRIED_LEN:
            return ()
        row = np.zeros(self._vocabulary.num_words, dtype=np.int32)
        self._matcher.fill_mask(row)
        singles = alphabet_of(self._vocabulary).allowed(row)[0].tolist()
        return tuple((singles or allowed_ids(row).tolist())[:1])


def _end_of(text: bytes) -> tuple[bytes, int]:
    """The string or other scalar that has begun at the end of a JSON text, and how many objects and
    arrays are open."""
    plain = _ESCAPED.sub(b"__", text)
    is_quoted = plain.count(b'"') % 2 == 1
    start = plain.rfind(b'"') if is_quoted else len(plain)
    outside = _QUOTED.sub(b"", plain[:start])
    depth = sum(map(outside.count, (b"{", b"["))) - sum(map(outside.count, (b"}", b"]")))
    if not is_quoted and not plain.endswith(b'"'):
        found = _BARE.search(plain)
        start = start if found is None else found.start()
    return text[start:], depth
