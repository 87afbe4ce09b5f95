"""The terms of the `where` language: frozen, hashable, validated when built.

    Expression = And | Or | Not | Compare | OneOf | Contains | StartsWith | EndsWith | Matches
               | IsInt | IsFloat | StopsAt | StopsBefore | Constant

The only subject is the output, so no term names it. Terms have no positions: the parser reports
errors with positions. `parse(text(expression)) == expression`.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Measure(Enum):
    """What is measured of the output."""

    CHARS = "len(X)"  # code points
    WORDS = "len(words(X))"  # pieces of str.split()
    SENTENCES = "len(sentences(X))"  # pieces that end with "." and the rest, if any
    TOKENS = "len(tokens(X))"  # tokens of the model, the end token not counted
    INT = "int(X)"  # the value of an integer -?[0-9]+; the output must be one


class Relation(Enum):
    """The relation of a measure to a number."""

    LT = "<"
    LE = "<="
    EQ = "=="
    NE = "!="
    GE = ">="
    GT = ">"


@dataclass(frozen=True, slots=True)
class And:
    """All of two or more parts."""

    parts: tuple["Expression", ...]

    def __post_init__(self) -> None:
        _require_two(self.parts)


@dataclass(frozen=True, slots=True)
class Or:
    """At least one of two or more parts."""

    parts: tuple["Expression", ...]

    def __post_init__(self) -> None:
        _require_two(self.parts)


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not hold. Never around StopsBefore."""

    part: "Expression"


@dataclass(frozen=True, slots=True)
class Compare:
    """A measure of the output compared with a constant."""

    measure: Measure
    relation: Relation
    bound: int


@dataclass(frozen=True, slots=True)
class OneOf:
    """The output is one of these strings; `X == "a"` is a OneOf of one."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contains:
    """The phrase occurs in the output."""

    phrase: str


@dataclass(frozen=True, slots=True)
class StartsWith:
    """The output begins with one of these phrases."""

    phrases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndsWith:
    """The output ends with one of these phrases."""

    phrases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matches:
    """The whole output matches a regular expression in Python's syntax."""

    pattern: str


@dataclass(frozen=True, slots=True)
class IsInt:
    """The output is `-?[0-9]+`."""


@dataclass(frozen=True, slots=True)
class IsFloat:
    """The output is `-?[0-9]+(\\.[0-9]+)?`."""


@dataclass(frozen=True, slots=True)
class StopsAt:
    """Each phrase occurs at most once in the output, and only at its end."""

    phrases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopsBefore:
    """No phrase occurs in the output; generating one ends it, and the phrase is dropped.

    Only at the top level or as a part of And: it defines how an output ends, which is no truth
    value. The language of an expression has the outputs that satisfy it, and the same followed by
    one of the phrases, nothing after it; `Language.dropped_phrases` has what is then dropped.
    Lengths and all else are those of the output without the phrase, but its tokens are counted.
    """

    phrases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    """A truth value: the result of parts that were decided before generation."""

    value: bool


Expression = (
    And
    | Or
    | Not
    | Compare
    | OneOf
    | Contains
    | StartsWith
    | EndsWith
    | Matches
    | IsInt
    | IsFloat
    | StopsAt
    | StopsBefore
    | Constant
)


def all_of(parts: Iterable[Expression]) -> Expression:
    """All of any number of parts: none is true, one is itself."""
    several = tuple(parts)
    if len(several) == 1:
        return several[0]
    return And(several) if several else Constant(True)


def any_of(parts: Iterable[Expression]) -> Expression:
    """At least one of any number of parts: none is false, one is itself."""
    several = tuple(parts)
    if len(several) == 1:
        return several[0]
    return Or(several) if several else Constant(False)


def _require_two(parts: tuple[Expression, ...]) -> None:
    if len(parts) < 2:
        raise ValueError("a conjunction or disjunction has two or more parts")


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
    """The string as a literal of the language, on one line. Of strings, JSON's are Python's."""
    return json.dumps(value, ensure_ascii=False)
