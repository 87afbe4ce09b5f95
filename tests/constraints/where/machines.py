"""The oracle's character machines, one for each atom of an expression, written to be believed.

Each remembers of a text only what its atom needs to know: a count up to just beyond the bound, the
longest end of the text that begins a phrase, what may still follow in a pattern. None shares code
with the engine or with the evaluator.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from constraints.where.terms import (
    Compare,
    Contains,
    EndsWith,
    Expression,
    IsFloat,
    IsInt,
    Matches,
    Measure,
    OneOf,
    Relation,
    StartsWith,
    StopsAt,
)
from tests.constraints.where import partial_patterns

DIGITS = "0123456789"


@dataclass(frozen=True)
class Machine:
    """start, a step by one character, and whether the text so far satisfies the atom."""

    start: Hashable
    step: Callable[[Any, str], Hashable]
    accepts: Callable[[Any], bool]


def machine_of(atom: Expression) -> Machine:
    if isinstance(atom, Compare):
        return {
            Measure.CHARS: _count,
            Measure.WORDS: _words,
            Measure.SENTENCES: _sentences,
            Measure.INT: _int_compared,
        }[atom.measure](atom.relation, atom.bound)
    match atom:
        case OneOf(values):
            return _one_of(values)
        case StartsWith(phrases):
            return _starts_with(phrases)
        case EndsWith(phrases):
            return _ends_with(phrases)
        case Contains(phrase):
            return _contains(phrase)
        case StopsAt(phrases):
            return _stops_at(phrases)
    return _pattern(partial_patterns.read(_pattern_of(atom)))


def _pattern_of(atom: Expression) -> str:
    match atom:
        case Matches(pattern):
            return pattern
        case IsInt():
            return "-?[0-9]+"
        case IsFloat():
            return r"-?[0-9]+(\.[0-9]+)?"
    raise TypeError(atom)


def related(count: int, relation: Relation, bound: int) -> bool:
    match relation:
        case Relation.LT:
            return count < bound
        case Relation.LE:
            return count <= bound
        case Relation.EQ:
            return count == bound
        case Relation.NE:
            return count != bound
        case Relation.GE:
            return count >= bound
        case Relation.GT:
            return count > bound


def _count(relation: Relation, bound: int) -> Machine:
    most = max(bound, 0) + 1
    return Machine(
        start=0,
        step=lambda count, char: min(count + 1, most),
        accepts=lambda count: related(count, relation, bound),
    )


def _words(relation: Relation, bound: int) -> Machine:
    most = max(bound, 0) + 1

    def step(state: tuple[int, bool], char: str) -> tuple[int, bool]:
        count, in_word = state
        if char.isspace():
            return count, False
        return (count if in_word else min(count + 1, most)), True

    return Machine((0, False), step, lambda state: related(state[0], relation, bound))


def _sentences(relation: Relation, bound: int) -> Machine:
    most = max(bound, 0) + 1

    def step(state: tuple[int, bool], char: str) -> tuple[int, bool]:
        closed, _ = state
        return (min(closed + 1, most), False) if char == "." else (closed, True)

    return Machine((0, False), step, lambda state: related(sum(state), relation, bound))


def _int_compared(relation: Relation, bound: int) -> Machine:
    most = abs(bound) + 1

    def step(state: tuple[str, int | None] | None, char: str) -> tuple[str, int | None] | None:
        if state is None:
            return None
        sign, size = state
        if char == "-" and sign == "" and size is None:
            return "-", None
        if char not in DIGITS:
            return None
        return sign, min(10 * (size or 0) + int(char), most)

    def accepts(state: tuple[str, int | None] | None) -> bool:
        if state is None or state[1] is None:
            return False
        return related(-state[1] if state[0] else state[1], relation, bound)

    return Machine(("", None), step, accepts)


def _one_of(values: tuple[str, ...]) -> Machine:
    def step(text: str | None, char: str) -> str | None:
        if text is None:
            return None
        longer = text + char
        return longer if any(value.startswith(longer) for value in values) else None

    return Machine("", step, lambda text: text in values)


def _starts_with(phrases: tuple[str, ...]) -> Machine:
    def decided(text: str) -> str | bool:
        if text.startswith(phrases):
            return True
        return text if any(phrase.startswith(text) for phrase in phrases) else False

    def step(state: str | bool, char: str) -> str | bool:
        return state if isinstance(state, bool) else decided(state + char)

    return Machine(decided(""), step, lambda state: state is True)


def longest_beginning(text: str, phrases: tuple[str, ...]) -> str:
    """The longest end of the text with which a phrase begins."""
    while not any(phrase.startswith(text) for phrase in phrases) and text:
        text = text[1:]
    return text


def _ends_with(phrases: tuple[str, ...]) -> Machine:
    return Machine(
        start="",
        step=lambda end, char: longest_beginning(end + char, phrases),
        accepts=lambda end: end.endswith(phrases),
    )


def _contains(phrase: str) -> Machine:
    def step(end: str, char: str) -> str:
        return phrase if end == phrase else longest_beginning(end + char, (phrase,))

    return Machine("", step, lambda end: end == phrase)


def _stops_at(phrases: tuple[str, ...]) -> Machine:
    def step(end: str | None, char: str) -> str | None:
        if end is None or end.endswith(phrases):
            return None
        return longest_beginning(end + char, phrases)

    return Machine("", step, lambda end: end is not None)


def _pattern(node: partial_patterns.Node) -> Machine:
    return Machine(frozenset({node}), partial_patterns.step, partial_patterns.is_done)
