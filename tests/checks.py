"""A check of constraints that asks nobody: it accepts all but what a test wants refused."""

from collections.abc import Callable
from dataclasses import dataclass, field

from constraints.spec import StopRule, ThoughtRule
from router.engine.constraints import ConstraintCheck
from router.request.errors import ConstraintRefused
from router.request.request import NO_KEY, ApiKey, Constraint

Refuse = Callable[[Constraint], ConstraintRefused | None]


@dataclass
class FakeChecks(ConstraintCheck):
    """Remembers what it was asked, in order: (constraint, stops, max_new_tokens, cuts)."""

    refuse: Refuse = lambda constraint: None
    asked: list[tuple[Constraint, StopRule, int, bool]] = field(default_factory=list)

    async def check(
        self,
        constraint: Constraint,
        stops: StopRule,
        max_new_tokens: int,
        key: ApiKey = NO_KEY,
        thought: ThoughtRule | None = None,
    ) -> Constraint:
        """The constraint as it is, unless the test refuses it."""
        self.asked.append((constraint, stops, max_new_tokens, constraint.cuts))
        refusal = self.refuse(constraint)
        if refusal is not None:
            raise refusal
        return constraint

    async def violation(self, constraint: Constraint, text: str) -> str | None:
        """None: every finished text is in order."""
