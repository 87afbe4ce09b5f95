"""The operands of comparisons, and the functions that make operands of operands.

    Operand = Subject | TextParts | Measure | int | str | tuple[str, ...] | Expression

Independent of syntax: a wrong argument raises a Mismatch with its index, which the parser turns
into an error with its place.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from constraints.where.terms import (
    Compare,
    Contains,
    EndsWith,
    Expression,
    IsFloat,
    IsInt,
    Matches,
    Measure,
    Not,
    OneOf,
    Relation,
    StartsWith,
    StopsAt,
    StopsBefore,
)


class Mismatch(Exception):
    """Operands that cannot be combined in this way; `hint` says what is possible.

    argument: the index of the wrong argument, None: the whole expression
    offset:   the place in it, in characters of its value
    """

    def __init__(
        self,
        what: str,
        hint: str | None = None,
        argument: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(what)
        self.hint = hint
        self.argument = argument
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Subject:
    """The output."""


@dataclass(frozen=True, slots=True)
class TextParts:
    """The parts of the output, such as `words(X)`, which only `len(...)` can count."""

    measure: Measure
    name: str


Operand = Subject | TextParts | Measure | int | str | tuple[str, ...] | Expression

# What a relation is called where its sides are exchanged.
_MIRRORED = {
    Relation.LT: Relation.GT,
    Relation.LE: Relation.GE,
    Relation.GT: Relation.LT,
    Relation.GE: Relation.LE,
    Relation.EQ: Relation.EQ,
    Relation.NE: Relation.NE,
}


def described(operand: Operand) -> str:
    """The operand for an error message."""
    match operand:
        case Subject():
            return "the output"
        case TextParts(name=name):
            return f"{name}(X)"
        case Measure():
            return operand.value
        case int():
            return "a number"
        case str():
            return "a string"
        case tuple():
            return "a list"
    return "a condition"


def _usage(operand: Operand) -> str:
    """What the operand is for."""
    match operand:
        case Subject():
            return (
                'compare it, as in X == "yes" or X in ["a", "b"];'
                " len(X) is its length, int(X) its value as a number"
            )
        case Measure():
            return f"compare it, as in {operand.value} < 40"
        case int():
            return 'compared with len(X) or int(X); numbers in texts are strings: "7"'
        case str():
            return 'as in X == "yes" or "a" in X'
        case tuple():
            return 'as in X in ["a", "b"]; for one of several, "a" in X or "b" in X'
        case IsFloat():
            return "only int(X) is compared with numbers"
    return "conditions are joined by `and`, `or` and `not`"


def _mismatch(left: Operand, verb: str, right: Operand) -> Mismatch:
    """The error that `left` cannot be combined with `right`; hints about both."""
    for operand in (left, right):
        if isinstance(operand, TextParts):
            return _uncounted_parts(operand)
    usages = {described(operand): _usage(operand) for operand in (left, right)}
    return Mismatch(
        f"{described(left)} cannot be {verb} {described(right)}",
        "\n".join(f"{operand}: {usage}" for operand, usage in usages.items()),
    )


def _uncounted_parts(parts: TextParts) -> Mismatch:
    return Mismatch(f"{described(parts)} can only be counted", f"write len({parts.name}(X))")


def condition(operand: Operand) -> Expression:
    """The operand as a condition of its own. Raises Mismatch."""
    match operand:
        case Measure.INT:
            return IsInt()
        case TextParts():
            raise _uncounted_parts(operand)
        case Subject() | Measure() | int() | str() | tuple():
            raise Mismatch(f"{described(operand)} alone is no condition", _usage(operand))
    return operand


def compared(left: Operand, relation: Relation, right: Operand) -> Expression:
    """What `left relation right` means. Raises Mismatch."""
    is_equality = relation in (Relation.EQ, Relation.NE)
    match left, right:
        case Measure() as measure, int(bound):
            return Compare(measure, relation, bound)
        case int(bound), Measure() as measure:
            return Compare(measure, _MIRRORED[relation], bound)
        case (Subject(), str(value)) | (str(value), Subject()) if is_equality:
            equal = OneOf((value,))
            return equal if relation is Relation.EQ else Not(equal)
    verb = "compared with" if is_equality else f"compared by `{relation.value}` with"
    raise _mismatch(left, verb, right)


def distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def contained(left: Operand, right: Operand) -> Expression:
    """What `left in right` means. Raises Mismatch."""
    match left, right:
        case Subject(), tuple(values):
            return OneOf(distinct(values))
        case str(phrase), Subject():
            return Contains(phrase)
    raise _mismatch(left, "looked for in", right)


Arguments = tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A function: its usage, and its effect on operands. `apply` raises Mismatch."""

    usage: str
    apply: Callable[[Arguments], Operand]


def find(name: str) -> Function | None:
    """The function of that name, or of LMQL's name in capitals."""
    return FUNCTIONS.get(name.lower()) if name in (name.lower(), name.upper()) else None


def _len(arguments: Arguments) -> Operand:
    _require(arguments, 1)
    match arguments[0]:
        case Subject():
            return Measure.CHARS
        case TextParts(measure):
            return measure
        case other:
            raise Mismatch(f"{described(other)} has no length", argument=0)


def _of_output(operand: Operand) -> Callable[[Arguments], Operand]:
    """A function whose only argument is the output."""

    def apply(arguments: Arguments) -> Operand:
        _require(arguments, 1)
        _require_output(arguments)
        return operand

    return apply


def _regex(arguments: Arguments) -> Operand:
    _require(arguments, 2)
    _require_output(arguments)
    pattern = arguments[1]
    if not isinstance(pattern, str):
        raise Mismatch(f"the pattern is a string, not {described(pattern)}", argument=1)
    try:
        re.compile(pattern)
    except re.error as error:
        raise Mismatch(f"the pattern is wrong: {error.msg}", argument=1, offset=error.pos) from None
    except OverflowError:
        raise Mismatch("the pattern repeats something too often", argument=1) from None
    except RecursionError:
        raise Mismatch("the pattern is nested too deeply", argument=1) from None
    return Matches(pattern)


def _set(arguments: Arguments) -> Operand:
    _require(arguments, 1)
    if not isinstance(arguments[0], tuple):
        raise Mismatch(f"a set is made of a list, not of {described(arguments[0])}", argument=0)
    return distinct(arguments[0])


FUNCTIONS = {
    "len": Function("len(X), len(words(X)), len(sentences(X)) or len(tokens(X))", _len),
    "words": Function("len(words(X))", _of_output(TextParts(Measure.WORDS, "words"))),
    "sentences": Function(
        "len(sentences(X))", _of_output(TextParts(Measure.SENTENCES, "sentences"))
    ),
    "tokens": Function("len(tokens(X))", _of_output(TextParts(Measure.TOKENS, "tokens"))),
    "characters": Function(
        "len(characters(X))", _of_output(TextParts(Measure.CHARS, "characters"))
    ),
    "chars": Function("len(chars(X))", _of_output(TextParts(Measure.CHARS, "chars"))),
    "int": Function("int(X), alone or compared, as in 1 <= int(X) <= 5", _of_output(Measure.INT)),
    "float": Function("float(X)", _of_output(IsFloat())),
    "starts_with": Function(
        'starts_with(X, "a"), starts_with(X, ["a", "b"])',
        lambda arguments: StartsWith(_phrases(arguments)),
    ),
    "ends_with": Function(
        'ends_with(X, "a"), ends_with(X, ["a", "b"])',
        lambda arguments: EndsWith(_phrases(arguments)),
    ),
    "stops_at": Function(
        'stops_at(X, "."), stops_at(X, ".", "!")',
        lambda arguments: StopsAt(_stop_phrases(arguments)),
    ),
    "stops_before": Function(
        'stops_before(X, "\\n"), stops_before(X, ".", "!")',
        lambda arguments: StopsBefore(_stop_phrases(arguments)),
    ),
    "regex": Function("regex(X, r'[a-z]+')", _regex),
    "set": Function('set(["a", "b"])', _set),
}


def _require(arguments: Arguments, count: int) -> None:
    if len(arguments) > count:
        raise Mismatch("this argument is one too many", argument=count)
    if len(arguments) < count:
        raise Mismatch("an argument is missing")


def _require_output(arguments: Arguments) -> None:
    if not arguments:
        raise Mismatch("an argument is missing")
    if not isinstance(arguments[0], Subject):
        what = f"the first argument is the output, not {described(arguments[0])}"
        raise Mismatch(what, argument=0)


def _phrases(arguments: Arguments) -> tuple[str, ...]:
    """The arguments behind the output: strings, or one list of strings."""
    _require_output(arguments)
    if len(arguments) < 2:
        raise Mismatch("the phrase is missing")
    if len(arguments) == 2 and isinstance(arguments[1], tuple):
        return distinct(arguments[1])
    phrases = []
    for index, phrase in enumerate(arguments[1:], start=1):
        if not isinstance(phrase, str):
            raise Mismatch(f"a phrase is a string, not {described(phrase)}", argument=index)
        phrases.append(phrase)
    return distinct(tuple(phrases))


def _stop_phrases(arguments: Arguments) -> tuple[str, ...]:
    phrases = _phrases(arguments)
    if not phrases:
        raise Mismatch("one phrase or more is needed to stop", argument=1)
    if "" in phrases:
        raise Mismatch("an empty phrase would stop every output at once", argument=1)
    return phrases
