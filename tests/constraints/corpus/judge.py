"""`jsonschema` as the judge of instances, by none of the code that makes masks.

Patterns are ECMA 262's, spelt for Python's `re`. Numbers are decimals, so multiples are exact.
Formats are judged by Python's own modules or by one pattern each; those that are not listed here
are annotations.
"""

import decimal
import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import jsonschema

_HOST = r"(?!-)[a-zA-Z0-9-]{1,63}(?<!-)"
_ATOM = r"[a-zA-Z0-9_!#$%&'*+/=?^`{|}~-]+"
_URI = r"[a-zA-Z0-9_.~:/?#\[\]@!$&'()*+,;=%-]*"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?([zZ]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_CLOCK = r"(\d+H(\d+M(\d+S)?)?|\d+M(\d+S)?|\d+S)"
_DAYS = r"(\d+D|\d+M(\d+D)?|\d+Y(\d+M(\d+D)?)?)"
_BYTES = r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_UUID = r"[\da-fA-F]{8}-[\da-fA-F]{4}-VERSION[\da-fA-F]{3}-[89abAB][\da-fA-F]{3}-[\da-fA-F]{12}"
_PATTERNS = {
    "time": _TIME,
    "duration": rf"P({_DAYS}(T{_CLOCK})?|T{_CLOCK}|\d+W)",
    "email": rf"(?=.{{1,254}}$){_ATOM}(\.{_ATOM})*@{_HOST}(\.{_HOST})*",
    "hostname": rf"(?=.{{1,253}}$){_HOST}(\.{_HOST})*",
    "uri": rf"[a-zA-Z][a-zA-Z0-9+.-]*:{_URI}",
    "uri-reference": _URI,
    "byte": _BYTES,
    "base64": _BYTES,
    "base64url": r"([\w-]{4})*([\w-]{2}(==)?|[\w-]{3}=?)?",
    "json-pointer": r"(/([^/~]|~[01])*)*",
    "relative-json-pointer": r"(0|[1-9]\d*)(#|(/([^/~]|~[01])*)*)",
    "e164": r"\+[1-9]\d{6,14}",
    "uuid": r"[\da-fA-F]{8}(-[\da-fA-F]{4}){3}-[\da-fA-F]{12}",
    **{f"uuid{version}": _UUID.replace("VERSION", str(version)) for version in range(1, 9)},
}


def _checker() -> jsonschema.FormatChecker:
    checker = jsonschema.FormatChecker(["date", "ipv4", "ipv6"])
    for name, pattern in _PATTERNS.items():
        matches = re.compile(pattern, re.ASCII).fullmatch
        checker.checks(name)(
            lambda value, matches=matches: not isinstance(value, str) or bool(matches(value))
        )
    date_time = re.compile(f"[tT]{_TIME}", re.ASCII)
    checker.checks("date-time")(
        lambda value: (
            not isinstance(value, str)
            or (checker.conforms(value[:10], "date") and bool(date_time.fullmatch(value[10:])))
        )
    )
    for size in (8, 16, 32, 64):
        for name, least in ((f"int{size}", -1 << size - 1), (f"uint{size}", 0)):
            most = least + (1 << size) - 1
            checker.checks(name)(
                lambda value, least=least, most=most: _is_within(value, least, most)
            )
    return checker


def _is_within(value: Any, least: int, most: int) -> bool:
    """Of a number, or of a string of digits."""
    if isinstance(value, str):
        is_number = re.fullmatch(r"-?[1-9]\d*|0", value, re.ASCII) is not None
        return is_number and least <= int(value) <= most
    return not _is_number(value) or (value == int(value) and least <= value <= most)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


# Exponents of more digits, as of numbers that would not fit into memory.
_HUGE = re.compile(r"[eE]([+-]?)\d{3,}")


def loads(text: str) -> Any:
    """A value as `Judge` takes it; of a long exponent two digits are left."""
    return json.loads(text, parse_float=lambda number: Decimal(_HUGE.sub(r"e\g<1>99", number)))


class Judge:
    """Says of values whether they are instances of a schema.

    Raises re.error where a pattern is none of Python's.
    """

    _FORMATS = _checker()

    def __init__(self, schema: Any) -> None:
        spelt = json.loads(json.dumps(with_counts(schema)), parse_float=Decimal)
        said = _for_python(spelt)
        kinds = [jsonschema.Draft202012Validator, jsonschema.Draft201909Validator]
        # Many schemas that name no draft have a list of `items`, as up to 2019-09.
        default = next((each for each in kinds if _is_schema(each, said)), kinds[0])
        kind = jsonschema.validators.validator_for(said, default=default)
        self._validator = _with_decimals(kind)(said, format_checker=self._FORMATS)

    def is_instance(self, value: Any) -> bool:
        """Fractions of `value` are decimals."""
        try:
            # Remainders of numbers of two digits of exponent.
            with decimal.localcontext(prec=200):
                return bool(self._validator.is_valid(value))
        except RecursionError:
            return False  # a reference to itself: no instance ends


def _with_decimals(kind: type[jsonschema.Validator]) -> type[jsonschema.Validator]:
    """The validator of the same draft, to which decimals without fraction are whole numbers."""
    types = kind.TYPE_CHECKER
    if not types.is_type(1.0, "integer"):
        return kind

    def is_whole(_: Any, value: Any) -> bool:
        is_decimal = isinstance(value, Decimal)
        return value == value.to_integral_value() if is_decimal else types.is_type(value, "integer")

    extend: Callable[..., type[jsonschema.Validator]] = jsonschema.validators.extend
    return extend(kind, type_checker=types.redefine("integer", is_whole))


def _is_schema(kind: type[jsonschema.Validator], schema: Any) -> bool:
    return bool(kind(kind.META_SCHEMA).is_valid(schema))


def with_counts(schema: Any) -> Any:
    """The schema with counts as numbers, which Gemini has in strings."""

    def read(part: dict[str, Any]) -> dict[str, Any]:
        written = {key: value for key, value in part.items() if key[:3] in ("min", "max")}
        counts = {key: value for key, value in written.items() if isinstance(value, str)}
        return part | {key: int(value) for key, value in counts.items() if value.isdecimal()}

    return json.loads(json.dumps(schema), object_hook=read)


def _for_python(schema: Any) -> Any:
    """The schema with Python's patterns, and without what only OpenAPI, Gemini or draft 4 have."""
    if isinstance(schema, list):
        return [_for_python(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    said = {key: _for_python(value) for key, value in schema.items()}
    if isinstance(said.get("pattern"), str):
        said["pattern"] = _python_pattern(said["pattern"])
    if isinstance(said.get("patternProperties"), dict):
        by_pattern = said["patternProperties"].items()
        said["patternProperties"] = {_python_pattern(name): each for name, each in by_pattern}
    if isinstance(said.get("type"), str):
        said["type"] = said["type"].lower()
    for bound in ("minimum", "maximum"):
        exclusive = f"exclusive{bound.capitalize()}"
        if isinstance(said.get(exclusive), bool) and said.pop(exclusive):
            said[exclusive] = said.pop(bound)
    if said.pop("nullable", False) is True:
        return {"anyOf": [said, {"type": "null"}]} if "enum" not in said else _with_null(said)
    return said


def _with_null(said: dict[str, Any]) -> dict[str, Any]:
    """Of a nullable `enum`, which has to list null itself."""
    return {**said, "type": [said["type"], "null"]} if "type" in said else said


_SPACES = r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": _SPACES}
_PIECE = re.compile(r"\\.|\[\^?|.", re.DOTALL)


def _python_pattern(pattern: str) -> str:
    """The pattern of ECMA 262 in Python's syntax. Raises re.error."""
    found = ""
    in_class = False
    for piece in _PIECE.findall(pattern):
        chars = _CLASSES.get(piece[1:].lower()) if piece[0] == "\\" else None
        if chars is not None and piece[1:].islower():
            found += chars if in_class else f"[{chars}]"
        elif chars is not None and not in_class:
            found += f"[^{chars}]"
        elif piece in (r"\b", r"\B") and not in_class:
            found += f"(?a:{piece})"
        elif piece == "$" and not in_class:
            found += r"\Z"
        elif piece == "." and not in_class:
            found += r"[^\n\r\u2028\u2029]"
        else:
            # Python warns of a bracket inside of a class.
            found += r"\[" if in_class and piece[0] == "[" else piece
            found += "^" if in_class and piece == "[^" else ""
            in_class = piece[0] == "[" or (in_class and piece != "]")
    return re.compile(found).pattern
