"""Bodies of requests as checked schemas, or what is wrong: the field, the rule, the value.

    bytes --parse_json--> dict --types--> schema

It checks types alone; further rules are in `router/request/validation.py`. Wrong types are an
`InvalidRequest`, like every other fault of a parameter. Whole numbers that the JSON parser makes
floats of are read exactly here, so that a field's own rule can refuse them.
"""

import json
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from router.http.server.body import parse_json
from router.request.error_text import cut, quoted, wrong
from router.request.errors import InvalidRequest

Place = tuple[int | str, ...]

# What the JSON parser reads exactly; beyond it makes floats of whole numbers.
_MIN_WHOLE = -(1 << 63)
_MAX_WHOLE = (1 << 64) - 1
# No rule lets through what has as many; reading more of them takes ever longer.
_MAX_DIGITS = 100
_RULES = {
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "extra_forbidden": "is not a parameter of this route",
}


class Schema(BaseModel):
    """A body, or a part of one: exact types, unknown fields ignored, never changed."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", protected_namespaces=())


class AnswerModel(BaseModel):
    """An answer, or a part of one, in the document: nothing beyond these fields.

    Routes write their bytes by hand; tests check them against these models.
    """

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ConstrainedAnswer(AnswerModel):
    """Of an answer under a constraint, whether it satisfies it; `constraint_violation` is what is
    wrong with a text that was checked at its end."""

    constraint_satisfied: bool | None = None
    constraint_violation: str | None = None


S = TypeVar("S", bound=Schema)


def parse(body: bytes, schema: type[S]) -> S:
    """The body as `schema`. Raises HttpError (400, with the place), InvalidRequest."""
    value = parse_json(body)
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object. Given: {quoted(value)}")
    return parse_part(body, value, (), schema)


def parse_part(body: bytes, value: object, place: Place, schema: type[S]) -> S:
    """What was parsed from `body` at `place`, as `schema`. Raises InvalidRequest."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        exact = _with_exact_numbers(error, body, place, value)
        if exact is None:
            raise _first_fault(error, place) from error
    try:
        return schema.model_validate(exact)
    except ValidationError as error:
        raise _first_fault(error, place) from error


class _Digits(str):
    """A whole number, unread."""

    __slots__ = ()


def _first_fault(error: ValidationError, place: Place) -> InvalidRequest:
    """The first thing that is wrong with what stands at `place` of a body."""
    fault = error.errors(include_url=False)[0]
    field = _path((*place, *fault["loc"]))
    if fault["type"] == "missing":
        return InvalidRequest(f"`{field}` is required", field)
    given = fault["input"]
    if fault["type"] == "value_error":
        rule = str(fault["ctx"]["error"])
        # Of a field with parts, the part that breaks the rule.
        given = getattr(fault["ctx"]["error"], "given", given)
    elif fault["type"] == "too_short":
        rule = f"must have at least {fault['ctx']['min_length']} item"
    else:
        rule = _RULES.get(fault["type"], fault["msg"].replace("Input should", "must"))
    return wrong(field, rule, given)


def _with_exact_numbers(error: ValidationError, body: bytes, place: Place, value: Any) -> Any:
    """`value`, which stands at `place` of `body`, with its whole numbers that the parser made
    floats of, where these are what is wrong; None where there are none."""
    found = dict(_numbers(error, body, place, value))
    for loc, exact in found.items():
        value = _put(value, loc, exact)
    return value if found else None


def _numbers(
    error: ValidationError, body: bytes, place: Place, value: Any
) -> Iterator[tuple[Place, Any]]:
    read: Any = None
    for fault in error.errors(include_url=False):
        if not _is_rounded(fault["input"]) or not fault["type"].startswith("int"):
            continue
        # Only for what is refused: slower, but it lets us look at the digits.
        read = json.loads(body, parse_int=_Digits) if read is None else read
        loc = fault["loc"]
        # Of a list only the first fault is known, so that all of it is read.
        loc = loc[:-1] if isinstance(loc[-1], int) else loc
        given, digits = _at(value, loc), _at(read, (*place, *loc))
        if isinstance(given, list):
            yield loc, [_exact(*pair) for pair in zip(given, digits, strict=True)]
        elif isinstance(digits, _Digits):
            yield loc, _exact(given, digits)


def _is_rounded(given: Any) -> bool:
    return isinstance(given, float) and not _MIN_WHOLE < given < _MAX_WHOLE


def _exact(given: Any, digits: Any) -> Any:
    """The number, if the parser rounded it; `digits` is the same, unread."""
    is_whole = _is_rounded(given) and isinstance(digits, _Digits)
    return int(digits[:_MAX_DIGITS]) if is_whole else given


def _at(value: Any, loc: Place) -> Any:
    for step in loc:
        # A place may name the branch of a union, which is no place of the body.
        if _has(value, step):
            value = value[step]
    return value


def _put(value: Any, loc: Place, exact: Any) -> Any:
    if not loc:
        return exact
    step, rest = loc[0], loc[1:]
    if not _has(value, step):
        return _put(value, rest, exact)
    changed = value.copy()
    changed[step] = _put(value[step], rest, exact)
    return changed


def _has(value: Any, step: int | str) -> bool:
    return isinstance(value, list) or (isinstance(value, dict) and step in value)


def _path(loc: Place) -> str:
    path = ""
    for step in loc:
        # A step may be a client's own key, of any length.
        name = f"[{step}]" if isinstance(step, int) else cut(step)
        path += f".{name}" if path and isinstance(step, str) else name
    return path
