"""The terms of a `where` clause, which refer to holes by name; frozen.

`reading/` rewrites the clause into calls of `build.py`, which build terms. Python variables and
functions of finished values are Values by then.

    Term = Value | Ref | All | AnyOf | Not | Compared | Calculated | Called | Opaque
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from client.query.errors import Place


@dataclass(frozen=True, slots=True)
class Value:
    """A Python value."""

    value: object


@dataclass(frozen=True, slots=True)
class Ref:
    """A hole's value, by its name: finished, current or future."""

    name: str
    place: Place


@dataclass(frozen=True, slots=True)
class All:
    """All parts hold."""

    parts: tuple["Term", ...]
    place: Place


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one part holds."""

    parts: tuple["Term", ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not hold."""

    part: "Term"
    place: Place


@dataclass(frozen=True, slots=True)
class Compared:
    """`left relation right`; relation is <, <=, ==, !=, >=, >, in, not in, is or is not.

    A chain `a < b < c` is an All of two.
    """

    left: "Term"
    relation: str
    right: "Term"
    place: Place


@dataclass(frozen=True, slots=True)
class Calculated:
    """`left symbol right`; symbol is +, - or *. `text`: its source text."""

    left: "Term"
    symbol: str
    right: "Term"
    place: Place
    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call of an operator, by its lower-case name (len, words, stops_at, regex, ...)."""

    operator: str
    arguments: tuple["Term", ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Opaque:
    """Any other Python expression: `function(*values of names)`, when these are finished."""

    names: tuple[str, ...]
    function: Callable[..., object]
    place: Place
    text: str


Term: TypeAlias = Value | Ref | All | AnyOf | Not | Compared | Calculated | Called | Opaque


_SHOWN_LEN = 60


def written(term: Term) -> str:
    """The term on one line, with the present values of Python's variables."""
    match term:
        case Value(value):
            shown = repr(value)
            return shown if len(shown) <= _SHOWN_LEN else shown[: _SHOWN_LEN - 1] + "…"
        case Ref(name):
            return name
        case Opaque(text=text) | Calculated(text=text):
            return text
        case Called(operator, arguments):
            return f"{operator}({', '.join(map(written, arguments))})"
        case Compared(left, relation, right):
            return f"{_within(left)} {relation} {_within(right)}"
        case Not(part):
            return f"not {_within(part)}"
        case All(parts):
            return " and ".join(
                f"({written(part)})" if isinstance(part, AnyOf) else written(part) for part in parts
            )
        case AnyOf(parts):
            return " or ".join(map(written, parts))


def _within(term: Term) -> str:
    return f"({written(term)})" if isinstance(term, All | AnyOf | Compared) else written(term)
