"""The state of an output that begins with a thought, or may; a constraint is for what follows it.

    output:  | white space, opener | thought | closer | white space | answer ........ |
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
closer may follow: such a token is no text. A token that completes the closer may end with white
space, and with nothing else: the answer begins with a token of its own.
"""

import re
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from constraints.bitmask import Bitmask, allowed_ids, clear_bits, is_set, row_of, set_bits
from constraints.errors import DoesNotFit, IllegalToken, NotEnforced
from constraints.guiding.completion import KnownCompletion, spelled
from constraints.guiding.stops import table_of
from constraints.matcher import ANY_LEN, AnyText, Language
from constraints.output_constraint import NO_STOPS, OutputConstraintState
from constraints.spec import MAX_SPACES, SPACES, Budget, StopRule, ThoughtRule
from constraints.vocabulary import Vocabulary, first_bytes_of, is_mark, kept_with_vocabulary

SPACE_BYTES = SPACES.encode()


@dataclass(frozen=True, slots=True)
class Mark:
    """An opener or a closer.

    rests:    by the byte at which a token of it begins, the tokens from there on
    specials: those among them that are special, with their names
    """

    text: bytes
    rests: Mapping[int, KnownCompletion]
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
            if piece not in present:
                token_ids += _spelled(piece.encode(), vocabulary)
            elif named[piece] in vocabulary.end_ids:
                what = f"{text!r}, a thought's mark, has {piece!r}, which ends an answer"
                raise NotEnforced(what)
            else:
                token_ids.append(named[piece])
                specials[named[piece]] = piece.encode()
        rests: dict[int, KnownCompletion] = {}
        start = 0
        for index, token_id in enumerate(token_ids):
            rests[start] = tuple(token_ids[index:])
            start += len(specials.get(token_id) or vocabulary.tokens[token_id])
        return cls(text.encode(), rests, specials)


def _spelled(text: bytes, vocabulary: Vocabulary) -> KnownCompletion:
    found = spelled(text, vocabulary)
    if found is None:
        raise NotEnforced(f"this model's tokens cannot spell {text.decode()!r}, a thought's mark")
    return found


class ThoughtTable:
    """Opener and closer over a vocabulary; shared by threads. Makes rows when first needed.

    barred_ids: tokens that end the output, and are no part of a thought
    """

    def __init__(
        self, vocabulary: Vocabulary, opener: str, closer: str, barred_ids: tuple[int, ...] = ()
    ) -> None:
        """Raises NotEnforced."""
        self._vocabulary = vocabulary
        self._opener = Mark.of(opener, vocabulary)
        self._closer = Mark.of(closer, vocabulary)
        self._barred_ids = frozenset(barred_ids)
        text = self._closer.text
        if any(text.endswith(text[:num_bytes]) for num_bytes in range(1, len(text))):
            # Else it would be complete within its own tokens, behind a part of it.
            raise NotEnforced(f"{closer!r}, which closes a thought, ends as it begins")
        self.opened = MAX_SPACES + len(self._opener.text)
        self.closed = len(text)
        self.closer_len = len(self.closing_ids(0))
        self._stops = table_of(vocabulary, (closer,))
        # From here on the closer has to be completed.
        self._committed = min(
            (
                start + len(self._closer.specials[rest[0]])
                for start, rest in self._closer.rests.items()
                if rest[0] in self._closer.specials
            ),
            default=self.closed,
        )
        self._may_open: list[int] | None = None
        self._thought_rows: dict[int, Bitmask] = {}
        self._opening_rows: dict[int, tuple[Bitmask, Bitmask]] = {}
        self.thought_row(0)

    def read_opening(self, opening: int, token_id: int) -> tuple[int, bytes] | None:
        """The opening behind a token, and its bytes behind the opener; None: it is no opener."""
        token = self._opener.specials.get(token_id) or self._vocabulary.tokens[token_id]
        for index, byte in enumerate(token):
            if opening == self.opened:
                return opening, token[index:]
            if opening < MAX_SPACES and byte in SPACE_BYTES:
                opening += 1
                continue
            num_read = max(0, opening - MAX_SPACES)
            if byte != self._opener.text[num_read]:
                return None
            opening = MAX_SPACES + num_read + 1
        return (opening, b"") if token and token_id not in self._barred_ids else None

    def opening_token(self, opening: int) -> int:
        """The next token of the opener."""
        num_read = max(0, opening - MAX_SPACES)
        rest = self._opener.rests.get(num_read)
        return (rest or _spelled(self._opener.text[num_read:], self._vocabulary))[0]

    def opening_rows(self, opening: int) -> tuple[Bitmask, Bitmask]:
        """The tokens that may be the opener's next, and those that complete it.

        The latter with the thought's first bytes behind it, but not with the whole closer.
        """
        vocabulary = self._vocabulary
        known = self._opening_rows.get(opening)
        if known is not None:
            return known
        if self._may_open is None:
            self._may_open = [*self._opener.specials, *self._tokens_of_opener()]
        legal: list[int] = []
        completing: list[int] = []
        for token_id in self._may_open:
            read = self.read_opening(opening, token_id)
            if read is None:
                continue
            after, behind = read
            if after == self.opened:
                completing.append(token_id)
            if self.read_closing(0, behind)[0] != self.closed:
                legal.append(token_id)
        rows = (row_of(legal, vocabulary.num_words), row_of(completing, vocabulary.num_words))
        self._opening_rows[opening] = rows
        return rows

    def _tokens_of_opener(self) -> Iterator[int]:
        """The tokens that may go on with it behind white space, wherever it has got to."""
        text = self._opener.text
        ends = tuple(text[start:] for start in range(len(text)))
        is_near = np.isin(first_bytes_of(self._vocabulary), list(text + SPACE_BYTES))
        for token_id in np.flatnonzero(is_near).tolist():
            begun = self._vocabulary.tokens[token_id].lstrip(SPACE_BYTES)
            if begun in text or begun.startswith(ends):
                yield token_id

    def read_closing(self, closing: int, text: bytes) -> tuple[int, bytes]:
        """The closing behind the text, and what of it is behind the whole closer."""
        closing, num_read = self._stops.automaton.run(closing, text)
        return closing, text[num_read:]

    def closing_bytes(self, token_id: int) -> bytes:
        """The bytes of a token in a thought or its closer."""
        return self._closer.specials.get(token_id) or self._vocabulary.tokens[token_id]

    def closing_ids(self, closing: int) -> KnownCompletion:
        """The tokens that complete the closer; behind a part of a token of it the whole closer."""
        return self._closer.rests.get(closing) or self._closer.rests[0]

    def is_quick(self, closing: int) -> bool:
        """Whether `thought_row` is made."""
        return closing in self._thought_rows

    def thought_row(self, closing: int) -> Bitmask:
        """The tokens of a thought and of its closer; those that go on with white space too."""
        row = self._thought_rows.get(closing)
        if row is not None:
            return row
        if closing >= self._committed:
            row = row_of(self.closing_ids(closing)[:1], self._vocabulary.num_words)
        else:
            row = text_row(self._vocabulary).copy()
            firsts = {self.closing_ids(each)[0] for each in (0, closing)}
            set_bits(row, firsts & self._closer.specials.keys())
            clear_bits(row, self._barred_ids)
            ending = allowed_ids(row & ~self._stops.transitions(closing).clear).tolist()
            clear_bits(row, [each for each in ending if self._goes_on(closing, each)])
        self._thought_rows[closing] = row
        return row

    def _goes_on(self, closing: int, token_id: int) -> bool:
        """Whether the token closes the thought, and has more behind that than white space."""
        after, behind = self.read_closing(closing, self._vocabulary.tokens[token_id])
        is_space = len(behind) <= MAX_SPACES and not behind.strip(SPACE_BYTES)
        return after == self.closed and not is_space

    def spaces_row(self, max_spaces: int) -> Bitmask:
        """The tokens that are at most so much white space."""
        tokens = self._vocabulary.tokens
        ids = [each for each in space_ids(self._vocabulary) if len(tokens[each]) <= max_spaces]
        row = row_of(ids, self._vocabulary.num_words)
        clear_bits(row, self._barred_ids)
        return row


@kept_with_vocabulary(8)
def thought_table_of(
    vocabulary: Vocabulary, opener: str, closer: str, barred_ids: tuple[int, ...]
) -> ThoughtTable:
    return ThoughtTable(vocabulary, opener, closer, barred_ids)


@kept_with_vocabulary(1)
def space_ids(vocabulary: Vocabulary) -> tuple[int, ...]:
    """The tokens that are nothing but white space."""
    tokens = enumerate(vocabulary.tokens)
    return tuple(each for each, token in tokens if token and not token.strip(SPACE_BYTES))


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


class AfterThought:
    """One output with its thought; used as `OutputConstraintState` is, by one thread at a time.

    It is in the thought, or before the answer, or in it. Before it is known whether there is a
    thought, the output may still be its opener and the answer.

        _closing   in the thought: see `ThoughtTable`
        _opening   before: the part of an opener that the output is; None: it is none
        _answer    the answer if there is no thought (any more); None: it is illegal
    """

    def __init__(
        self,
        answer: OutputConstraintState,
        vocabulary: Vocabulary,
        rule: ThoughtRule,
        budget: Budget,
        table: ThoughtTable,
    ) -> None:
        """`answer`: at its start, with a budget that leaves room for the closer if it has to.

        budget: of the whole output
        """
        self._fresh = answer
        self._vocabulary = vocabulary
        self._budget = budget
        self._table = table
        self._is_begun = rule.is_begun
        self._thought_max_len = ANY_LEN if rule.max_len is None else rule.max_len
        # Output tokens at which a thought has to end, so that the answer fits.
        self._last_len = ANY_LEN
        if not budget.may_truncate:
            self._last_len = budget.max_len - table.closer_len - answer.needed_len
        # An answer that has to begin with white space has all that comes before it.
        first = answer.completion_token()
        has_spaces = first is not None and vocabulary.tokens[first][:1] in SPACE_BYTES
        self._max_spaces = 0 if has_spaces else MAX_SPACES
        self._num_tokens = 0
        self._thought_len = 0
        self._num_spaces = 0
        self._closing = 0 if rule.is_begun else None
        self._opening = None if rule.is_begun else 0
        self._answer = None if rule.is_begun else answer.fork()
        self._has_answer_begun = False
        self._checked: tuple[int, AfterThought | None] | None = None

    @property
    def needed_len(self) -> int:
        """The length of an output that is known to be legal; for `constraints.worker`."""
        return (self._table.closer_len if self._is_begun else 0) + self._fresh.needed_len

    @property
    def has_dead_ends(self) -> bool:
        """Always: white space behind a closer is looked at when it is drawn."""
        return True

    @property
    def _only_answer(self) -> OutputConstraintState | None:
        """The answer, once it has begun and there is nothing else that the output may be."""
        return self._answer if self._has_answer_begun and self._opening is None else None

    def fill(self, row: Bitmask) -> None:
        """Overwrite `row` with the tokens that may be drawn now."""
        if self._closing is not None:
            forced = self._forced_closing(self._closing)
            row[:] = 0 if forced else self._table.thought_row(self._closing)
            set_bits(row, forced[:1])
            return
        row.fill(0)
        if self._answer is not None:
            self._answer.fill(row)
        if self._opening is not None:
            opening, completing = self._table.opening_rows(self._opening)
            # What begins as a thought is one.
            row &= ~completing
            if self._may_open(self._opening):
                row |= opening
        if self._answer is not None and not self._has_answer_begun:
            left = self._budget.max_len - self._num_tokens
            if self._budget.may_truncate or left > self._fresh.needed_len:
                row |= self._table.spaces_row(self._max_spaces - self._num_spaces)

    def _may_open(self, opening: int) -> bool:
        """Whether a thought leaves room for the answer, however the rest of its opener is cut."""
        return self._num_tokens + self._table.opened - opening < self._last_len

    def _forced_closing(self, closing: int) -> KnownCompletion:
        """The tokens that end the thought, if it has to end now."""
        if self._num_tokens < self._last_len and self._thought_len < self._thought_max_len:
            return ()
        return self._table.closing_ids(closing)

    @property
    def is_quick(self) -> bool:
        """Whether `fill` takes microseconds now and does not wait for other threads."""
        if self._closing is not None:
            return self._table.is_quick(self._closing)
        return self._only_answer is not None and self._only_answer.is_quick

    def check(self, token_id: int) -> bool:
        """Whether the output can still be completed in its budget after this legal token.

        Does not change the state; what was found is kept for `advance`.
        """
        if self._only_answer is not None:
            return self._only_answer.check(token_id)
        return self._after(token_id) is not None

    def advance(self, token_id: int) -> None:
        """Accept a token that was drawn and checked. Raises IllegalToken."""
        if self._only_answer is not None:
            self._only_answer.advance(token_id)
            return
        after = self._after(token_id)
        if after is None:
            raise IllegalToken(f"token {token_id} cannot follow here, before or in a thought")
        self.__dict__.update(after.__dict__)

    def _after(self, token_id: int) -> "AfterThought | None":
        if self._checked is None or self._checked[0] != token_id:
            after = copy(self)
            after._checked = None
            is_legal = (
                after._take_before(token_id)
                if self._closing is None
                else after._take_in_thought(self._closing, token_id)
            )
            self._checked = (token_id, after if is_legal else None)
        return self._checked[1]

    # The takers accept a token; after one that they refuse, the state is of no use.

    def _take_in_thought(self, closing: int, token_id: int) -> bool:
        forced = self._forced_closing(closing)
        row = self._table.thought_row(closing)
        if token_id != forced[0] if forced else not is_set(row, token_id):
            return False
        self._num_tokens += 1
        self._thought_len += 1
        token = self._table.closing_bytes(token_id)
        self._closing, behind = self._table.read_closing(closing, token)
        if self._closing != self._table.closed:
            return True
        self._closing = None
        self._num_spaces = 0
        return self._drop_spaces(len(behind))

    def _drop_spaces(self, num_spaces: int) -> bool:
        """White space is no part of the answer, which is to begin behind it."""
        left = self._budget.max_len - self._num_tokens
        has_room = self._budget.may_truncate or left >= self._fresh.needed_len
        if self._num_spaces + num_spaces > self._max_spaces or not has_room:
            return False
        self._num_spaces += num_spaces
        self._answer = self._fresh.fork()
        self._answer.begin_within(left, max(0, self._budget.min_len - self._num_tokens))
        return True

    def _take_before(self, token_id: int) -> bool:
        opening = self._opening
        read = None if opening is None else self._table.read_opening(opening, token_id)
        may_open = opening is not None and self._may_open(opening)
        self._num_tokens += 1
        if read is not None and read[0] == self._table.opened:
            self._opening = self._answer = None
            self._closing, _ = self._table.read_closing(0, read[1])
            return may_open and self._closing != self._table.closed
        if self._answer is None or not self._take_in_answer(self._answer, token_id):
            self._answer = None
            if read is None or not may_open:
                return False
        self._opening = None if read is None else read[0]
        return True

    def _take_in_answer(self, answer: OutputConstraintState, token_id: int) -> bool:
        token = self._vocabulary.tokens[token_id]
        is_space = token and not token.strip(SPACE_BYTES)
        if is_space and not self._has_answer_begun and self._drop_spaces(len(token)):
            return True
        answer = answer.fork()
        if not answer.is_end(token_id):
            row = np.zeros(self._vocabulary.num_words, dtype=np.int32)
            answer.fill(row)
            if not is_set(row, token_id):
                return False
        if not answer.check(token_id):
            return False
        answer.advance(token_id)
        self._answer = answer
        self._has_answer_begun = True
        return True

    def replay(self, token_ids: tuple[int, ...]) -> None:
        """Accept earlier output, with its forced runs. Raises IllegalToken."""
        num_done = 0
        while num_done < len(token_ids):
            self.advance(token_ids[num_done])
            num_done += 1
            if self._only_answer is not None:
                num_done += self._only_answer.replay_forced(token_ids[num_done:])

    def take_forced(self) -> tuple[int, ...]:
        """Accept the tokens of the answer that are forced now, and return them."""
        return () if self._only_answer is None else self._only_answer.take_forced()

    def completion_token(self) -> int | None:
        """The next token of an output that is known to fit; None: it may end here."""
        if self._closing is not None:
            return self._table.closing_ids(self._closing)[0]
        if self._answer is not None:
            return self._answer.completion_token()
        return self._table.opening_token(self._opening or 0)

    @property
    def is_satisfied(self) -> bool:
        """Whether the output so far satisfies the constraint, stop rule included."""
        return self._answer is not None and self._answer.is_satisfied

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may follow."""
        return self._opening is None and self._answer is not None and self._answer.is_over

    def fork(self) -> "AfterThought":
        """An independent copy."""
        twin = copy(self)
        twin._checked = None
        twin._answer = None if self._answer is None else self._answer.fork()
        return twin

    def restart(self) -> "AfterThought":
        """A new state at the start of an output; see `OutputConstraintState.restart`."""
        if self._num_tokens:
            raise AssertionError("a state that has accepted tokens cannot be restarted")
        twin = copy(self)
        twin._checked = None
        twin._fresh = self._fresh.restart()
        twin._answer = None if self._answer is None else twin._fresh.fork()
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
    table = thought_table_of(vocabulary, thought.opener, thought.closer, stops.token_ids)
    closer_len = table.closer_len if thought.is_begun else 0
    left = budget.max_len - closer_len
    try:
        answer = OutputConstraintState(
            language,
            vocabulary,
            replace(budget, max_len=max(0, left)),
            text_stops,
            takes_forced=takes_forced,
        )
    except DoesNotFit as error:
        raise DoesNotFit(error.needed_len + closer_len, budget.max_len) from None
    if answer.needed_len > left and not budget.may_truncate:
        raise DoesNotFit(answer.needed_len + closer_len, budget.max_len)
    return AfterThought(answer, vocabulary, thought, budget, table)
