"""The language of all outputs, for answers without a rule: a thought may be all that is bounded.

Special tokens are legal as well, and the output may end anywhere.
"""

from collections.abc import Sequence

from constraints.bitmask import Bitmask, row_of
from constraints.errors import IllegalToken
from constraints.vocabulary import Vocabulary
from constraints.vocabulary_cache import kept_with_vocabulary


class AnyText:
    """All outputs. See `constraints.matcher.Language`."""

    knows_distances = True
    may_have_dead_ends = False
    dropped_phrases: tuple[str, ...] = ()
    not_enforced: tuple[str, ...] = ()
    translation = None
    is_search_prepared = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def matcher(self) -> "AnyTextMatcher":
        return AnyTextMatcher(self._vocabulary)

    def prepare_search(self) -> None:
        """There is nothing to prepare."""

    def in_bytes(self) -> None:
        """None: nothing is ever searched."""
        return None


class AnyTextMatcher:
    """An output of which nothing is asked. See `constraints.matcher.Matcher`."""

    is_complete = True
    is_over = False

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._row = _every_token(vocabulary)
        self._num_tokens = len(vocabulary.tokens)

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

    def fork(self) -> "AnyTextMatcher":
        """Itself: it has no state."""
        return self


@kept_with_vocabulary(1)
def _every_token(vocabulary: Vocabulary) -> Bitmask:
    return row_of(range(len(vocabulary.tokens)), vocabulary.num_words)
