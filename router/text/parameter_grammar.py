"""The grammar of one call's parameters, written one by one, each by its schema.

    first KEY opening VALUE closing (between KEY opening VALUE closing)* end, or none

Parameters come in the order of the schema. A string is written as it is up to what ends it, which
it cannot contain; other values are JSON, each by its own schema. A schema without properties has
keys of any name; else there are no further ones.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from router.text.answer_format import Code, Parameters, ValueForm
from router.text.grammar_rules import ANY, GrammarRules, pattern
from router.text.parameter_values import types_of

Schema = Mapping[str, Any]
# Keywords that say nothing of values.
_NOTES = frozenset(
    ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly")
) | {"$comment", "$schema", "$id"}
_OF_OBJECTS = _NOTES | {
    *("type", "properties", "required", "additionalProperties", "$defs", "definitions"),
}
_OF_STRINGS = _NOTES | {"type", "enum", "const", "minLength", "maxLength", "pattern"}
_DEFINITIONS = ("$schema", "$defs", "definitions")
# As Python's repr writes a string; what it takes, JSON has as well.
_IN_SINGLE_QUOTES = r"/'([^'\\\x00-\x1f]|\\['\\nrt])*'/"
_KEY = "/[a-zA-Z_][a-zA-Z0-9_.-]{0,63}/"
# In a pattern what cannot stand in the middle of a terminal.
_LOOKS = re.compile(r"\(\?[=!<]|\\[bB]")
_ANCHOR = re.compile(r"(?<!\\)[$^]|\|")
_MAX_REFERENCES = 16


class ParameterGrammar:
    """The parameters of one tool; adds to the rules of a grammar."""

    def __init__(self, rules: GrammarRules, form: Parameters, schema: Schema) -> None:
        self._rules = rules
        self._form = form
        self._root = schema
        self._schema = _resolved(schema, schema)
        self._definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
        # What stands behind each value, whether another one follows or not.
        common = form.between[: rules.common_len(form.between, form.end)]
        self._behind = common if form.string.closing else form.terminator(form.string) or common

    def arguments(self, begun_len: int) -> str:
        """All parameters, behind the first `begun_len` characters of what stands before them."""
        form = self._form
        first = self._rules.exact(form.first[begun_len:])
        none = self._rules.exact(form.none[begun_len:])
        between = self._rules.exact(form.between[len(self._behind) :])
        end = self._rules.exact(form.end[len(self._behind) :])
        properties, required = self._properties()
        if properties is None:
            return self._any_keys(first, between, end, none)
        # The rest of the parameters where none is written yet, and where one is.
        rest = self._rules.rule(none or '""')
        rest_behind_one = self._rules.rule(end or '""')
        for key, schema in reversed(properties.items()):
            one = self._rules.rule(f"{self._rules.exact(key)} {self._value(schema)}")
            here = f"{first} {one} {rest_behind_one}"
            here_behind_one = f"{between} {one} {rest_behind_one}"
            if key not in required:
                here += f" | {rest}"
                here_behind_one += f" | {rest_behind_one}"
            rest = self._rules.rule(here)
            rest_behind_one = self._rules.rule(here_behind_one)
        return rest

    def not_enforced(self) -> Sequence[str]:
        """JSON Pointers of what this grammar does not hold parameters to."""
        found = [f"/{key}" for key in self._schema if key not in _OF_OBJECTS]
        properties, _ = self._properties()
        for key, schema in (properties or {}).items():
            for keyword in self._lost(schema):
                escaped = key.replace("~", "~0").replace("/", "~1")
                found.append(f"/properties/{escaped}/{keyword}")
        return found

    def _properties(self) -> tuple[dict[str, Any] | None, frozenset[str]]:
        """Those declared and those required; None: keys are of any name."""
        properties = dict(self._schema.get("properties") or {})
        required = frozenset(self._schema.get("required") or ())
        others = self._schema.get("additionalProperties", True)
        for key in self._schema.get("required") or ():
            properties.setdefault(key, others)
        if not properties and others is not False:
            return None, required
        return properties, required

    def _any_keys(self, first: str, between: str, end: str, none: str) -> str:
        others = self._schema.get("additionalProperties", True)
        one = self._rules.rule(f"{self._rules.terminal(_KEY)} {self._value(others)}")
        some = f"{first} {one} ({between} {one})* {end}"
        return self._rules.rule(f"{some} | {none}")

    # Values, from what stands behind the key on.

    def _value(self, schema: Any) -> str:
        """A value with what follows it in any case."""
        string = self._string_schema(schema)
        other = self._form.other
        if string is not None and self._form.string.code is Code.RAW:
            text = self._string(string)
            if self._is_text(schema) or self._is_like_other:
                return text
            return self._rules.rule(f"{text} | {self._other(schema, other)}")
        is_text = types_of(schema, self._root) == {"string"}
        return self._other(schema, self._form.string if is_text else other)

    def _string(self, schema: Schema) -> str:
        """A string as it is, and what ends it."""
        form = self._form.string
        opening = self._rules.exact(form.opening)
        terminator = self._form.terminator(form)
        behind = self._behind if form.closing else self._behind[len(terminator) :]
        rest = self._rules.exact(behind)
        mark = pattern(terminator.strip() or terminator)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if values is not None:
            texts = [self._rules.exact(value + terminator) for value in values]
            return f"{opening} ({' | '.join(texts)}) {rest}"
        bodies = self._bodies(schema)
        no = f"~/(?s:.*){mark}(?s:.+)/"
        if self._rules.begins_special(terminator):
            text = self._rules.terminal(
                " & ".join(
                    [f"/{ANY}*/", f"~/(?s:.*){mark}(?s:.*)/", *(f"/{each}/" for each in bodies)]
                )
            )
            may_be_empty = "" if bodies else "?"
            return f"{opening} {text}{may_be_empty} {self._rules.exact(terminator)} {rest}"
        end = pattern(terminator)
        texts = [f"/{each}{end}/" for each in bodies] or [f"/(?s:.*){end}/"]
        return f"{opening} {self._rules.terminal(' & '.join([*texts, no]))} {rest}"

    def _bodies(self, schema: Schema) -> list[str]:
        """Patterns that a string matches, all of them."""
        bodies = []
        if "minLength" in schema or "maxLength" in schema:
            bodies.append(f"(?s:.{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}})")
        if "pattern" in schema and (searched := _searched(schema["pattern"])) is not None:
            bodies.append(searched)
        return bodies

    def _other(self, schema: Any, form: ValueForm) -> str:
        """A value in its notation, and what follows it."""
        opening = self._rules.exact(form.opening)
        closing = self._rules.exact(form.closing + self._behind)
        return f"{opening} {self._noted(schema, form.code)} {closing}"

    def _noted(self, schema: Any, code: Code) -> str:
        types = types_of(schema, self._root)
        words = {"boolean": '"True" | "False"', "null": '"None"'}
        if code is Code.PYTHON and types and types <= words.keys() and _is_plain(schema):
            return self._rules.rule(" | ".join(words[each] for each in sorted(types)))
        if not isinstance(schema, Mapping):
            return self._rules.json(schema)
        value = self._rules.json({**self._definitions, **schema})
        if code is Code.PYTHON and types == {"string"} and _is_plain(schema):
            return self._rules.rule(f"{value} | {self._rules.terminal(_IN_SINGLE_QUOTES)}")
        return value

    @property
    def _is_like_other(self) -> bool:
        """Whether strings stand in the same marks as other values."""
        string = self._form.string
        other = self._form.other
        return (string.opening, string.closing) == (other.opening, other.closing)

    def _is_text(self, schema: Any) -> bool:
        return types_of(schema, self._root) == {"string"}

    def _string_schema(self, schema: Any) -> Schema | None:
        """What the strings of this schema are; None: it has none that may be written as they are.

        Where other values are written alike a text that reads as one of them is that value, so that
        all of them must be legal.
        """
        if self._is_text(schema):
            found = _resolved(schema, self._root)
            return (
                found
                if "$ref" not in found and not {"anyOf", "oneOf", "allOf"} & set(found)
                else None
            )
        is_all = not types_of(schema, self._root) or "string" in types_of(schema, self._root)
        return {} if is_all and _is_plain(schema) else None

    def _lost(self, schema: Any) -> Iterator[str]:
        """The keywords that are not kept for a parameter."""
        string = self._string_schema(schema)
        if string is None or self._form.string.code is not Code.RAW:
            return
        for keyword in string:
            is_lost = keyword == "pattern" and _searched(string["pattern"]) is None
            if is_lost or keyword not in _OF_STRINGS:
                yield keyword


def _is_plain(schema: Any) -> bool:
    """Whether it says no more than types."""
    if not isinstance(schema, Mapping):
        return schema is True
    parts = [each for key in ("anyOf", "oneOf") for each in schema.get(key) or ()]
    return set(schema) <= _NOTES | {"type", "anyOf", "oneOf"} and all(map(_is_plain, parts))


def _resolved(schema: Schema, root: Schema) -> Schema:
    """The schema to which its reference leads."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        target: Any = root
        for key in reference.removeprefix("#/").split("/"):
            key = key.replace("~1", "/").replace("~0", "~")
            target = target.get(key) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping):
            break
        schema = target
    return schema


def _searched(searched: str) -> str | None:
    """A pattern for all of a text in which this one is found; None: there is none."""
    inside = searched.removeprefix("^")
    is_open = len(inside) == len(searched)
    is_closed = inside.endswith("$") and not inside.endswith("\\$")
    inside = inside[:-1] if is_closed else inside
    without_sets = re.sub(r"\[(?:\\.|[^\]\\])*\]", "", inside)
    if _LOOKS.search(inside) or (_ANCHOR.search(without_sets) and (is_closed or not is_open)):
        return None
    inside = re.sub(r"(?<!\\)/", r"\\/", inside).replace("\n", "\\n")
    before = "(?s:.*)" if is_open else ""
    behind = "" if is_closed else "(?s:.*)"
    return f"{before}(?:{inside}){behind}"
