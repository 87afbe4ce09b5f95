"""The kind of a hole, from its annotation or from conditions."""

from collections.abc import Sequence

from client.query.conditions.kinds import FLOAT, INT, HoleKind, kind_of
from client.query.conditions.operators import operator_of
from client.query.conditions.terms import Called, Compared, Ref, Term, Value
from client.query.errors import BadCondition
from client.query.place import Place


def hole_type(conjuncts: Sequence[Term], name: str, annotation: object | None) -> HoleKind:
    """By its annotation, or by int(X), float(X), type(X) is T. Raises BadCondition."""
    if annotation is not None:
        return kind_of(annotation)
    return type_from_conditions(conjuncts, name) or kind_of(None)


def type_from_conditions(conjuncts: Sequence[Term], name: str) -> HoleKind | None:
    """The kind that conditions require; None: they require none."""
    for part in conjuncts:
        match part:
            case Called(arguments=(Ref(about),)) if about == name:
                typed = {"int": INT, "float": FLOAT}.get(operator_of(part))
                if typed is not None:
                    return typed
            case Compared(Called("type", (Ref(about),)), "is" | "==", Value(wanted), place):
                if about == name:
                    return _typed(wanted, place)
    return None


def _typed(wanted: object, place: Place) -> HoleKind:
    try:
        return kind_of(wanted)
    except BadCondition as error:
        raise BadCondition(error.message, place) from error
