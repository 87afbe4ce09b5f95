"""Converts JSON texts to values of Python types; for a union, of the first type that fits."""

import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, is_typeddict

from client.query.conditions.schemas import SIMPLE, fields_of, is_model, is_row, name_of


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
