"""The plan of a hole's request, from the parts of its mask.

stop operators alone, perhaps with a bound of tokens   ->  stop strings, max_tokens, no mask
one of some texts                                      ->  choice
one pattern                                            ->  regex
a type whose text is JSON                              ->  json
anything else                                          ->  where

Where a text ends by stop phrases is the server's rule.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum

from client.calls import Constraint
from client.query.conditions.bounds import all_of
from client.query.conditions.compare import numerals_among
from client.query.conditions.kinds import FLOAT, HoleKind
from client.query.conditions.operators import rename_subject
from client.query.conditions.terms import Opaque, Term
from client.query.errors import BadCondition, Place, Unsatisfiable
from constraints.where import terms as where
from constraints.where.evaluate import holds
from constraints.where.normal_form import contradiction, is_plainly_empty
from constraints.where.terms import StopsAt, StopsBefore, text


class StopMode(Enum):
    """How a stop phrase ends a hole: the text is cut behind it, or masks end it exactly there."""

    CUT = "cut"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that masks do not enforce; evaluated when its holes are finished.

    names: the holes in it
    text:  its source text
    """

    term: Term
    names: frozenset[str]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HolePlan:
    """The request of one hole, and the checks that remain.

    checks:      on this and finished holes; evaluated when this one is finished
    deferred:    checks that mention future holes, too; these will evaluate them
    value:       converts the hole's text to the value of its variable (an int, a list ...)
    """

    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()
    keeps_stop: bool = True
    max_tokens: int | None = None
    checks: tuple[Check, ...] = ()
    deferred: tuple[Check, ...] = ()
    value: Callable[[str], object] = str


# The most stop strings that servers accept; with more, masks end the hole.
_MAX_STOPS = 4
_MAX_STOP_LEN = 1000
_UPPER = (where.Relation.LT, where.Relation.LE, where.Relation.EQ)
Parts = tuple[where.Expression, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoleRequest:
    """The request fields of a HolePlan, and the conversion of the text."""

    value: Callable[[str], object]
    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()
    keeps_stop: bool = True
    max_tokens: int | None = None
    checks: tuple[Check, ...] = ()


def hole_request(
    name: str, kind: HoleKind, parts: Parts, stops: StopMode, refused: tuple[str, ...]
) -> HoleRequest:
    """The request that enforces all parts. Raises BadCondition, Unsatisfiable."""
    num_tokens = min(map(_most_tokens, parts), default=None, key=_last_if_none)
    if num_tokens is not None:
        num_tokens = max(1, num_tokens)
    if kind.schema is not None:
        return _json(name, kind, parts, num_tokens, refused)
    if not refused and stops is StopMode.CUT and _only_truncates(parts):
        dropped = _phrases(parts, StopsBefore)
        return HoleRequest(
            value=kind.value,
            stop=dropped or _phrases(parts, StopsAt),
            keeps_stop=not dropped,
            max_tokens=num_tokens,
        )
    if refused:
        parts = (*parts, _anything_but(kind, tuple(dict.fromkeys(refused))))
    parts = listed(parts)
    _refuse_empty(name, parts)
    return HoleRequest(value=kind.value, constraint=_constraint(parts), max_tokens=num_tokens)


def _anything_but(kind: HoleKind, texts: tuple[str, ...]) -> where.Expression:
    """Excludes the texts; for decimals their values: "0.5" and "0.50" are equal."""
    if kind.name == FLOAT.name:
        values = sorted({Decimal(text) for text in texts})
        return where.Not(where.Matches(numerals_among(values, decimals=True)))
    return where.Not(where.OneOf(texts))


def _most_tokens(part: where.Expression) -> int | None:
    match part:
        case where.Compare(where.Measure.TOKENS, relation, bound) if relation in _UPPER:
            return bound - (relation is where.Relation.LT)
    return None


def _last_if_none(bound: int | None) -> float:
    return float("inf") if bound is None else bound


def _is_upper(part: where.Expression) -> bool:
    """Whether `max_tokens` alone enforces it."""
    most = _most_tokens(part)
    is_equal = isinstance(part, where.Compare) and part.relation is where.Relation.EQ
    return most is not None and most > 0 and not is_equal


# Stops without a mask


def _phrases(parts: Parts, kind: type[StopsAt | StopsBefore]) -> tuple[str, ...]:
    """Those of all stop operators of a kind, in their order."""
    phrases = (phrase for part in parts if isinstance(part, kind) for phrase in part.phrases)
    return tuple(dict.fromkeys(phrases))


def _only_truncates(parts: Parts) -> bool:
    """Whether all parts are stop operators and bounds of tokens. A server keeps all stop strings in
    the text, or none.
    """
    are_stops = all(isinstance(part, StopsAt | StopsBefore) or _is_upper(part) for part in parts)
    kept = _phrases(parts, StopsAt)
    dropped = _phrases(parts, StopsBefore)
    phrases = (*kept, *dropped)
    is_short = len(phrases) <= _MAX_STOPS and all(len(each) <= _MAX_STOP_LEN for each in phrases)
    return are_stops and is_short and not (kept and dropped)


# Masks


def listed(parts: Parts) -> Parts:
    """If the hole is one of some texts: those that satisfy the other parts.

    Parts about tokens and dropped phrases are left to the server.
    """
    lists = [part for part in parts if isinstance(part, where.OneOf)]
    if not lists:
        return parts
    judged = [part for part in parts if part is not lists[0] and not _counts_tokens(part)]
    left = [each for each in lists[0].values if all(holds(part, each) for part in judged)]
    server_side = [
        part for part in parts if _counts_tokens(part) or isinstance(part, where.StopsBefore)
    ]
    return (where.OneOf(tuple(left)), *server_side)


def _counts_tokens(part: where.Expression) -> bool:
    match part:
        case where.And(parts) | where.Or(parts):
            return any(map(_counts_tokens, parts))
        case where.Not(inner):
            return _counts_tokens(inner)
        case where.Compare(where.Measure.TOKENS):
            return True
    return False


def _refuse_empty(name: str, parts: Parts) -> None:
    whole = all_of(parts)
    if where.OneOf(()) in parts:
        raise Unsatisfiable(f"none of the texts that `{name}` could be satisfies its conditions")
    if is_plainly_empty(whole):
        why = contradiction(whole, is_plainly_empty)
        message = rename_subject(str(why), name)
        raise Unsatisfiable(f"no text of `{name}` satisfies its conditions: {message}")


def _constraint(parts: Parts) -> Constraint | None:
    match parts:
        case ():
            return None
        case (where.OneOf(values),) if "" not in values:
            return Constraint("choice", list(values))
        case (where.Matches(pattern),) if pattern:
            return Constraint("regex", pattern)
    return Constraint("where", text(where.all_of(parts)))


# JSON


def _json(
    name: str, kind: HoleKind, parts: Parts, max_tokens: int | None, refused: tuple[str, ...]
) -> HoleRequest:
    for part in parts:
        if not _is_upper(part):
            raise BadCondition(
                f"`{name}` is {kind.name}, whose text is JSON: "
                f"{rename_subject(text(part), name)} cannot be kept "
                "beside its schema; say it in the type, or with a function of the value"
            )
    return HoleRequest(
        value=kind.value,
        constraint=Constraint("json", dict(kind.schema or {})),
        max_tokens=max_tokens,
        checks=_refusing(name, list(_values(kind, refused))),
    )


def _values(kind: HoleKind, texts: tuple[str, ...]) -> Iterator[object]:
    """The values of the texts. Invalid texts fail again when they are read."""
    for each in texts:
        # The type's own code may raise anything; it is reported when a text is read.
        with suppress(Exception):
            yield kind.value(each)


def _refusing(name: str, values: list[object]) -> tuple[Check, ...]:
    """A check that excludes values, which a schema cannot express."""
    if not values:
        return ()
    nowhere = Place(1, 1, 1, 1)
    said = f"{name} not in {values!r}"
    opaque = Opaque((name,), lambda value: value not in values, nowhere, said)
    return (Check(opaque, frozenset((name,)), said),)
