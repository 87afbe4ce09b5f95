"""What a hole's `where` means for its one request: frozen words between conditions and runs."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from client.calls import Constraint
from client.query.conditions.terms import Term


class StopMode(Enum):
    """How a pure stop phrase ends a hole: text behind it is cut off, or masks keep it out."""

    CUT = "cut"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class Check:
    """A part that masks do not keep: whether it holds is asked once the holes in it are finished.

    `names` are the holes in it. `text` is what the program says.
    """

    term: Term
    names: frozenset[str]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HolePlan:
    """The request of one hole, as its conditions want it, and what is left to be checked.

    checks:    on this hole's value and finished holes', as soon as it is finished
    deferred:  on holes yet to come too; they join the conditions of these
    value:     the hole's text to the value of its variable (an int, a list ...)
    prompt_text: the hole's text to what stays of it in the prompt
    is_mixed:  the values are numbers and texts that the hole's type lists
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
