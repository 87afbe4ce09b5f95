"""Formats expressions: `parse(text(expression)) == expression`."""

from constraints.where.terms import (
    And,
    Compare,
    Constant,
    Contains,
    EndsWith,
    Expression,
    IsFloat,
    IsInt,
    Matches,
    Not,
    OneOf,
    Or,
    StartsWith,
    StopsAt,
    StopsBefore,
)

# Operator precedence; a lower one needs parentheses.
_OR, _AND, _NOT, _ATOM = range(4)


def text(expression: Expression) -> str:
    """The expression on one line; the subject is named X."""
    return _written(expression)[0]


def _written(expression: Expression) -> tuple[str, int]:
    """The text and its precedence."""
    match expression:
        case And(parts):
            return " and ".join(_within(part, _NOT) for part in parts), _AND
        case Or(parts):
            return " or ".join(_within(part, _AND) for part in parts), _OR
        case Not(OneOf((value,))):
            return f"X != {quoted(value)}", _ATOM
        case Not(OneOf(values)):
            return f"X not in [{_listed(values)}]", _ATOM
        case Not(Contains(phrase)):
            return f"{quoted(phrase)} not in X", _ATOM
        case Not(part):
            return f"not {_within(part, _NOT)}", _NOT
        case _:
            return _atom(expression), _ATOM


def _within(expression: Expression, at_least: int) -> str:
    written, tightness = _written(expression)
    return written if tightness >= at_least else f"({written})"


def _atom(expression: Expression) -> str:
    match expression:
        case Compare(measure, relation, bound):
            return f"{measure.value} {relation.value} {bound}"
        case OneOf((value,)):
            return f"X == {quoted(value)}"
        case OneOf(values):
            return f"X in [{_listed(values)}]"
        case Contains(phrase):
            return f"{quoted(phrase)} in X"
        case IsInt():
            return "int(X)"
        case IsFloat():
            return "float(X)"
        case Constant(value):
            return str(value)
        case _:
            return _call(expression)


def _call(expression: Expression) -> str:
    match expression:
        case StartsWith(phrases):
            return f"starts_with(X, [{_listed(phrases)}])"
        case EndsWith(phrases):
            return f"ends_with(X, [{_listed(phrases)}])"
        case StopsAt(phrases):
            return f"stops_at(X, {_listed(phrases)})"
        case StopsBefore(phrases):
            return f"stops_before(X, {_listed(phrases)})"
        case Matches(pattern):
            return f"regex(X, {quoted(pattern)})"
    raise TypeError(f"no term: {expression!r}")


def _listed(phrases: tuple[str, ...]) -> str:
    return ", ".join(map(quoted, phrases))


def quoted(value: str) -> str:
    """The string as a literal of the language, on one line."""
    return '"' + "".join(map(_escaped, value)) + '"'


def _escaped(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
