"""The field that holds a grammar: TGI's union of `type` and `value`, with our types beside its own.

It knows the shapes alone; whether the value is a grammar, `router/grammar.py` says.
"""

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from router.grammar import GRAMMAR_TYPES, RawGrammar

_WRAPPED = "json_schema"
_WORDS = ", ".join(f"`{word}`" for word in GRAMMAR_TYPES)


def _grammar(value: Any) -> RawGrammar:
    """A grammar by its type."""
    if not isinstance(value, dict):
        raise ValueError('must be an object like {"type": "regex", "value": "[0-9]+"}')
    word = value.get("type")
    kind = GRAMMAR_TYPES.get(word) if isinstance(word, str) else None
    if kind is None:
        raise ValueError(f"must have a `type`, one of {_WORDS}")
    if value.get("value") is None:
        raise ValueError("must have a `value`")
    inner = value["value"]
    if word == _WRAPPED:
        if not isinstance(inner, dict) or not isinstance(inner.get("schema"), dict):
            raise ValueError(f"of type `{_WRAPPED}` must have a `value` with a `schema`, an object")
        inner = inner["schema"]
    return RawGrammar(kind, inner)


def _variant(words: list[str], value: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"type": {"enum": words}, "value": value},
        "required": ["type", "value"],
    }


_OBJECT = {"type": "object"}
_TEXT = {"type": "string", "minLength": 1}
_GRAMMAR_SCHEMA = {
    "oneOf": [
        _variant(["json", "json_object"], {"anyOf": [_OBJECT, _TEXT]}),
        _variant(
            [_WRAPPED], {**_OBJECT, "properties": {"schema": _OBJECT}, "required": ["schema"]}
        ),
        _variant(["regex", "lark", "where"], _TEXT),
        _variant(["choice"], {"type": "array", "items": _TEXT, "minItems": 1}),
    ]
}

Grammar = Annotated[RawGrammar, PlainValidator(_grammar), WithJsonSchema(_GRAMMAR_SCHEMA)]
