"""Compiles `where` expressions that our own automata do not support into terminals of llguidance.

    expression -> one of several conjunctions -> P1 & P2 & ~(B1 | B2)

The complements of a conjunction are joined to one, since separate ones blow up. Counts of tokens
and dropped phrases are not properties of a text, so they are refused.
"""

from collections.abc import Iterator
from itertools import pairwise

from constraints.engine import HEADER
from constraints.errors import Contradiction, NotEnforced, TooComplex, complaint, without_place
from constraints.regex.char_sets import WHITESPACE
from constraints.regex.syntax import Chars, written_set
from constraints.regex.writing import at_least, between, translate
from constraints.where.normal_form import Conjunction, Interval, disjuncts
from constraints.where.parser import place_in, tokens
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

_ANYTHING = "(?s:.*)"
_BLANK = written_set(Chars(WHITESPACE))
_INK = written_set(Chars(WHITESPACE, negated=True))
# The last sentence, with its full stop or without.
_SENTENCE = r"(?:[^.]+\.?|\.)"


def to_grammar(expression: Expression, written: str) -> str:
    """The grammar of the texts that satisfy the expression; `written`: its source.

    Raises Contradiction, NotEnforced, TooComplex.
    """
    try:
        terminals = [_terminal(conjunction) for conjunction in disjuncts(expression)]
    except _PatternRefused as refused:
        raise refused.placed_in(written) from None
    if not terminals:
        raise Contradiction("no text satisfies the expression")
    return f"{HEADER}start: TEXT\nTEXT: {' | '.join(terminals)}\n"


class _PatternRefused(Exception):
    """A pattern of the expression is not supported; the refusal has places within the pattern."""

    def __init__(self, pattern: str, refusal: NotEnforced) -> None:
        super().__init__(str(refusal))
        self._pattern = pattern
        self._refusal = refusal

    def placed_in(self, written: str) -> NotEnforced:
        """The same refusal with its place in the expression."""
        strings = [
            token
            for before, token in pairwise(tokens(written))
            if token.value == self._pattern and before.text in (",", "(")
        ]
        if not strings:
            return self._refusal
        literal = strings[0]
        start, end = (literal.start + at for at in place_in(literal.text, self._refusal.position))
        error = complaint(written, start, end, without_place(str(self)))
        return NotEnforced(str(error), position=start)


def _translated(pattern: str) -> str:
    try:
        return translate(pattern)
    except NotEnforced as refusal:
        raise _PatternRefused(pattern, refusal) from None


def _terminal(conjunction: Conjunction) -> str:
    held = [
        each
        for measure, interval in conjunction.intervals
        for each in (_of_measure(measure, interval),)
        if each is not None
    ]
    excluded: list[str] = []
    for measure, interval in conjunction.intervals:
        excluded.extend(_of_holes(measure, interval))
    for atom in conjunction.held:
        (excluded if isinstance(atom, StopsAt) else held).extend(_of_atom(atom))
    for atom in conjunction.excluded:
        (held if isinstance(atom, StopsAt) else excluded).extend(_of_atom(atom))
    conjuncts = [f"/{each}/" for each in held] or [f"/{_ANYTHING}/"]
    if excluded:
        # A complement contains invalid UTF-8, too; the positive part excludes it.
        conjuncts.append(f"/{_ANYTHING}/")
        conjuncts.append(f"~({' | '.join(f'/{each}/' for each in excluded)})")
    return f"({' & '.join(dict.fromkeys(conjuncts))})"


def _of_atom(atom: Expression) -> Iterator[str]:
    """The pattern of an atom; for StopsAt, of the texts that continue behind a phrase."""
    match atom:
        case OneOf(values):
            yield _one_of(values)
        case Contains(phrase):
            yield f"{_ANYTHING}{_literal(phrase)}{_ANYTHING}"
        case StartsWith(phrases):
            yield f"{_one_of(phrases)}{_ANYTHING}"
        case EndsWith(phrases):
            yield f"{_ANYTHING}{_one_of(phrases)}"
        case Matches(pattern):
            yield f"(?:{_translated(pattern)})"
        case IsInt():
            yield "-?[0-9]+"
        case IsFloat():
            yield r"-?[0-9]+(?:\.[0-9]+)?"
        case StopsAt(phrases):
            yield f"{_ANYTHING}{_one_of(phrases)}(?s:.+)"
        case StopsBefore():
            raise TooComplex("stops_before together with this expression is too much")
        case _:
            raise TypeError(f"no atom: {atom!r}")


def _of_measure(measure: Measure, interval: Interval) -> str | None:
    low = interval.low or 0
    high = interval.high
    match measure:
        case Measure.TOKENS:
            raise TooComplex("len(tokens(X)) together with this expression is too much")
        case Measure.INT:
            return _integers(interval)
        case Measure.CHARS:
            return None if low == 0 and high is None else f"(?s:.){_times(low, high)}"
        case Measure.WORDS:
            return _words(low, high)
        case Measure.SENTENCES:
            return _sentences(low, high)


def _of_holes(measure: Measure, interval: Interval) -> Iterator[str]:
    for hole in sorted(interval.holes):
        pattern = _of_measure(measure, Interval(hole, hole))
        if pattern is not None:
            yield pattern


def _words(low: int, high: int | None) -> str:
    if high == 0:
        return f"{_BLANK}*"
    more = _times(max(low - 1, 0), None if high is None else high - 1)
    words = f"{_INK}+(?:{_BLANK}+{_INK}+){more}"
    return f"{_BLANK}*(?:{words}{_BLANK}*){'' if low else '?'}"


def _sentences(low: int, high: int | None) -> str:
    if high == 0:
        return "(?:)"
    before = _times(max(low - 1, 0), None if high is None else high - 1)
    text = rf"(?:(?:[^.]*\.){before}{_SENTENCE})"
    return text if low else f"{text}?"


def _integers(interval: Interval) -> str:
    """Texts -?[0-9]+ whose value lies in the interval, with any number of leading zeros."""
    low = interval.low
    high = interval.high
    options: list[str] = []
    if high is None or high >= 0:
        lowest = max(low or 0, 0)
        digits = at_least(lowest) if high is None else between(lowest, high)
        options.append(f"0*{digits}")
    if low is None or low <= 0:
        lowest = max(-(high if high is not None else 0), 0)
        digits = at_least(lowest) if low is None else between(lowest, -low)
        options.append(f"-0*{digits}")
    return f"(?:{'|'.join(options)})"


def _times(low: int, high: int | None) -> str:
    return f"{{{low},{'' if high is None else high}}}"


def _one_of(texts: tuple[str, ...]) -> str:
    return f"(?:{'|'.join(map(_literal, texts))})" if texts else written_set(Chars(()))


def _literal(text: str) -> str:
    return "".join(written_set(Chars(((ord(char), ord(char)),))) for char in text)
