"""Reduces a condition to bounds on the current hole, in the server's language.

Parts that are not expressible or not known yet have the bounds False and True: so `and` keeps its
other parts, `or` becomes open, and `not` swaps the bounds. Comparisons are translated by the kinds
of their sides:

side:  constant | hole, or a measure of it | uncounted parts | sum of a measure and numbers
"""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from decimal import Decimal

from client.query.conditions import compare
from client.query.conditions.bounds import (
    FALSE,
    OPEN,
    Bounds,
    CurrentHole,
    all_of,
    any_of,
    exactly,
    names_of,
    negated,
    opposite,
    require_text,
)
from client.query.conditions.evaluate import as_condition, evaluate, operand
from client.query.conditions.kinds import INT, HoleKind
from client.query.conditions.letter_case import (
    FOLDS,
    MAX_LETTERS,
    beginning_with,
    containing,
    ending_with,
    one_of,
)
from client.query.conditions.operators import (
    PIECES,
    STOPS,
    errors_about,
    operator_of,
    strings,
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
    written,
)
from client.query.conditions.values import (
    Finished,
    Missing,
    TextParts,
    bare,
    described,
    uncounted_parts,
)
from client.query.errors import BadCondition, Place
from constraints.where import terms as where


@dataclass(frozen=True, slots=True)
class _Constant:
    """A known side."""

    value: object


@dataclass(frozen=True, slots=True)
class _TextParts:
    """words(X), which has to be counted; `shown`: its source text."""

    operator: str
    shown: str


@dataclass(frozen=True, slots=True)
class _Folded:
    """X.lower() or X.upper() of a text."""

    fold: str


@dataclass(frozen=True, slots=True)
class _Comparable:
    """The property of the hole that is compared."""

    what: "where.Measure | str"


_HOLE = _Comparable("hole")
_DECIMAL = _Comparable("float")
_TYPE = _Comparable("type")
_UNKNOWN = _Comparable("unknown")
_Side = _Constant | _TextParts | _Folded | _Comparable


def _side(term: Term, current: CurrentHole) -> _Side:
    if current.name not in names_of(term):
        value = operand(term, current.values)
        return _UNKNOWN if value is Missing.UNKNOWN else _Constant(value)
    match term:
        case Ref():
            return _HOLE
        case Called():
            return _applied(term, _side(term.arguments[0], current), current)
        case Opaque():
            fold = fold_of(term, current)
            return _UNKNOWN if fold is None else _Folded(fold)
    return _UNKNOWN


def fold_of(term: Term, current: CurrentHole) -> str | None:
    """`lower` for X.lower(), `upper` for X.upper() of a text hole; None for other terms."""
    is_text = current.kind.schema is None and current.kind.python is str
    if not is_text or not isinstance(term, Opaque):
        return None
    return next((fold for fold in FOLDS if term.text == f"{current.name}.{fold}()"), None)


def _applied(term: Called, about: _Side, current: CurrentHole) -> _Side:
    name = operator_of(term)
    if isinstance(about, _TextParts) and name == "len":
        return _Comparable(PIECES[about.operator])
    if about != _HOLE:
        return _UNKNOWN
    if name == "type":
        return _TYPE
    if name not in ("len", "int", "float", *PIECES):
        return _UNKNOWN
    if name == "len" and current.kind.has_length:
        return _UNKNOWN  # the length of the value, not of its text
    if name != "tokens":
        require_text(name, current.kind, term.place)
    match name:
        case "len":
            return _Comparable(where.Measure.CHARS)
        case "int":
            return _Comparable(where.Measure.INT)
        case "float":
            return _DECIMAL
    return _TextParts(name, written(term))


@dataclass(frozen=True, slots=True)
class _Sum:
    """`scale * measure of the hole + shift`, in whole numbers; `measure` None: a number alone."""

    measure: where.Measure | None
    scale: int
    shift: int


def _sum_of(term: Term, current: CurrentHole) -> _Sum | None:
    """A side of a comparison as a sum; None: it is none, or has a future hole."""
    if current.name not in names_of(term):
        number = bare(operand(term, current.values))
        return _Sum(None, 0, number) if isinstance(number, int) else None
    if isinstance(term, Calculated):
        left = _sum_of(term.left, current)
        right = _sum_of(term.right, current)
        return None if left is None or right is None else _joined_sum(left, term.symbol, right)
    match _side(term, current):
        case _Comparable(where.Measure() as measure):
            return _Sum(measure, 1, 0)
        case _Comparable("hole") if current.kind.name == INT.name:
            return _Sum(where.Measure.INT, 1, 0)
    return None


def _joined_sum(left: _Sum, symbol: str, right: _Sum) -> _Sum | None:
    if symbol == "*":
        about, factor = (left, right) if right.measure is None else (right, left)
        if factor.measure is not None:
            return None
        return _Sum(about.measure, about.scale * factor.shift, about.shift * factor.shift)
    if left.measure is not None and right.measure not in (None, left.measure):
        return None
    sign = -1 if symbol == "-" else 1
    scale = left.scale + sign * right.scale
    return _Sum(left.measure or right.measure, scale, left.shift + sign * right.shift)


def _sums_compared(term: Compared, current: CurrentHole) -> Bounds:
    """The bounds from `2 * len(X) + 1 < n`; open for anything but whole numbers of one measure."""
    left = _sum_of(term.left, current)
    right = _sum_of(term.right, current)
    if left is None or right is None or term.relation not in compare.FLIPPED:
        return OPEN
    found = _joined_sum(left, "-", right)
    if found is None or found.measure is None or found.scale == 0:
        return OPEN
    relation = term.relation if found.scale > 0 else compare.FLIPPED[term.relation]
    bound, rest = divmod(-found.shift, found.scale)
    if rest and abs(bound) > compare.MAX_BOUND:
        return OPEN
    # Between two whole numbers any bound says the same.
    number = Decimal(bound) + Decimal("0.5") if rest else bound
    return exactly(compare.measured(found.measure, relation, number, term.place))


def compared(term: Compared, current: CurrentHole) -> Bounds:
    """The bounds from a comparison. Raises BadCondition."""
    are_sums = any(isinstance(side, Calculated) for side in (term.left, term.right))
    is_about = current.name in names_of(term)
    return (_sums_compared if are_sums and is_about else _compared)(term, current)


def _compared(term: Compared, current: CurrentHole) -> Bounds:
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
            return _UNKNOWN
    return side


def _related(left: _Side, right: _Side, term: Compared, current: CurrentHole) -> Bounds:
    relation = term.relation
    if _Constant(Missing.NO_NUMBER) in (left, right):
        return exactly(FALSE)
    if isinstance(right, _Constant) and not isinstance(left, _Constant):
        return _against(left, relation, right.value, term.place, current)
    if not isinstance(left, _Constant):
        return OPEN
    if relation in compare.FLIPPED:
        return _against(right, compare.FLIPPED[relation], left.value, term.place, current)
    if relation not in ("in", "not in"):
        return OPEN
    match right, bare(left.value):
        case _Comparable("hole"), _:
            found = exactly(compare.contained(current.kind, left.value, term.place))
        case _Folded(fold), str() as text:
            found = exactly(containing(fold, text))
        case _:
            return OPEN
    return found if relation == "in" else negated(found)


def _against(
    side: _Side, relation: str, constant: object, place: Place, current: CurrentHole
) -> Bounds:
    """A comparison with the unknown on the left and a constant on the right."""
    match side:
        case _Comparable(where.Measure() as measure):
            return exactly(compare.measured(measure, relation, constant, place))
        case _Folded(fold):
            return exactly(_folded_comparison(fold, relation, bare(constant), place))
        case _Comparable("float"):
            return exactly(compare.decimal(relation, constant, place))
        case _Comparable("type"):
            return exactly(_typed(relation, constant, place, current.kind))
        case _Comparable("hole"):
            return _hole_against(relation, constant, place, current.kind)
    return OPEN


def _folded_comparison(
    fold: str, relation: str, constant: object, place: Place
) -> where.Expression | None:
    if relation in ("==", "!=") and isinstance(constant, str):
        found = one_of(fold, (constant,))
    elif relation in ("in", "not in"):
        if isinstance(constant, Iterator):
            raise BadCondition("an iterator can be read only once; make it a list", place)
        # Too many texts for a mask, such as a dictionary, are checked afterwards.
        is_large = isinstance(constant, Sized) and len(constant) > MAX_LETTERS
        texts = None if is_large else strings(constant)
        found = None if texts is None else one_of(fold, texts)
    else:
        return None
    is_negated = relation in ("!=", "not in")
    return opposite(found) if found is not None and is_negated else found


def _hole_against(relation: str, constant: object, place: Place, kind: HoleKind) -> Bounds:
    said = compare.subject(kind, relation, constant, place)
    if said is not None or relation not in ("in", "not in") or kind.schema is not None:
        return exactly(said)
    text = constant.shown if isinstance(constant, Finished) else str(constant)
    around = Bounds(FALSE, compare.around_substrings(text))
    return around if relation == "in" else negated(around)


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
        truth = evaluate(term, current.values)
        if truth is not None:
            return exactly(where.Constant(truth))
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
            return compared(term, current)
        case Called() if current.name in names_of(term):
            return _condition(term, current)
        case Ref(name, place) if name == current.name:
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
    known = [operand(other, current.values) for other in others]
    is_known = not any(isinstance(value, Missing) for value in known)
    if name in STOPS and not (is_about_hole and is_known):
        usage = f'as in {name}({current.name}, ".")'
        what = f"`{name}` is about a hole and phrases that are known, {usage}"
        raise BadCondition(what, term.place)
    fold = fold_of(about, current)
    if fold is not None and is_known:
        return exactly(_folded(fold, name, [bare(value) for value in known], term.place))
    if not is_about_hole:
        return OPEN
    require_text(name, current.kind, term.place)
    if not is_known:
        return OPEN
    with errors_about(current.name):
        return exactly(text_term(name, [bare(value) for value in known], term.place))


def _folded(fold: str, name: str, known: Sequence[object], place: Place) -> where.Expression | None:
    """An operator on X.lower() or X.upper(); None: not expressible."""
    match text_term(name, known, place):
        case where.StartsWith(phrases):
            return beginning_with(fold, phrases)
        case where.EndsWith(phrases):
            return ending_with(fold, phrases)
    return None
