"""Evaluates expressions on texts with Python's own functions: the definition of their meaning.

characters  code points: len(text)
words       parts of text.split(): runs of other characters than whitespace, also Unicode's
sentences   parts that end with "." and the rest, if any: "a. b" has two, "..." three, "" none
tokens      given by the caller, since text does not determine them; without the end token
integers    -?[0-9]+ with ASCII digits: "-0" is 0 and "007" is 7, " 7", "+7" and "1_000" are none
patterns    re.fullmatch without flags: "." is no newline, classes like \\d are Unicode's
"""

import operator
import re
from collections.abc import Callable

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
    Measure,
    Not,
    OneOf,
    Or,
    Relation,
    StartsWith,
    StopsAt,
    StopsBefore,
)

_RELATIONS: dict[Relation, Callable[[int, int], bool]] = {
    Relation.LT: operator.lt,
    Relation.LE: operator.le,
    Relation.EQ: operator.eq,
    Relation.NE: operator.ne,
    Relation.GE: operator.ge,
    Relation.GT: operator.gt,
}
_INT = re.compile(r"-?[0-9]+")
_SENTENCE = re.compile(r"[^.]*\.|[^.]+")
_FLOAT = re.compile(r"-?[0-9]+(\.[0-9]+)?")
# Bounds are shorter, so of longer numbers only the sign matters.
_DECISIVE_DIGITS = 40


def holds(expression: Expression, text: str, num_tokens: int = 0) -> bool:
    """Whether the output `text`, made of `num_tokens` tokens, satisfies the expression.

    With stops_before, `text` is the output without the dropped phrase; its tokens count all the
    same.
    """
    match expression:
        case And(parts):
            return all(holds(part, text, num_tokens) for part in parts)
        case Or(parts):
            return any(holds(part, text, num_tokens) for part in parts)
        case Not(part):
            return not holds(part, text, num_tokens)
        case Compare(Measure.INT, relation, bound):
            value = integer(text)
            return value is not None and related(value, relation, bound)
        case Compare(measure, relation, bound):
            return related(measured(measure, text, num_tokens), relation, bound)
        case Constant(value):
            return value
        case _:
            return _atom_holds(expression, text)


def _atom_holds(expression: Expression, text: str) -> bool:
    match expression:
        case OneOf(values):
            return text in values
        case Contains(phrase):
            return phrase in text
        case StartsWith(phrases):
            return text.startswith(phrases)
        case EndsWith(phrases):
            return text.endswith(phrases)
        case StopsBefore(phrases):
            return not any(phrase in text for phrase in phrases)
        case StopsAt(phrases):
            return all(text.find(phrase) in (-1, len(text) - len(phrase)) for phrase in phrases)
        case _:
            return _shape_holds(expression, text)


def _shape_holds(expression: Expression, text: str) -> bool:
    match expression:
        case Matches(pattern):
            return re.fullmatch(pattern, text) is not None
        case IsInt():
            return _INT.fullmatch(text) is not None
        case IsFloat():
            return _FLOAT.fullmatch(text) is not None
    raise TypeError(f"no term: {expression!r}")


def related(value: int, relation: Relation, bound: int) -> bool:
    """Whether `value relation bound`."""
    return _RELATIONS[relation](value, bound)


def measured(measure: Measure, text: str, num_tokens: int = 0) -> int:
    """The number of characters, words, sentences or tokens of the text."""
    match measure:
        case Measure.CHARS:
            return len(text)
        case Measure.WORDS | Measure.SENTENCES:
            return len(parts_of(measure, text))
        case Measure.TOKENS:
            return num_tokens
        case Measure.INT:
            raise ValueError("int(X) is a value, no count")


def parts_of(measure: Measure, text: str) -> list[str]:
    """The characters, words or sentences of the text."""
    match measure:
        case Measure.WORDS:
            return text.split()
        case Measure.SENTENCES:
            return _SENTENCE.findall(text)
    return list(text)


def integer(text: str) -> int | None:
    """The value of an integer, None for other texts.

    Beyond 40 digits the value is not exact, only beyond every bound that can be written.
    """
    if not _INT.fullmatch(text):
        return None
    digits = text.lstrip("-").lstrip("0")[:_DECISIVE_DIGITS] or "0"
    return -int(digits) if text.startswith("-") else int(digits)


def dropped_phrases(expression: Expression) -> tuple[str, ...]:
    """The phrases of every stops_before, each once."""
    match expression:
        case StopsBefore(phrases):
            return phrases
        case And(parts):
            return tuple(dict.fromkeys(each for part in parts for each in dropped_phrases(part)))
        case _:
            return ()
