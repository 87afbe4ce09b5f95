"""The state of an output that begins with a thought, or may; a constraint is for what follows it.

    output:  | white space, opener | thought | closer | white space | answer ........ |
             | before ............ | in .............. | before .... | its own state   |
    without: | answer ............................................................... |

The answer is a state of its own (`OutputConstraintState`): the language, its masks, the stop rule
and the search for completions know nothing of the thought. White space before it is dropped, as
readers drop it.

The thought ends in time: at its own budget, and where the closer and the answer's known completion
need all tokens that are left, only the closer may follow. So a thought never uses up the answer.
As there, two states with the same tokens allow the same next tokens.

The marks around a thought are tables over the tokens of a vocabulary: what each token does to them.

    opening   0 .. MAX_SPACES white space | bytes of the opener
    closing   bytes of the closer, where the thought's text ends with them

Marks are read as bytes. A special token in a mark has the bytes of its name, as readers of the text
see it, and is legal in the mark's place alone. Behind a closer's special token only the rest of the
closer may follow: such a token is no text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from constraints.bitmask import Bitmask, clear_bits, is_set, row_of, set_bits
from constraints.errors import DoesNotFit, IllegalToken, NotEnforced
from constraints.guiding.completion import KnownCompletion, spelled
from constraints.guiding.stops import automaton_of
from constraints.matcher import ANY_LEN, AnyText, Language
from constraints.output_constraint import NO_STOPS, OutputConstraintState
from constraints.spec import MAX_SPACES, SPACES, Budget, StopRule, ThoughtRule
from constraints.vocabulary import Vocabulary, is_mark, kept_with_vocabulary

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


@dataclass(frozen=True, slots=True)
class _Before:
    """Before the answer, or before it is known whether there is a thought.

    opening:    see `ThoughtTable`; None: the thought is over, or there is none
    num_spaces: white space that is no part of the answer
    answer:     the answer if there is no thought (any more); None: it is illegal
    is_begun:   the answer has accepted tokens
    """

    opening: int | None
    num_spaces: int
    answer: OutputConstraintState | None
    is_begun: bool


@dataclass(frozen=True, slots=True)
class _Thought:
    """In the thought, `num_tokens` behind its opener. closing: see `ThoughtTable`."""

    closing: int
    num_tokens: int


_Place: TypeAlias = _Before | _Thought | OutputConstraintState


class AfterThought:
    """One output with its thought; used as `OutputConstraintState` is, by one thread at a time."""

    def __init__(
        self,
        answer: OutputConstraintState,
        vocabulary: Vocabulary,
        rule: ThoughtRule,
        budget: Budget,
        barred_ids: tuple[int, ...] = (),
    ) -> None:
        """`answer`: at its start, with a budget that leaves room for the closer if it has to.

        budget:     of the whole output
        barred_ids: tokens that end the output, and are no part of a thought
        Raises NotEnforced for marks that the vocabulary cannot spell.
        """
        self._fresh = answer
        self._vocabulary = vocabulary
        self._budget = budget
        self._barred_ids = barred_ids
        self._table = thought_table_of(vocabulary, rule.opener, rule.closer)
        self._thought_max_len = ANY_LEN if rule.max_len is None else rule.max_len
        # Output tokens at which a thought has to end, so that the answer fits.
        self._last_len = ANY_LEN
        if not budget.may_truncate:
            self._last_len = budget.max_len - self._table.max_closing_len - answer.needed_len
        self._dropped = self._dropped_spaces()
        # Of places in the thought and before the answer; shared with copies.
        self._rows: dict[tuple[str, int], Bitmask] = {}
        self._num_tokens = 0
        self._place: _Place = (
            _Thought(0, 0) if rule.is_begun else _Before(0, 0, answer.fork(), False)
        )
        self._checked: tuple[int, _Place | None] | None = None
        self._is_begun = rule.is_begun
        if rule.is_begun:
            self._row("thought", 0)

    def _dropped_spaces(self) -> bytes:
        """All white space, unless the answer has to begin with some; then what it refuses."""
        token_id = self._fresh.completion_token()
        if token_id is None or self._vocabulary.tokens[token_id][:1] not in SPACE_BYTES:
            return SPACE_BYTES
        return bytes(each for each in SPACE_BYTES if not self._may_begin(bytes([each])))

    def _may_begin(self, text: bytes) -> bool:
        """Whether the answer can begin with this text, if it has room."""
        token_ids = spelled(text, self._vocabulary)
        return token_ids is not None and self._fresh.may_begin_with(token_ids)

    @property
    def needed_len(self) -> int:
        """The length of an output that is known to be legal; for `constraints.worker`."""
        closing_len = self._table.closing_len(0) if self._is_begun else 0
        return closing_len + self._fresh.needed_len

    @property
    def has_dead_ends(self) -> bool:
        """Always: tokens that end a thought and begin the answer are looked at when drawn."""
        return True

    def fill(self, row: Bitmask) -> None:
        """Overwrite `row` with the tokens that may be drawn now."""
        place = self._place
        if isinstance(place, _Thought):
            forced = self._forced_closing(place)
            row[:] = 0 if forced else self._row("thought", place.closing)
            set_bits(row, forced[:1])
        elif isinstance(place, _Before):
            self._fill_before(row, place)
        else:
            place.fill(row)

    def _fill_before(self, row: Bitmask, place: _Before) -> None:
        row.fill(0)
        if place.answer is not None:
            place.answer.fill(row)
        if place.opening is not None:
            # What begins as a thought is one.
            row &= ~self._row("completes opener", place.opening)
            if self._may_open:
                row |= self._row("opener", place.opening)
            elif place.answer is None:
                set_bits(row, self._table.opening_ids(place.opening)[:1])
        if place.answer is not None and not place.is_begun and self._has_room_for_spaces:
            row |= self._row("spaces", place.num_spaces)

    @property
    def _may_open(self) -> bool:
        """Whether a thought that is opened from here leaves room for the answer."""
        return self._num_tokens + self._table.max_opening_len < self._last_len

    @property
    def _has_room_for_spaces(self) -> bool:
        left = self._budget.max_len - self._num_tokens
        return self._budget.may_truncate or left > self._fresh.needed_len

    def _forced_closing(self, place: _Thought) -> KnownCompletion:
        """The tokens that end the thought, if it has to end now."""
        is_last = self._num_tokens >= self._last_len
        if not is_last and place.num_tokens < self._thought_max_len:
            return ()
        return self._table.closing_ids[place.closing]

    def _row(self, kind: str, state: int) -> Bitmask:
        """The mask of an opening, of a closing, or behind so much white space, made once."""
        row = self._rows.get((kind, state))
        if row is None:
            match kind:
                case "thought":
                    row = self._table.thought_row(closing=state)
                    crossing = self._table.crossing(state)
                    clear_bits(row, [each for each in crossing if not self._may_cross(state, each)])
                case "opener":
                    row = self._table.opening_rows(state)[0].copy()
                case "completes opener":
                    row = self._table.opening_rows(state)[1].copy()
                case _:
                    row = self._spaces_row(state)
            clear_bits(row, self._barred_ids)
            self._rows[kind, state] = row
        return row

    def _may_cross(self, closing: int, token_id: int) -> bool:
        """Whether the answer can begin with what the token has behind the closer."""
        token = self._vocabulary.tokens[token_id]
        _, num_read = self._table.read_closing(closing, token)
        rest = token[num_read + self._num_dropped(token[num_read:], 0) :]
        return not rest or self._may_begin(rest)

    def _num_dropped(self, text: bytes, num_spaces: int) -> int:
        """White space at the beginning of the text that is dropped, if so much was before it."""
        most = MAX_SPACES - num_spaces
        num_dropped = 0
        while num_dropped < min(most, len(text)) and text[num_dropped] in self._dropped:
            num_dropped += 1
        return num_dropped

    def _spaces_row(self, num_spaces: int) -> Bitmask:
        """Tokens that begin with white space that is dropped; what follows it begins the answer.

        Those alone whose rest is a token: other texts need two tokens here.
        """
        spaced = spaced_tokens(self._vocabulary)
        first = np.zeros(self._vocabulary.num_words, dtype=np.int32)
        self._fresh.fill(first)
        words = first[spaced.rest_ids >> 5]
        is_legal = ((words >> (spaced.rest_ids & 31).astype(np.int32)) & 1).astype(np.bool_)
        others = ~sum(1 << SPACE_BYTES.index(each) for each in self._dropped)
        is_dropped = (spaced.kinds & others) == 0
        fits = spaced.num_spaces <= MAX_SPACES - num_spaces
        chosen = is_dropped & fits & (is_legal | (spaced.rest_ids < 0))
        return row_of(spaced.ids[chosen], self._vocabulary.num_words)

    @property
    def is_quick(self) -> bool:
        """Whether `fill` takes microseconds now and does not wait for other threads."""
        place = self._place
        if isinstance(place, _Thought):
            return ("thought", place.closing) in self._rows
        if isinstance(place, OutputConstraintState):
            return place.is_quick
        is_known = ("spaces", place.num_spaces) in self._rows
        answer = place.answer
        return place.opening is None and is_known and answer is not None and answer.is_quick

    @property
    def is_search_prepared(self) -> bool:
        """Whether a search by `check` would find everything prepared."""
        answer = self._answer
        return answer is None or answer.is_search_prepared

    def prepare_search(self) -> None:
        """Prepare what a search by `check` needs; takes as long as compiling."""
        if self._answer is not None:
            self._answer.prepare_search()

    @property
    def _answer(self) -> OutputConstraintState | None:
        """The answer that the tokens so far may be, or may go on with."""
        place = self._place
        if isinstance(place, _Thought):
            return None
        return place.answer if isinstance(place, _Before) else place

    def check(self, token_id: int) -> bool:
        """Whether the output can still be completed in its budget after this legal token.

        Does not change the state; what was found is kept for `advance`.
        """
        if isinstance(self._place, OutputConstraintState):
            return self._place.check(token_id)
        return self._place_after(token_id) is not None

    def advance(self, token_id: int) -> None:
        """Accept a token that was drawn and checked. Raises IllegalToken."""
        if isinstance(self._place, OutputConstraintState):
            self._place.advance(token_id)
            return
        after = self._place_after(token_id)
        if after is None:
            raise IllegalToken(f"token {token_id} cannot follow here, before or in a thought")
        self._place = after
        self._checked = None
        self._num_tokens += 1

    def _place_after(self, token_id: int) -> _Place | None:
        if self._checked is None or self._checked[0] != token_id:
            place = self._place
            if isinstance(place, _Thought):
                after = self._after_in_thought(place, token_id)
            else:
                assert isinstance(place, _Before)
                after = self._after_before(place, token_id)
            self._checked = (token_id, after)
        return self._checked[1]

    def _after_in_thought(self, place: _Thought, token_id: int) -> _Place | None:
        forced = self._forced_closing(place)
        row = self._row("thought", place.closing)
        is_legal = token_id == forced[0] if forced else is_set(row, token_id)
        if not is_legal:
            return None
        token = self._table.bytes_of(token_id, self._table.closer)
        closing, num_read = self._table.read_closing(place.closing, token)
        if closing != self._table.closed:
            return _Thought(closing, place.num_tokens + 1)
        return self._behind_closer(token[num_read:], 0)

    def _behind_closer(
        self, text: bytes, num_spaces: int
    ) -> _Before | OutputConstraintState | None:
        """The place behind a token that ends with this text, after the thought."""
        num_dropped = self._num_dropped(text, num_spaces)
        if num_dropped == len(text):
            answer = self._answer_within(0)
            if answer is None:
                return None
            return _Before(None, num_spaces + num_dropped, answer, is_begun=False)
        return self._answer_with(text[num_dropped:])

    def _answer_within(self, num_tokens: int) -> OutputConstraintState | None:
        """The answer at its start, where `num_tokens` of its own end with the next token.

        None: there is no room for it.
        """
        num_before = self._num_tokens + 1 - num_tokens
        left = self._budget.max_len - num_before
        if left < self._fresh.needed_len and not self._budget.may_truncate:
            return None
        answer = self._fresh.fork()
        answer.begin_within(left, max(0, self._budget.min_len - num_before))
        return answer

    def _answer_with(self, text: bytes) -> OutputConstraintState | None:
        """The answer that begins with this text, the end of the next token; None: it cannot."""
        token_ids = spelled(text, self._vocabulary)
        answer = None if token_ids is None else self._answer_within(len(token_ids))
        if token_ids is None or answer is None:
            return None
        return answer if self._is_followed(answer, token_ids) else None

    def _is_followed(self, answer: OutputConstraintState, token_ids: KnownCompletion) -> bool:
        """Accept the tokens as if they were drawn; whether all are legal within the budget."""
        row = np.zeros(self._vocabulary.num_words, dtype=np.int32)
        for token_id in token_ids:
            answer.fill(row)
            if not is_set(row, token_id) or not answer.check(token_id):
                return False
            answer.advance(token_id)
        return True

    def _after_before(self, place: _Before, token_id: int) -> _Place | None:
        opening = None
        if place.opening is not None and token_id not in self._barred_ids:
            token = self._table.bytes_of(token_id, self._table.opener)
            read = self._table.read_opening(place.opening, token) if token else None
            opening = None if read is None else read[0]
            if read is not None and opening == self._table.opened:
                closing, _ = self._table.read_closing(0, token[read[1] :])
                if closing == self._table.closed or not self._opens(place, token_id):
                    return None
                return _Thought(closing, 0)
        answer = self._answer_after(place, token_id)
        if answer is None and not self._opens(place, token_id):
            return None
        if isinstance(answer, _Before):
            return replace(answer, opening=opening)
        if opening is None:
            return answer
        return _Before(opening, place.num_spaces, answer, is_begun=True)

    def _opens(self, place: _Before, token_id: int) -> bool:
        """Whether the token may be the opener's next, so that the thought has room."""
        if self._may_open or place.opening is None or place.answer is not None:
            return self._may_open
        return token_id in self._table.opening_ids(place.opening)[:1]

    def _answer_after(
        self, place: _Before, token_id: int
    ) -> _Before | OutputConstraintState | None:
        """The answer behind the token, if the output has no thought (any more)."""
        if place.answer is None:
            return None
        text = self._vocabulary.tokens[token_id]
        if not place.is_begun and self._num_dropped(text, place.num_spaces):
            behind = self._behind_closer(text, place.num_spaces)
            if behind is not None:
                return behind
        answer = place.answer.fork()
        if answer.is_end(token_id):
            if not answer.check(token_id):
                return None
            answer.advance(token_id)
            return answer
        return answer if self._is_followed(answer, (token_id,)) else None

    def replay(self, token_ids: tuple[int, ...]) -> None:
        """Accept earlier output, with its forced runs. Raises IllegalToken."""
        num_done = 0
        while num_done < len(token_ids):
            self.advance(token_ids[num_done])
            num_done += 1
            if isinstance(self._place, OutputConstraintState):
                num_done += self._place.replay_forced(token_ids[num_done:])

    def take_forced(self) -> tuple[int, ...]:
        """Accept the tokens of the answer that are forced now, and return them."""
        if isinstance(self._place, OutputConstraintState):
            return self._place.take_forced()
        return ()

    def completion_token(self) -> int | None:
        """The next token of an output that is known to fit; None: it may end here."""
        place = self._place
        if isinstance(place, _Thought):
            return self._table.closing_ids[place.closing][0]
        if self._answer is not None:
            return self._answer.completion_token()
        assert isinstance(place, _Before)
        return self._table.opening_ids(place.opening or 0)[0]

    @property
    def is_satisfied(self) -> bool:
        """Whether the output so far satisfies the constraint, stop rule included."""
        return self._answer is not None and self._answer.is_satisfied

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may follow."""
        place = self._place
        if isinstance(place, _Before) and place.opening is not None:
            return False
        return self._answer is not None and self._answer.is_over

    def fork(self) -> "AfterThought":
        """An independent copy."""
        twin = object.__new__(AfterThought)
        twin.__dict__.update(self.__dict__)
        twin._checked = None
        place = self._place
        if isinstance(place, OutputConstraintState):
            twin._place = place.fork()
        elif isinstance(place, _Before) and place.answer is not None:
            twin._place = replace(place, answer=place.answer.fork())
        return twin

    def restart(self) -> "AfterThought":
        """A new state at the start of an output; see `OutputConstraintState.restart`."""
        if self._num_tokens:
            raise AssertionError("a state that has accepted tokens cannot be restarted")
        twin = object.__new__(AfterThought)
        twin.__dict__.update(self.__dict__)
        twin._checked = None
        twin._fresh = self._fresh.restart()
        if isinstance(self._place, _Before):
            twin._place = replace(self._place, answer=twin._fresh.fork())
        return twin


OutputState: TypeAlias = OutputConstraintState | AfterThought


def output_state(
    language: Language,
    vocabulary: Vocabulary,
    budget: Budget,
    stops: StopRule = NO_STOPS,
    thought: ThoughtRule | None = None,
    *,
    takes_forced: bool = True,
) -> OutputState:
    """The state of an output at its start.

    Raises as `OutputConstraintState`, and NotEnforced for a thought's marks.
    """
    text_stops = stops
    if isinstance(language, AnyText):
        # It may end anywhere, so stop tokens are masked only until it has its length.
        text_stops = StopRule(token_ids=stops.token_ids) if budget.min_len else NO_STOPS
    if thought is None:
        return OutputConstraintState(
            language, vocabulary, budget, text_stops, takes_forced=takes_forced
        )
    table = thought_table_of(vocabulary, thought.opener, thought.closer)
    closing_len = table.closing_len(0) if thought.is_begun else 0
    left = budget.max_len - closing_len
    try:
        answer = OutputConstraintState(
            language,
            vocabulary,
            replace(budget, max_len=max(0, left)),
            text_stops,
            takes_forced=takes_forced,
        )
    except DoesNotFit as error:
        raise DoesNotFit(error.needed_len + closing_len, budget.max_len) from None
    if answer.needed_len > left and not budget.may_truncate:
        raise DoesNotFit(answer.needed_len + closing_len, budget.max_len)
    return AfterThought(answer, vocabulary, thought, budget, stops.token_ids)
