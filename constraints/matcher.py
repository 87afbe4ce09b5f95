"""What an engine offers: a language, compiled, and where one output stands in it.

    ConstraintSpec --compile--> Language --matcher()--> Matcher --fork()--> Matcher
                   (slow, once)          (microseconds, one for each output)

A language is immutable and shared by threads. A matcher belongs to one output and is used by one
thread at a time. Every mask is exact: a token is allowed if and only if some text of the language
begins with what was accepted so far followed by the token's bytes; end tokens are allowed if and
only if what was accepted so far is in the language. Where a vocabulary lacks single bytes, so that
it cannot spell every text, masks that know distances allow what tokens can complete; of the others
only an output state knows.
"""

from collections.abc import Sequence
from typing import Protocol

from constraints.bitmask import Bitmask
from constraints.translation import Translation


class Matcher(Protocol):
    """One output's place in a language. Every method may raise EngineFailed."""

    def fill_mask(self, row: Bitmask, max_len: int | None = None) -> None:
        """Overwrite `row` with the legal tokens; end tokens only where the text is complete.

        With `max_len`, engines that know distances (`knows_distances`) also mask what cannot be
        completed within so many tokens, this one included; the others pay no heed to it.
        """

    def is_quick(self, max_len: int | None) -> bool:
        """Whether `fill_mask` takes microseconds now, and waits for no other thread."""

    def advance(self, token_id: int) -> None:
        """Accept a token; an end token only where the text is complete. Raises IllegalToken."""

    def num_legal(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens could be accepted one after the other; changes nothing."""

    def forced_bytes(self) -> bytes:
        """The bytes that every legal text goes on with; empty where it might also end here.

        Perhaps only the first of them: there may be no end to them.
        """

    def shortest(
        self, max_len: int, tails: Sequence[tuple[int, ...]] = (), num_failed: int = 0
    ) -> tuple[int, ...] | None:
        """Tokens that complete the text, without an end token, at most `max_len`; None: none found.

        The fewest possible where `knows_distances`, otherwise the fewest that a bounded search
        finds; `tails` are completions that were good a few tokens ago: hints for that search.
        `num_failed`: searches of this output that found nothing: each makes the next one smaller.
        """

    def fork(self) -> "Matcher":
        """Another matcher at the same place."""

    @property
    def is_complete(self) -> bool:
        """What was accepted so far is in the language."""

    @property
    def is_over(self) -> bool:
        """It is, and nothing but the end may follow."""


class Language(Protocol):
    """A compiled constraint."""

    @property
    def knows_distances(self) -> bool:
        """Masks take account of `max_len`, and `shortest` is exact."""

    @property
    def dropped_phrases(self) -> tuple[str, ...]:
        """Phrases that end an output and are cut off it (`stops_before`)."""

    @property
    def not_enforced(self) -> tuple[str, ...]:
        """JSON Pointers of the parts of a lenient schema that masks do not hold."""

    @property
    def translation(self) -> Translation | None:
        """What need not be found out again to compile it; None: there is no such thing."""

    def matcher(self) -> Matcher:
        """A matcher at the beginning of an output."""

    @property
    def is_equipped(self) -> bool:
        """Whether all is there that searches from the middle of a text use."""

    def prepare_search(self) -> None:
        """Make it, which may take as long as compiling; any thread may ask, again and again.

        Nobody has to: a search makes what it lacks, while whoever asked for it waits.
        """

    def in_bytes(self) -> "Language | None":
        """The same texts over `byte_vocabulary`, where that makes searches faster."""
