"""The meaning of expressions, by Python's own functions; and which of them nothing satisfies.

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
from functools import lru_cache
from time import thread_time

from constraints.errors import Contradiction, OutOfReach, TooComplex
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
    all_of,
)
from constraints.where.terms import (
    text as text_of,
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


# A query has the same conditions again and again.
@lru_cache(maxsize=256)
def is_plainly_empty(expression: Expression) -> bool:
    """Whether no text satisfies the expression; False where that is not known.

    Takes milliseconds.
    """
    # Clients that ask nothing do without numpy.
    from constraints.where.counter_grid import CounterGrid  # noqa: PLC0415
    from constraints.where.machine import machine_of  # noqa: PLC0415

    try:
        machine = machine_of(expression)
        return CounterGrid.of(machine).coaccessible(machine) is None
    except (OutOfReach, TooComplex):
        return False


# The most CPU seconds for leaving out what a contradiction does not need.
_MAX_S = 0.5
# Of more parts than these only the first are named in a message.
_MAX_NAMED = 20


def contradiction(expression: Expression) -> Contradiction:
    """The error for an expression that nothing satisfies."""
    parts = _excluding_each_other(expression)
    listed = [f"`{part}`" for part in map(text_of, parts)]
    if len(listed) == 1:
        what = listed[0]
    elif len(listed) > _MAX_NAMED:
        what = f"all of {', '.join(listed[:_MAX_NAMED])} and {len(listed) - _MAX_NAMED} others"
    else:
        what = f"both {', '.join(listed[:-1])} and {listed[-1]}"
    return Contradiction(f"nothing satisfies {what}", tuple(map(text_of, parts)))


def _excluding_each_other(expression: Expression) -> list[Expression]:
    """The parts that nothing satisfies together, without others as far as time allows.

    All of them where tokens matter, which texts alone do not show.
    """
    parts = list(top_parts(expression))
    if not is_plainly_empty(expression):
        return parts
    began = thread_time()
    num_left_out = len(parts) // 2
    while num_left_out:
        start = 0
        while start < len(parts) and thread_time() - began < _MAX_S:
            fewer = parts[:start] + parts[start + num_left_out :]
            if fewer and is_plainly_empty(all_of(fewer)):
                parts = fewer
            else:
                start += num_left_out
        num_left_out //= 2
    return parts


def top_parts(expression: Expression) -> tuple[Expression, ...]:
    """The parts of the top-level `and`, with chained comparisons split."""
    if not isinstance(expression, And):
        return (expression,)
    return tuple(part for joined in expression.parts for part in top_parts(joined))
