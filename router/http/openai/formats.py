"""The ways to ask for an answer of a certain form, and the grammar that each comes to.

OpenAI's `response_format`, the hub's and TGI's forms of it, vLLM's `structured_outputs` and its
older `guided_*`. What a grammar must be, and whether any is served, `router/grammar.py` and
`router/parameters.py` say.
"""

from typing import Any

from pydantic import ConfigDict, Field

from constraints.spec import Kind
from router.errors import InvalidRequest, Unserved
from router.grammar import RawGrammar
from router.http.body import Schema

_ANY_OBJECT = {"type": "object"}
_TYPES = "`text`, `json_object` or `json_schema` (or TGI's `json` and `regex`)"
_KINDS = {
    "json": Kind.JSON_SCHEMA,
    "regex": Kind.REGEX,
    "choice": Kind.CHOICE,
    "grammar": Kind.LARK,
}

NamedGrammar = tuple[str, RawGrammar]


class JsonSchemaFormat(Schema):
    """`response_format.json_schema`; TGI has it as `value`."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Schema):
    """`response_format`: OpenAI's, the hub's (`json_object` with a `value`) and TGI's."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    value: Any = None

    def grammar(self) -> RawGrammar | None:
        """What the answer must be; None: any text. Raises InvalidRequest, Unserved."""
        if self.type == "text":
            return None
        if self.type == "json_object":
            schema = _ANY_OBJECT if self.value is None else self.value
            return RawGrammar(Kind.JSON_SCHEMA, schema)
        if self.type == "json_schema":
            return RawGrammar(Kind.JSON_SCHEMA, self._json_schema())
        if self.type in ("json", "regex"):
            if self.value is None:
                raise _missing("value")
            return RawGrammar(_KINDS[self.type], self.value)
        field = "response_format.type"
        if self.type in ("structural_tag", "grammar"):
            raise Unserved(f"`{field}` `{self.type}` is not served; it must be {_TYPES}", field)
        raise InvalidRequest(f"`{field}` must be {_TYPES}. Given: `{self.type[:60]}`", field)

    def _json_schema(self) -> object:
        if self.json_schema is not None:
            # OpenAI lets a schema be absent: any object will do.
            schema = self.json_schema.schema_
            return _ANY_OBJECT if schema is None else schema
        if isinstance(self.value, dict):
            return self.value.get("schema", self.value)
        raise _missing("json_schema")


class StructuredOutputs(Schema):
    """vLLM's `structured_outputs`: one of these."""

    model_config = ConfigDict(extra="ignore")

    json_: Any = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = Field(default=None, fail_fast=True)
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None

    def grammars(self) -> list[NamedGrammar]:
        """Those that are asked for, with the fields that do. Raises Unserved."""
        place = "structured_outputs"
        if self.structural_tag is not None:
            raise Unserved(f"`{place}.structural_tag` is not served", f"{place}.structural_tag")
        found = [
            (f"{place}.{name}", RawGrammar(kind, value))
            for name, kind in _KINDS.items()
            if (value := getattr(self, "json_" if name == "json" else name)) is not None
        ]
        if self.json_object:
            found.append((f"{place}.json_object", RawGrammar(Kind.JSON_SCHEMA, _ANY_OBJECT)))
        if not found:
            rule = "one of `json`, `regex`, `choice`, `grammar` and `json_object`"
            raise InvalidRequest(f"`{place}` must have {rule}", place)
        return found


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

    def named_grammar(self) -> NamedGrammar | None:
        """The one grammar that is asked for, with the field that does.

        Raises InvalidRequest for several, and for what says none; Unserved.
        """
        found: list[NamedGrammar] = []
        wanted = None if self.response_format is None else self.response_format.grammar()
        if wanted is not None:
            found.append(("response_format", wanted))
        if self.structured_outputs is not None:
            found += self.structured_outputs.grammars()
        found += [
            (f"guided_{name}", RawGrammar(kind, value))
            for name, kind in _KINDS.items()
            if (value := getattr(self, f"guided_{name}")) is not None
        ]
        if len(found) > 1:
            first, second = found[0][0], found[1][0]
            raise InvalidRequest(f"`{first}` and `{second}` cannot both shape an answer", second)
        return found[0] if found else None


def _missing(name: str) -> InvalidRequest:
    return InvalidRequest(f"`response_format.{name}` is required", f"response_format.{name}")
