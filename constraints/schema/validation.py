"""Validates a finished text against a schema, where masks of a lenient schema did not enforce all.

Uses the `jsonschema` package with the schema's draft and without fetching; formats are those that
masks assert, and patterns have the same meaning as in masks (`constraints.regex.writing`). Those of
names beside `unevaluatedProperties` are `re`'s, which may take unlimited time on some texts: call
this only where it can be stopped.

Numbers are decimals. The package computes in doubles: 19.99 is no multiple of 0.01, 1e400 is no
number, and larger ones raise.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import lru_cache, reduce
from itertools import islice
from typing import Any

import jsonschema
from referencing import Registry
from referencing.exceptions import Unresolvable

from constraints.engine import GrammarLanguage
from constraints.errors import ConstraintError, TooComplex
from constraints.guiding.alphabet import byte_vocabulary, in_bytes
from constraints.regex.writing import is_found
from constraints.schema import formats
from constraints.schema.closing_checks import KEYWORDS, NEWEST, validator_of
from constraints.schema.json_schema import prepare
from constraints.schema.reading import Json, below, hashable, no_constant, spelt_out
from constraints.spec import ConstraintSpec, Kind

_Errors = Iterator[jsonschema.ValidationError]
_Keyword = Callable[[Any, Json, Json, Json], _Errors]
# Exponents of 19 digits are infinity, and nothing.
_ANY_SIZE = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
# Quotients of more digits are none.
_DIVISION = Context(prec=1_000_000, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])
# Digits before the point, or zeros behind it, of a number that is written without exponent.
_MAX_PLACES = 1000


class ExactNumber(Decimal):
    """Any number of a JSON text."""

    def __repr__(self) -> str:
        return str(self).replace("E", "e")


def loads(text: str) -> Json:
    """A JSON value with exact numbers. Raises ValueError and RecursionError."""
    return json.loads(text, parse_float=_number, parse_int=_number, parse_constant=no_constant)


def _number(text: str) -> ExactNumber:
    return ExactNumber(_ANY_SIZE.create_decimal(text))


def _multiple_of(validator: Any, step: Json, instance: Json, schema: Json) -> _Errors:
    if not validator.is_type(instance, "number"):
        return
    if not step > 0:
        raise ValueError("no number is a multiple of it")
    if _DIVISION.remainder(instance, step) != 0:
        yield jsonschema.ValidationError(f"{instance!r} is not a multiple of {step!r}")


def _unique_items(validator: Any, differ: Json, instance: Json, schema: Json) -> _Errors:
    """In linear time; the package compares each object with all others."""
    if not differ or not validator.is_type(instance, "array"):
        return
    if len(set(map(hashable, instance))) < len(instance):
        yield jsonschema.ValidationError(f"{instance!r} has non-unique elements")


def _pattern(validator: Any, pattern: Json, instance: Json, schema: Json) -> _Errors:
    if validator.is_type(instance, "string") and not is_found(pattern, instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Json, instance: Json, schema: Json) -> _Errors:
    if not validator.is_type(instance, "object"):
        return
    for pattern, inner in patterns.items():
        for name, value in instance.items():
            if is_found(pattern, name):
                yield from validator.descend(value, inner, path=name, schema_path=pattern)


def _of_items(name: str) -> _Keyword:
    """A keyword that says something else where `items` is a list, as up to 2019-09."""

    def asked(validator: Any, value: Json, instance: Json, schema: Json) -> _Errors:
        has_list = isinstance(schema.get("items"), list)
        kind = jsonschema.Draft201909Validator if has_list else NEWEST
        if name in kind.VALIDATORS:
            yield from kind.VALIDATORS[name](validator, value, instance, schema)

    return asked


_theirs = NEWEST.VALIDATORS["additionalProperties"]


def _additional_properties(validator: Any, rest: Json, instance: Json, schema: Json) -> _Errors:
    if validator.is_type(instance, "object"):
        declared = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        extras = {
            name: value
            for name, value in instance.items()
            if name not in declared and not any(is_found(pattern, name) for pattern in patterns)
        }
        yield from _theirs(validator, rest, extras, {})


MAX_VIOLATIONS = 20
_MAX_MESSAGE_LEN = 300
# `re` reads the patterns of names beside `unevaluatedProperties`.
_UNFOLLOWABLE = (Unresolvable, RecursionError, jsonschema.exceptions.UnknownType, re.error)
# Errors about the value of a keyword in the schema.
_WRONG_VALUES = (TypeError, AttributeError, ValueError, KeyError, ArithmeticError)


def violations(
    schema_text: str, text: str, formats: jsonschema.FormatChecker | None = None
) -> tuple[str, ...]:
    """The first few errors of `text`, with their JSON Pointers; empty: it is a valid instance.

    None asserts no format. What cannot be validated, such as a reference to another document, is
    reported as a violation.
    """
    schema = spelt_out(loads(schema_text))
    try:
        instance = loads(text)
    except (ValueError, RecursionError) as error:
        return (f"not JSON: {error}",)
    try:
        errors = islice(_validator(schema, formats).iter_errors(instance), MAX_VIOLATIONS)
        return tuple(map(_shown, errors))
    except ConstraintError as error:
        why = str(error).partition("\n")[0]
    except _UNFOLLOWABLE as error:
        why = type(error).__name__
    except _WRONG_VALUES:
        why = "a keyword's value is wrong"
    except BaseException as error:
        # On stack overflow the package's dictionaries panic with an error that is no Exception.
        if type(error).__module__ != "pyo3_runtime":
            raise
        why = "RecursionError"
    return (f"the schema cannot be followed: {why}",)


def _validator(
    schema: Json, formats: jsonschema.FormatChecker | None, *, is_bounded: bool = False
) -> Any:
    kind = _ours(validator_of(schema), is_bounded=is_bounded)
    return kind(_unnamed(schema), registry=Registry(), format_checker=formats)


def _shown(error: jsonschema.ValidationError) -> str:
    pointer = reduce(below, error.absolute_path, "")
    message = error.message[:_MAX_MESSAGE_LEN]
    return f"at {pointer}: {message}" if pointer else message


def judge_of(schema_text: str, part_text: str) -> Callable[[str], bool]:
    """Whether texts are instances of a part of a schema; false where no validator can say."""
    schema = spelt_out(loads(schema_text))
    part = _unnamed(spelt_out(loads(part_text)))
    validator = _validator(schema, MaskFormats(), is_bounded=True).evolve(schema=part)

    def is_instance(text: str) -> bool:
        _judging.num_left = _MAX_JUDGED
        try:
            value = loads(text)
        except RecursionError:
            return False
        with suppress(ConstraintError, *_UNFOLLOWABLE, *_WRONG_VALUES):
            return bool(validator.is_valid(value))
        return False

    return is_instance


# Keywords that a judge may ask of one value, a tenth of a second: references that branch are
# asked exponentially often, and all outputs of a shard would wait.
_MAX_JUDGED = 20_000
_judging = threading.local()
_OURS: dict[str, _Keyword] = {
    "multipleOf": _multiple_of,
    "divisibleBy": _multiple_of,
    "uniqueItems": _unique_items,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    **{name: _of_items(name) for name in ("items", "additionalItems", "unevaluatedItems")},
    **{name: KEYWORDS[name] for name in ("contains", "minimum", "maximum")},
}


@lru_cache(maxsize=32)
def _ours(
    kind: type[jsonschema.Validator], *, is_bounded: bool = False
) -> type[jsonschema.Validator]:
    """The validator of the same draft for values from `loads`, with patterns as in masks.

    is_bounded: for judges: it raises TooComplex where a value takes long
    """

    def is_integer(_: jsonschema.TypeChecker, value: object) -> bool:
        return isinstance(value, ExactNumber) and value == value.to_integral_value()

    def counted(keyword: _Keyword) -> _Keyword:
        def asked(validator: Any, value: Json, instance: Json, schema: Json) -> _Errors:
            _judging.num_left -= 1
            if _judging.num_left < 0:
                raise TooComplex("judging a value takes too long")
            return keyword(validator, value, instance, schema)

        return asked

    keywords: dict[str, _Keyword] = {**KEYWORDS, **kind.VALIDATORS, **_OURS}
    if is_bounded:
        keywords = {name: counted(each) for name, each in keywords.items()}
    extend: Callable[..., type[jsonschema.Validator]] = jsonschema.validators.extend
    return extend(kind, keywords, type_checker=kind.TYPE_CHECKER.redefine("integer", is_integer))


def _unnamed(schema: Json) -> Json:
    """Without `$schema`, for which the package would use its own validator behind a reference."""
    if not isinstance(schema, dict):
        return schema
    return {key: value for key, value in schema.items() if key != "$schema"}


class MaskFormats(jsonschema.FormatChecker):
    """Asks the engine; takes milliseconds for a format that was not asked for before."""

    def check(self, instance: Json, format: Json) -> None:
        """Raises jsonschema.FormatError. `instance` is a value of `loads`."""
        if isinstance(instance, str):
            text = json.dumps(instance, ensure_ascii=False)
        elif isinstance(instance, Decimal) and abs(instance.adjusted()) <= _MAX_PLACES:
            whole = instance.to_integral_value()
            text = f"{whole if instance == whole else instance:f}" if instance else "0"
        else:
            return
        if format not in formats.KNOWN:
            return
        tokens = [*text.encode(errors="surrogatepass"), *byte_vocabulary().end_ids[:1]]
        if _language(format).matcher().num_legal(tokens) < len(tokens):
            raise jsonschema.FormatError(f"{instance!r} is not a {format!r}")


@lru_cache(maxsize=64)
def _language(name: str) -> GrammarLanguage:
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps({"format": name}))
    grammar = prepare(spec)
    return GrammarLanguage(byte_vocabulary(), in_bytes(grammar.text), grammar.explain)
