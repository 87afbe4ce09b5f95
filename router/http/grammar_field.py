"""The field that holds a grammar: TGI's union of `type` and `value`, with our types beside its own.

Beside them may stand how it is to be read, which other APIs have under the same names. It knows
the shapes alone; whether the value is a grammar, `router/request/grammar.py` says.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from constraints.spec import Whitespace
from router.request.error_text import WrongPart
from router.request.grammar import GRAMMAR_TYPES, RawGrammar

_WRAPPED = "json_schema"
_SPACES = tuple(whitespace.value for whitespace in Whitespace)
_WORDS = ", ".join(f"`{word}`" for word in GRAMMAR_TYPES)
_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "json": ((dict, bool, str), "an object, true, false or a string"),
    "json_object": ((dict, bool, str), "an object, true, false or a string"),
    _WRAPPED: ((dict,), "an object"),
    "regex": ((str,), "a string"),
    "choice": ((list,), "a list"),
    "lark": ((str,), "a string"),
    "gbnf": ((str,), "a string"),
    "where": ((str,), "a string"),
}


# What is to be done where the tokens would run out: end the text in time, or let it be cut.
CUTS: Mapping[str, bool] = MappingProxyType({"finish": False, "cut": True})


def read_options(value: Mapping[str, Any]) -> dict[str, Any]:
    """`whitespace`, `lenient` and `on_budget`, as RawGrammar has them. Raises ValueError."""
    whitespace, lenient, on_budget = (
        value.get(name) for name in ("whitespace", "lenient", "on_budget")
    )
    found: dict[str, Any] = {}
    if whitespace is not None:
        found["whitespace"] = Whitespace(_one_of("whitespace", whitespace, _SPACES))
    if lenient is not None:
        if not isinstance(lenient, bool):
            raise WrongPart("must have true or false for `lenient`", lenient)
        found["lenient"] = lenient
    if on_budget is not None:
        found["cuts"] = CUTS[_one_of("on_budget", on_budget, tuple(CUTS))]
    return found


def _one_of(name: str, value: Any, words: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in words:
        return value
    shown = ", ".join(f"`{word}`" for word in words)
    raise WrongPart(f"must have one of {shown} for `{name}`", value)


def _grammar(value: Any) -> RawGrammar:
    """A grammar by its type."""
    if not isinstance(value, dict):
        raise ValueError('must be an object like {"type": "regex", "value": "[0-9]+"}')
    word = value.get("type")
    if not isinstance(word, str) or word not in GRAMMAR_TYPES:
        raise WrongPart(f"must have a `type`, one of {_WORDS}", word if "type" in value else value)
    if value.get("value") is None:
        raise ValueError("must have a `value`")
    inner: Any = value["value"]
    types, shown = _TYPES[word]
    if type(inner) not in types:
        raise WrongPart(f"of type `{word}` must have {shown} for its `value`", inner)
    if word == _WRAPPED:
        inner = inner.get("schema")
        if not isinstance(inner, dict):
            raise ValueError(f"of type `{_WRAPPED}` must have a `value` with a `schema`, an object")
    return RawGrammar(GRAMMAR_TYPES[word], inner, **read_options(value))


OPTIONS_SCHEMA: Mapping[str, Any] = MappingProxyType(
    {
        "whitespace": {"enum": [*_SPACES, None]},
        "lenient": {"type": ["boolean", "null"]},
        "on_budget": {"enum": [*CUTS, None]},
    }
)


def _variant(words: list[str], value: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"type": {"enum": words}, "value": value, **OPTIONS_SCHEMA},
        "required": ["type", "value"],
    }


_OBJECT = {"type": "object"}
_TEXT = {"type": "string", "minLength": 1}
_GRAMMAR_SCHEMA = {
    "oneOf": [
        _variant(["json", "json_object"], {"anyOf": [_OBJECT, {"type": "boolean"}, _TEXT]}),
        _variant(
            [_WRAPPED], {**_OBJECT, "properties": {"schema": _OBJECT}, "required": ["schema"]}
        ),
        _variant(["regex", "lark", "gbnf", "where"], _TEXT),
        _variant(["choice"], {"type": "array", "items": {"type": "string"}, "minItems": 1}),
    ]
}

Grammar = Annotated[RawGrammar, PlainValidator(_grammar), WithJsonSchema(_GRAMMAR_SCHEMA)]
