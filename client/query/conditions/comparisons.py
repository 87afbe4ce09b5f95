"""Translates comparisons into bounds on the current hole, by the kinds of their sides.

side:  constant | hole, or a measure of it | uncounted parts | sum of measures (future_sums.py)
"""

from collections.abc import Iterator, Sized
from dataclasses import dataclass

from client.query.conditions import compare, future_sums
from client.query.conditions.bounds import (
    OPEN,
    Bounds,
    CurrentHole,
    exactly,
    names_of,
    negated,
    require_text,
)
from client.query.conditions.evaluate import operand
from client.query.conditions.expressions import FALSE, opposite
from client.query.conditions.kinds import HoleKind
from client.query.conditions.letter_case import FOLDS, MAX_LETTERS, containing, one_of
from client.query.conditions.operators import PIECES, operator_of, strings
from client.query.conditions.rename_subject import errors_about
from client.query.conditions.terms import Calculated, Called, Compared, Opaque, Ref, Term
from client.query.conditions.value_comparisons import Missing, TextParts, described, uncounted_parts
from client.query.conditions.values import Finished, bare
from client.query.conditions.writing import written
from client.query.errors import BadCondition
from client.query.place import Place
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


def _are_sums(term: Compared, current: CurrentHole) -> bool:
    """Whether a side is arithmetic, or mentions future holes."""
    is_calculated = any(isinstance(side, Calculated) for side in (term.left, term.right))
    return is_calculated or not names_of(term) <= {current.name, *current.values}


def compared(term: Compared, current: CurrentHole) -> Bounds:
    """The bounds from a comparison. Raises BadCondition."""
    sums = future_sums.compared(term, current) if _are_sums(term, current) else None
    return _compared(term, current) if sums is None else sums


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
            return exactly(_folded(fold, relation, bare(constant), place))
        case _Comparable("float"):
            return exactly(compare.decimal(relation, constant, place))
        case _Comparable("type"):
            return exactly(_typed(relation, constant, place, current.kind))
        case _Comparable("hole"):
            return _hole_against(relation, constant, place, current.kind)
    return OPEN


def _folded(fold: str, relation: str, constant: object, place: Place) -> where.Expression | None:
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
