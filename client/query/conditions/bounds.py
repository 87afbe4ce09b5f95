"""Lower and upper bounds of a condition, as constraints on the current hole.

    lower  <=  the condition  <=  upper

Both are expressions of `constraints.where`, combined with truth values simplified away. If they are
equal, the condition is expressed exactly; otherwise the upper one is a mask that is never too
strict, and the condition is checked afterwards. Parts that are not expressible have the bounds
False and True: so `and` keeps its other parts, `or` becomes open, and `not` swaps the bounds. All
other holes of the condition are finished. Comparisons are translated by the kinds of their sides:

side:  constant | hole, or a measure of it | uncounted parts
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import assert_never

from client.query.conditions.evaluate import (
    Finished,
    Missing,
    TextParts,
    Values,
    as_condition,
    bare,
    compared,
    described,
    evaluate,
    exact_number,
    is_number,
    is_scalar,
    operand,
)
from client.query.conditions.kinds import FLOAT, INT, HoleKind
from client.query.conditions.patterns import (
    MAX_LETTERS,
    lowered,
    numerals_among,
    numerals_related,
)
from client.query.conditions.terms import (
    PIECES,
    STOPS,
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
    strings,
    text_term,
    uncounted_parts,
    written,
)
from client.query.errors import BadCondition, Place
from constraints.where import terms as where

FALSE = where.Constant(False)
TRUE = where.Constant(True)


def all_of(parts: Iterable[where.Expression]) -> where.Expression:
    """The conjunction without duplicates and truth values."""
    kept = dict.fromkeys(part for part in parts if part != TRUE)
    return FALSE if FALSE in kept else where.all_of(kept)


def any_of(parts: Iterable[where.Expression]) -> where.Expression:
    """The disjunction without duplicates and truth values."""
    kept = dict.fromkeys(part for part in parts if part != FALSE)
    return TRUE if TRUE in kept else where.any_of(kept)


def opposite(expression: where.Expression) -> where.Expression:
    match expression:
        case where.Constant(value):
            return where.Constant(not value)
        case where.Not(part):
            return part
    return where.Not(expression)


@dataclass(frozen=True, slots=True)
class Bounds:
    """A sufficient and a necessary constraint."""

    lower: where.Expression
    upper: where.Expression

    @property
    def is_exact(self) -> bool:
        return self.lower == self.upper


OPEN = Bounds(FALSE, TRUE)


@dataclass(frozen=True, slots=True)
class CurrentHole:
    """The hole for which conditions are evaluated.

    values: finished holes by name, without this one
    """

    name: str
    kind: HoleKind
    values: Values


def names_of(term: Term) -> frozenset[str]:
    """The holes in a term."""
    match term:
        case Value():
            return frozenset()
        case Ref(name):
            return frozenset((name,))
        case Opaque(names):
            return frozenset(names)
        case Not(part):
            return names_of(part)
        case All(parts) | AnyOf(parts) | Called(arguments=parts):
            return frozenset().union(*map(names_of, parts))
        case Compared(left, _, right) | Calculated(left, _, right):
            return names_of(left) | names_of(right)
    assert_never(term)


def conjuncts_of(term: Term) -> Iterator[Term]:
    """The parts of nested `and`s."""
    if not isinstance(term, All):
        yield term
        return
    for part in term.parts:
        yield from conjuncts_of(part)


def exactly(expression: where.Expression | None) -> Bounds:
    """Exact bounds; None: no bounds."""
    return OPEN if expression is None else Bounds(expression, expression)


def negated(inner: Bounds) -> Bounds:
    return Bounds(opposite(inner.upper), opposite(inner.lower))


def require_text(name: str, kind: HoleKind, place: Place) -> None:
    """Raise BadCondition for an operator on text if the hole's text is JSON."""
    if kind.schema is not None:
        raise BadCondition(
            f"`{name}` is about texts, and the hole is {kind.name}, whose text is JSON: say it in"
            " its type or schema, or with a function of its value",
            place,
        )


FLIPPED = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">=": "<=", ">": "<"}
# The server's language has numbers of at most 18 digits, more than any count needs.
MAX_BOUND = 10**18 - 1
# The measures that the kinds of numbers are.
_NUMBERS: Mapping[str, where.Measure | None] = {INT.name: where.Measure.INT, FLOAT.name: None}
# All substrings of a text are listed if they have at most so many characters together.
_MAX_SUBSTRINGS_LEN = 20_000


def measured(
    measure: where.Measure | None, relation: str, constant: object, place: Place
) -> where.Expression:
    """A measure of the hole compared with a number, or `in` some numbers.

    measure: None: float(X), or a hole of that kind
    """
    # A text that is no number satisfies no comparison.
    always: where.Expression = where.IsFloat() if measure is None else TRUE
    if measure is where.Measure.INT:
        always = where.IsInt()
    value = bare(constant)
    if relation in FLIPPED and is_number(value):
        return _bounded(measure, relation, exact_number(constant), always)
    numbers = _numbers(value) if relation in ("in", "not in") else None
    if numbers is None:
        shown = "float(X)" if measure is None else measure.value
        what = f"{shown} is a number, compared with numbers"
        raise BadCondition(f"{what}. Given: {relation} {described(value)}", place)
    is_one = _among(measure, numbers, always)
    return is_one if relation == "in" else all_of((always, opposite(is_one)))


def _bounded(
    measure: where.Measure | None, relation: str, bound: Decimal, always: where.Expression
) -> where.Expression:
    """A comparison with any number; `always`: whatever number the measure is."""
    if not bound.is_finite():
        is_beyond = not bound.is_nan() and relation[0] == ("<" if bound > 0 else ">")
        return always if is_beyond or relation == "!=" else FALSE
    if measure is None:
        return numerals_related(relation, bound)
    if bound == bound.to_integral_value():
        whole = int(bound)
    elif relation in ("==", "!="):
        return FALSE if relation == "==" else always
    else:
        relation, whole = ("<=", math.floor(bound)) if "<" in relation else (">=", math.ceil(bound))
    is_int = measure is where.Measure.INT
    if not is_int and (whole < 0 or (whole == 0 and relation in ("<", ">="))):
        return where.Constant(relation in (">", ">=", "!="))
    if abs(whole) <= MAX_BOUND:
        return where.Compare(measure, where.Relation(relation), whole)
    if is_int:
        return where.And((always, numerals_related(relation, Decimal(whole))))
    return where.Constant(relation in ("<", "<=", "!="))


def _numbers(value: object) -> range | list[object] | None:
    """The numbers of a collection; None: it is none."""
    if isinstance(value, range):
        return value
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return None
    numbers = list(value)
    return numbers if all(map(is_number, numbers)) else None


def _among(
    measure: where.Measure | None, numbers: range | list[object], always: where.Expression
) -> where.Expression:
    if measure is not None and isinstance(numbers, range) and numbers.step == 1 and numbers:
        low = _bounded(measure, ">=", Decimal(numbers[0]), always)
        return where.And((low, _bounded(measure, "<=", Decimal(numbers[-1]), always)))
    bounds = [number for number in map(exact_number, numbers) if number.is_finite()]
    if measure is None:
        return numerals_among(bounds)
    if measure is where.Measure.INT and len(bounds) > 1:
        return where.And((always, numerals_among(bounds)))
    return any_of(_bounded(measure, "==", bound, always) for bound in bounds)


# The hole itself


def subject(
    kind: HoleKind, relation: str, constant: object, place: Place
) -> where.Expression | None:
    """The hole's text or value on the left; `in` a text only if that is short."""
    if kind.schema is not None:
        return None
    if kind.choices:
        holding = [
            text
            for text in kind.choices
            if compared(kind.finished(text), relation, constant, place)
        ]
        return where.OneOf(tuple(holding))
    match relation:
        case "in":
            return _member(kind, constant, place)
        case "not in":
            found = _member(kind, constant, place)
            return None if found is None else opposite(found)
        case "==" | "is":
            return _equal(kind, "==", constant, place)
        case "!=" | "is not":
            return _equal(kind, "!=", constant, place)
    return _ordered(kind, relation, constant, place)


def contained(kind: HoleKind, constant: object, place: Place) -> where.Expression | None:
    """`constant in X`."""
    text = text_of(constant)
    if kind.schema is not None:
        return None
    if text is None or (is_number(constant) and not isinstance(constant, Finished)):
        what = f"{described(constant)} cannot be looked for in a text"
        raise BadCondition(what, place)
    return where.Contains(text)


def text_of(constant: object) -> str | None:
    """The text of a constant, if it has one; a number of an earlier hole has one."""
    if isinstance(constant, Finished) and is_scalar(constant.value):
        return constant.shown
    value = bare(constant)
    return value if isinstance(value, str) else None


def _equal(kind: HoleKind, relation: str, constant: object, place: Place) -> where.Expression:
    value = bare(constant)
    text = text_of(constant)
    if is_number(value) and kind.name in _NUMBERS:
        return measured(_NUMBERS[kind.name], relation, constant, place)
    if text is None and is_number(value):
        what = f"the hole is {kind.name} and never {described(value)}"
        raise BadCondition(f"{what}: compare int(X), or write [X: int]", place)
    found: where.Expression = where.Constant(False) if text is None else where.OneOf((text,))
    return found if relation == "==" else opposite(found)


def _ordered(
    kind: HoleKind, relation: str, constant: object, place: Place
) -> where.Expression | None:
    value = bare(constant)
    if is_number(value) and kind.name in _NUMBERS:
        return measured(_NUMBERS[kind.name], relation, constant, place)
    if isinstance(value, str) and kind.python is str:
        return None
    is_text_with_number = kind.python is str and is_number(value)
    hint = "; compare int(X) or len(X), or write [X: int]" if is_text_with_number else ""
    what = (
        f"the hole is {kind.name}, which `{relation}` does not compare with {described(constant)}"
    )
    raise BadCondition(what + hint, place)


def _member(kind: HoleKind, constant: object, place: Place) -> where.Expression | None:
    text = text_of(constant)
    if text is not None:
        return _substring_of(text)
    if kind.name == INT.name and isinstance(constant, range):
        return _among(where.Measure.INT, constant, where.IsInt())
    items = _items(constant, place)
    numbers = [item for item in items if is_number(item)]
    if numbers and kind.python is str:
        raise BadCondition(
            f"the hole is text and never one of {described(constant)}: numbers in texts are"
            ' strings, "7", or write [X: int]',
            place,
        )
    parts: list[where.Expression] = []
    texts = tuple(dict.fromkeys(item for item in items if isinstance(item, str)))
    if texts or not numbers:
        parts.append(where.OneOf(texts))
    if numbers:
        parts.append(measured(_NUMBERS[kind.name], "in", numbers, place))
    return any_of(parts)


def _items(constant: object, place: Place) -> list[object]:
    value = bare(constant)
    if not isinstance(value, Iterable):
        raise BadCondition(f"nothing is in {described(constant)}", place)
    items = list(value)
    return sorted(items, key=repr) if isinstance(value, set | frozenset) else items


def _substring_of(text: str) -> where.Expression | None:
    length = len(text)
    if length * (length + 1) * (length + 2) // 6 > _MAX_SUBSTRINGS_LEN:
        return None
    found = (text[start:end] for start in range(length + 1) for end in range(start, length + 1))
    return where.OneOf(tuple(dict.fromkeys(found)))


@dataclass(frozen=True, slots=True)
class _Constant:
    value: object


@dataclass(frozen=True, slots=True)
class _TextParts:
    """words(X), which has to be counted; `shown`: its source text."""

    operator: str
    shown: str


class _About(Enum):
    """The property of the hole that is compared."""

    HOLE = "hole"
    LOWER = "the text in lower case"
    FLOAT = "float"
    TYPE = "type"
    UNKNOWN = "unknown"


_Side = _Constant | _TextParts | where.Measure | _About


def _side(term: Term, current: CurrentHole) -> _Side:
    if current.name not in names_of(term):
        return _Constant(operand(term, current.values))
    match term:
        case Ref():
            return _About.HOLE
        case Called():
            return _applied(term, _side(term.arguments[0], current), current)
        case Opaque() if _is_lower(term, current):
            return _About.LOWER
    return _About.UNKNOWN


def _is_lower(term: Term, current: CurrentHole) -> bool:
    """Whether it is X.lower() of a text hole."""
    is_text = current.kind.schema is None and current.kind.python is str
    return is_text and isinstance(term, Opaque) and term.text == f"{current.name}.lower()"


def _applied(term: Called, about: _Side, current: CurrentHole) -> _Side:
    name = operator_of(term)
    if isinstance(about, _TextParts) and name == "len":
        return PIECES[about.operator]
    if about is not _About.HOLE:
        return _About.UNKNOWN
    if name == "type":
        return _About.TYPE
    if name not in ("len", "int", "float", *PIECES):
        return _About.UNKNOWN
    if name == "len" and current.kind.has_length:
        return _About.UNKNOWN  # the length of the value, not of its text
    if name != "tokens":
        require_text(name, current.kind, term.place)
    match name:
        case "len":
            return where.Measure.CHARS
        case "int":
            return where.Measure.INT
        case "float":
            return _About.FLOAT
    return _TextParts(name, written(term))


def _compared(term: Compared, current: CurrentHole) -> Bounds:
    """The bounds from a comparison. Raises BadCondition."""
    left = _side(term.left, current)
    right = _side(term.right, current)
    _refuse_uncounted(left, term.place)
    if term.relation in ("in", "not in"):
        right = _listed(right, term.place)
    _refuse_uncounted(right, term.place)
    with errors_about(current.name):
        return _related(left, right, term, current)


def _refuse_uncounted(side: _Side, place: Place) -> None:
    match side:
        case _TextParts(shown=shown) | _Constant(TextParts(shown=shown)):
            raise uncounted_parts(shown, place)


def _listed(side: _Side, place: Place) -> _Side:
    """The right side of `in`: the parts of a known text as a list."""
    match side:
        case _Constant(TextParts() as parts):
            return _Constant(parts.listed(place))
        case _TextParts(operator=operator) if operator != "tokens":
            return _About.UNKNOWN
    return side


def _related(left: _Side, right: _Side, term: Compared, current: CurrentHole) -> Bounds:
    relation = term.relation
    if _Constant(Missing.NO_NUMBER) in (left, right):
        return exactly(FALSE)
    if isinstance(right, _Constant) and not isinstance(left, _Constant):
        return _against(left, relation, right.value, term.place, current)
    if not isinstance(left, _Constant):
        return OPEN
    if relation in FLIPPED:
        return _against(right, FLIPPED[relation], left.value, term.place, current)
    if relation not in ("in", "not in"):
        return OPEN
    match right, bare(left.value):
        case _About.HOLE, _:
            found = exactly(contained(current.kind, left.value, term.place))
        case _About.LOWER, str() as text:
            found = exactly(lowered((text,), before=True, behind=True))
        case _:
            return OPEN
    return found if relation == "in" else negated(found)


def _against(
    side: _Side, relation: str, constant: object, place: Place, current: CurrentHole
) -> Bounds:
    """A comparison with the unknown on the left and a constant on the right."""
    match side:
        case where.Measure():
            return exactly(measured(side, relation, constant, place))
        case _About.LOWER:
            return _lower_against(relation, bare(constant), place)
        case _About.FLOAT:
            return exactly(measured(None, relation, constant, place))
        case _About.TYPE:
            return exactly(_typed(relation, constant, place, current.kind))
        case _About.HOLE:
            return exactly(subject(current.kind, relation, constant, place))
    return OPEN


def _lower_against(relation: str, constant: object, place: Place) -> Bounds:
    texts: tuple[str, ...] | None = None
    if relation in ("==", "!=") and isinstance(constant, str):
        texts = (constant,)
    elif relation in ("in", "not in"):
        # Too many texts for a mask, such as a dictionary, are checked afterwards.
        is_large = isinstance(constant, Sized) and len(constant) > MAX_LETTERS
        texts = None if is_large else strings(constant)
    if texts is None:
        return OPEN
    found = exactly(lowered(texts))
    return negated(found) if relation in ("!=", "not in") else found


def _typed(
    relation: str, constant: object, place: Place, kind: HoleKind
) -> where.Expression | None:
    wanted = bare(constant)
    if not isinstance(wanted, type) or relation not in ("is", "==", "is not", "!="):
        what = "type(X) is compared with a type by `is`"
        raise BadCondition(f"{what}. Given: {relation} {described(wanted)}", place)
    if kind.python is None:
        return None
    if kind.python is str and wanted in (int, float, bool):
        what = f"type(X) is {wanted.__name__} says what a hole is, and this one is text"
        raise BadCondition(f"{what}: let it stand alone or joined by `and`", place)
    return where.Constant((kind.python is wanted) is (relation in ("is", "==")))


def bounds(term: Term, current: CurrentHole) -> Bounds:
    """The bounds from a condition. Raises BadCondition."""
    if current.name not in names_of(term):
        return exactly(where.Constant(evaluate(term, current.values)))
    match term:
        case All(parts):
            return _joined(all_of, (bounds(part, current) for part in parts))
        case AnyOf(parts) if all(map(_is_stop, parts)):
            # The first phrase ends the hole, as with several stop operators.
            return _joined(all_of, (bounds(part, current) for part in parts))
        case AnyOf(parts):
            _refuse_stops(parts, "or", ("stops_before",))
            return _joined(any_of, (bounds(part, current) for part in parts))
        case Not(part):
            _refuse_stops((part,), "not", ("stops_at", "stops_before"))
            return negated(bounds(part, current))
        case Compared():
            return _compared(term, current)
        case Called():
            return _condition(term, current)
        case Ref(name, place):
            return exactly(_itself(name, current.kind, place))
    return OPEN


def _joined(
    join: Callable[[Iterable[where.Expression]], where.Expression], parts: Iterable[Bounds]
) -> Bounds:
    several = tuple(parts)
    return Bounds(
        join(part.lower for part in several),
        join(part.upper for part in several),
    )


def _is_stop(part: Term) -> bool:
    return isinstance(part, Called) and operator_of(part) in STOPS


def _refuse_stops(parts: Iterable[Term], joined_by: str, stops: tuple[str, ...]) -> None:
    for part in parts:
        match part:
            case Called() if operator_of(part) in stops:
                raise BadCondition(
                    f"`{operator_of(part)}` cannot stand under `{joined_by}`: it says how a hole"
                    " ends; join it to the rest by `and`",
                    part.place,
                )
            case All(inner) | AnyOf(inner):
                _refuse_stops(inner, joined_by, stops)
            case Not(negated):
                _refuse_stops((negated,), joined_by, stops)


# Conditions of one operator


def _itself(name: str, kind: HoleKind, place: Place) -> where.Expression:
    """The hole as a condition, which is meaningful only for a bool."""
    if kind.python is not bool:
        what = f'the hole alone is no condition; compare it, as in {name} == "yes"'
        raise BadCondition(what, place)
    return where.OneOf(("True",))


def _condition(term: Called, current: CurrentHole) -> Bounds:
    """An operator that is a condition."""
    name = as_condition(term)
    about, *others = term.arguments
    is_about_hole = isinstance(about, Ref) and about.name == current.name
    is_known = not any(current.name in names_of(other) for other in others)
    if name in STOPS and not (is_about_hole and is_known):
        usage = f'as in {name}({current.name}, ".")'
        what = f"`{name}` is about a hole and phrases that are known, {usage}"
        raise BadCondition(what, term.place)
    if is_about_hole:
        require_text(name, current.kind, term.place)
    is_lower = _is_lower(about, current)
    if not is_known or not (is_about_hole or is_lower):
        return OPEN
    known = [bare(operand(other, current.values)) for other in others]
    with errors_about(current.name):
        found = text_term(name, known, term.place)
    match found:
        case where.StartsWith(phrases) if is_lower:
            return exactly(lowered(phrases, behind=True))
        case where.EndsWith(phrases) if is_lower:
            return exactly(lowered(phrases, before=True))
    return OPEN if is_lower else exactly(found)
