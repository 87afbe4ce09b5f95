"""Validates a finished text against a schema, where masks of a lenient schema did not enforce all.

Uses the `jsonschema` package with the schema's draft and without fetching; numbers are exact, and
patterns have the same meaning as in masks. Patterns that masks do not enforce may take unlimited
time on some texts: call this only where it can be stopped.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import jsonschema
from referencing import Registry
from referencing.exceptions import Unresolvable

from constraints.errors import ConstraintError
from constraints.grammars.exact_numbers import exact, loads
from constraints.grammars.pattern_keywords import with_patterns
from constraints.grammars.schema.dialects import spelt_out
from constraints.grammars.schema.reading import Json, below

MAX_VIOLATIONS = 20
_MAX_MESSAGE_LEN = 300
# Without `$schema`, the newest draft is used by which the schema is valid.
_DRAFTS = (jsonschema.Draft202012Validator, jsonschema.Draft201909Validator)
_UNFOLLOWABLE = (Unresolvable, RecursionError, jsonschema.exceptions.UnknownType)
# Errors about the value of a keyword in the schema.
_WRONG_VALUES = (TypeError, AttributeError, ValueError, KeyError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Violation:
    """One error of an instance.

    pointer:         JSON Pointer of the wrong part of the instance
    schema_pointer:  of the keyword that it does not satisfy
    """

    pointer: str
    schema_pointer: str
    message: str

    def __str__(self) -> str:
        return f"at {self.pointer}: {self.message}" if self.pointer else self.message


def violations(
    schema_text: str, text: str, formats: jsonschema.FormatChecker | None = None
) -> tuple[Violation, ...]:
    """The first few errors of `text`; empty: it is a valid instance. None asserts no format.

    What cannot be validated, such as a reference to another document, is reported as a violation.
    """
    schema = spelt_out(loads(schema_text))
    try:
        instance = loads(text)
    except (ValueError, RecursionError) as error:
        return (Violation("", "", f"not JSON: {error}"),)
    try:
        errors = _errors(schema, instance, formats)
    except ConstraintError as error:
        why = str(error).partition("\n")[0]
        return (Violation("", "", f"the schema cannot be followed: {why}"),)
    except _UNFOLLOWABLE as error:
        return (Violation("", "", f"the schema cannot be followed: {type(error).__name__}"),)
    except BaseException as error:
        # On stack overflow the package's dictionaries panic with an error that is no Exception.
        if type(error).__module__ != "pyo3_runtime":
            raise
        return (Violation("", "", "the schema cannot be followed: RecursionError"),)
    if errors is None:
        return (Violation("", "", "the schema cannot be followed: a keyword's value is wrong"),)
    return tuple(
        Violation(
            _pointer(error.absolute_path),
            _pointer(error.absolute_schema_path),
            error.message[:_MAX_MESSAGE_LEN],
        )
        for error in errors
    )


def judge_of(schema_text: str, part_text: str) -> Callable[[str], bool]:
    """What says whether texts are instances of a part of a schema. Both have to be followable."""
    schema = spelt_out(loads(schema_text))
    part = spelt_out(loads(part_text))
    kinds = _kinds(schema)
    validators = [
        with_patterns(exact(kind))(_unnamed(schema), registry=Registry()) for kind in kinds
    ]

    def is_instance(text: str) -> bool:
        value = loads(text)
        for validator in validators:
            with suppress(*_WRONG_VALUES):
                return bool(validator.evolve(schema=part).is_valid(value))
        return False

    return is_instance


def _kinds(schema: Json) -> tuple[type[jsonschema.Validator], ...]:
    """Up to draft 2019-09 `items` may be a list, and many such schemas name no draft."""
    if isinstance(schema, dict) and "$schema" in schema:
        return (jsonschema.validators.validator_for(schema, default=_DRAFTS[0]),)
    return _DRAFTS


def _unnamed(schema: Json) -> Json:
    """Without `$schema`, for which the package would use its own validator behind a reference."""
    if not isinstance(schema, dict):
        return schema
    return {key: value for key, value in schema.items() if key != "$schema"}


def _errors(
    schema: Json, instance: Json, formats: jsonschema.FormatChecker | None
) -> list[jsonschema.ValidationError] | None:
    """The first few errors; None: a keyword of the schema has an invalid value."""
    registry: Registry[Json] = Registry()
    for kind in _kinds(schema):
        try:
            validator = with_patterns(exact(kind))(
                _unnamed(schema), registry=registry, format_checker=formats
            )
            return list(islice(validator.iter_errors(instance), MAX_VIOLATIONS))
        except _WRONG_VALUES:
            continue
    return None


def _pointer(path: Iterable[str | int]) -> str:
    pointer = ""
    for key in path:
        pointer = below(pointer, key)
    return pointer
