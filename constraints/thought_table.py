"""The marks around a thought over the tokens of a vocabulary: what each token does to them.

    opening   0 .. MAX_SPACES white space | bytes of the opener
    closing   bytes of the closer, where the thought's text ends with them

Marks are read as bytes. A special token in a mark has the bytes of its name, as readers of the text
see it, and is legal in the mark's place alone. Behind a closer's special token only the rest of the
closer may follow: such a token is no text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.bitmask import Bitmask, row_of, set_bits
from constraints.errors import NotEnforced
from constraints.guiding.completion import KnownCompletion, spelled
from constraints.guiding.stops import automaton_of
from constraints.spec import MAX_SPACES, SPACES
from constraints.vocabulary import Vocabulary, is_mark
from constraints.vocabulary_cache import kept_with_vocabulary

SPACE_BYTES = SPACES.encode()


@dataclass(frozen=True, slots=True)
class Mark:
    """An opener or a closer.

    token_ids: as the model spells it
    starts:    the byte at which each of them begins
    specials:  those among them that are special, with their names
    """

    text: bytes
    token_ids: KnownCompletion
    starts: tuple[int, ...]
    specials: Mapping[int, bytes]

    @classmethod
    def of(cls, text: str, vocabulary: Vocabulary) -> "Mark":
        """Raises NotEnforced for a text that the vocabulary cannot spell, or that ends outputs."""
        named = special_ids(vocabulary)
        present = sorted((name for name in named if name in text), key=len, reverse=True)
        pattern = "|".join(map(re.escape, present))
        pieces = re.split(f"({pattern})", text) if present else [text]
        token_ids: list[int] = []
        specials: dict[int, bytes] = {}
        for piece in filter(None, pieces):
            if piece in present:
                token_ids.append(named[piece])
                specials[named[piece]] = piece.encode()
                continue
            found = spelled(piece.encode(), vocabulary)
            if found is None:
                raise NotEnforced(f"this model's tokens cannot spell {piece!r}, a thought's mark")
            token_ids += found
        ends = [name.decode() for each, name in specials.items() if each in vocabulary.end_ids]
        if ends:
            raise NotEnforced(f"{text!r}, a thought's mark, has {ends[0]!r}, which ends an answer")
        starts = [0]
        for token_id in token_ids:
            starts.append(starts[-1] + len(specials.get(token_id) or vocabulary.tokens[token_id]))
        return cls(text.encode(), tuple(token_ids), tuple(starts[:-1]), specials)

    def rest_from(self, num_bytes: int, vocabulary: Vocabulary) -> KnownCompletion | None:
        """The tokens behind the first bytes; None: they cannot be spelled."""
        if num_bytes in self.starts:
            return self.token_ids[self.starts.index(num_bytes) :]
        return spelled(self.text[num_bytes:], vocabulary)


class ThoughtTable:
    """Opener and closer over a vocabulary; immutable once made, shared by threads."""

    def __init__(self, vocabulary: Vocabulary, opener: str, closer: str) -> None:
        """Raises NotEnforced."""
        self._vocabulary = vocabulary
        self.opener = Mark.of(opener, vocabulary)
        self.closer = Mark.of(closer, vocabulary)
        self._automaton = automaton_of([self.closer.text])
        self.closed = len(self.closer.text)
        self.opened = MAX_SPACES + len(self.opener.text)
        self._opening_rows: dict[int, tuple[Bitmask, Bitmask]] = {}
        # From here on the closer has to be completed.
        special_ends = [
            start + len(self.closer.specials[token_id])
            for start, token_id in zip(self.closer.starts, self.closer.token_ids, strict=True)
            if token_id in self.closer.specials
        ]
        self._committed = min(special_ends, default=self.closed)
        self._crossing = self._tokens_that_may_cross()
        self.closing_ids = tuple(self._closing_ids(state) for state in range(self.closed))
        self.max_closing_len = max(map(self.closing_len, range(self.closed)))
        # Openings that no tokens complete: some models have no token for some byte.
        self._dead = {each for each in range(self.opened) if not self.opening_ids(each)}
        self.max_opening_len = max(
            (len(self.opening_ids(each)) for each in range(self.opened)), default=0
        )

    def bytes_of(self, token_id: int, mark: Mark) -> bytes:
        """The token's bytes, its name if it is a special token of this mark."""
        return mark.specials.get(token_id) or self._vocabulary.tokens[token_id]

    def read_opening(self, opening: int, text: bytes) -> tuple[int, int] | None:
        """The opening behind the text, and how much of it that took.

        None: it is no opener, or one that no tokens complete.
        """
        for index, byte in enumerate(text):
            if opening == self.opened:
                return opening, index
            if opening < MAX_SPACES and byte in SPACE_BYTES:
                opening += 1
                continue
            num_read = max(0, opening - MAX_SPACES)
            if byte != self.opener.text[num_read]:
                return None
            opening = MAX_SPACES + num_read + 1
        return None if opening in self._dead else (opening, len(text))

    def opening_ids(self, opening: int) -> KnownCompletion:
        """The tokens that complete the opener."""
        num_read = max(0, opening - MAX_SPACES)
        return self.opener.rest_from(num_read, self._vocabulary) or ()

    def opening_rows(self, opening: int) -> tuple[Bitmask, Bitmask]:
        """The tokens that may be the opener's next, and those that complete it.

        The latter with the thought's first bytes behind it, but not with the whole closer.
        """
        known = self._opening_rows.get(opening)
        if known is not None:
            return known
        num_read = max(0, opening - MAX_SPACES)
        rest = self.opener.text[num_read:]
        legal = self._specials_at(self.opener, num_read)
        completing: list[int] = []
        for token_id, token in enumerate(self._vocabulary.tokens):
            begun = token if num_read else token.lstrip(SPACE_BYTES)
            if not token or not (begun.startswith(rest) or rest.startswith(begun)):
                continue
            read = self.read_opening(opening, token)
            if read is not None and read[0] == self.opened:
                completing.append(token_id)
            if read is not None and self.read_closing(0, token[read[1] :])[0] != self.closed:
                legal.append(token_id)
        num_words = self._vocabulary.num_words
        rows = (row_of(legal, num_words), row_of(completing, num_words))
        self._opening_rows[opening] = rows
        return rows

    def read_closing(self, closing: int, text: bytes) -> tuple[int, int]:
        """The closing behind the text, up to the byte that completes it, and how much it took."""
        return self._automaton.run(closing, text)

    def closing_len(self, closing: int) -> int:
        """The number of tokens from here to the end of the closer, if it is completed now."""
        num_tokens = 0
        while closing != self.closed:
            token = self.bytes_of(self.closing_ids[closing][0], self.closer)
            closing, _ = self.read_closing(closing, token)
            num_tokens += 1
        return num_tokens

    def crossing(self, closing: int) -> list[int]:
        """The tokens that complete the closer and go on."""
        tokens = self._vocabulary.tokens
        crossing = []
        for token_id in self._crossing:
            after, num_read = self.read_closing(closing, tokens[token_id])
            if after == self.closed and num_read < len(tokens[token_id]):
                crossing.append(token_id)
        return crossing

    def thought_row(self, closing: int) -> Bitmask:
        """The tokens of a thought and of its closer; those that go on behind it among them."""
        if closing >= self._committed:
            return row_of(self.closing_ids[closing][:1], self._vocabulary.num_words)
        row = text_row(self._vocabulary).copy()
        set_bits(row, self._specials_at(self.closer, 0))
        set_bits(row, self._specials_at(self.closer, closing))
        return row

    @staticmethod
    def _specials_at(mark: Mark, num_read: int) -> list[int]:
        return [
            token_id
            for token_id, start in zip(mark.token_ids, mark.starts, strict=True)
            if start == num_read and token_id in mark.specials
        ]

    def _closing_ids(self, closing: int) -> KnownCompletion:
        """The tokens that complete the closer: its own, wherever they do."""
        closer = self.closer
        if closing not in closer.starts and closing < self._committed:
            behind = closing
            for start, token_id in zip(closer.starts, closer.token_ids, strict=True):
                if start and behind != start:
                    break
                behind, _ = self.read_closing(behind, self.bytes_of(token_id, closer))
            else:
                return closer.token_ids
        rest = closer.rest_from(closing, self._vocabulary)
        if rest is None:
            raise NotEnforced(
                f"this model's tokens cannot spell {closer.text[closing:]!r}, the end of a thought"
            )
        return rest

    def _tokens_that_may_cross(self) -> list[int]:
        """The tokens that complete the closer and go on, wherever the thought's text is."""
        closer = self.closer.text
        ends = tuple(closer[start:] for start in range(1, self._committed))
        return [
            token_id
            for token_id, token in enumerate(self._vocabulary.tokens)
            if token.startswith(ends) or (closer in token and not token.endswith(closer))
        ]


@kept_with_vocabulary(8)
def thought_table_of(vocabulary: Vocabulary, opener: str, closer: str) -> ThoughtTable:
    return ThoughtTable(vocabulary, opener, closer)


@dataclass(frozen=True, slots=True, eq=False)
class SpacedTokens:
    """The tokens that begin with white space, and are a token or nothing without it.

    ids, rest_ids: of equal length; -1: nothing is left
    num_spaces:    of each
    kinds:         of each the characters of its white space, a bit for each of `SPACES`
    """

    ids: npt.NDArray[np.int64]
    rest_ids: npt.NDArray[np.int64]
    num_spaces: npt.NDArray[np.int64]
    kinds: npt.NDArray[np.int64]


@kept_with_vocabulary(1)
def spaced_tokens(vocabulary: Vocabulary) -> SpacedTokens:
    by_bytes = {token: token_id for token_id, token in enumerate(vocabulary.tokens) if token}
    found: list[tuple[int, int, int, int]] = []
    kinds_of: dict[bytes, int] = {}
    for token_id, token in enumerate(vocabulary.tokens):
        rest = token.lstrip(SPACE_BYTES)
        num_spaces = len(token) - len(rest)
        rest_id = by_bytes.get(rest) if rest else -1
        if not num_spaces or rest_id is None:
            continue
        spaces = token[:num_spaces]
        if spaces not in kinds_of:
            kinds_of[spaces] = sum(1 << SPACE_BYTES.index(each) for each in set(spaces))
        found.append((token_id, rest_id, num_spaces, kinds_of[spaces]))
    columns = np.array(found, dtype=np.int64).reshape(-1, 4).T
    return SpacedTokens(columns[0], columns[1], columns[2], columns[3])


@kept_with_vocabulary(1)
def text_row(vocabulary: Vocabulary) -> Bitmask:
    """All tokens that are text."""
    tokens = enumerate(vocabulary.tokens)
    ids = [token_id for token_id, token in tokens if token and not is_mark(token)]
    return row_of(ids, vocabulary.num_words)


@kept_with_vocabulary(1)
def special_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Tokens without text by their names."""
    named: dict[str, int] = {}
    for token_id, token in enumerate(vocabulary.tokens):
        if not token or is_mark(token):
            name = vocabulary.backend.decode_str([token_id])
            if name:
                named.setdefault(name, token_id)
    return named
