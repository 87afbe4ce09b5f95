"""Response formats and the like, and forbidden words, as grammars."""

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

import orjson
from pydantic import ConfigDict, Field

from constraints.errors import ConstraintError
from constraints.spec import Kind, Whitespace
from constraints.where.cursor import MAX_TEXT_LEN
from constraints.where.parser import parse
from constraints.where.terms import Contains, Expression, Matches, Not, all_of
from constraints.where.writing import text
from router.http.body import Schema
from router.http.fields import CUTS
from router.request.errors import ConstraintRefused, InvalidRequest, Unsupported, cut, quoted
from router.request.grammar import RawGrammar

# Half of what an expression may have, so that one beside them has room.
# Words times choices that are looked at to tell no more words than need be.
_MAX_COUNTED = 200_000
_MAX_WORDS = 500
# Of more than these only the first are named in a message.
_MAX_NAMED = 20

# The field, and what stands there.
NamedGrammar = tuple[str, RawGrammar]


def without(words: list[str], shaped: NamedGrammar | None = None) -> NamedGrammar:
    """Texts in which none of these words stands: any, or those of a grammar.

    Raises InvalidRequest beside a grammar in which that cannot be said, ConstraintRefused where no
    choice is left.
    """
    if not all(words):
        raise InvalidRequest("`bad_words` must be strings, none empty", "bad_words")
    absent: dict[str, Expression] = {word: Not(Contains(word)) for word in words}
    if len(absent) > _MAX_WORDS:
        raise InvalidRequest(
            f"`bad_words` must be at most {_MAX_WORDS} different strings. Given: {len(absent)}",
            "bad_words",
        )
    terms = list(absent.values())
    spellings = {text(term): f"`bad_words` {quoted(word)}" for word, term in absent.items()}
    if shaped is None:
        return "bad_words", RawGrammar(Kind.WHERE, _joined(terms, "bad_words"), spellings=spellings)
    name, grammar = shaped
    match grammar.kind, grammar.value:
        case Kind.REGEX, str(pattern) if pattern:
            matches = Matches(pattern)
            value = _joined([matches, *terms], name)
            spellings[text(matches)] = f"`{name}` {quoted(pattern)}"
        case Kind.WHERE, str(written):
            try:
                expression = parse(written)
            except ConstraintError:
                return shaped  # which is refused in its own words
            value = _joined([expression, *terms], name)
        case Kind.CHOICE, list(choices):
            return name, replace(grammar, value=_kept(choices, list(absent), name))
        case Kind.JSON_SCHEMA | Kind.LARK | Kind.GBNF, _:
            rule = "are kept beside `regex`, `choice` and `where`, not beside JSON and grammars"
            raise InvalidRequest(f"`bad_words` {rule}, as `{name}` asks for", "bad_words")
        case _:
            return shaped
    return name, replace(grammar, kind=Kind.WHERE, value=value, spellings=spellings)


def _joined(terms: list[Expression], name: str) -> str:
    """All of it as one `where`. Raises InvalidRequest where that is too long."""
    written = text(all_of(terms))
    length = len(written.encode("utf-8", "surrogatepass"))
    if length > MAX_TEXT_LEN:
        beside = "" if name == "bad_words" else f" and `{name}`"
        rule = f"must have at most {MAX_TEXT_LEN} bytes together, with 16 for each word"
        raise InvalidRequest(f"`bad_words`{beside} {rule}. Given: {length}", "bad_words")
    return written


def _kept(choices: list[Any], words: list[str], name: str) -> list[Any]:
    """The choices without any of these words. Raises ConstraintRefused where none is left."""
    kept = [
        choice
        for choice in choices
        if not (isinstance(choice, str) and any(word in choice for word in words))
    ]
    if choices and not kept:
        raise _contradiction(choices, words, name)
    return kept


def _contradiction(choices: list[str], words: list[str], name: str) -> ConstraintRefused:
    """The refusal that a pattern of the same texts gets, where nothing has to be compiled."""
    shown = f"`{name}` {cut(orjson.dumps(choices).decode())}"
    parts = [shown, *(f"`bad_words` {quoted(word)}" for word in _needed(choices, words))]
    *others, last = parts
    message = f"nothing satisfies both {', '.join(others)} and {last}"
    if len(parts) > _MAX_NAMED:
        listed = ", ".join(parts[:_MAX_NAMED])
        message = f"nothing satisfies all of {listed} and {len(parts) - _MAX_NAMED} others"
    return ConstraintRefused(f"`{name}`: {message}", "contradiction", {"parts": parts}, name)


def _needed(choices: list[str], words: list[str]) -> list[str]:
    """Words of which each choice has one; none can be left out, where few enough are looked at."""
    found: list[str] = []
    for choice in choices:
        if not any(word in choice for word in found):
            found.append(next(word for word in words if word in choice))
    if len(choices) * len(found) > _MAX_COUNTED:
        return found
    counts = [sum(word in choice for word in found) for choice in choices]
    needed = []
    for word in found:
        places = [place for place, choice in enumerate(choices) if word in choice]
        if any(counts[place] == 1 for place in places):
            needed.append(word)
        else:
            for place in places:
                counts[place] -= 1
    return needed


_ANY_OBJECT = {"type": "object"}
_VALUED = {
    "json": Kind.JSON_SCHEMA,
    "regex": Kind.REGEX,
    "choice": Kind.CHOICE,
    "lark": Kind.LARK,
    "gbnf": Kind.GBNF,
    "where": Kind.WHERE,
}
_TYPES = "`text`, `json_object`, `json_schema` or `grammar` (or `json`, `regex`, `choice`, "
_TYPES += "`lark`, `gbnf` and `where`, with a `value`)"
_KINDS = {
    "json": Kind.JSON_SCHEMA,
    "regex": Kind.REGEX,
    "choice": Kind.CHOICE,
    "grammar": Kind.LARK,
}
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

    whitespace: Literal["flexible", "compact", "spaced"] | None = None
    lenient: bool | None = None
    on_budget: Literal["finish", "cut"] | None = None

    def apply(self, grammar: RawGrammar) -> RawGrammar:
        """The grammar, read so."""
        return replace(
            grammar,
            whitespace=None if self.whitespace is None else Whitespace(self.whitespace),
            lenient=self.lenient,
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
            return RawGrammar(Kind.JSON_SCHEMA, self._json_schema())
        if self.type in _VALUED:
            if self.value is None:
                raise _missing("value")
            return RawGrammar(_VALUED[self.type], self.value)
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

    model_config = ConfigDict(extra="ignore")

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
        found = self._shaped()
        if self.bad_words:
            found = without(self.bad_words, found)
        if found is None:
            return None
        (name, grammar), pattern = found, "guided_whitespace_pattern"
        return name, _patterned(grammar, self.guided_whitespace_pattern, pattern)

    def grammar_parts(self) -> tuple[NamedGrammar, ...]:
        """A pattern beside `bad_words` by itself, to be refused in its own words and places."""
        found = self._shaped() if self.bad_words else None
        if found is None or found[1].kind is not Kind.REGEX:
            return ()
        return ((found[0], replace(found[1], cuts=True)),)

    def _shaped(self) -> NamedGrammar | None:
        """What is asked for beside `bad_words`."""
        found: list[NamedGrammar] = []
        wanted = None if self.response_format is None else self.response_format.grammar()
        if wanted is not None:
            found.append(("response_format", wanted))
        if self.structured_outputs is not None:
            found += self.structured_outputs.grammars()
        found += [
            _named(f"guided_{name}", kind, value)
            for name, kind in _KINDS.items()
            if (value := getattr(self, f"guided_{name}")) is not None
        ]
        if len(found) > 1:
            first, second = found[0][0], found[1][0]
            raise InvalidRequest(f"`{first}` and `{second}` cannot both shape an answer", second)
        return found[0] if found else None


def _named(field: str, kind: Kind, value: Any) -> NamedGrammar:
    return field, _grammar(value) if kind is Kind.LARK else RawGrammar(kind, value)


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
