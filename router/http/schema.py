"""Bodies of requests as checked schemas, or what is wrong: the field, the rule, the value.

    bytes --parse_json--> dict --types--> schema

It checks types alone; further rules are in `router/engine/validation.py`. Wrong types are an
`InvalidRequest`, like every other fault of a parameter. Whole numbers that the JSON parser makes
floats of are read exactly here, so that a field's own rule can refuse them.
"""

import difflib
import json
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, get_args

import orjson
from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from router.http.fields import LogitBias
from router.http.server.json_reader import DEFAULT_BOUNDS, JsonBounds, parse_json
from router.request.errors import InvalidRequest, Unsupported, WrongPart, cut, quoted, wrong

Place = tuple[int | str, ...]

# What the JSON parser reads exactly; beyond it makes floats of whole numbers.
_MIN_WHOLE = -(1 << 63)
_MAX_WHOLE = (1 << 64) - 1
# Of a longer body they stay floats: the reader that is exact is slow.
_MAX_EXACT_LEN = 1 << 16
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

    # Whether unknown fields are named in the answer; and names that are known besides the fields'.
    names_unknown: ClassVar[bool] = False
    known_fields: ClassVar[frozenset[str]] = frozenset()


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


def object_schema(required: Mapping[str, Any], **optional: Any) -> dict[str, Any]:
    """The JSON schema of an object with these properties, for fields that are read by hand."""
    properties = {**required, **optional}
    return {"type": "object", "properties": properties, "required": [*required]}


S = TypeVar("S", bound=Schema)

# As many are named; a body may have any number.
_MAX_NAMED = 16


def unknown_fields(value: Mapping[str, Any], schema: type[Schema], prefix: str = "") -> list[str]:
    """The names of fields that `schema` does not have, its parts' with their places; the first."""
    if not schema.names_unknown:
        return []
    parts, found = _parts_of(schema), []
    for name, inner in value.items():
        if name not in parts:
            found.append(cut(prefix + name))
        elif isinstance(inner, dict) and (part := parts[name]) is not None:
            found += unknown_fields(inner, part, f"{prefix}{name}.")
        if len(found) >= _MAX_NAMED:
            break
    return found[:_MAX_NAMED]


def nearest_field(name: str, schema: type[Schema]) -> str | None:
    """What may have been meant by a field's name."""
    *place, last = name.split(".")
    for step in place:
        inner = _parts_of(schema).get(step)
        if inner is None:
            return None
        schema = inner
    near = difflib.get_close_matches(last, _parts_of(schema), 1)
    return ".".join((*place, near[0])) if near else None


@cache
def _parts_of(schema: type[Schema]) -> Mapping[str, type[Schema] | None]:
    """A schema's fields as clients spell them, each with the schema of its value, if it has one."""
    parts: dict[str, type[Schema] | None] = dict.fromkeys(schema.known_fields)
    for name, field in schema.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        inner = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Schema))
        parts[field.alias or name] = next(inner, None)
    return MappingProxyType(parts)


def parse(body: bytes, schema: type[S], bounds: JsonBounds = DEFAULT_BOUNDS) -> S:
    """The body as `schema`. Raises HttpError (400, with the place), InvalidRequest."""
    return parse_and_name_unknown(body, schema, bounds)[0]


def parse_and_name_unknown(
    body: bytes, schema: type[S], bounds: JsonBounds = DEFAULT_BOUNDS
) -> tuple[S, list[str]]:
    """As `parse`, with the names of `unknown_fields`."""
    value = parse_json(body, bounds)
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object. Given: {quoted(value)}")
    return parse_part(body, value, (), schema), unknown_fields(value, schema)


def parse_part(body: bytes, value: object, place: Place, schema: type[S]) -> S:
    """What was parsed from `body` at `place`, as `schema`. Raises InvalidRequest."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        is_rounded = any(_is_rounded(fault["input"]) for fault in faults)
        if not is_rounded or len(body) > _MAX_EXACT_LEN:
            raise _first_fault(error, place) from error
    # Slower, but exact, so that a field's own rule can refuse the number.
    exact = json.loads(body, parse_int=_whole)
    for step in place:
        exact = exact[step]
    try:
        return schema.model_validate(exact)
    except ValidationError as error:
        raise _first_fault(error, place) from error


def _is_rounded(value: object) -> bool:
    return isinstance(value, float) and not _MIN_WHOLE < value < _MAX_WHOLE


def _whole(digits: str) -> int:
    return int(digits[:_MAX_DIGITS])


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
        cause = fault["ctx"]["error"]
        given = cause.value if isinstance(cause, WrongPart) else given
    elif fault["type"] == "too_short":
        rule = f"must have at least {fault['ctx']['min_length']} item"
    else:
        rule = _RULES.get(fault["type"], fault["msg"].replace("Input should", "must"))
    return wrong(field, rule, given)


def _path(loc: Place) -> str:
    path = ""
    for step in loc:
        # A step may be a client's own key, of any length.
        name = f"[{step}]" if isinstance(step, int) else cut(step)
        path += f".{name}" if path and isinstance(step, str) else name
    return path


# The values that change nothing; for an object, those of each of its keys.
Harmless = tuple[Any, ...] | Mapping[str, tuple[Any, ...]]


class StrictSchema(Schema):
    """A body without unknown fields; of those in `unsupported` only harmless values are accepted.

    Null is always harmless. Fields in `unsupported` are not declared.
    """

    model_config = ConfigDict(extra="allow")

    unsupported: ClassVar[Mapping[str, Harmless]] = MappingProxyType({})

    def refuse_unsupported(self) -> None:
        """Raises InvalidRequest for an unknown field, Unsupported for one that is not served."""
        for field, value in (self.model_extra or {}).items():
            values = self.unsupported.get(field)
            if values is None:
                raise InvalidRequest(f"`{field[:60]}` is not a parameter of this route", field[:60])
            if isinstance(values, Mapping):
                _check_object(field, value, values)
            else:
                _check_value(field, value, values)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """As pydantic has it, but that what is refused is no part of it."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        schema["additionalProperties"] = False
        for field, values in cls.unsupported.items():
            schema["properties"][field] = _documented(values)
        return schema


def _check_object(field: str, value: Any, values: Mapping[str, tuple[Any, ...]]) -> None:
    if value is not None and not isinstance(value, dict):
        raise wrong(field, "must be an object", value)
    for key, inner in (value or {}).items():
        _check_value(f"{field}.{key[:60]}", inner, values.get(key, ()))


def _check_value(field: str, value: Any, values: tuple[Any, ...]) -> None:
    if value is None or value in values:
        return
    if not values:
        raise Unsupported(f"`{field}` is not served yet; leave it out", field)
    shown = " or ".join(f"`{orjson.dumps(allowed).decode()}`" for allowed in values)
    rule = f"is not served yet; leave it out or say {shown}"
    raise Unsupported(f"`{field}` {rule}. Given: {quoted(value)}", field)


def _documented(values: Harmless) -> dict[str, Any]:
    if isinstance(values, tuple):
        return {"enum": [None, *values]}
    return {
        "type": ["object", "null"],
        "properties": {key: {"enum": [None, *inner]} for key, inner in values.items()},
        "additionalProperties": {"type": "null"},
    }


def bounded(**bounds: float) -> Any:
    """An optional number whose bounds the OpenAPI document shows; `parameters.py` checks them."""
    return Field(default=None, json_schema_extra=dict(bounds))


class SamplingFields(Schema):
    """Sampling parameters whose names TGI, OpenAI, vLLM and LMTP share.

    An API that documents other bounds, or reads another type, declares the field again.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = bounded(minimum=0, maximum=1)
    repetition_penalty: float | None = bounded(exclusiveMinimum=0)
    presence_penalty: float | None = bounded(minimum=-2, maximum=2)
    frequency_penalty: float | None = bounded(minimum=-2, maximum=2)
    seed: int | None = None
    logit_bias: LogitBias | None = None

    def sampling(self) -> dict[str, Any]:
        """The arguments of RawParams with these names."""
        return {name: getattr(self, name) for name in SamplingFields.model_fields}
