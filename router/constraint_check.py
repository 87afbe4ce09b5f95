"""Whether a constraint can be kept, asked of worker processes before a request is accepted."""

from dataclasses import dataclass

from constraints.spec import StopRule
from router.request import Constraint


@dataclass(frozen=True, slots=True)
class CheckedConstraint:
    """A constraint that some text satisfies within the request's tokens.

    min_len:         tokens of the shortest such text that was found
    dropped_phrases: phrases that end the output and are cut off it (`stops_before`)
    not_enforced:    JSON Pointers of what a lenient schema leaves to be checked at the end
    """

    constraint: Constraint
    min_len: int = 0
    dropped_phrases: tuple[str, ...] = ()
    not_enforced: tuple[str, ...] = ()


class ConstraintCheck:
    """Checks on behalf of validation. Owner of the pool of workers."""

    async def start(self) -> None:
        """Starts the pool; returns before its vocabulary is loaded, and never raises."""
        raise NotImplementedError

    async def close(self) -> None:
        """Ends the workers."""
        raise NotImplementedError

    async def check(
        self,
        constraint: Constraint,
        stops: StopRule,
        max_new_tokens: int,
        *,
        cuts: bool = False,
    ) -> CheckedConstraint:
        """What is known of the constraint. With `cuts` it need not fit into `max_new_tokens`.

        Raises ConstraintRefused, and Overloaded when too many checks wait.
        """
        raise NotImplementedError
