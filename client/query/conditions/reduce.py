"""Reduces a condition to bounds on the current hole, in the server's language.

Parts that are not expressible or not known yet have the bounds False and True: so `and` keeps its
other parts, `or` becomes open, and `not` swaps the bounds.
"""

from collections.abc import Callable, Iterable, Sequence

from client.query.conditions import compare
from client.query.conditions.bounds import (
    OPEN,
    Bounds,
    CurrentHole,
    exactly,
    names_of,
    negated,
    require_text,
)
from client.query.conditions.comparisons import compared, fold_of
from client.query.conditions.evaluate import as_condition, evaluate, operand
from client.query.conditions.expressions import FALSE, all_of, any_of
from client.query.conditions.kinds import HoleKind
from client.query.conditions.letter_case import beginning_with, ending_with
from client.query.conditions.operators import STOPS, operator_of, text_term
from client.query.conditions.rename_subject import errors_about
from client.query.conditions.terms import (
    All,
    AnyOf,
    Called,
    Compared,
    Not,
    Ref,
    Term,
)
from client.query.conditions.value_comparisons import Missing
from client.query.conditions.values import bare
from client.query.errors import BadCondition
from client.query.place import Place
from constraints.where import terms as where


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
        return _edge_of_known(name, operand(about, current.values), others, current)
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


def _edge_of_known(
    name: str, about: object, others: Sequence[Term], current: CurrentHole
) -> Bounds:
    """`starts_with(Y, X)`: the hole is a prefix of a known text."""
    text = compare.text_of(about)
    is_hole = len(others) == 1 and isinstance(others[0], Ref) and others[0].name == current.name
    if name not in ("starts_with", "ends_with") or text is None or not is_hole:
        return OPEN
    said = compare.edges_of(text, at_end=name == "ends_with")
    return exactly(said) if said else Bounds(FALSE, compare.around_substrings(text))
