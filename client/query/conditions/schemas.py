"""JSON schemas of Python types, and the values that texts of such schemas stand for.

    dataclass, TypedDict      an object with these properties, in their order, and no others
    list[T], tuple[T, ...]    arrays
    tuple[T, U]               arrays of so many items
    dict[str, T]              objects with any keys
    T | None, T | U           any of them; a value has the first type that fits
    Literal, Enum             one of these values
    a class with model_json_schema() and model_validate_json() (pydantic) provides its own schema

A recursive type becomes a `$ref`. A field with a default is optional.
"""

import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from client.query.errors import BadCondition

SIMPLE: Mapping[object, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
    None: "null",
}


def is_model(annotation: object) -> bool:
    """Whether a class provides its own schema and validation."""
    return isinstance(annotation, type) and all(
        hasattr(annotation, name) for name in ("model_json_schema", "model_validate_json")
    )


def is_container(annotation: object) -> bool:
    """Whether it is a container type of JSON."""
    is_several = get_origin(annotation) in (list, dict, tuple, Union, UnionType)
    return is_several or annotation in (list, dict, NoneType)


def is_row(annotation: object) -> bool:
    """Whether it is tuple[T, ...]."""
    return get_origin(annotation) is tuple and get_args(annotation)[1:] == (Ellipsis,)


def schema(annotation: Any) -> dict[str, object]:
    """The JSON schema of a type. Raises BadCondition for unsupported types."""
    if is_model(annotation):
        return dict(annotation.model_json_schema())
    writer = _Writer()
    written = writer.written(annotation)
    used = {name: body for name, body in writer.definitions.items() if name in writer.referred}
    return {**written, "$defs": used} if used else written


def name_of(annotation: Any) -> str:
    return str(getattr(annotation, "__qualname__", annotation))


def _reference(annotation: object) -> dict[str, object]:
    return {"$ref": f"#/$defs/{name_of(annotation).replace('~', '~0').replace('/', '~1')}"}


@dataclass(slots=True)
class _Writer:
    """Builds one schema; `open`: the enclosing types."""

    definitions: dict[str, object] = field(default_factory=dict)
    referred: set[str] = field(default_factory=set)
    open: list[object] = field(default_factory=list)

    def written(self, annotation: Any) -> dict[str, object]:
        if annotation in SIMPLE:
            return {"type": SIMPLE[annotation]}
        if annotation is Any or annotation is object:
            return {}
        if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
            return {"enum": [_plain(member.value, annotation) for member in annotation]}
        if is_dataclass(annotation) or is_typeddict(annotation):
            return self._object(annotation)
        if is_model(annotation):
            return _without_references(annotation)
        return self._several(annotation)

    def _several(self, annotation: Any) -> dict[str, object]:
        origin = get_origin(annotation) or annotation
        arguments = get_args(annotation)
        if origin is Literal:
            return {"enum": [_plain(choice, annotation) for choice in arguments]}
        if origin in (Union, UnionType):
            return {"anyOf": [self.written(argument) for argument in arguments]}
        if origin is list or is_row(annotation):
            return {"type": "array", "items": self.written(arguments[0]) if arguments else {}}
        if origin is tuple and arguments and Ellipsis not in arguments:
            items = [self.written(argument) for argument in arguments]
            number = len(items)
            return {
                "type": "array",
                "prefixItems": items,
                "items": False,
                "minItems": number,
                "maxItems": number,
            }
        if origin is dict and (not arguments or arguments[0] is str):
            return {
                "type": "object",
                "additionalProperties": self.written(arguments[1]) if arguments else {},
            }
        raise BadCondition(
            f"`{name_of(annotation)}` is no type that JSON has: str, int, float, bool, None,"
            " list[...], tuple[...], dict[str, ...], Literal, Enum, dataclasses, TypedDicts, unions"
        )

    def _object(self, annotation: Any) -> dict[str, object]:
        name = name_of(annotation)
        if annotation in self.open or name in self.referred:
            self.referred.add(name)
            return _reference(annotation)
        self.open.append(annotation)
        hints, required = fields_of(annotation)
        body: dict[str, object] = {
            "type": "object",
            "properties": {key: self.written(hint) for key, hint in hints.items()},
            "required": required,
            "additionalProperties": False,
        }
        self.open.pop()
        self.definitions[name] = body
        return _reference(annotation) if name in self.referred else body


def _without_references(annotation: Any) -> dict[str, object]:
    body = dict(annotation.model_json_schema())
    if "$defs" in body:
        what = (
            f"`{name_of(annotation)}` has definitions of its own: let it be the hole's whole type"
        )
        raise BadCondition(what)
    return body


def hints_of(annotation: Any, names: Mapping[str, object]) -> dict[str, Any]:
    """The types of a class's fields; quoted types are resolved in `names`, then in its module.

    Raises BadCondition.
    """
    try:
        return get_type_hints(annotation, localns=dict(names), include_extras=True)
    except Exception as error:
        what = f"the types of `{name_of(annotation)}` cannot be found: {error}"
        raise BadCondition(what) from error


def fields_of(annotation: Any) -> tuple[dict[str, Any], list[str]]:
    """The types of an object's fields, and the names of the required ones."""
    hints = hints_of(annotation, {annotation.__name__: annotation})
    if is_typeddict(annotation):
        bare = {
            key: get_args(hint)[0] if get_origin(hint) in (Required, NotRequired) else hint
            for key, hint in hints.items()
        }
        return bare, [
            key
            for key, hint in hints.items()
            if get_origin(hint) is Required
            or (get_origin(hint) is not NotRequired and key in annotation.__required_keys__)
        ]
    made = [each for each in fields(annotation) if each.init]
    required = [
        each.name for each in made if each.default is MISSING and each.default_factory is MISSING
    ]
    return {each.name: hints[each.name] for each in made}, required


def _plain(choice: object, annotation: object) -> object:
    if choice is None or isinstance(choice, str | int | float):
        return choice
    raise BadCondition(f"`{name_of(annotation)}` has {choice!r}, which JSON cannot write")


def loaded(text: str) -> object:
    """The value of a JSON text."""
    return json.loads(text)


def value(annotation: Any, text: str) -> object:
    """Convert a text of this type's schema. Raises ValueError for other texts, and errors of the
    type's own code.
    """
    if is_model(annotation):
        return annotation.model_validate_json(text)
    data = json.loads(text)
    if not _fits(annotation, data):
        raise ValueError(f"this is no {name_of(annotation)}: {text!r}")
    return _converted(annotation, data)


def _converted(annotation: Any, data: Any) -> Any:
    if is_dataclass(annotation) and isinstance(annotation, type):
        hints, _ = fields_of(annotation)
        return annotation(**{key: _converted(hints[key], data[key]) for key in data})
    if is_typeddict(annotation):
        hints, _ = fields_of(annotation)
        return {key: _converted(hints[key], data[key]) for key in data}
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return annotation(data)
    if is_model(annotation):
        return annotation.model_validate(data)
    if annotation is float:
        try:
            return float(data)
        except OverflowError as error:
            raise ValueError(str(error)) from error
    return _converted_several(annotation, data)


def _converted_several(annotation: Any, data: Any) -> Any:
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin in (Union, UnionType):
        return _first_that_fits(arguments, data)
    if origin is list and arguments:
        return [_converted(arguments[0], item) for item in data]
    if is_row(annotation):
        return tuple(_converted(arguments[0], item) for item in data)
    if origin is tuple:
        return tuple(_converted(each, item) for each, item in zip(arguments, data, strict=True))
    if origin is dict and arguments:
        return {key: _converted(arguments[1], item) for key, item in data.items()}
    return data


def _first_that_fits(alternatives: tuple[Any, ...], data: Any) -> Any:
    return next(
        (_converted(each, data) for each in alternatives if _fits(each, data)),
        data,
    )


def _fits(annotation: Any, data: Any) -> bool:
    """Whether JSON data is an instance of a type's schema."""
    if annotation is Any or annotation is object:
        return True
    if annotation in SIMPLE:
        return _IS_SIMPLE[SIMPLE[annotation]](data)
    if is_dataclass(annotation) or is_typeddict(annotation):
        hints, required = fields_of(annotation)
        return (
            isinstance(data, dict)
            and all(key in data for key in required)
            and all(key in hints and _fits(hints[key], data[key]) for key in data)
        )
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return any(_is_same(member.value, data) for member in annotation)
    return _fits_several(annotation, data)


def _fits_several(annotation: Any, data: Any) -> bool:
    origin = get_origin(annotation) or annotation
    arguments = get_args(annotation)
    if origin is Literal:
        return any(_is_same(choice, data) for choice in arguments)
    if origin in (Union, UnionType):
        return any(_fits(each, data) for each in arguments)
    if origin is list or is_row(annotation):
        return isinstance(data, list) and all(
            not arguments or _fits(arguments[0], item) for item in data
        )
    if origin is tuple:
        return (
            isinstance(data, list)
            and len(data) == len(arguments)
            and all(map(_fits, arguments, data))
        )
    if origin is dict:
        return isinstance(data, dict) and all(
            not arguments or _fits(arguments[1], item) for item in data.values()
        )
    return True


def _is_same(choice: object, data: object) -> bool:
    return choice == data and isinstance(choice, bool) == isinstance(data, bool)


_IS_SIMPLE: Mapping[str, Callable[[object], bool]] = {
    "string": lambda data: isinstance(data, str),
    "integer": lambda data: isinstance(data, int) and not isinstance(data, bool),
    "number": lambda data: isinstance(data, int | float) and not isinstance(data, bool),
    "boolean": lambda data: isinstance(data, bool),
    "null": lambda data: data is None,
}
