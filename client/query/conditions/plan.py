"""The plan of a hole's request: the result of its conditions, used by `running/`."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from client.calls import Constraint
from client.query.conditions.terms import Term


class StopMode(Enum):
    """How a stop phrase ends a hole: the text is cut behind it, or masks end it exactly there."""

    CUT = "cut"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that masks do not enforce; evaluated when its holes are finished.

    names: the holes in it
    text:  its source text
    """

    term: Term
    names: frozenset[str]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HolePlan:
    """The request of one hole, and the checks that remain.

    checks:      on this and finished holes; evaluated when this one is finished
    deferred:    checks that mention future holes, too; these will evaluate them
    value:       converts the hole's text to the value of its variable (an int, a list ...)
    prompt_text: converts the hole's text to the part that stays in the prompt
    is_mixed:    the hole's type lists both numbers and texts
    """

    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()
    keeps_stop: bool = True
    max_tokens: int | None = None
    checks: tuple[Check, ...] = ()
    deferred: tuple[Check, ...] = ()
    value: Callable[[str], object] = str
    prompt_text: Callable[[str], str] = str
    is_mixed: bool = False
