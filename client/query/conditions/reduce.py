"""From a condition to what the server's language says of the current hole: bounds around it.

    lower  <=  the condition  <=  upper

Both are expressions of `constraints.where`. Where they are the same the condition is said exactly;
elsewhere the upper one is a mask that is never too strict, and the condition is left to be checked.
What can neither be said nor is known yet lies between False and True: so `and` keeps the rest of
its parts, `or` is wide open, and `not` turns the bounds around.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import assert_never

from client.query.conditions import compare
from client.query.conditions.evaluate import as_condition, evaluate, operand
from client.query.conditions.expressions import FALSE, TRUE, all_of, any_of, opposite
from client.query.conditions.kinds import INT, HoleKind
from client.query.conditions.linear import Linear
from client.query.conditions.operators import PIECES, STOPS, operator_of, text_term
from client.query.conditions.relating import Missing, described
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
)
from client.query.conditions.values import Finished, Values, bare
from client.query.errors import BadCondition
from client.query.place import Place
from constraints.where import terms as where


@dataclass(frozen=True, slots=True)
class Bounds:
    """What surely suffices, and what is surely needed."""

    lower: where.Expression
    upper: where.Expression

    @property
    def is_exact(self) -> bool:
        """Whether the condition itself is said."""
        return self.lower == self.upper


OPEN = Bounds(FALSE, TRUE)


@dataclass(frozen=True, slots=True)
class Current:
    """The hole at which conditions are read.

    values: finished holes by name, this one not among them
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


def exactly(expression: where.Expression | None) -> Bounds:
    """Said as it is; None: not said at all."""
    return OPEN if expression is None else Bounds(expression, expression)


def bounds(term: Term, current: Current) -> Bounds:
    """What the condition says of the current hole. Raises BadCondition."""
    if current.name not in names_of(term):
        truth = evaluate(term, current.values)
        return OPEN if truth is None else exactly(where.Constant(truth))
    match term:
        case All(parts):
            return _joined(all_of, (bounds(part, current) for part in parts))
        case AnyOf(parts) if all(map(_is_stop, parts)):
            # Whichever comes first: that is what several stop operators say in any case.
            return _joined(all_of, (bounds(part, current) for part in parts))
        case AnyOf(parts):
            _refuse_stops(parts, "or", ("stops_before",))
            return _joined(any_of, (bounds(part, current) for part in parts))
        case Not(part):
            _refuse_stops((part,), "not", ("stops_at", "stops_before"))
            return _opposite(bounds(part, current))
        case Compared():
            return _compared(term, current)
        case Called():
            return _condition(term, current)
        case Ref(_, place):
            return exactly(_itself(current.kind, place))
    return OPEN


def _joined(
    join: Callable[[Iterable[where.Expression]], where.Expression], parts: Iterable[Bounds]
) -> Bounds:
    several = tuple(parts)
    return Bounds(
        join(part.lower for part in several),
        join(part.upper for part in several),
    )


def _opposite(inner: Bounds) -> Bounds:
    return Bounds(opposite(inner.upper), opposite(inner.lower))


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


def _itself(kind: HoleKind, place: Place) -> where.Expression:
    """The hole alone, which says something only if it is a truth value."""
    if kind.python is not bool:
        raise BadCondition('the hole alone is no condition; compare it, as in X == "yes"', place)
    return where.OneOf(("True",))


def _condition(term: Called, current: Current) -> Bounds:
    """An operator that is a condition by itself."""
    name = as_condition(term)
    about, *others = term.arguments
    is_about_hole = isinstance(about, Ref) and about.name == current.name
    known = [operand(other, current.values) for other in others]
    is_known = not any(isinstance(value, Missing) for value in known)
    if name in STOPS and not (is_about_hole and is_known):
        raise BadCondition(f"`{name}` is about a hole and phrases that are known", term.place)
    if not is_about_hole:
        return _edge_of_known(name, operand(about, current.values), others, current)
    _require_text(name, current.kind, term.place)
    if not is_known:
        return OPEN
    return exactly(text_term(name, [bare(value) for value in known], term.place))


def _edge_of_known(name: str, about: object, others: Sequence[Term], current: Current) -> Bounds:
    """`starts_with(Y, X)`: the hole is how a known text begins."""
    text = compare.text_of(about)
    is_hole = len(others) == 1 and isinstance(others[0], Ref) and others[0].name == current.name
    if name not in ("starts_with", "ends_with") or text is None or not is_hole:
        return OPEN
    said = compare.edges_of(text, at_end=name == "ends_with")
    return exactly(said) if said else Bounds(FALSE, compare.around_substrings(text))


def _require_text(name: str, kind: HoleKind, place: Place) -> None:
    if kind.schema is not None:
        raise BadCondition(
            f"`{name}` is about texts, and the hole is {kind.name}, whose text is JSON: say it in"
            " its type or schema, or with a function of its value",
            place,
        )


# Comparisons


@dataclass(frozen=True, slots=True)
class _Constant:
    """A side that is known."""

    value: object


@dataclass(frozen=True, slots=True)
class _Pieces:
    """words(X), which is to be counted."""

    operator: str


@dataclass(frozen=True, slots=True)
class _Sort:
    """What of the hole is compared."""

    what: "where.Measure | str"


_HOLE, _DECIMAL, _TYPE, _DARK = _Sort("hole"), _Sort("float"), _Sort("type"), _Sort("unknown")
_Side = _Constant | _Pieces | _Sort | Linear


def _side(term: Term, current: Current) -> _Side:
    if current.name not in names_of(term):
        value = operand(term, current.values)
        return _DARK if value is Missing.UNKNOWN else _Constant(value)
    match term:
        case Ref():
            return _HOLE
        case Called():
            name, about = operator_of(term), _side(term.arguments[0], current)
            return _applied(name, about, term.place, current)
        case Calculated():
            return _calculated(term, current)
    return _DARK


def _calculated(term: Calculated, current: Current) -> _Side:
    """A measure of the hole with whole numbers; all else is calculated when the hole is there."""
    if current.kind.schema is not None:
        return _DARK
    left, right = _side(term.left, current), _side(term.right, current)
    is_left = isinstance(left, _Constant)
    about, other = (right, left) if is_left else (left, right)
    number = bare(other.value) if isinstance(other, _Constant) else None
    base = _linear(about, current.kind)
    if base is None or type(number) is not int:
        return _DARK
    return base.calculated(term.symbol, number, is_left=is_left) or _DARK


def _linear(side: _Side, kind: HoleKind) -> Linear | None:
    match side:
        case Linear():
            return side
        case _Sort(where.Measure() as measure):
            return Linear(measure)
        case _Sort("hole") if kind.name == INT.name:
            return Linear(where.Measure.INT)
    return None


def _applied(name: str, about: _Side, place: Place, current: Current) -> _Side:
    if isinstance(about, _Pieces) and name == "len":
        return _Sort(PIECES[about.operator])
    if about != _HOLE:
        return _DARK
    if name == "type":
        return _TYPE
    if name not in ("len", "int", "float", *PIECES):
        return _DARK
    if name != "tokens":
        _require_text(name, current.kind, place)
    match name:
        case "len":
            return _Sort(where.Measure.CHARS)
        case "int":
            return _Sort(where.Measure.INT)
        case "float":
            return _DECIMAL
    return _Pieces(name)


def _compared(term: Compared, current: Current) -> Bounds:
    left, right = _side(term.left, current), _side(term.right, current)
    for side in (left, right):
        if isinstance(side, _Pieces) and not (term.relation in ("in", "not in") and side is right):
            name = side.operator
            raise BadCondition(f"{name}(X) can only be counted: write len({name}(X))", term.place)
    relation = term.relation
    if _Constant(Missing.NO_NUMBER) in (left, right):
        return exactly(FALSE)
    if isinstance(right, _Constant) and not isinstance(left, _Constant):
        return _against(left, relation, right.value, term.place, current)
    if not isinstance(left, _Constant):
        return OPEN
    if relation in compare.FLIPPED:
        return _against(right, compare.FLIPPED[relation], left.value, term.place, current)
    if relation in ("in", "not in") and right == _HOLE:
        found = exactly(compare.contained(current.kind, left.value, term.place))
        return found if relation == "in" else _opposite(found)
    return OPEN


def _against(
    side: _Side, relation: str, constant: object, place: Place, current: Current
) -> Bounds:
    """What is not known on the left, a constant on the right."""
    match side:
        case Linear():
            return _linear_against(side, relation, bare(constant), place)
        case _Sort(where.Measure() as measure):
            return exactly(compare.measured(measure, relation, constant, place))
        case _Sort("float"):
            return exactly(compare.decimal(relation, constant, place))
        case _Sort("type"):
            return exactly(_typed(relation, constant, place, current.kind))
        case _Sort("hole"):
            return _hole_against(relation, constant, place, current.kind)
    return OPEN


def _linear_against(side: Linear, relation: str, constant: object, place: Place) -> Bounds:
    if relation not in compare.FLIPPED or type(constant) is not int:
        return OPEN
    if side.scale < 0:
        relation = compare.FLIPPED[relation]
    return exactly(compare.measured(side.measure, relation, side.bound(constant), place))


def _hole_against(relation: str, constant: object, place: Place, kind: HoleKind) -> Bounds:
    said = compare.subject(kind, relation, constant, place)
    if said is not None or relation not in ("in", "not in") or kind.schema is not None:
        return exactly(said)
    text = constant.shown if isinstance(constant, Finished) else str(constant)
    around = Bounds(FALSE, compare.around_substrings(text))
    return around if relation == "in" else _opposite(around)


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
