"""What a shard asks, token by token, of one output under a constraint.

matcher: what is legal | stop rule: where it may be ended | budget: what can still be completed
"""

from constraints.matcher import Bitmask, Language
from constraints.spec import Budget, StopRule
from constraints.vocabulary import Vocabulary


class Guide:
    """One output's guide; used by one thread at a time. EngineFailed may come from every method."""

    def __init__(
        self,
        language: Language,
        vocabulary: Vocabulary,
        budget: Budget,
        stops: StopRule = StopRule(),
        stop_token_ids: tuple[int, ...] = (),
        *,
        takes_forced: bool = True,
    ) -> None:
        """Raises Contradiction (with the stop strings) and DoesNotFit."""
        raise NotImplementedError(language, vocabulary, budget, stops, stop_token_ids, takes_forced)

    def fill(self, row: Bitmask) -> None:
        """Overwrite `row` with the tokens that may be drawn now."""
        raise NotImplementedError

    def check(self, token_id: int) -> bool:
        """Whether the output can still be completed in its budget after this legal token.

        Changes nothing that is seen; what was found is kept for `advance`.
        """
        raise NotImplementedError

    def advance(self, token_id: int) -> None:
        """Accept a token that was drawn and checked. Raises IllegalToken."""
        raise NotImplementedError

    def replay(self, token_ids: tuple[int, ...]) -> None:
        """Accept the output made before a preemption. Raises IllegalToken."""
        raise NotImplementedError

    def witness_token(self) -> int | None:
        """The next token of the completion that is known to fit; None: the text may end here."""
        raise NotImplementedError

    def take_forced(self) -> tuple[int, ...]:
        """Accept the tokens that are forced now, within the budget, and answer them."""
        raise NotImplementedError

    @property
    def is_satisfied(self) -> bool:
        """The text so far satisfies the constraint, stop rule included."""
        raise NotImplementedError

    @property
    def is_over(self) -> bool:
        """It does, and nothing but the end may follow."""
        raise NotImplementedError

    def fork(self) -> "Guide":
        """Another guide at the same place."""
        raise NotImplementedError
