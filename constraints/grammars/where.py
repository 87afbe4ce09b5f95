"""Conditions on the output as one terminal, for expressions beyond the reach of the own engine.

    one of several conjunctions, each   HELD & HELD & ~(EXCLUDED | EXCLUDED)

All complements of a conjunction are one, for an intersection of complements costs the engine
seconds where one complement costs milliseconds. Tokens cannot be counted here, nor can a phrase be
dropped: for these there is no other engine.
"""

from collections.abc import Iterator

from constraints.errors import Contradiction, TooComplex
from constraints.grammars.engine import HEADER
from constraints.grammars.numbers import equal_to, in_interval
from constraints.grammars.regex import translate
from constraints.where.code_points import WHITESPACE
from constraints.where.interval import Interval
from constraints.where.normal import Conjunction, disjuncts
from constraints.where.terms import (
    Contains,
    EndsWith,
    Expression,
    IsFloat,
    IsInt,
    Matches,
    Measure,
    OneOf,
    StartsWith,
    StopsAt,
    StopsBefore,
)

_ANY = "/(?s:.*)/"
_NOTHING = "/[^\\x{0}-\\x{10FFFF}]/"
_SPACES = "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in WHITESPACE)
_SPACE, _LETTER = f"[{_SPACES}]", f"[^{_SPACES}]"


def to_grammar(expression: Expression) -> str:
    """The grammar of the outputs that satisfy the expression. Raises Contradiction, TooComplex."""
    conjunctions = disjuncts(expression)
    if not conjunctions:
        raise Contradiction("nothing satisfies the expression")
    written = " | ".join(f"({_conjunction(each)})" for each in conjunctions)
    return f"{HEADER}start: OUTPUT\nOUTPUT: {written}\n"


def _conjunction(conjunction: Conjunction) -> str:
    held = [_terminal(atom) for atom in conjunction.held]
    excluded = [_terminal(atom) for atom in conjunction.excluded]
    for measure, interval in conjunction.intervals:
        held += _measured(measure, interval)
        excluded += [_exactly(measure, hole) for hole in sorted(interval.holes)]
    if excluded:
        held.append(f"~({' | '.join(excluded)})")
    # A complement alone has bytes that are no UTF-8.
    return " & ".join([*held, _ANY] if excluded or not held else held)


def _measured(measure: Measure, interval: Interval) -> Iterator[str]:
    """Terminals of the texts whose measure lies in the interval, its holes apart."""
    low, high = interval.low or 0, interval.high
    match measure:
        case Measure.TOKENS:
            raise TooComplex("the expression is too complex to count tokens with it")
        case Measure.INT:
            yield f"/{in_interval(interval.low, interval.high)}/"
        case Measure.CHARS:
            yield f"/(?s:.{_times(low, high)})/"
        case Measure.WORDS:
            yield _words(low, high)
        case Measure.SENTENCES:
            if low > 0:
                yield rf"/([^.]*\.){{{low - 1}}}(?s:.+)/"
            if high is not None:
                yield "/()/" if high == 0 else rf"/([^.]*\.){{0,{high - 1}}}[^.]*\.?/"


def _words(low: int, high: int | None) -> str:
    if high == 0:
        return f"/{_SPACE}*/"
    more = f"({_SPACE}+{_LETTER}+){_times(max(low - 1, 0), None if high is None else high - 1)}"
    some = f"{_LETTER}+{more}{_SPACE}*"
    return f"/{_SPACE}*({some}){'?' if low == 0 else ''}/"


def _exactly(measure: Measure, number: int) -> str:
    if measure is Measure.INT:
        return f"/{equal_to(number)}/"
    return f"({' & '.join(_measured(measure, Interval(number, number)))})"


def _times(low: int, high: int | None) -> str:
    return f"{{{low},{'' if high is None else high}}}"


def _terminal(atom: Expression) -> str:
    match atom:
        case OneOf(values):
            return _either(values, "/{}/")
        case Contains(phrase):
            return f"/(?s:.*){_spelled(phrase)}(?s:.*)/"
        case StartsWith(phrases):
            return _either(phrases, "/{}(?s:.*)/")
        case EndsWith(phrases):
            return _either(phrases, "/(?s:.*){}/")
        case Matches(pattern):
            return f"/{translate(pattern)}/"
        case StopsAt(phrases):
            return f"({_ANY} & ~{_either(phrases, '/(?s:.*){}(?s:.+)/')})"
        case _:
            return _number(atom)


def _number(atom: Expression) -> str:
    match atom:
        case IsInt():
            return "/-?[0-9]+/"
        case IsFloat():
            return r"/-?[0-9]+(\.[0-9]+)?/"
        case StopsBefore():
            raise TooComplex("the expression is too complex to be stopped before a phrase")
    raise TypeError(f"no atom: {atom!r}")


def _either(phrases: tuple[str, ...], around: str) -> str:
    """One of the phrases, in a pattern that has a place for it."""
    if not phrases:
        return _NOTHING
    return around.format(f"({'|'.join(map(_spelled, phrases))})")


def _spelled(phrase: str) -> str:
    """The phrase as a pattern, in signs that mean the same everywhere."""
    return "".join(_spelled_char(char) for char in phrase)


def _spelled_char(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"
