"""The operands of comparisons, and the functions that make operands of operands.

    Operand = Subject | TextParts | Count | Number | Phrase | Phrases | Expression

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
    """A whole number; `is_condition`: int(...) of a known string, None where it is no integer."""

    value: int | None
    is_condition: bool = False


@dataclass(frozen=True, slots=True)
class Phrase:
    """A string."""

    value: str


@dataclass(frozen=True, slots=True)
class Phrases:
    """A list of strings, possibly with duplicates."""

    values: tuple[str, ...]


Operand = Subject | TextParts | Count | Number | Phrase | Phrases | Expression

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
        case Count(measure):
            return measure.value
        case Number():
            return "a number"
        case Phrase():
            return "a string"
        case Phrases():
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
        case Count(measure):
            return f"compare it, as in {measure.value} < 40"
        case Number():
            return 'compared with len(X) or int(X); numbers in texts are strings: "7"'
        case Phrase():
            return 'as in X == "yes" or "a" in X'
        case Phrases():
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
        case Count(Measure.INT):
            return IsInt()
        case Number(value, is_condition=True):
            return Constant(value is not None)
        case TextParts():
            raise _uncounted_parts(operand)
        case Subject() | Count() | Number() | Phrase() | Phrases():
            raise Mismatch(f"{described(operand)} alone is no condition", _usage(operand))
    return operand


def compared(left: Operand, relation: Relation, right: Operand) -> Expression:
    """What `left relation right` means. Raises Mismatch."""
    match left, right:
        case (Count() | Number(), Number(None)) | (Number(None), Count()):
            return Constant(False)  # a text that is no integer satisfies no comparison
        case (Number(None), Number()):
            return Constant(False)
        case Count(measure), Number(int(bound)):
            return Compare(measure, relation, bound)
        case Number(int(bound)), Count(measure):
            return Compare(measure, _MIRRORED[relation], bound)
        case Number(int(value)), Number(int(bound)):
            return Constant(related(value, relation, bound))
    if relation in (Relation.EQ, Relation.NE):
        match left, right:
            case (Subject(), Phrase(text)) | (Phrase(text), Subject()):
                equal: Expression = OneOf((text,))
            case (Phrase(), Phrase()) | (Phrases(), Phrases()):
                equal = Constant(left == right)
            case _:
                raise _mismatch(left, "compared with", right)
        return equal if relation is Relation.EQ else opposite(equal)
    raise _mismatch(left, f"compared by `{relation.value}` with", right)


def opposite(term: Expression) -> Expression:
    """The negation; of a truth value, the other one."""
    return Constant(not term.value) if isinstance(term, Constant) else Not(term)


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
    return Number(integer(about.value), is_condition=True)


def _float(arguments: Arguments) -> Operand:
    _require(arguments, 1)
    return _said_of(_text(arguments), IsFloat())


def _starts_with(arguments: Arguments) -> Operand:
    return _said_of(_text(arguments), StartsWith(_phrases(arguments)))


def _ends_with(arguments: Arguments) -> Operand:
    return _said_of(_text(arguments), EndsWith(_phrases(arguments)))


def _stops_at(arguments: Arguments) -> Operand:
    return _said_of(_text(arguments), StopsAt(_stop_phrases(arguments)))


def _stops_before(arguments: Arguments) -> Operand:
    if not isinstance(_text(arguments), Subject):
        raise Mismatch("only the output can stop before a phrase", argument=0)
    return StopsBefore(_stop_phrases(arguments))


def _regex(arguments: Arguments) -> Operand:
    _require(arguments, 2)
    pattern = arguments[1]
    if not isinstance(pattern, Phrase):
        raise Mismatch(f"the pattern is a string, not {described(pattern)}", argument=1)
    try:
        re.compile(pattern.value)
    except re.error as error:
        raise Mismatch(f"the pattern is wrong: {error.msg}", argument=1, offset=error.pos) from None
    except OverflowError:
        raise Mismatch("the pattern repeats something too often", argument=1) from None
    except RecursionError:
        raise Mismatch("the pattern is nested too deeply", argument=1) from None
    return _said_of(_text(arguments), Matches(pattern.value))


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


def _said_of(about: Subject | Phrase, term: Expression) -> Expression:
    """The term; its truth value, if it is about a known string."""
    return Constant(holds(term, about.value)) if isinstance(about, Phrase) else term
