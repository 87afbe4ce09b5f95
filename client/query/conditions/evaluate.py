"""Evaluates conditions on finished holes.

    evaluate(term, values) -> True, False, or None where it depends on a hole that is not finished

Texts are measured as in the server (`constraints.where.evaluate`), values are compared as in
Python. A hole has both: `X == "3"` and `len(X)` are about the text of an int hole, `X == 3` about
its value. Coroutines are refused: they cannot be awaited, and as values are always true.
"""

import inspect
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from decimal import Decimal
from types import BuiltinMethodType, MethodType
from typing import Any

from client.errors import TandemError
from client.query.conditions.operators import (
    OPERATORS,
    PIECES,
    STOPS,
    SUBJECT,
    errors_about,
    operator_of,
    text_term,
)
from client.query.conditions.terms import (
    All,
    AnyOf,
    Calculated,
    Called,
    Compared,
    Not,
    Opaque,
    Ref,
    Term,
    Value,
    written,
)
from client.query.conditions.values import (
    Finished,
    Missing,
    TextParts,
    Values,
    bare,
    compared,
    described,
    exact_number,
    finished,
    integer,
    is_scalar,
    uncounted_parts,
)
from client.query.errors import BadCondition, Place, ProgramFailed, meant_by, unknown_name
from constraints.where import evaluate as judge
from constraints.where import terms as where
from constraints.where.functions import FUNCTIONS, Phrase, Phrases

# The arithmetic that conditions allow on holes.
ARITHMETIC: Mapping[str, Callable[[Any, Any], object]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


def refuse_awaitable(value: object, place: Place | None, shown: str | None = None) -> None:
    """Raise BadCondition for an awaitable; `shown`: its source text."""
    if not inspect.isawaitable(value):
        return
    if inspect.iscoroutine(value):
        value.close()  # no warning that it was never awaited
    what = "this" if shown is None else f"`{shown}`"
    raise BadCondition(
        f"{what} is a call of an async function, which conditions cannot await: use a plain one",
        place,
    )


def evaluate(term: Term, values: Values) -> bool | None:
    """Whether the condition holds; None: it depends on holes that `values` lacks.

    values: the values of finished holes, or `Finished` with their text and tokens, too
    Raises BadCondition for invalid conditions, ProgramFailed if the program's own code raises.
    """
    match term:
        case All(parts):
            return conjunction(evaluate(part, values) for part in parts)
        case AnyOf(parts):
            return _opposite(conjunction(_opposite(evaluate(part, values)) for part in parts))
        case Not(part):
            return _opposite(evaluate(part, values))
        case Compared():
            return _compared(term, values)
        case Called():
            return _called(as_condition(term), term, values)
    return _as_truth(operand(term, values), term)


def _compared(term: Compared, values: Values) -> bool | None:
    relation = term.relation
    place = term.place
    left = operand(term.left, values)
    right = operand(term.right, values)
    if isinstance(right, TextParts) and relation in ("in", "not in"):
        right = right.listed(place)
    for side in (left, right):
        if isinstance(side, TextParts):
            raise uncounted_parts(side.shown, place)
    with _errors_about_hole(term.left, term.right):
        return compared(left, relation, right, place)


def _errors_about_hole(*terms: Term) -> AbstractContextManager[None]:
    """Context: errors name the first of these terms that is a hole."""
    holes = (part.name for part in terms if isinstance(part, Ref))
    return errors_about(next(holes, SUBJECT))


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
    """The operator of a call that is a condition. Raises BadCondition if it is a number."""
    name = operator_of(term)
    if name in ("len", "type", *PIECES):
        raise BadCondition(f"`{name}` alone is no condition; compare it", term.place)
    return name


def _as_truth(value: object, term: Term) -> bool | None:
    """The truth of a value, as in Python; refuses a method that is not called."""
    if isinstance(value, Missing):
        return None
    alone = bare(value)
    if isinstance(term, Opaque) and isinstance(alone, MethodType | BuiltinMethodType):
        raise BadCondition(f"`{term.text}` is a method, which has to be called", term.place)
    return bool(alone)


# Operands


def operand(term: Term, values: Values) -> object:
    """The operand of a comparison: a Python value, a Finished, TextParts or Missing."""
    match term:
        case Value(value):
            return value
        case Ref(name):
            return finished(values[name]) if name in values else Missing.UNKNOWN
        case Opaque():
            return _opaque(term, values)
        case Calculated():
            return _calculated(term, values)
        case Called():
            return _measured(term, values)
    truth = evaluate(term, values)
    return Missing.UNKNOWN if truth is None else truth


def _opaque(term: Opaque, values: Values) -> object:
    if any(name not in values for name in term.names):
        return Missing.UNKNOWN
    return computed(term, lambda: term.function(*(bare(values[name]) for name in term.names)))


def _calculated(term: Calculated, values: Values) -> object:
    left = operand(term.left, values)
    right = operand(term.right, values)
    for missing in (Missing.UNKNOWN, Missing.NO_NUMBER):
        if left is missing or right is missing:
            return missing
    numbers = _numbers(left, right)
    return computed(term, lambda: ARITHMETIC[term.symbol](*numbers))


def _numbers(left: object, right: object) -> tuple[object, object]:
    """Both numbers for arithmetic: Python adds no float to a Decimal, which float(X) is."""
    numbers = bare(left), bare(right)
    is_mixed = {Decimal, float} <= set(map(type, numbers))
    return (exact_number(left), exact_number(right)) if is_mixed else numbers


def computed(term: Opaque | Calculated, make: Callable[[], object]) -> object:
    """The result of the program's own code. Raises ProgramFailed with its place, BadCondition."""
    try:
        made = make()
    except TandemError:
        raise
    except Exception as error:
        hint = _hint(error)
        what = f"`{term.text}` raised {type(error).__name__}: {error}{hint}"
        raise ProgramFailed(what, term.place) from error
    refuse_awaitable(made, term.place, term.text)
    return made


def _hint(error: Exception) -> str:
    name = unknown_name(error)
    if name is not None and name.lower() in OPERATORS:
        return f"; `{name}` is an operator of conditions: Python's own code cannot use what it says"
    return meant_by(error, OPERATORS)


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
    return _text_parts(name, about, term)


def _length(about: object, place: Place) -> object:
    if isinstance(about, TextParts):
        return Missing.UNKNOWN if about.count is None else about.count
    value = bare(about)
    if isinstance(about, Finished) and is_scalar(value):
        return len(about.shown)
    if isinstance(value, Collection):
        return len(value)
    raise BadCondition(f"{described(about)} has no length", place)


def _text_parts(name: str, about: object, term: Called) -> TextParts:
    shown = written(term)
    place = term.place
    text = _text(name, about, place)
    if name == "tokens":
        if not isinstance(about, Finished):
            raise BadCondition("only holes have tokens, a string has none", place)
        if not about.has_tokens:
            what = "nobody counts the tokens of a nested query's value, or of one to be scored"
            raise BadCondition(f"{what}: count its words or characters", place)
        return TextParts(name, shown, about.num_tokens)
    items = FUNCTIONS[name].apply((Phrase(text),))
    assert isinstance(items, Phrases)
    return TextParts(name, shown, judge.measured(PIECES[name], text), items.values)


def _number(name: str, about: object, place: Place) -> object:
    text = _text(name, about, place)
    if name == "int":
        number = integer(text)
        return Missing.NO_NUMBER if number is None else number
    return Decimal(text) if judge.holds(where.IsFloat(), text) else Missing.NO_NUMBER


def _text(name: str, about: object, place: Place) -> str:
    if isinstance(about, str):
        return about
    if isinstance(about, Finished) and is_scalar(about.value):
        return about.shown
    raise BadCondition(f"`{name}` is about texts, not about {described(about)}", place)


def _called(name: str, term: Called, values: Values) -> bool | None:
    """An operator that is a condition."""
    arguments = [operand(argument, values) for argument in term.arguments]
    if any(isinstance(argument, Missing) for argument in arguments):
        return None
    with _errors_about_hole(term.arguments[0]):
        wanted = text_term(name, [bare(argument) for argument in arguments[1:]], term.place)
    if name in STOPS and not isinstance(arguments[0], Finished):
        raise BadCondition(f"only a hole can stop: `{name}` is about no hole here", term.place)
    return judge.holds(wanted, _text(name, arguments[0], term.place))
