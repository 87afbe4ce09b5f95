"""The fields that ask for a form of the answer, as grammars: response formats, forbidden words."""

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from constraints.spec import Kind, Whitespace
from constraints.where.parser import MAX_TEXT_LEN
from constraints.where.terms import Contains, Not, all_of, text
from router.http.schema import CUTS, KEY_ORDERS, Schema
from router.request.errors import InvalidRequest, Unsupported
from router.request.parameters import GRAMMAR_TYPES, RawGrammar

_MAX_WORDS = 500

# The field, and what stands there.
NamedGrammar = tuple[str, RawGrammar]


def _without(words: list[str]) -> RawGrammar:
    """Any text in which none of these words occurs. Raises InvalidRequest."""
    if not all(words):
        raise InvalidRequest("`bad_words` must be strings, none empty", "bad_words")
    absent = dict.fromkeys(words)
    if len(absent) > _MAX_WORDS:
        rule = f"must be at most {_MAX_WORDS} different strings"
        raise InvalidRequest(f"`bad_words` {rule}. Given: {len(absent)}", "bad_words")
    written = text(all_of([Not(Contains(word)) for word in absent]))
    length = len(written.encode("utf-8", "surrogatepass"))
    if length > MAX_TEXT_LEN:
        rule = f"must have at most {MAX_TEXT_LEN} bytes together, with 16 for each word"
        raise InvalidRequest(f"`bad_words` {rule}. Given: {length}", "bad_words")
    return RawGrammar(Kind.WHERE, written)


_ANY_OBJECT = {"type": "object"}
_TYPES = "`text`, `json_object`, `json_schema` or `grammar` (or `json`, `regex`, `choice`, "
_TYPES += "`lark`, `gbnf` and `where`, with a `value`)"
_KINDS = {
    "json": Kind.JSON_SCHEMA,
    "regex": Kind.REGEX,
    "choice": Kind.CHOICE,
    "grammar": Kind.LARK,
}
_WITH_STRUCTURED_OUTPUTS = (
    "with `lenient` in `structured_outputs` it is left to a check of the finished text"
)
_GBNF = re.compile(r"(?:\s|#[^\n]*\n)*[\w-]+\s*::=")
# Of patterns for whitespace those that clients send, with a way to write JSON that keeps them.
_SPACINGS: Mapping[str, Whitespace] = MappingProxyType(
    {
        **dict.fromkeys(
            ("", " ?", "[ ]?", "[\\n ]?", " *", "[ ]*", "[\\n ]*", "[\\n\\t ]*", "[ \\n\\t]*"),
            Whitespace.COMPACT,
        ),
        **dict.fromkeys(("\\s*", "[ \\t\\n\\r]*", "[ \\n\\r\\t]*"), Whitespace.FLEXIBLE),
    }
)


class Options(Schema):
    """How a form is to be read; the same as beside TGI's `grammar`."""

    whitespace: Literal["flexible", "compact", "spaced", "optional"] | None = None
    lenient: bool | None = None
    key_order: Literal["schema", "any"] | None = None
    strict: bool | None = None
    on_budget: Literal["finish", "cut"] | None = None

    def apply(self, grammar: RawGrammar) -> RawGrammar:
        """The grammar, read so."""
        return replace(
            grammar,
            whitespace=None if self.whitespace is None else Whitespace(self.whitespace),
            lenient=self.lenient,
            strict=grammar.strict if self.strict is None else self.strict,
            any_key_order=None if self.key_order is None else KEY_ORDERS[self.key_order],
            cuts=None if self.on_budget is None else CUTS[self.on_budget],
        )


class JsonSchemaFormat(Schema):
    """`response_format.json_schema`; TGI has it as `value`."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Options):
    """`response_format`: OpenAI's, the hub's (`json_object` with a `value`), TGI's and ours."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    grammar_: str | None = Field(default=None, alias="grammar")
    value: Any = None

    @property
    def goes_with_tools(self) -> bool:
        """Whether it is OpenAI's, which says what an answer is that calls no tool; TGI's do not."""
        return self.type == "json_schema" and self.json_schema is not None

    def grammar(self) -> RawGrammar | None:
        """What the answer must be; None: any text. Raises InvalidRequest, Unsupported."""
        return None if self.type == "text" else self.apply(self._bare())

    def _bare(self) -> RawGrammar:
        if self.type == "json_object":
            schema = _ANY_OBJECT if self.value is None else self.value
            return RawGrammar(Kind.JSON_SCHEMA, schema)
        if self.type == "json_schema":
            strict = None if self.json_schema is None else bool(self.json_schema.strict)
            return RawGrammar(Kind.JSON_SCHEMA, self._json_schema(), strict=strict)
        if self.type in GRAMMAR_TYPES:
            if self.value is None:
                raise _missing("value")
            return RawGrammar(GRAMMAR_TYPES[self.type], self.value)
        if self.type == "grammar":
            if self.grammar_ is None:
                raise _missing("grammar")
            return _grammar(self.grammar_)
        field = "response_format.type"
        if self.type == "structural_tag":
            raise Unsupported(f"`{field}` `{self.type}` is not served; it must be {_TYPES}", field)
        raise InvalidRequest(f"`{field}` must be {_TYPES}. Given: `{self.type[:60]}`", field)

    def _json_schema(self) -> object:
        if self.json_schema is not None:
            # OpenAI lets a schema be absent: any object will do.
            schema = self.json_schema.schema_
            return _ANY_OBJECT if schema is None else schema
        if isinstance(self.value, dict):
            return self.value.get("schema", self.value)
        raise _missing("json_schema")


class StructuredOutputs(Options):
    """vLLM's `structured_outputs`: one of these; `where` is ours."""

    json_: Any = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = Field(default=None, fail_fast=True)
    grammar: str | None = None
    where: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None

    def grammars(self) -> list[NamedGrammar]:
        """Those that are asked for, with the fields that do. Raises Unsupported."""
        place = "structured_outputs"
        for name in ("structural_tag", "disable_additional_properties"):
            if getattr(self, name):
                raise Unsupported(f"`{place}.{name}` is not served", f"{place}.{name}")
        found = [
            _named(f"{place}.{name}", kind, value)
            for name, kind in {**_KINDS, "where": Kind.WHERE}.items()
            if (value := getattr(self, "json_" if name == "json" else name)) is not None
        ]
        if self.json_object:
            found.append((f"{place}.json_object", RawGrammar(Kind.JSON_SCHEMA, _ANY_OBJECT)))
        if not found:
            rule = "one of `json`, `regex`, `choice`, `grammar`, `where` and `json_object`"
            raise InvalidRequest(f"`{place}` must have {rule}", place)
        return [(name, self._spaced(self.apply(grammar))) for name, grammar in found]

    def _spaced(self, grammar: RawGrammar) -> RawGrammar:
        """vLLM's two ways to speak of whitespace, which mean nothing but in JSON."""
        if self.disable_any_whitespace and grammar.kind is Kind.JSON_SCHEMA:
            grammar = replace(grammar, whitespace=Whitespace.COMPACT)
        return _patterned(grammar, self.whitespace_pattern, "structured_outputs.whitespace_pattern")


class Formats(Schema):
    """All fields of a body that ask for a form."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = Field(default=None, fail_fast=True)
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    guided_decoding_backend: str | None = None
    bad_words: list[str] | None = Field(default=None, fail_fast=True)

    def named_grammar(self) -> NamedGrammar | None:
        """The one grammar that is asked for, with the field that does.

        Raises InvalidRequest for several, and for what says none; Unsupported.
        """
        found: list[NamedGrammar] = []
        wanted = None if self.response_format is None else self.response_format.grammar()
        if wanted is not None:
            found.append(("response_format", wanted))
        if self.structured_outputs is not None:
            found += self.structured_outputs.grammars()
        found += [
            _guided(f"guided_{name}", kind, value)
            for name, kind in _KINDS.items()
            if (value := getattr(self, f"guided_{name}")) is not None
        ]
        if self.bad_words:
            found.append(("bad_words", _without(self.bad_words)))
        if len(found) > 1:
            first = found[0][0]
            second = found[1][0]
            raise InvalidRequest(f"`{first}` and `{second}` cannot both shape an answer", second)
        if not found:
            return None
        name, grammar = found[0]
        pattern = "guided_whitespace_pattern"
        return name, _patterned(grammar, self.guided_whitespace_pattern, pattern)


def _named(field: str, kind: Kind, value: Any) -> NamedGrammar:
    return field, _grammar(value) if kind is Kind.LARK else RawGrammar(kind, value)


def _guided(field: str, kind: Kind, value: Any) -> NamedGrammar:
    name, grammar = _named(field, kind, value)
    return name, replace(grammar, remedy=_WITH_STRUCTURED_OUTPUTS)


def _grammar(text: str) -> RawGrammar:
    """A grammar in GBNF, which its first rule shows, or else in Lark."""
    return RawGrammar(Kind.GBNF if _GBNF.match(text) else Kind.LARK, text)


def _patterned(grammar: RawGrammar, pattern: str | None, field: str) -> RawGrammar:
    if pattern is None or grammar.kind is not Kind.JSON_SCHEMA:
        return grammar
    spacing = _SPACINGS.get(pattern)
    if spacing is None:
        shown = ", ".join(f"`{known}`" for known in _SPACINGS if known)
        raise Unsupported(
            f"`{field}` is not served with this pattern; leave it out, or say one of {shown}, or "
            "`` for none",
            field,
        )
    return replace(grammar, whitespace=spacing)


def _missing(name: str) -> InvalidRequest:
    return InvalidRequest(f"`response_format.{name}` is required", f"response_format.{name}")
