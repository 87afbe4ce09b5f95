"""The kinds of holes, from annotations or conditions: allowed texts, and the value of each text."""

import enum
import json
import re
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from types import MappingProxyType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from client.query.conditions.evaluate import Finished, is_number
from client.query.conditions.terms import Called, Compared, Ref, Term, Value, operator_of, strings
from client.query.errors import BadCondition
from constraints.where import terms as where

_MAX_INT_LEN = 4000
_NO_NAMES: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HoleKind:
    """A kind of hole.

    name:    in errors
    texts:   the allowed texts; None: any, or those of the schema
    value:   converts a text to the variable's value
    python:  the type of values, None if there are several
    choices: the value of each text, if they are finitely many
    schema:  a JSON schema, if the text is JSON
    """

    name: str
    texts: where.Expression | None
    value: Callable[[str], object]
    python: type | None
    choices: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    schema: Mapping[str, object] | None = None

    @property
    def has_length(self) -> bool:
        """Whether `len` applies to the value: the text is JSON of a container."""
        is_sized = self.python is None or issubclass(self.python, Sized)
        return self.schema is not None and is_sized

    def finished(self, text: str) -> Finished:
        """A finished hole of this kind with this text. Raises errors of the conversion."""
        return Finished(self.value(text), text)


def kind_of(annotation: object, names: Mapping[str, object] = _NO_NAMES) -> HoleKind:
    """The kind of an annotation; quoted types in it are looked up in `names` and in the modules of
    their classes. Raises BadCondition if it is none.
    """
    if isinstance(annotation, HoleKind):
        return annotation
    if annotation is None or annotation is str:
        return TEXT
    if isinstance(annotation, str):
        return _pattern(annotation)
    simple = next((kind for kind in (INT, FLOAT, BOOL) if kind.python is annotation), None)
    return simple or _choice(annotation) or _json(annotation, names)


def _integer(text: str) -> object:
    # int() refuses thousands of digits, which a model may write.
    return int(text) if len(text) < _MAX_INT_LEN else int(Decimal(text))


def _pattern(pattern: str) -> HoleKind:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadCondition(f"the hole's pattern is wrong: {error}. Given: {pattern!r}") from error
    return HoleKind("text", where.Matches(pattern), str, str)


def _choice(annotation: object) -> HoleKind | None:
    """A hole that is one of some values; None for other annotations."""
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return _chosen({_shown(member.value): member for member in annotation}, annotation)
    if get_origin(annotation) is Literal:
        values: tuple[object, ...] = get_args(annotation)
    elif isinstance(annotation, list | tuple | set | frozenset | range):
        values = strings(annotation) or tuple(annotation)
    else:
        return None
    types = {type(value) for value in values}
    return _chosen({_shown(value): value for value in values}, *(types if len(types) == 1 else ()))


def _chosen(choices: Mapping[str, object], python: type | None = None) -> HoleKind:
    if not choices:
        raise BadCondition("a hole needs one value or more to choose from. Given: none")
    listed = ", ".join(map(repr, list(choices)[:4])) + (", …" if len(choices) > 4 else "")
    frozen = MappingProxyType(dict(choices))
    has_texts = any(isinstance(value, str) for value in frozen.values())
    if has_texts and any(map(is_number, frozen.values())):
        raise BadCondition(f"a hole chooses among strings, or among numbers. Given: {listed}")
    return HoleKind(
        f"one of {listed}",
        where.OneOf(tuple(choices)),
        partial(_looked_up, frozen),
        python,
        frozen,
    )


def _looked_up(choices: Mapping[str, object], text: str) -> object:
    if text not in choices:
        raise ValueError(f"{text!r} is none of {list(choices)!r}")
    return choices[text]


def _shown(value: object) -> str:
    if not isinstance(value, str | int | float) and value is not None:
        what = f"a hole chooses among strings and numbers. Given: {value!r}"
        raise BadCondition(what)
    return str(value)


def _json(annotation: Any, names: Mapping[str, object]) -> HoleKind:
    """A hole whose text is JSON: a schema, or any type that pydantic has a schema of."""
    if isinstance(annotation, Mapping):
        return HoleKind("JSON", None, json.loads, None, schema=dict(annotation))
    name = getattr(annotation, "__name__", str(annotation))
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        adapter.rebuild(force=True, _types_namespace=dict(names))
        schema = adapter.json_schema()
    except (PydanticUserError, NameError, SyntaxError, TypeError) as error:
        why = str(error).split("\n")[0].split(". Set `arbitrary")[0]
        raise BadCondition(f"`{name}` is no type of a hole, and none of JSON: {why}") from error
    origin = get_origin(annotation)
    python = None if origin in (Union, UnionType) else origin or annotation
    return HoleKind(
        f"a {name}",
        None,
        partial(_validated, adapter),
        python if isinstance(python, type) else None,
        schema=_closed(schema),
    )


def _closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema, its objects without other keys than they declare: else models write on."""
    closed = {
        key: _closed(value) if isinstance(value, dict) else value for key, value in schema.items()
    }
    if schema.get("type") == "object" and "properties" in schema:
        closed.setdefault("additionalProperties", False)
    for key in ("anyOf", "oneOf", "prefixItems"):
        if isinstance(schema.get(key), list):
            closed[key] = [_closed(each) for each in schema[key]]
    return closed


def _validated(adapter: TypeAdapter[Any], text: str) -> object:
    """The value of a JSON text. Raises ValueError, and errors of the type's own code."""
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from error


TEXT = HoleKind("text", None, str, str)
# Without leading zeros: otherwise a model that begins "-" where X >= 0, or "0" where X < 10, could
# only continue with zeros, up to the end of its context.
INT = HoleKind("a whole number", where.Matches("0|-?[1-9][0-9]*"), _integer, int)
FLOAT = HoleKind("a number", where.Matches(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?"), float, float)
BOOL = replace(_chosen({"True": True, "False": False}, bool), name="a truth value")


def hole_type(conjuncts: Sequence[Term], name: str, annotation: object | None) -> HoleKind:
    """By its annotation, or by int(X), float(X), type(X) is T. Raises BadCondition."""
    if annotation is not None:
        return kind_of(annotation)
    for part in conjuncts:
        match part:
            case Called(arguments=(Ref(about),)) if about == name:
                typed = {"int": INT, "float": FLOAT}.get(operator_of(part))
                if typed is not None:
                    return typed
            case Compared(Called("type", (Ref(about),)), "is" | "==", Value(wanted), place):
                if about == name:
                    try:
                        return kind_of(wanted)
                    except BadCondition as error:
                        raise BadCondition(error.message, place) from error
    return TEXT
