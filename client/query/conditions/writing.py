"""Formats terms in the syntax of programs, for errors and checks."""

from client.query.conditions.terms import (
    All,
    AnyOf,
    Calculated,
    Called,
    Compared,
    Not,
    Opaque,
    Ref,
    Term,
    Value,
)

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
