"""The functions of the language: from operands to an operand.

Independent of syntax: a wrong argument raises a Mismatch with its index.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from constraints.where.evaluate import holds, integer
from constraints.where.operands import (
    Count,
    Integer,
    Mismatch,
    Number,
    Operand,
    Phrase,
    Phrases,
    Subject,
    TextParts,
    Truth,
    described,
    distinct,
)
from constraints.where.terms import (
    Constant,
    EndsWith,
    Expression,
    IsFloat,
    Matches,
    Measure,
    StartsWith,
    StopsAt,
    StopsBefore,
)

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
