"""The leaves of a schema, as hints for searches: texts of values that a mask does not show.

const and enum     the values, the first few
pattern, format    a short text
minLength          a text of words
bounds             the numbers at them
required           the names, with the colon behind them

The ways between the leaves are forced, or shown by masks; see `constraints/guiding/dive.py`.
"""

import json
from collections.abc import Iterator
from decimal import Decimal
from itertools import permutations
from math import isfinite

from constraints.errors import ConstraintError
from constraints.grammars.example_text import MAX_PATTERN_LEN, example_text
from constraints.grammars.look_around import conjuncts, looks_around
from constraints.grammars.regex import searching
from constraints.grammars.schema import formats
from constraints.grammars.schema.reading import Json

# The shortest text that is valid by every definition.
_TEXTS = {
    "byte": "",
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "duration": "P1D",
    "email": "a@b.cd",
    "hostname": "a",
    "ipv4": "0.0.0.0",
    "ipv6": "::",
    "json-pointer": "",
    "relative-json-pointer": "0",
    "time": "00:00:00Z",
    "uri": "a:b",
    "uri-reference": "",
    "uuid": "00000000-0000-0000-0000-000000000000",
}
# Whose texts may be longer by what they begin with.
_GROWING = ("email", "hostname", "uri")
# The same, by the pattern that replaces the format in a rewritten schema.
_TEXTS_BY_PATTERN = {
    f"^(?:{pattern})$": _TEXTS[name] for name, pattern in formats.PATTERNS.items() if name in _TEXTS
}
# The filler of long strings: vocabularies have its words as tokens.
_FILLER = "the "
_MAX_FILLED_LEN = 5_000
_MAX_LEAF_LEN = 6_000
MAX_LEAVES = 300
_MAX_PLACES = 5_000
# Of one enumeration.
_MAX_VALUES = 3
# The most characters of patterns that are parsed for one schema.
_MAX_PATTERNS_LEN = 60_000
# What counts for a pattern whose automaton is needed.
_LOOKING_LEN = 2_500
# Of one place, and all their characters.
_MAX_JOINED = 3
_MAX_JOINED_LEN = 500
_NO_SCHEMAS = frozenset(("const", "enum", "default", "examples"))


def leaves(document: Json) -> tuple[bytes, ...]:
    """The leaves of a schema in JSON, each once, the shortest first."""
    found: dict[str, None] = {}
    patterns_left = _MAX_PATTERNS_LEN
    todo = [document]
    for _ in range(_MAX_PLACES):
        if not todo or len(found) >= MAX_LEAVES:
            break
        part = todo.pop()
        if isinstance(part, list):
            todo += reversed(part)
        if not isinstance(part, dict):
            continue
        pattern = part.get("pattern")
        if isinstance(pattern, str):
            patterns_left -= _LOOKING_LEN if looks_around(pattern) else len(pattern)
        for value in _values(part, may_parse=patterns_left >= 0):
            text = _written(value)
            if 0 < len(text) <= _MAX_LEAF_LEN:
                found.setdefault(text)
        for text in _joint_matches(part):
            found.setdefault(json.dumps(text, ensure_ascii=False))
        required = part.get("required")
        for name in required if isinstance(required, list) else ():
            found.setdefault(f"{json.dumps(name, ensure_ascii=False)}:")
        todo += [inner for key, inner in reversed(part.items()) if key not in _NO_SCHEMAS]
    ordered = sorted(found, key=len)
    return tuple(text.encode(errors="ignore") for text in ordered)


def _written(value: Json) -> str:
    """The value in JSON, numbers without an exponent; empty: it has none."""
    if isinstance(value, float) and isfinite(value):
        return format(Decimal(repr(value)), "f")
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return ""


def _values(schema: dict[str, Json], *, may_parse: bool) -> Iterator[Json]:
    if "const" in schema:
        yield schema["const"]
    values = schema.get("enum")
    if isinstance(values, list):
        yield from values[:_MAX_VALUES]
    min_len = schema.get("minLength")
    min_len = min_len if isinstance(min_len, int) else 0
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        known = _TEXTS_BY_PATTERN.get(pattern)
        text = known if known is not None or not may_parse else _matching(pattern, min_len)
        if text is not None:
            yield text
    elif 0 < min_len <= _MAX_FILLED_LEN:
        yield (_FILLER * (min_len // len(_FILLER) + 1))[:min_len]
    name = schema.get("format")
    if isinstance(name, str) and name in _TEXTS:
        yield _TEXTS[name]
        if name in _GROWING and len(_TEXTS[name]) < min_len <= _MAX_FILLED_LEN:
            yield _TEXTS[name].rjust(min_len, "a")
    for key, step in (
        ("minimum", 0),
        ("maximum", 0),
        ("multipleOf", 0),
        ("exclusiveMinimum", 1),
        ("exclusiveMaximum", -1),
    ):
        bound = schema.get(key)
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            yield bound + step


def _joint_matches(schema: dict[str, Json]) -> Iterator[str]:
    """Texts in which several patterns are found, one behind the other."""
    parts = schema.get("allOf")
    everything = [schema, *(parts if isinstance(parts, list) else [])]
    found = [part["pattern"] for part in everything if isinstance(part, dict) and "pattern" in part]
    patterns = [each for each in found if isinstance(each, str)]
    if not 1 < len(patterns) <= _MAX_JOINED or sum(map(len, patterns)) > _MAX_JOINED_LEN:
        return
    lens = [part.get("minLength", 0) for part in everything if isinstance(part, dict)]
    min_len = max(each for each in lens if isinstance(each, int))
    for ordered in permutations(patterns):
        texts = [_matching(pattern, 0) for pattern in ordered]
        rest_len = sum(len(text) for text in texts[1:] if text is not None)
        texts[0] = _matching(ordered[0], min_len - rest_len)
        if None not in texts:
            yield "".join(text for text in texts if text is not None)


def _matching(pattern: str, min_len: int) -> str | None:
    """A text in which the pattern is found, of at least `min_len` characters."""
    *_, rest = conjuncts(pattern)
    try:
        found = searching(rest) if len(pattern) <= MAX_PATTERN_LEN else None
    except ConstraintError:
        return None  # the compiler reports it, or uses another engine
    return None if found is None else example_text(found, min_len)
