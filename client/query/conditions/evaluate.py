"""What a condition means for values that are known: the judge of finished holes.

    evaluate(term, values) -> True, False, or None where it depends on a hole that is not finished

Texts are measured as the server does (`constraints.where.evaluate`), values are compared as Python
compares them. A hole is both: `X == "3"` and `len(X)` are about the text of an int hole, `X == 3`
about its value. It knows no masks.
"""

import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

from client.query.conditions.operators import PIECES, STOPS, operator_of, text_term
from client.query.conditions.terms import (
    All,
    AnyOf,
    Called,
    Compared,
    Not,
    Opaque,
    Ref,
    Term,
    Value,
)
from client.query.conditions.values import (
    Finished,
    Values,
    bare,
    finished,
    is_number,
    is_scalar,
    written,
)
from client.query.errors import BadCondition, ProgramFailed
from client.query.place import Place
from constraints.where import evaluate as judge
from constraints.where import terms as where
from constraints.where.functions import FUNCTIONS
from constraints.where.operands import Phrase, Phrases

RELATIONS: dict[str, Callable[[Any, Any], object]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


class Missing(Enum):
    """What stands for a value that is not there."""

    UNKNOWN = "a hole that is not finished"
    NO_NUMBER = "a number of a text that is none"


@dataclass(frozen=True, slots=True)
class Pieces:
    """What `words(X)` is; `count` None: how many is not known."""

    operator: str
    count: int | None
    items: tuple[str, ...] = ()


def evaluate(term: Term, values: Values) -> bool | None:
    """Whether the condition holds; None if it depends on holes that `values` lacks.

    values: what the variables of finished holes are bound to, or `Finished` to say their text and
            tokens too
    Raises BadCondition where it means nothing, ProgramFailed where the program's own code raises.
    """
    match term:
        case All(parts):
            return conjunction(evaluate(part, values) for part in parts)
        case AnyOf(parts):
            return _opposite(conjunction(_opposite(evaluate(part, values)) for part in parts))
        case Not(part):
            return _opposite(evaluate(part, values))
        case Compared(left, relation, right, place):
            return compared(operand(left, values), relation, operand(right, values), place)
        case Called():
            return _called(as_condition(term), term, values)
    return _as_truth(operand(term, values))


def conjunction(truths: Iterator[bool | None]) -> bool | None:
    """Kleene's `and`: False as soon as one is."""
    known: bool | None = True
    for truth in truths:
        if truth is False:
            return False
        known = None if truth is None else known
    return known


def _opposite(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


def as_condition(term: Called) -> str:
    """The operator of a call that stands as a condition. Raises BadCondition for a mere number."""
    name = operator_of(term)
    if name in ("len", "type", *PIECES):
        raise BadCondition(f"`{name}` alone is no condition; compare it", term.place)
    return name


def _as_truth(value: object) -> bool | None:
    """A value that stands alone, as Python takes it."""
    return None if isinstance(value, Missing) else bool(bare(value))


# Operands


def operand(term: Term, values: Values) -> object:
    """What stands on a side of a comparison: Python's value, a Finished, Pieces or Missing."""
    match term:
        case Value(value):
            return value
        case Ref(name):
            return finished(values[name]) if name in values else Missing.UNKNOWN
        case Opaque():
            return _opaque(term, values)
        case Called():
            return _measured(term, values)
    truth = evaluate(term, values)
    return Missing.UNKNOWN if truth is None else truth


def _opaque(term: Opaque, values: Values) -> object:
    if any(name not in values for name in term.names):
        return Missing.UNKNOWN
    try:
        return term.function(*(bare(values[name]) for name in term.names))
    except Exception as error:
        what = f"`{term.text}` raised {type(error).__name__}: {error}"
        raise ProgramFailed(what, term.place) from error


def _measured(term: Called, values: Values) -> object:
    name = operator_of(term)
    if name not in ("len", "type", "int", "float", *PIECES):
        truth = evaluate(term, values)
        return Missing.UNKNOWN if truth is None else truth
    about = operand(term.arguments[0], values)
    if about is Missing.UNKNOWN:
        return about
    match name:
        case "len":
            return _length(about, term.place)
        case "type":
            return type(bare(about))
        case "int" | "float":
            return _number(name, about, term.place)
    return _pieces(name, about, term.place)


def _length(about: object, place: Place) -> object:
    if isinstance(about, Pieces):
        return Missing.UNKNOWN if about.count is None else about.count
    value = bare(about)
    if isinstance(about, Finished) and is_scalar(value):
        return len(about.shown)
    if isinstance(value, Collection):
        return len(value)
    raise BadCondition(f"{described(about)} has no length", place)


def _pieces(name: str, about: object, place: Place) -> Pieces:
    text = _text(name, about, place)
    if name == "tokens":
        if not isinstance(about, Finished):
            raise BadCondition("only holes have tokens, a string has none", place)
        return Pieces(name, about.num_tokens)
    items = FUNCTIONS[name].apply((Phrase(text),))
    assert isinstance(items, Phrases)
    return Pieces(name, judge.measured(PIECES[name], text), items.values)


def _number(name: str, about: object, place: Place) -> object:
    text = _text(name, about, place)
    if name == "int":
        number = judge.integer(text)
        return Missing.NO_NUMBER if number is None else number
    return Decimal(text) if judge.holds(where.IsFloat(), text) else Missing.NO_NUMBER


def _text(name: str, about: object, place: Place) -> str:
    if isinstance(about, str):
        return about
    if isinstance(about, Finished) and is_scalar(about.value):
        return about.shown
    raise BadCondition(f"`{name}` is about texts, not about {described(about)}", place)


def _called(name: str, term: Called, values: Values) -> bool | None:
    """An operator that is a condition by itself."""
    arguments = [operand(argument, values) for argument in term.arguments]
    if any(isinstance(argument, Missing) for argument in arguments):
        return None
    wanted = text_term(name, [bare(argument) for argument in arguments[1:]], term.place)
    if name in STOPS and not isinstance(arguments[0], Finished):
        raise BadCondition(f"only a hole can stop: `{name}` is about no hole here", term.place)
    return judge.holds(wanted, _text(name, arguments[0], term.place))


# Comparisons


def compared(left: object, relation: str, right: object, place: Place) -> bool | None:
    """Whether `left relation right`, for two operands."""
    if left is Missing.UNKNOWN or right is Missing.UNKNOWN:
        return None
    if left is Missing.NO_NUMBER or right is Missing.NO_NUMBER:
        return False
    for side in (left, right):
        if isinstance(side, Pieces) and relation not in ("in", "not in"):
            raise BadCondition(
                f"{side.operator}(...) can only be counted: write len({side.operator}(X))", place
            )
    match relation:
        case "in":
            return _contained(left, right, place)
        case "not in":
            return not _contained(left, right, place)
        case "is":
            return _is(left, right)
        case "is not":
            return not _is(left, right)
    if relation not in RELATIONS:
        raise BadCondition(f"`{relation}` compares nothing", place)
    return _related(left, relation, right, place)


def _related(left: object, relation: str, right: object, place: Place) -> bool:
    if is_number(bare(left)) and is_number(bare(right)):
        return _numbers_related(left, relation, right)
    left, right = _side(left, right), _side(right, left)
    if relation in ("==", "!="):
        check_comparable(left, right, place)
    try:
        return bool(RELATIONS[relation](left, right))
    except TypeError as error:
        what = f"{described(left)} and {described(right)} cannot be compared by `{relation}`"
        raise BadCondition(what, place) from error


def _numbers_related(left: object, relation: str, right: object) -> bool:
    """As they are written, where one is a decimal: 0.1 is a tenth then."""
    if all(isinstance(bare(side), int) for side in (left, right)):
        return bool(RELATIONS[relation](bare(left), bare(right)))
    exact = written(left), written(right)
    if any(number.is_nan() for number in exact):
        return relation == "!="
    return bool(RELATIONS[relation](*exact))


def check_comparable(left: object, right: object, place: Place) -> None:
    """Refuses what is never equal: a number and a text."""
    sides = (left, right)
    if any(isinstance(side, str) for side in sides) and any(map(is_number, sides)):
        what = f"{described(left)} never equals {described(right)}"
        raise BadCondition(f"{what}: a hole is text; write int(X), or [X: int]", place)


def _side(this: object, other: object) -> object:
    """A hole as its text where it is compared with a text, else its value."""
    if not isinstance(this, Finished):
        return this
    is_with_text = isinstance(bare(other), str)
    return this.shown if is_with_text and is_scalar(this.value) else this.value


def _is(left: object, right: object) -> bool:
    left, right = bare(left), bare(right)
    is_plain = isinstance(left, int | float | str) and type(left) is type(right)
    return left is right or (is_plain and left == right)


def _contained(left: object, right: object, place: Place) -> bool:
    if isinstance(right, Finished):
        right = right.shown if is_scalar(right.value) else right.value
    if isinstance(right, Pieces):
        if right.operator == "tokens":
            raise BadCondition("tokens(...) can only be counted: write len(tokens(X))", place)
        right = right.items
    if isinstance(right, Iterator):
        raise BadCondition("an iterator can be read only once; make it a list", place)
    if isinstance(right, str):
        left = _side(left, right)
    elif isinstance(left, Finished):
        left = _found_as(left, right)
    if is_number(left) and isinstance(right, Iterable):
        return any(is_number(one) and _numbers_related(left, "==", one) for one in right)
    try:
        return left in right  # type: ignore[operator]
    except TypeError as error:
        what = f"{described(left)} cannot be looked for in {described(right)}"
        raise BadCondition(what, place) from error


def _found_as(hole: Finished, among: object) -> object:
    """The hole as it is looked for: its text among texts, its value among all else."""
    is_among_texts = isinstance(among, Iterable) and any(isinstance(one, str) for one in among)
    return hole.shown if is_among_texts and is_scalar(hole.value) else hole.value


def described(value: object) -> str:
    value = bare(value)
    shown = repr(value)
    return f"{shown[:40]}…" if len(shown) > 40 else shown
