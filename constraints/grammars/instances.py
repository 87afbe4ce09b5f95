"""Whether a finished text is an instance of a schema: what a lenient schema's masks left open.

This is the judgement of the `jsonschema` package, which reads the schema as its draft says and
fetches nothing; numbers are exact, and patterns are read as masks read them. Some of those that
masks do not hold take time beyond all bounds on some texts: ask where it can be stopped.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import jsonschema
from referencing import Registry
from referencing.exceptions import Unresolvable

from constraints.errors import ConstraintError
from constraints.grammars.exact_numbers import exact, loads
from constraints.grammars.pattern_keywords import with_patterns
from constraints.grammars.schema.reading import Json, below

MAX_VIOLATIONS = 20
_MAX_MESSAGE_LEN = 300
# Without a `$schema` a schema is of the newest draft that it can be read by.
_DRAFTS = (jsonschema.Draft202012Validator, jsonschema.Draft201909Validator)
_UNFOLLOWABLE = (Unresolvable, RecursionError, jsonschema.exceptions.UnknownType)
# Of a keyword's value that is not what it must be.
_WRONG_VALUES = (TypeError, AttributeError, ValueError, KeyError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong with an instance.

    pointer:         JSON Pointer of the wrong part of the instance
    schema_pointer:  of the keyword that it does not satisfy
    """

    pointer: str
    schema_pointer: str
    message: str

    def __str__(self) -> str:
        return f"at {self.pointer}: {self.message}" if self.pointer else self.message


def violations(schema_text: str, text: str) -> tuple[Violation, ...]:
    """What keeps `text` from being an instance, the first few; none: it is one.

    What cannot be judged, such as a reference to another document, is a violation that says so.
    """
    schema = loads(schema_text)
    try:
        instance = loads(text)
    except (ValueError, RecursionError) as error:
        return (Violation("", "", f"not JSON: {error}"),)
    try:
        errors = _errors(schema, instance)
    except ConstraintError as error:
        why = str(error).partition("\n")[0]
        return (Violation("", "", f"the schema cannot be followed: {why}"),)
    except _UNFOLLOWABLE as error:
        return (Violation("", "", f"the schema cannot be followed: {type(error).__name__}"),)
    except BaseException as error:
        # Dictionaries of the package panic where the stack ends, with what is no Exception.
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


def _errors(schema: Json, instance: Json) -> list[jsonschema.ValidationError] | None:
    """The first few; None: the value of one of the schema's keywords is not what it must be.

    Up to draft 2019-09 `items` may be a list, and many who write one name no draft.
    """
    registry: Registry[Json] = Registry()
    kinds: tuple[type[jsonschema.Validator], ...] = _DRAFTS
    if isinstance(schema, dict) and "$schema" in schema:
        kinds = (jsonschema.validators.validator_for(schema, default=_DRAFTS[0]),)
        # Where it is met again, through a reference, the package would take its own validator.
        schema = {key: value for key, value in schema.items() if key != "$schema"}
    for kind in kinds:
        try:
            found = with_patterns(exact(kind))(schema, registry=registry).iter_errors(instance)
            return list(islice(found, MAX_VIOLATIONS))
        except _WRONG_VALUES:
            continue
    return None


def _pointer(path: Iterable[str | int]) -> str:
    pointer = ""
    for key in path:
        pointer = below(pointer, key)
    return pointer
