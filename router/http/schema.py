"""Bodies of requests as checked schemas, or what is wrong: the field, the rule, the value.

    bytes --parse_json--> dict --types--> schema

It checks types alone; further rules are in `router/engine/validation.py`, and whether a value is a
grammar in `router/request/parameters.py`. Wrong types are an `InvalidRequest`, like every other
fault of a parameter. Whole numbers that the JSON parser makes floats of are read exactly here, so
that a field's own rule can refuse them.

Fields that take several types are checked by hand, since a union's errors name every member but not
the rule, and a list of half a million token ids would be tried against each.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, TypeVar, get_args

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from starlette.requests import Request

from constraints.spec import Whitespace
from router.http.bodies import DEFAULT_BOUNDS, BodyReader, JsonBounds, ParserThread, parse_json
from router.http.server.access import AccessRecord
from router.request.errors import InvalidRequest, Unsupported, WrongPart, cut, quoted, wrong
from router.request.parameters import GRAMMAR_TYPES, RawGrammar

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
    # Fields that are taken and change nothing: the answer names those that a body has.
    hints: ClassVar[frozenset[str]] = frozenset()

    def ignored_fields(self) -> list[str]:
        """The places of what the body has and the answer does not follow."""
        ignored = []
        for name in type(self).model_fields:
            value = getattr(self, name)
            if value and name in self.hints:
                ignored.append(name)
            elif isinstance(value, Schema):
                ignored += [f"{name}.{inner}" for inner in value.ignored_fields()]
        return ignored


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


class SchemaReader:
    """Reads bodies of requests.

    Fields that a route does not know are named in the answer, or with `strict_fields` refused.
    """

    def __init__(
        self, bodies: BodyReader, parser: ParserThread, *, strict_fields: bool = False
    ) -> None:
        self._bodies = bodies
        self._parser = parser
        self._strict_fields = strict_fields

    async def read(
        self, request: Request, schema: type[S], check: Callable[[S], object] | None = None
    ) -> S:
        """The body, which `check` has accepted. Raises HttpError, InvalidRequest."""
        read, _ = await self.read_with_bytes(request, schema, check)
        return read

    async def read_with_bytes(
        self, request: Request, schema: type[S], check: Callable[[S], object] | None = None
    ) -> tuple[S, bytes]:
        """As `read`, and the body itself."""
        body = await self._bodies.read(request)

        def parsed() -> tuple[S, list[str]]:
            value, unknown = parse(body, schema, self._parser.bounds)
            if unknown and self._strict_fields:
                near = nearest_field(unknown[0], schema)
                hint = f"; did you mean `{near}`?" if near else ""
                rule = f"`{unknown[0]}` is not a parameter of this route{hint}"
                raise InvalidRequest(rule, unknown[0])
            if check is not None:
                check(value)
            return value, [*unknown, *value.ignored_fields()][:_MAX_NAMED]

        value, ignored = await self._parser.run(len(body), parsed)
        AccessRecord.of(request).ignore(ignored)
        return value, body


Place = tuple[int | str, ...]


def parse(body: bytes, schema: type[S], bounds: JsonBounds = DEFAULT_BOUNDS) -> tuple[S, list[str]]:
    """The body as `schema`, and the names of `unknown_fields`.

    Raises HttpError (400, with the place), InvalidRequest.
    """
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


# As many are named; a body may have any number.
_MAX_NAMED = 16


def unknown_fields(value: Mapping[str, Any], schema: type[Schema], prefix: str = "") -> list[str]:
    """The names of fields that `schema` does not have, its parts' with their places; the first."""
    if not schema.names_unknown:
        return []
    parts = _parts_of(schema)
    found = []
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


Prompt = str | tuple[int, ...]
# Far beyond what any server takes at once; it bounds the time that looking at them takes.
_MAX_PROMPTS = 4096
_TEXT = {"type": "string"}
_STRINGS_SCHEMA = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_IDS_SCHEMA = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_PROMPT_SCHEMA = {
    "anyOf": [
        _TEXT,
        _IDS_SCHEMA,
        {"type": "array", "items": _TEXT, "minItems": 1},
        {"type": "array", "items": _IDS_SCHEMA, "minItems": 1},
    ]
}


def _strings(value: Any) -> tuple[str, ...]:
    strings = value if isinstance(value, list) else [value]
    for string in strings:
        if not isinstance(string, str):
            raise WrongPart("must be a string or a list of strings", string)
    return tuple(strings)


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """One prompt or several, as text or as token ids."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and len(value) > _MAX_PROMPTS and type(value[0]) is not int:
        raise ValueError(f"must hold at most {_MAX_PROMPTS} prompts")
    if isinstance(value, list) and value:
        if all(type(item) is int for item in value):
            return (tuple(value),)
        if all(isinstance(item, str) for item in value):
            return tuple(value)
        if all(_is_ids(item) for item in value):
            return tuple(tuple(item) for item in value)
    rule = "must be a string, a list of token ids, or a list of one or more of either, not empty"
    raise WrongPart(rule, _misfit(value))


def _misfit(prompts: Any) -> Any:
    """The item that is no prompt, or of another kind than the first; else all of it."""
    if not isinstance(prompts, list):
        return prompts
    kinds: tuple[Callable[[Any], bool], ...]
    kinds = (lambda item: type(item) is int, lambda item: isinstance(item, str), _is_ids)
    is_first = next((kind for kind in kinds if prompts and kind(prompts[0])), None)
    if is_first is None:
        return prompts[0] if prompts else prompts
    return next(item for item in prompts if not is_first(item))


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


# `int` also accepts spaces, underscores and the digits of other scripts.
_ID_CHARS = re.compile(r"[-0-9]*")
_BIAS_SCHEMA = {"type": "object", "additionalProperties": {"type": "number"}}


def _logit_bias(value: Any) -> Mapping[int, float]:
    """Token ids, which JSON spells as strings, with what to add to their logits.

    A mask has one for each token of the vocabulary, so this is fast.
    """
    if not isinstance(value, dict):
        raise ValueError("must be an object of token ids with numbers")
    try:
        biases = dict(zip(map(int, value), value.values(), strict=True))
        if not _ID_CHARS.fullmatch("".join(value)):
            raise ValueError
    except ValueError:
        wrong_key = next(key for key in value if not _is_id(key))
        raise WrongPart("must be an object whose keys are token ids", wrong_key) from None
    if not set(map(type, biases.values())) <= {int, float}:
        key = next(key for key, bias in value.items() if type(bias) not in (int, float))
        raise WrongPart(f"must be an object of token ids with numbers, as `{key}`", value[key])
    return biases


def _is_id(key: str) -> bool:
    try:
        int(key)
    except ValueError:
        return False
    return _ID_CHARS.fullmatch(key) is not None


Strings = Annotated[tuple[str, ...], PlainValidator(_strings), WithJsonSchema(_STRINGS_SCHEMA)]
Prompts = Annotated[tuple[Prompt, ...], PlainValidator(_prompts), WithJsonSchema(_PROMPT_SCHEMA)]
LogitBias = Annotated[
    Mapping[int, float], PlainValidator(_logit_bias), WithJsonSchema(_BIAS_SCHEMA)
]
_WRAPPED = "json_schema"
_SPACES = tuple(whitespace.value for whitespace in Whitespace)
_WORDS = ", ".join(f"`{word}`" for word in GRAMMAR_TYPES)
_OBJECT = {"type": "object"}
_FILLED_TEXT = {"type": "string", "minLength": 1}
# Of a grammar's value, by its type: the Python types, their names, the schema of the document.
_Value = tuple[tuple[type, ...], str, dict[str, Any]]
_ANY_SCHEMA: _Value = (
    (dict, bool, str),
    "an object, true, false or a string",
    {"anyOf": [_OBJECT, {"type": "boolean"}, _FILLED_TEXT]},
)
_SOURCE: _Value = ((str,), "a string", _FILLED_TEXT)
_VALUES: Mapping[str, _Value] = {
    "json": _ANY_SCHEMA,
    "json_object": _ANY_SCHEMA,
    _WRAPPED: (
        (dict,),
        "an object",
        {**_OBJECT, "properties": {"schema": _OBJECT}, "required": ["schema"]},
    ),
    "regex": _SOURCE,
    "choice": ((list,), "a list", {"type": "array", "items": _TEXT, "minItems": 1}),
    "lark": _SOURCE,
    "gbnf": _SOURCE,
    "where": _SOURCE,
}
# What happens where the tokens would run out: the text is ended in time, or cut.
CUTS: Mapping[str, bool] = MappingProxyType({"finish": False, "cut": True})
# In which order the keys of objects come.
KEY_ORDERS: Mapping[str, bool] = MappingProxyType({"schema": False, "any": True})
_OPTIONS_SCHEMA = {
    "whitespace": {"enum": [*_SPACES, None]},
    "lenient": {"type": ["boolean", "null"]},
    "key_order": {"enum": [*KEY_ORDERS, None]},
    "strict": {"type": ["boolean", "null"]},
    "on_budget": {"enum": [*CUTS, None]},
}
_GRAMMAR_SCHEMA = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"type": {"const": word}, "value": schema, **_OPTIONS_SCHEMA},
            "required": ["type", "value"],
        }
        for word, (_, _, schema) in _VALUES.items()
    ]
}


def _grammar(value: Any) -> RawGrammar:
    if not isinstance(value, dict):
        raise ValueError('must be an object like {"type": "regex", "value": "[0-9]+"}')
    word = value.get("type")
    if not isinstance(word, str) or word not in GRAMMAR_TYPES:
        raise WrongPart(f"must have a `type`, one of {_WORDS}", word if "type" in value else value)
    if value.get("value") is None:
        raise ValueError("must have a `value`")
    inner: Any = value["value"]
    types, shown, _ = _VALUES[word]
    if type(inner) not in types:
        raise WrongPart(f"of type `{word}` must have {shown} for its `value`", inner)
    if word == _WRAPPED:
        inner = inner.get("schema")
        if not isinstance(inner, dict):
            raise ValueError(f"of type `{_WRAPPED}` must have a `value` with a `schema`, an object")
    return RawGrammar(GRAMMAR_TYPES[word], inner, **_options(value))


def _options(value: Mapping[str, Any]) -> dict[str, Any]:
    """What may stand beside a grammar, as RawGrammar has it. Raises ValueError."""
    found: dict[str, Any] = {}
    if (whitespace := value.get("whitespace")) is not None:
        found["whitespace"] = Whitespace(_one_of("whitespace", whitespace, _SPACES))
    for name in ("lenient", "strict"):
        if (switch := value.get(name)) is not None:
            if not isinstance(switch, bool):
                raise WrongPart(f"must have true or false for `{name}`", switch)
            found[name] = switch
    if (order := value.get("key_order")) is not None:
        found["any_key_order"] = KEY_ORDERS[_one_of("key_order", order, tuple(KEY_ORDERS))]
    if (on_budget := value.get("on_budget")) is not None:
        found["cuts"] = CUTS[_one_of("on_budget", on_budget, tuple(CUTS))]
    return found


def _one_of(name: str, value: Any, words: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in words:
        return value
    shown = ", ".join(f"`{word}`" for word in words)
    raise WrongPart(f"must have one of {shown} for `{name}`", value)


Grammar = Annotated[RawGrammar, PlainValidator(_grammar), WithJsonSchema(_GRAMMAR_SCHEMA)]


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
