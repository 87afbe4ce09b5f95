"""Values drawn from a schema, most of them instances, and values that miss one by a little.

What is drawn need not be right: a judge says what it is.
"""

import json
import random
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np

from constraints.engine import GrammarLanguage
from constraints.errors import ConstraintError
from tests.constraints.grammars.rig import of_schema, walk

_MERGED = ("allOf", "anyOf", "oneOf", "$ref", "if", "then", "else")
_WORDS = ("", "a", "ab", "Ada", "two words", 'a "b" \\', "é€", "x" * 12, "2020-02-29", "7")
_KEYS = ("a", "b", "x-a", "extra", "42", "two words")
_SCALARS: tuple[Any, ...] = (None, True, False, 0, 1, -3, Decimal("1.5"), "", "a", [], {})
# Deeper than this, what may be left out is.
_MAX_DEPTH = 4
_EXACT = 2**53


class Instances:
    """Draws values of a schema, in its order of properties."""

    def __init__(self, schema: Any, draw: random.Random) -> None:
        self._root = json.loads(json.dumps(schema), parse_float=Decimal)
        self._draw = draw

    def value(self) -> Any:
        return self._value(self._root, 0)

    def _value(self, schema: Any, depth: int) -> Any:
        # Beyond, it is one that contains itself without end.
        said = self._merged(schema, depth) if depth < 3 * _MAX_DEPTH else {}
        if "const" in said:
            return said["const"]
        if said.get("enum"):
            return self._draw.choice(said["enum"])
        if said.get("nullable") is True and self._draw.random() < 0.2:
            return None
        match self._type(said):
            case "object":
                return self._object(said, depth)
            case "array":
                return self._array(said, depth)
            case "string":
                return self._string(said)
            case "integer":
                return self._number(said, Decimal(1))
            case "number":
                return self._number(said, Decimal("0.25"))
            case "boolean":
                return self._draw.random() < 0.5
            case "null":
                return None
        return self._draw.choice(_SCALARS)

    def _merged(self, schema: Any, depth: int) -> dict[str, Any]:
        """A schema without references and choices: one option of each is taken."""
        if not isinstance(schema, dict):
            return {}
        said = {key: value for key, value in schema.items() if key not in _MERGED}
        parts = list(schema.get("allOf", []))
        for keyword in ("anyOf", "oneOf"):
            options = schema.get(keyword)
            if options:
                # The last one tends to end a recursion.
                is_deep = depth > _MAX_DEPTH
                parts.append(options[-1] if is_deep else self._draw.choice(options))
        if "$ref" in schema:
            parts.append(self._target(schema["$ref"]))
        if "if" in schema:
            holds = self._draw.random() < 0.5
            parts += [schema["if"], schema.get("then")] if holds else [schema.get("else")]
        for part in parts:
            for key, value in self._merged(part, depth).items():
                said[key] = _both(key, said[key], value) if key in said else value
        return said

    def _target(self, reference: str) -> Any:
        found = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            found = found[part.replace("~1", "/").replace("~0", "~")]
        return found

    def _type(self, said: dict[str, Any]) -> str | None:
        types = said.get("type")
        if isinstance(types, list):
            return str(self._draw.choice(types)).lower()
        if isinstance(types, str):
            return types.lower()
        kinds = {
            "object": ("properties", "required", "additionalProperties", "patternProperties"),
            "array": ("items", "prefixItems", "minItems", "maxItems", "contains"),
            "string": ("pattern", "format", "minLength", "maxLength"),
            "number": ("minimum", "maximum", "multipleOf"),
        }
        return next((kind for kind, keys in kinds.items() if said.keys() & set(keys)), None)

    def _object(self, said: dict[str, Any], depth: int) -> dict[str, Any]:
        properties = said.get("properties", {})
        required = said.get("required", [])
        odds = 0.6 if depth <= _MAX_DEPTH else 0.0
        made: dict[str, Any] = {}
        for name, each in properties.items():
            if name in required or self._draw.random() < odds:
                made[name] = self._value(each, depth + 1)
        for name in required:
            if name not in made:
                made[name] = self._value(said.get("additionalProperties"), depth + 1)
        patterns = said.get("patternProperties", {})
        others = [({"pattern": name}, each) for name, each in patterns.items()]
        rest = said.get("additionalProperties", True)
        if rest is not False:
            names = self._merged(said.get("propertyNames", {}), depth)
            others.append((names or {"enum": _KEYS}, rest))
        fewest = int(said.get("minProperties", 0))
        for _ in range(3):
            key, each = self._draw.choice(others) if others else (None, None)
            if key and (len(made) < fewest or self._draw.random() < odds / 2):
                name = self._value({"type": "string", **key}, depth)
                if isinstance(name, str):
                    made.setdefault(name, self._value(each, depth + 1))
        return made

    def _array(self, said: dict[str, Any], depth: int) -> list[Any]:
        items = said.get("items", {})
        first = said.get("prefixItems", [])
        if isinstance(items, list):
            first = items
            items = said.get("additionalItems", {})
        fewest = int(said.get("minItems", 0))
        most = min(int(said.get("maxItems", fewest + 3)), fewest + 3)
        size = fewest if depth > _MAX_DEPTH else self._draw.randint(fewest, max(fewest, most))
        if items is False:
            size = min(size, len(first))
        made: list[Any] = []
        for index in range(size):
            each = self._value(first[index] if index < len(first) else items, depth + 1)
            if not (said.get("uniqueItems") and each in made):
                made.append(each)
        if "contains" in said and self._draw.random() < 0.7:
            made.append(self._value(said["contains"], depth + 1))
        return made

    def _string(self, said: dict[str, Any]) -> str:
        fewest = int(said.get("minLength", 0))
        most = int(said.get("maxLength", fewest + 8))
        shape: list[str] = [key for key in ("pattern", "format") if key in said]
        if shape and self._draw.random() < 0.95:
            bounded = [*shape, *(key for key in ("minLength", "maxLength") if key in said)]
            # Where masks have none that is both, one of them is close to an instance.
            for keys in [bounded, *[[key] for key in shape]]:
                asked = {"type": "string", **{key: said[key] for key in keys}}
                text = walked(json.dumps(asked), self._draw.randrange(8))
                if text is not None:
                    return text
        if self._draw.random() < 0.5:
            return self._draw.choice(_WORDS)[:most]
        size = self._draw.choice([fewest, min(most, fewest + 8), self._draw.randint(fewest, most)])
        return "".join(self._draw.choices('ab Z9-_."\\/', k=min(size, 300)))

    def _number(self, said: dict[str, Any], step: Decimal) -> int | Decimal:
        lows = [said[key] for key in ("minimum", "exclusiveMinimum") if _is_number(said.get(key))]
        highs = [said[key] for key in ("maximum", "exclusiveMaximum") if _is_number(said.get(key))]
        step = Decimal(said.get("multipleOf", step))
        low = Decimal(max(lows) if lows else (min(highs) - 40 if highs else -20))
        high = Decimal(min(highs) if highs else max(low, Decimal(0)) + 40)
        # Bounds beyond come down to it (docs/constraints.md).
        low = max(low, Decimal(-_EXACT))
        high = min(high, Decimal(_EXACT))
        first = (low / step).to_integral_value("ROUND_CEILING")
        last = max(first, (high / step).to_integral_value("ROUND_FLOOR"))
        whole = self._draw.choice(
            [first, min(first + 1, last), last, Decimal(self._draw.randint(int(first), int(last)))]
        )
        return _plain(whole * step)

    def near_miss(self, value: Any) -> Any:
        """The value with one change somewhere in it."""
        if isinstance(value, dict) and value and self._draw.random() < 0.75:
            name = self._draw.choice(list(value))
            match self._draw.randrange(8):
                case 0:
                    return {key: each for key, each in value.items() if key != name}
                case 1:
                    return {**value, self._draw.choice(_KEYS): self._draw.choice(_SCALARS)}
                case 2:
                    new = self._changed(name)
                    return {new if key == name else key: each for key, each in value.items()}
            return {**value, name: self.near_miss(value[name])}
        if isinstance(value, list) and value and self._draw.random() < 0.75:
            index = self._draw.randrange(len(value))
            match self._draw.randrange(6):
                case 0:
                    return value[:index] + value[index + 1 :]
                case 1:
                    return [*value, value[index]]
            return [*value[:index], self.near_miss(value[index]), *value[index + 1 :]]
        if isinstance(value, str) and self._draw.random() < 0.8:
            return self._changed(value)
        if _is_number(value) and self._draw.random() < 0.8:
            steps = [-1, 1, Decimal("0.5"), Decimal("-0.01"), -value, 1000]
            changed = value + self._draw.choice(steps)
            return _plain(changed) if abs(changed) <= _EXACT else value
        return self._draw.choice(_SCALARS)

    def _changed(self, text: str) -> str:
        at = self._draw.randint(0, len(text))
        new: str = self._draw.choice([*"aZ0-_.:/ @", text[:1], text[-1:]])
        num_left_out = self._draw.randrange(2)
        return text[:at] + self._draw.choice(["", new, new]) + text[at + num_left_out :]


def _both(key: str, one: Any, other: Any) -> Any:
    """The values of a keyword that two schemas have."""
    match key:
        case "properties" | "patternProperties":
            shared = one.keys() & other.keys()
            return {
                **one,
                **other,
                **{name: {"allOf": [one[name], other[name]]} for name in shared},
            }
        case "required":
            return [*one, *(name for name in other if name not in one)]
        case "minimum" | "minLength" | "minItems" | "exclusiveMinimum":
            return max(one, other)
        case "maximum" | "maxLength" | "maxItems" | "exclusiveMaximum":
            return min(one, other)
        case "enum":
            return [each for each in one if each in other]
        case "type" if one == "number" and other == "integer":
            return other
        case "additionalProperties" if one is False or other is False:
            return False
    return one


def _is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def _plain(number: int | Decimal) -> int | Decimal:
    return int(number) if number == int(number) else Decimal(number).normalize()


@lru_cache(maxsize=1000)
def walked(schema: str, seed: int) -> str | None:
    """A string of a schema, by masks; None if they have none."""
    language = _language(schema)
    text = None if language is None else walk(language, np.random.default_rng(seed), 4 + 6 * seed)
    return None if text is None else str(json.loads(text))


@lru_cache(maxsize=200)
def _language(schema: str) -> GrammarLanguage | None:
    try:
        return of_schema(json.loads(schema))
    except ConstraintError:
        return None
