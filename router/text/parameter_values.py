"""Values of a call's parameters as models write them, translated to JSON.

A template may write `True`, bare keys, or a string without quotes: what is meant follows from the
form and from the types that the tool's schema allows.
"""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from router.text.answer_format import Code

_SURROGATE = re.compile("[\ud800-\udfff]")
# A place of a string that is taken out while the rest is rewritten.
_TAKEN = "\ue002"
_BARE_KEY = re.compile(rf"([{{,]\s*)([^\s{{}},:\[\]{_TAKEN}]+)\s*:")
_PYTHON_WORDS = {"None": "null", "True": "true", "False": "false"}
_PYTHON_WORD = re.compile(rf"\b(?:{'|'.join(_PYTHON_WORDS)})\b")
_JSON_STRING = r'"(?:[^"\\]|\\.)*"'
# What `json.loads` and `ast.literal_eval` raise, for texts that are none of theirs or too deep.
_UNREADABLE = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)
_MAX_REFERENCES = 16


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a parameter's schema allows; empty: any. `root` holds its `$defs`."""
    return _types_of(schema, root, _MAX_REFERENCES)


def _types_of(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth == 0:
        return frozenset()
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    if isinstance(kind, list):
        return frozenset(each for each in kind if isinstance(each, str))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(_type_of(value) for value in values)
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            found = [_types_of(each, root, depth - 1) for each in schema[key]]
            return frozenset().union(*found) if all(found) else frozenset()
    return _types_of(_target(schema.get("$ref"), root), root, depth - 1)


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    target: Any = root
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    for key in reference.removeprefix("#/").split("/"):
        key = key.replace("~1", "/").replace("~0", "~")
        target = target.get(key) if isinstance(target, Mapping) else None
    return target


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def as_json(text: str, code: Code, types: frozenset[str], quote: str) -> str:
    """The JSON of a value that is written as `text`; of its text, where that is no value.

    `quote` is what stands around strings in LAX values. A text that may be a string or another
    value is the other one if it can be.
    """
    value = _value(text.strip(), code, quote)
    if isinstance(value, str) and types and "string" not in types:
        value = _value(value.strip(), Code.JSON, "")
    if types and not _allows(types, value):
        value = text if "string" in types else value
    try:
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except _UNREADABLE:
        number = text.strip()
        # One beyond all floats is a number in JSON; `NaN` is none.
        is_number = isinstance(value, float) and number[-1:].isdigit() and number.isascii()
        return number if is_number else json.dumps(text, ensure_ascii=False)
    return json.dumps(value) if _SURROGATE.search(written) else written


def _allows(types: frozenset[str], value: Any) -> bool:
    kind = _type_of(value)
    if kind == "number" and "integer" in types and value.is_integer():
        return True
    return kind in types or (kind == "integer" and "number" in types)


def _value(text: str, code: Code, quote: str) -> Any:
    """The value, or `text` where it is none."""
    try:
        return json.loads(text)
    except _UNREADABLE:
        pass
    try:
        if code is Code.LAX:
            return json.loads(_strict(text, quote))
        if code is not Code.RAW:
            return ast.literal_eval(text)
    except _UNREADABLE:
        pass
    return text


def _strict(text: str, quote: str) -> str:
    """JSON for a text with bare keys and with strings between `quote`s."""
    taken: list[str] = []

    def take(match: re.Match[str]) -> str:
        inside = match["inside"]
        taken.append(match[0] if inside is None else json.dumps(inside))
        return f"{_TAKEN}{len(taken) - 1}{_TAKEN}"

    mark = re.escape(quote)
    strings = rf"{mark}(?P<inside>.*?){mark}|{_JSON_STRING}"
    text = re.sub(strings, take, text, flags=re.DOTALL)
    text = _BARE_KEY.sub(lambda match: f"{match[1]}{json.dumps(match[2])}:", text)
    text = _PYTHON_WORD.sub(lambda match: _PYTHON_WORDS[match[0]], text)
    return re.sub(f"{_TAKEN}(\\d+){_TAKEN}", lambda match: taken[int(match[1])], text)


class LiteralScan:
    """Finds where a literal ends that comes in pieces: outside its quotes and brackets.

    `stops` are the characters before which it ends; with none it ends behind the bracket that
    closes it. `quote` is a further mark around strings.
    """

    def __init__(self, stops: str = "", quote: str = "", quotes: str = "\"'") -> None:
        self._stops = stops
        self._mark = quote
        marks = "".join(dict.fromkeys(quotes + "\\()[]{}" + stops))
        other = f"{re.escape(quote)}|" if quote else ""
        self._structural = re.compile(f"{other}[{re.escape(marks)}]")
        self._quotes = (*quotes, quote)
        self._quote = ""
        self._depth = 0
        self._place = 0

    def end(self, text: str) -> int | None:
        """Where it ends in `text`, which begins as before and has grown; None: not yet there."""
        limit = len(text) - overlap(text, self._mark)
        while (found := self._structural.search(text, self._place, limit)) is not None:
            mark = found.group()
            if mark == "\\" and found.end() == limit:  # what it hides is still to come
                self._place = found.start()
                return None
            self._place = found.end()
            if self._quote:
                if mark == "\\" and self._quote != self._mark:
                    self._place += 1
                elif mark == self._quote:
                    self._quote = ""
            elif mark in self._quotes:
                self._quote = mark
            elif self._depth == 0 and mark in self._stops:
                return found.start()
            elif mark in "([{":
                self._depth += 1
            elif mark in ")]}":
                self._depth -= 1
                if self._depth <= 0 and not self._stops:
                    return self._place
        self._place = limit
        return None

    def forget(self, text_len: int) -> None:
        """`text_len` characters of the text are not given again."""
        self._place = max(self._place - text_len, 0)

    @property
    def place(self) -> int:
        """Up to where it has looked."""
        return self._place


def overlap(text: str, word: str) -> int:
    """How many characters at the end of `text` may be the beginning of `word`."""
    place = text.find(word[:1], max(len(text) - len(word) + 1, 0)) if word else -1
    while place >= 0:
        if word.startswith(text[place:]):
            return len(text) - place
        place = text.find(word[:1], place + 1)
    return 0
