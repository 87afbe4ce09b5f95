"""The interface of an engine: a compiled language, and the state of one output in it.

    ConstraintSpec --compile--> Language --matcher()--> Matcher --fork()--> Matcher
                   (slow, once)          (microseconds, one for each output)

A language is immutable and shared by threads. A matcher belongs to one output and is used by one
thread at a time. Every mask is exact: a token is allowed if and only if some text of the language
begins with what was accepted so far followed by the token's bytes; end tokens are allowed if and
only if what was accepted so far is in the language. If a vocabulary lacks single bytes and cannot
spell every text, only masks that know distances are exact; for others the output's state checks
each token.

`AnyText` is the simplest language: all outputs, for answers without a rule, since a thought may be
all that is bounded. Special tokens are legal in it as well, and the output may end anywhere.
"""

from collections.abc import Sequence
from typing import Protocol

from constraints.bitmask import Bitmask, row_of
from constraints.errors import IllegalToken
from constraints.spec import Translation
from constraints.vocabulary import Vocabulary

# A `max_len` that bounds nothing: asks for the shortest text of any length.
ANY_LEN = 1 << 20


class Matcher(Protocol):
    """The state of one output in a language. Every method may raise EngineFailed."""

    def fill_mask(self, row: Bitmask, max_len: int | None = None) -> None:
        """Overwrite `row` with the legal tokens; end tokens only where the text is complete.

        With `max_len`, engines that know distances (`knows_distances`) also forbid what cannot be
        completed within so many tokens, this one included; the others ignore it.
        """

    def is_quick(self, max_len: int | None) -> bool:
        """Whether `fill_mask` takes microseconds now and does not wait for other threads."""

    def advance(self, token_id: int) -> None:
        """Accept a token; an end token only where the text is complete. Raises IllegalToken."""

    def num_legal(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens could be accepted in sequence; changes nothing."""

    def deterministic_suffix(self) -> bytes:
        """The bytes with which every legal text continues; empty where the text may end here.

        Possibly only the first of them, since they may repeat without end.
        """

    def shortest(
        self, max_len: int, tails: Sequence[tuple[int, ...]] = (), num_failed: int = 0
    ) -> tuple[int, ...] | None:
        """Tokens that complete the text, without an end token, at most `max_len`; None: none found.

        The fewest possible where `knows_distances`, otherwise the fewest that a bounded search
        finds; `tails` are completions that were valid a few tokens ago: hints for that search.
        `num_failed`: failed searches of this output; each one makes the next smaller.
        """

    def fork(self) -> "Matcher":
        """A copy."""

    @property
    def is_complete(self) -> bool:
        """Whether the text so far is in the language."""

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may follow."""


class Language(Protocol):
    """A compiled constraint."""

    @property
    def knows_distances(self) -> bool:
        """Whether masks respect `max_len` and `shortest` is exact."""

    @property
    def may_have_dead_ends(self) -> bool:
        """Whether masks may allow a token behind which no text can be completed, of any length."""

    @property
    def dropped_phrases(self) -> tuple[str, ...]:
        """Phrases that end an output and are dropped from it (`stops_before`)."""

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """JSON Pointers of the parts of a lenient schema that masks do not enforce."""

    @property
    def translation(self) -> Translation | None:
        """What another process can reuse to compile it; None: nothing."""

    def matcher(self) -> Matcher:
        """A matcher at the start of an output."""

    def prepare_search(self) -> None:
        """Prepare what searches from the middle of a text need; any thread may call it repeatedly.

        The first call may take as long as compiling.
        """

    def in_bytes(self) -> "Language | None":
        """The same texts over `byte_vocabulary`, where that makes searches faster."""


class AnyText:
    """All outputs; an output has no state, so it is their `Language` and each one's `Matcher`."""

    knows_distances = True
    may_have_dead_ends = False
    dropped_phrases: tuple[str, ...] = ()
    not_enforced: tuple[str, ...] = ()
    translation = None
    is_complete = True
    is_over = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._num_tokens = len(vocabulary.tokens)
        self._row = row_of(range(self._num_tokens), vocabulary.num_words)

    def matcher(self) -> "AnyText":
        return self

    def fork(self) -> "AnyText":
        return self

    def prepare_search(self) -> None:
        """There is nothing to prepare."""

    def in_bytes(self) -> None:
        """None: nothing is ever searched."""
        return None

    def fill_mask(self, row: Bitmask, max_len: int | None = None) -> None:
        """Overwrite `row` with all tokens."""
        row[:] = self._row

    def is_quick(self, max_len: int | None) -> bool:
        """Always."""
        return True

    def advance(self, token_id: int) -> None:
        """Accept a token. Raises IllegalToken for one that the vocabulary does not have."""
        if not 0 <= token_id < self._num_tokens:
            raise IllegalToken(f"token {token_id} is not in the vocabulary")

    def num_legal(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens are in the vocabulary before the first that is not."""
        for index, token_id in enumerate(token_ids):
            if not 0 <= token_id < self._num_tokens:
                return index
        return len(token_ids)

    def deterministic_suffix(self) -> bytes:
        """Nothing is ever forced."""
        return b""

    def shortest(
        self, max_len: int, tails: Sequence[tuple[int, ...]] = (), num_failed: int = 0
    ) -> tuple[int, ...]:
        """No token: the output may end anywhere."""
        return ()
