"""The operands of comparisons, and the functions that make operands of operands.

    Operand = Subject | TextParts | Count | Number | Integer | Phrase | Phrases | Truth

Independent of syntax: a wrong argument raises a Mismatch with its index, which the parser turns
into an error with its place.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from constraints.where.evaluate import holds, integer, related
from constraints.where.terms import (
    Compare,
    Constant,
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


@dataclass(frozen=True, slots=True)
class Count:
    """A measure of the output."""

    measure: Measure


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number."""

    value: int


@dataclass(frozen=True, slots=True)
class Integer:
    """int(...) of a known string: a condition, and a number. None: it is no integer."""

    value: int | None


@dataclass(frozen=True, slots=True)
class Phrase:
    """A string."""

    value: str


@dataclass(frozen=True, slots=True)
class Phrases:
    """A list of strings, possibly with duplicates."""

    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Truth:
    """A condition. `ending`: the place of a stops_before in it, None: there is none."""

    expression: Expression
    ending: int | None = None


Operand = Subject | TextParts | Count | Number | Integer | Phrase | Phrases | Truth

_SYMMETRIC = {
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
        case Count(measure):
            return measure.value
        case Number() | Integer():
            return "a number"
        case Phrase():
            return "a string"
        case Phrases():
            return "a list"
        case Truth():
            return "a condition"


def condition(operand: Operand) -> Truth:
    """The operand as a condition of its own. Raises Mismatch."""
    match operand:
        case Truth():
            return operand
        case Count(Measure.INT):
            return Truth(IsInt())
        case Integer(value):
            return Truth(Constant(value is not None))
        case Count(measure):
            raise Mismatch(
                f"{measure.value} is a number, no condition",
                f"compare it, as in {measure.value} < 40",
            )
        case TextParts():
            raise _uncounted_parts(operand)
        case Subject():
            raise Mismatch("the output alone is no condition", 'compare it, as in X == "yes"')
    raise Mismatch(f"{described(operand)} alone is no condition")


def compared(left: Operand, relation: Relation, right: Operand) -> Expression:
    """What `left relation right` means. Raises Mismatch."""
    for operand in (left, right):
        if isinstance(operand, TextParts):
            raise _uncounted_parts(operand)
        if isinstance(operand, Truth):
            raise _no_value(operand)
    left = _as_number(left)
    right = _as_number(right)
    match left, right:
        case (Integer(), Count() | Number() | Integer()) | (Count() | Number(), Integer()):
            return Constant(False)  # a text that is no integer satisfies no comparison
        case Count(measure), Number(bound):
            return Compare(measure, relation, bound)
        case Number(bound), Count(measure):
            return Compare(measure, _SYMMETRIC[relation], bound)
        case Number(value), Number(bound):
            return Constant(related(value, relation, bound))
        case Count(), Count():
            raise Mismatch("two measures of the output cannot be compared", "one side is a number")
    return _equal(left, relation, right)


def _as_number(operand: Operand) -> Operand:
    """A valid Integer as a Number; other operands unchanged."""
    if isinstance(operand, Integer) and operand.value is not None:
        return Number(operand.value)
    return operand


def _equal(left: Operand, relation: Relation, right: Operand) -> Expression:
    """`==` and `!=` of strings; other operands cannot be compared."""
    if relation not in (Relation.EQ, Relation.NE):
        raise _unordered(left, relation, right)
    match left, right:
        case (Subject(), Phrase(value)) | (Phrase(value), Subject()):
            term: Expression = OneOf((value,))
        case Phrase(value), Phrase(other):
            return Constant((value == other) is (relation is Relation.EQ))
        case Phrases(values), Phrases(others):
            return Constant((values == others) is (relation is Relation.EQ))
        case _:
            raise _unequal(left, right)
    return term if relation is Relation.EQ else Not(term)


def distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def contained(left: Operand, right: Operand) -> Expression:
    """What `left in right` means. Raises Mismatch."""
    match left, right:
        case Subject(), Phrases(values):
            return OneOf(distinct(values))
        case Phrase(value), Subject():
            return Contains(value)
        case Phrase(value), Phrases(values):
            return Constant(value in values)
        case Phrase(value), Phrase(other):
            return Constant(value in other)
    raise _not_contained(left, right)


def _not_contained(left: Operand, right: Operand) -> Mismatch:
    match left, right:
        case Subject(), Phrase():
            return Mismatch("the output cannot be looked for in a string", 'write X in ["a", "b"]')
        case Phrases(), _:
            return Mismatch(
                "a list cannot be looked for", 'write ("a" in X or "b" in X) for one of several'
            )
        case _, TextParts():
            return Mismatch(
                f"{described(right)} can only be counted", 'write "a" in X, or len(words(X)) < 40'
            )
        case Count(measure), _:
            return Mismatch(
                f"{measure.value} cannot be looked for", f"compare it, as in {measure.value} == 3"
            )
        case Number() | Integer(), _:
            return Mismatch("a number cannot be looked for", 'numbers in texts are strings: "7"')
    return Mismatch(f"{described(left)} cannot be looked for in {described(right)}")


def _unordered(left: Operand, relation: Relation, right: Operand) -> Mismatch:
    if isinstance(left, Subject) or isinstance(right, Subject):
        return Mismatch(
            f"the output itself cannot be compared by `{relation.value}`",
            "len(X) is its length, int(X) its value as a number",
        )
    return Mismatch(
        f"{described(left)} and {described(right)} cannot be compared by `{relation.value}`",
        "counts and int(X) are compared with numbers",
    )


def _unequal(left: Operand, right: Operand) -> Mismatch:
    sides = (left, right)
    if any(isinstance(side, Subject) for side in sides):
        if any(isinstance(side, Phrases) for side in sides):
            return Mismatch("the output is a string, no list", 'write X in ["a", "b"]')
        if any(isinstance(side, Number | Integer) for side in sides):
            return Mismatch("the output is a string, no number", 'write int(X) == 5, or X == "5"')
    return Mismatch(f"{described(left)} cannot be compared with {described(right)}")


def _no_value(truth: Truth) -> Mismatch:
    if isinstance(truth.expression, IsFloat):
        return Mismatch("float(X) cannot be compared", "only int(X) is compared with numbers")
    return Mismatch(
        "a condition cannot be compared", "conditions are joined by `and`, `or` and `not`"
    )


def _uncounted_parts(parts: TextParts) -> Mismatch:
    return Mismatch(f"{described(parts)} can only be counted", f"write len({parts.name}(X))")


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
            return Count(Measure.CHARS)
        case TextParts(measure):
            return Count(measure)
        case Phrase(value):
            return Number(len(value))
        case Phrases(values):
            return Number(len(values))
        case other:
            raise Mismatch(f"{described(other)} has no length", argument=0)


def _text_parts(
    name: str, measure: Measure, split: Callable[[str], list[str]] | None
) -> Callable[[Arguments], Operand]:
    """Parts of the output, or of a known string, split by `split`."""

    def apply(arguments: Arguments) -> Operand:
        _require(arguments, 1)
        about = _text(arguments)
        if isinstance(about, Subject):
            return TextParts(measure, name)
        if split is None:
            what = f"only the output has {name}: how a string was cut into them is not known"
            raise Mismatch(what, argument=0)
        return Phrases(tuple(split(about.value)))

    return apply


def _sentences(text: str) -> list[str]:
    return re.findall(r"[^.]*\.|[^.]+", text)


def _int(arguments: Arguments) -> Operand:
    _require(arguments, 1)
    about = _text(arguments)
    if isinstance(about, Subject):
        return Count(Measure.INT)
    return Integer(integer(about.value))


def _float(arguments: Arguments) -> Operand:
    _require(arguments, 1)
    return _truth(_text(arguments), IsFloat())


def _starts_with(arguments: Arguments) -> Operand:
    return _truth(_text(arguments), StartsWith(_phrases(arguments)))


def _ends_with(arguments: Arguments) -> Operand:
    return _truth(_text(arguments), EndsWith(_phrases(arguments)))


def _stops_at(arguments: Arguments) -> Operand:
    return _truth(_text(arguments), StopsAt(_stop_phrases(arguments)))


def _stops_before(arguments: Arguments) -> Operand:
    if not isinstance(_text(arguments), Subject):
        raise Mismatch("only the output can stop before a phrase", argument=0)
    return Truth(StopsBefore(_stop_phrases(arguments)))


def _regex(arguments: Arguments) -> Operand:
    _require(arguments, 2)
    pattern = arguments[1]
    if not isinstance(pattern, Phrase):
        raise Mismatch(f"the pattern is a string, not {described(pattern)}", argument=1)
    _check_pattern(pattern.value)
    return _truth(_text(arguments), Matches(pattern.value))


def _set(arguments: Arguments) -> Operand:
    if not arguments:
        return Phrases(())
    _require(arguments, 1)
    if not isinstance(arguments[0], Phrases):
        raise Mismatch(f"a set is made of a list, not of {described(arguments[0])}", argument=0)
    return Phrases(distinct(arguments[0].values))


FUNCTIONS = {
    "len": Function("len(X), len(words(X)), len(sentences(X)) or len(tokens(X))", _len),
    "words": Function("len(words(X))", _text_parts("words", Measure.WORDS, str.split)),
    "sentences": Function(
        "len(sentences(X))", _text_parts("sentences", Measure.SENTENCES, _sentences)
    ),
    "tokens": Function("len(tokens(X))", _text_parts("tokens", Measure.TOKENS, None)),
    "characters": Function("len(characters(X))", _text_parts("characters", Measure.CHARS, list)),
    "chars": Function("len(chars(X))", _text_parts("chars", Measure.CHARS, list)),
    "int": Function("int(X), alone or compared, as in 1 <= int(X) <= 5", _int),
    "float": Function("float(X)", _float),
    "starts_with": Function('starts_with(X, "a"), starts_with(X, ["a", "b"])', _starts_with),
    "ends_with": Function('ends_with(X, "a"), ends_with(X, ["a", "b"])', _ends_with),
    "stops_at": Function('stops_at(X, "."), stops_at(X, ".", "!")', _stops_at),
    "stops_before": Function('stops_before(X, "\\n"), stops_before(X, ".", "!")', _stops_before),
    "regex": Function("regex(X, r'[a-z]+')", _regex),
    "set": Function('set(["a", "b"])', _set),
}


def _require(arguments: Arguments, count: int) -> None:
    if len(arguments) > count:
        raise Mismatch("this argument is one too many", argument=count)
    if len(arguments) < count:
        raise Mismatch("an argument is missing")


def _text(arguments: Arguments) -> Subject | Phrase:
    """The first argument: the output, or a string that is known before generation."""
    if not arguments:
        raise Mismatch("an argument is missing")
    first = arguments[0]
    if not isinstance(first, Subject | Phrase):
        raise Mismatch(f"the first argument is the output, not {described(first)}", argument=0)
    return first


def _phrases(arguments: Arguments) -> tuple[str, ...]:
    """The arguments behind the first: strings, or one list of strings."""
    if len(arguments) < 2:
        raise Mismatch("the phrase is missing")
    if len(arguments) == 2 and isinstance(arguments[1], Phrases):
        return distinct(arguments[1].values)
    phrases = []
    for index, phrase in enumerate(arguments[1:], start=1):
        if not isinstance(phrase, Phrase):
            raise Mismatch(f"a phrase is a string, not {described(phrase)}", argument=index)
        phrases.append(phrase.value)
    return distinct(tuple(phrases))


def _stop_phrases(arguments: Arguments) -> tuple[str, ...]:
    phrases = _phrases(arguments)
    if not phrases:
        raise Mismatch("one phrase or more is needed to stop", argument=1)
    if "" in phrases:
        raise Mismatch("an empty phrase would stop every output at once", argument=1)
    return phrases


def _truth(about: Subject | Phrase, term: Expression) -> Truth:
    if isinstance(about, Phrase):
        return Truth(Constant(holds(term, about.value)))
    return Truth(term)


def _check_pattern(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise Mismatch(f"the pattern is wrong: {error.msg}", argument=1, offset=error.pos) from None
    except OverflowError:
        raise Mismatch("the pattern repeats something too often", argument=1) from None
    except RecursionError:
        raise Mismatch("the pattern is nested too deeply", argument=1) from None
