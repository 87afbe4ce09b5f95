"""Finished holes, and conditions evaluated on them.

    evaluate(term, values) -> True or False; all holes of the term are finished

Texts are measured as in the server (`constraints.where.evaluate`), values are compared as in
Python. A hole has both: `X == "3"` and `len(X)` are about the text of an int hole, `X == 3` about
its value. Numbers are compared as written, so 0.1 is exactly a tenth. Coroutines are refused: they
cannot be awaited, and as values are always true.
"""

import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from types import BuiltinMethodType, MethodType
from typing import Any

from client.errors import TandemError
from client.query.conditions.terms import (
    OPERATORS,
    PIECES,
    STOPS,
    SUBJECT,
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
    errors_about,
    operator_of,
    refuse_awaitable,
    text_term,
    uncounted_parts,
    written,
)
from client.query.errors import BadCondition, Place, ProgramFailed, meant_by, unknown_name
from constraints.where import evaluate as judge
from constraints.where import terms as where

# The values of holes by name; or Finished, with more data.
Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished hole.

    value:      the value of its variable
    text:       its text in the prompt; lengths of a number are those of its text
    num_tokens: without the end token and with a dropped stop phrase; None: unknown
    has_tokens: False if the number will never be known: for nested queries, and for values that are
                not scored yet
    """

    value: object
    text: str
    num_tokens: int | None = None
    has_tokens: bool = True

    @property
    def shown(self) -> str:
        """The text for conditions: the value if that is a text."""
        return self.value if isinstance(self.value, str) else self.text


def finished(value: object) -> Finished:
    """A plain value as a finished hole; its text is that of a prompt."""
    if isinstance(value, Finished):
        return value
    return Finished(value, value if isinstance(value, str) else str(value))


def bare(value: object) -> object:
    """The value of a finished hole, anything else unchanged."""
    return value.value if isinstance(value, Finished) else value


def is_number(value: object) -> bool:
    """Whether it is a number for Python; truth values are."""
    return isinstance(value, int | float | Decimal | Fraction)


def is_scalar(value: object) -> bool:
    """Whether conditions may refer to the text of a hole with this value."""
    return value is None or isinstance(value, str) or is_number(value)


def integer(text: str) -> int | None:
    """The whole number that a text represents, of any length; None: it is none."""
    return None if judge.integer(text) is None else int(Decimal(text))


def exact_number(number: object) -> Decimal:
    """The exact value of a number as written: 0.1 is a tenth. For a hole, that of its text."""
    if isinstance(number, Finished):
        is_written = re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", number.text) is not None
        number = Decimal(number.text) if is_written else number.value
    if isinstance(number, Fraction):
        return Decimal(number.numerator) / Decimal(number.denominator)
    if isinstance(number, int):
        return Decimal(number)
    return number if isinstance(number, Decimal) else Decimal(str(number))


RELATIONS: dict[str, Callable[[Any, Any], object]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    ">": operator.gt,
}


class Missing(Enum):
    """A placeholder for a missing value: it satisfies no comparison."""

    NO_NUMBER = "a number of a text that is none"


class TokensUnknown(Exception):
    """A condition counts the tokens of a text that nobody has written yet."""


@dataclass(frozen=True, slots=True)
class TextParts:
    """The value of `words(X)`; `count` None: unknown. `shown`: its source text."""

    operator: str
    shown: str
    count: int | None
    items: tuple[str, ...] = ()

    def listed(self, place: Place) -> tuple[str, ...]:
        """The parts. Raises BadCondition for tokens, whose texts are not available."""
        if self.operator == "tokens":
            raise uncounted_parts(self.shown, place)
        return self.items


def compared(left: object, relation: str, right: object, place: Place) -> bool:
    """Whether `left relation right`, for operands other than TextParts."""
    if left is Missing.NO_NUMBER or right is Missing.NO_NUMBER:
        return False
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
        _check_comparable(left, right, place)
    try:
        return bool(RELATIONS[relation](left, right))
    except TypeError as error:
        what = f"{described(left)} and {described(right)} cannot be compared by `{relation}`"
        raise BadCondition(what, place) from error


def _numbers_related(left: object, relation: str, right: object) -> bool:
    """Compared as written if one is a decimal, so 0.1 is exactly a tenth."""
    if all(isinstance(bare(side), int) for side in (left, right)):
        return bool(RELATIONS[relation](bare(left), bare(right)))
    exact = exact_number(left), exact_number(right)
    if any(number.is_nan() for number in exact):
        return relation == "!="
    return bool(RELATIONS[relation](*exact))


def _check_comparable(left: object, right: object, place: Place) -> None:
    """Refuse a number and a text, which are never equal."""
    sides = (left, right)
    if any(isinstance(side, str) for side in sides) and any(map(is_number, sides)):
        what = f"{described(left)} never equals {described(right)}: one is text"
        raise BadCondition(f"{what}; compare int(X), or write [X: int]", place)


def _side(this: object, other: object) -> object:
    """A hole's text if it is compared with a text, else its value."""
    if not isinstance(this, Finished):
        return this
    is_with_text = isinstance(bare(other), str)
    return this.shown if is_with_text and is_scalar(this.value) else this.value


def _is(left: object, right: object) -> bool:
    left = bare(left)
    right = bare(right)
    is_plain = isinstance(left, int | float | str) and type(left) is type(right)
    return left is right or (is_plain and left == right)


def _contained(left: object, right: object, place: Place) -> bool:
    if isinstance(right, Finished):
        right = right.shown if is_scalar(right.value) else right.value
    if isinstance(right, str):
        left = _side(left, right)
    elif isinstance(left, Finished):
        if _is_text_among(left, right):
            return True
        left = left.value
    # Python looks for a whole number in a range without looking at each.
    is_quick = isinstance(left, int) and isinstance(right, range)
    if is_number(left) and isinstance(right, Iterable) and not is_quick:
        return any(is_number(one) and _numbers_related(left, "==", one) for one in right)
    try:
        return left in right  # type: ignore[operator]
    except TypeError as error:
        what = f"{described(left)} cannot be looked for in {described(right)}"
        raise BadCondition(what, place) from error


def _is_text_among(hole: Finished, among: object) -> bool:
    """Whether the hole's text is in the collection; its value may be in it, too."""
    if not is_scalar(hole.value) or not isinstance(among, Iterable) or isinstance(among, range):
        return False
    return any(isinstance(one, str) for one in among) and hole.shown in among


def described(value: object) -> str:
    value = bare(value)
    shown = repr(value)
    return f"{shown[:40]}…" if len(shown) > 40 else shown


# The arithmetic that conditions allow on holes.
ARITHMETIC: Mapping[str, Callable[[Any, Any], object]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}


def evaluate(term: Term, values: Values) -> bool:
    """Whether the condition holds.

    values: those of all holes in the term, or `Finished` with their text and tokens, too
    Raises BadCondition for invalid conditions, ProgramFailed if the program's own code raises,
    TokensUnknown.
    """
    match term:
        case All(parts):
            return all(evaluate(part, values) for part in parts)
        case AnyOf(parts):
            return any(evaluate(part, values) for part in parts)
        case Not(part):
            return not evaluate(part, values)
        case Compared():
            return _compared(term, values)
        case Called():
            return _called(as_condition(term), term, values)
    return _as_truth(operand(term, values), term)


def _compared(term: Compared, values: Values) -> bool:
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


def as_condition(term: Called) -> str:
    """The operator of a call that is a condition. Raises BadCondition if it is a number."""
    name = operator_of(term)
    if name in ("len", "type", *PIECES):
        raise BadCondition(f"`{name}` alone is no condition; compare it", term.place)
    return name


def _as_truth(value: object, term: Term) -> bool:
    """The truth of a value, as in Python; refuses a method that is not called."""
    if value is Missing.NO_NUMBER:
        return False
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
            return finished(values[name])
        case Opaque():
            return _opaque(term, values)
        case Calculated():
            return _calculated(term, values)
        case Called():
            return _measured(term, values)
    return evaluate(term, values)


def _opaque(term: Opaque, values: Values) -> object:
    return computed(term, lambda: term.function(*(bare(values[name]) for name in term.names)))


def _calculated(term: Calculated, values: Values) -> object:
    left = operand(term.left, values)
    right = operand(term.right, values)
    if left is Missing.NO_NUMBER or right is Missing.NO_NUMBER:
        return Missing.NO_NUMBER
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
    return list(made) if isinstance(made, Iterator) else made


def _hint(error: Exception) -> str:
    name = unknown_name(error)
    if name is not None and name.lower() in OPERATORS:
        return f"; `{name}` is an operator of conditions: Python's own code cannot use what it says"
    return meant_by(error, OPERATORS)


def _measured(term: Called, values: Values) -> object:
    name = operator_of(term)
    if name not in ("len", "type", "int", "float", *PIECES):
        return evaluate(term, values)
    about = operand(term.arguments[0], values)
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
        if about.count is None:
            raise TokensUnknown
        return about.count
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
    items = tuple(judge.parts_of(PIECES[name], text))
    return TextParts(name, shown, len(items), items)


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


def _called(name: str, term: Called, values: Values) -> bool:
    """An operator that is a condition."""
    arguments = [operand(argument, values) for argument in term.arguments]
    with _errors_about_hole(term.arguments[0]):
        wanted = text_term(name, [bare(argument) for argument in arguments[1:]], term.place)
    if name in STOPS and not isinstance(arguments[0], Finished):
        raise BadCondition(f"only a hole can stop: `{name}` is about no hole here", term.place)
    return judge.holds(wanted, _text(name, arguments[0], term.place))
