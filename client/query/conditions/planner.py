"""Plans the request of a hole from its conditions.

    terms -> conjuncts about this hole -> bounds -> parts of a mask, and checks
    parts -> the request:
        stop operators alone, perhaps with a bound of tokens   stop strings, max_tokens, no mask
        one of some texts                                      choice
        one pattern                                            regex
        a type whose text is JSON                              json
        anything else                                          where

Pure functions. Contradictions that are visible here raise Unsatisfiable at once; the server refuses
the others (phrases and patterns that exclude each other). Where a text ends by stop phrases is the
server's rule.

A condition is used at the last of its holes, where the others are finished; before, it is deferred.
Checks are evaluated on all possible texts of the hole before the request, if they are few. Then no
check can fail afterwards.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum

from client.calls import Constraint
from client.query.conditions.bounds import (
    FALSE,
    TRUE,
    Bounds,
    CurrentHole,
    all_of,
    bounds,
    conjuncts_of,
    names_of,
)
from client.query.conditions.evaluate import TokensUnknown, Values, evaluate
from client.query.conditions.kinds import FLOAT, INT, HoleKind, hole_type
from client.query.conditions.patterns import numerals_among
from client.query.conditions.terms import Term, Value, rename_subject, written
from client.query.errors import BadCondition, ProgramFailed, Unsatisfiable
from constraints.where import terms as where
from constraints.where.evaluate import contradiction, holds, is_plainly_empty, top_parts


class StopMode(Enum):
    """How a stop phrase ends a hole: the text is cut behind it, or masks end it exactly there."""

    CUT = "cut"
    EXACT = "exact"


@dataclass(frozen=True, slots=True, kw_only=True)
class HolePlan:
    """The request of one hole, and the checks that remain.

    checks:      conditions on this and finished holes that masks do not enforce; evaluated when
                 this one is finished
    deferred:    conditions that mention future holes, too; they are used there
    value:       converts the hole's text to the value of its variable (an int, a list ...)
    """

    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()
    keeps_stop: bool = True
    max_tokens: int | None = None
    checks: tuple[Term, ...] = ()
    deferred: tuple[Term, ...] = ()
    value: Callable[[str], object] = str


# The most stop strings that servers accept; with more, masks end the hole.
_MAX_STOPS = 4
_MAX_STOP_LEN = 1000
_UPPER = (where.Relation.LT, where.Relation.LE, where.Relation.EQ)
Parts = tuple[where.Expression, ...]


def hole_request(
    name: str, kind: HoleKind, parts: Parts, stops: StopMode, refused: tuple[str, ...]
) -> HolePlan:
    """The plan that enforces all parts. Raises BadCondition, Unsatisfiable."""
    bounds = [bound for part in parts if (bound := _most_tokens(part)) is not None]
    num_tokens = max(1, min(bounds)) if bounds else None
    if kind.schema is not None:
        return _json(name, kind, parts, num_tokens)
    if not refused and stops is StopMode.CUT and _only_truncates(parts):
        dropped = _phrases(parts, where.StopsBefore)
        return HolePlan(
            value=kind.value,
            stop=dropped or _phrases(parts, where.StopsAt),
            keeps_stop=not dropped,
            max_tokens=num_tokens,
        )
    if refused:
        parts = (*parts, _anything_but(kind, tuple(dict.fromkeys(refused))))
    parts = listed(parts)
    _refuse_empty(name, parts)
    return HolePlan(value=kind.value, constraint=_constraint(parts), max_tokens=num_tokens)


def _anything_but(kind: HoleKind, texts: tuple[str, ...]) -> where.Expression:
    """Excludes the texts; for decimals their values: "0.5" and "0.50" are equal."""
    if kind.name == FLOAT.name:
        return where.Not(numerals_among(sorted({Decimal(text) for text in texts})))
    return where.Not(where.OneOf(texts))


def _most_tokens(part: where.Expression) -> int | None:
    match part:
        case where.Compare(where.Measure.TOKENS, relation, bound) if relation in _UPPER:
            return bound - (relation is where.Relation.LT)
    return None


def _is_upper(part: where.Expression) -> bool:
    """Whether `max_tokens` alone enforces it."""
    most = _most_tokens(part)
    is_equal = isinstance(part, where.Compare) and part.relation is where.Relation.EQ
    return most is not None and most > 0 and not is_equal


# Stops without a mask


def _phrases(parts: Parts, kind: type[where.StopsAt | where.StopsBefore]) -> tuple[str, ...]:
    """Those of all stop operators of a kind, in their order."""
    phrases = (phrase for part in parts if isinstance(part, kind) for phrase in part.phrases)
    return tuple(dict.fromkeys(phrases))


def _only_truncates(parts: Parts) -> bool:
    """Whether all parts are stop operators and bounds of tokens. A server keeps all stop strings in
    the text, or none.
    """
    are_stops = all(
        isinstance(part, where.StopsAt | where.StopsBefore) or _is_upper(part) for part in parts
    )
    kept = _phrases(parts, where.StopsAt)
    dropped = _phrases(parts, where.StopsBefore)
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
        why = contradiction(whole)
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
    return Constraint("where", where.text(where.all_of(parts)))


# JSON


def _json(name: str, kind: HoleKind, parts: Parts, max_tokens: int | None) -> HolePlan:
    for part in parts:
        if not _is_upper(part):
            raise BadCondition(
                f"`{name}` is {kind.name}, whose text is JSON: "
                f"{rename_subject(where.text(part), name)} cannot be kept "
                "beside its schema; say it in the type, or with a function of the value"
            )
    return HolePlan(
        value=kind.value,
        constraint=Constraint("json", dict(kind.schema or {})),
        max_tokens=max_tokens,
    )


# Checks are enumerated on at most so many texts, since the program's functions may be slow.
_MAX_TRIED = 64


def enumerate_checks(
    parts: Parts, checks: Sequence[Term], current: CurrentHole
) -> tuple[Parts, tuple[Term, ...]]:
    """The parts restricted to the texts that pass, and the remaining checks.

    checks: on finished holes and this one
    """
    parts = listed(parts)
    if not parts or not isinstance(parts[0], where.OneOf) or len(parts[0].values) > _MAX_TRIED:
        return parts, tuple(checks)
    texts = parts[0].values
    left = []
    for check in checks:
        passing = _passing(check, texts, current)
        if passing is None:
            left.append(check)
        else:
            texts = passing
    return (where.OneOf(texts), *parts[1:]), tuple(left)


def _passing(term: Term, texts: Iterable[str], current: CurrentHole) -> tuple[str, ...] | None:
    """The texts that satisfy a term; None: unknown before the text is generated."""
    passing = []
    for each in texts:
        hole = current.kind.finished(each)
        try:
            if evaluate(term, {**current.values, current.name: hole}):
                passing.append(each)
        except (ProgramFailed, TokensUnknown):
            return None
    return tuple(passing)


def plan(
    terms: tuple[Term, ...],
    name: str,
    kind: object | None,
    finished: Values,
    stops: StopMode,
    refused: tuple[str, ...] = (),
) -> HolePlan:
    """The request of the hole `name`, and the checks that remain.

    terms:    all conditions that mention it, or no hole
    kind:     its annotation, None: it has none
    finished: the values of finished holes, or `Finished`, which holds their texts
              and tokens too
    refused:  texts of this hole that failed a check; they are excluded
    Raises BadCondition, Unsatisfiable, ProgramFailed.
    """
    others = {other: value for other, value in finished.items() if other != name}
    conjuncts = [part for term in terms for part in _conjuncts(term, name)]
    current = CurrentHole(name, hole_type(conjuncts, name, kind), others)
    known = {name, *others}
    now = [part for part in conjuncts if names_of(part) <= known]
    says = [bounds(part, current) for part in now]
    _refuse_nothing(now, says, name)
    inexact = [part for part, said in zip(now, says, strict=True) if not said.is_exact]
    parts, checks = enumerate_checks(_parts(current.kind, says), inexact, current)
    made = hole_request(name, current.kind, parts, stops, refused)
    deferred = tuple(part for part in conjuncts if not names_of(part) <= known)
    return replace(made, checks=checks, deferred=deferred)


def _conjuncts(term: Term, name: str) -> tuple[Term, ...]:
    """The parts of nested `and`s; the whole if some are of other holes alone: 0 < Y < X."""
    parts = tuple(conjuncts_of(term))
    are_about = all(name in names_of(part) or not names_of(part) for part in parts)
    return parts if are_about else (term,)


def _refuse_nothing(conjuncts: Sequence[Term], says: Sequence[Bounds], name: str) -> None:
    for part, said in zip(conjuncts, says, strict=True):
        if said.upper != FALSE:
            continue
        if isinstance(part, Value):
            raise Unsatisfiable(f"a condition of `{name}` that asks of no hole is {written(part)}")
        what = f"nothing that `{name}` could be satisfies {written(part)}"
        raise Unsatisfiable(what, part.place)


def _parts(kind: HoleKind, says: Sequence[Bounds]) -> tuple[where.Expression, ...]:
    """The distinct parts of the mask's conjunction."""
    texts = () if kind.texts is None else (kind.texts,)
    whole = all_of((*texts, *(said.upper for said in says)))
    parts = dict.fromkeys(part for part in top_parts(whole) if part != TRUE)
    is_compared = any(
        isinstance(part, where.Compare) and part.measure is where.Measure.INT for part in parts
    )
    if is_compared or kind.name == INT.name:
        parts.pop(where.IsInt(), None)
    if kind.name == FLOAT.name:
        parts.pop(where.IsFloat(), None)
    return tuple(parts)
