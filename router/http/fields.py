"""Fields of bodies that take several types, grammars among them.

Hand-written checks, since a union's errors name every member but not the rule, and a list of half a
million token ids would be tried against each. They check shapes alone: `router/request/parameters.py`
checks whether a value is a grammar.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from constraints.spec import Whitespace
from router.request.errors import WrongPart
from router.request.parameters import GRAMMAR_TYPES, RawGrammar

Prompt = str | tuple[int, ...]

# Far beyond what any server takes at once; it bounds the time that looking at them takes.
_MAX_PROMPTS = 4096
# `int` also accepts spaces, underscores and the digits of other scripts.
_ID_CHARS = re.compile(r"[-0-9]*")


def _strings(value: Any) -> tuple[str, ...]:
    """One string or several."""
    strings = value if isinstance(value, list) else [value]
    for string in strings:
        if not isinstance(string, str):
            raise WrongPart("must be a string or a list of strings", string)
    return tuple(strings)


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """One prompt or several, as text or as token ids."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and len(value) > _MAX_PROMPTS and type(value[0]) is not int:
        raise ValueError(f"must hold at most {_MAX_PROMPTS} prompts")
    if isinstance(value, list) and value:
        if all(type(item) is int for item in value):
            return (tuple(value),)
        if all(isinstance(item, str) for item in value):
            return tuple(value)
        if all(_is_ids(item) for item in value):
            return tuple(tuple(item) for item in value)
    rule = "must be a string, a list of token ids, or a list of one or more of either, not empty"
    raise WrongPart(rule, _misfit(value))


def _misfit(prompts: Any) -> Any:
    """The item that is no prompt, or of another kind than the first; else all of it."""
    if not isinstance(prompts, list):
        return prompts
    kinds: tuple[Callable[[Any], bool], ...]
    kinds = (lambda item: type(item) is int, lambda item: isinstance(item, str), _is_ids)
    is_first = next((kind for kind in kinds if prompts and kind(prompts[0])), None)
    if is_first is None:
        return prompts[0] if prompts else prompts
    return next(item for item in prompts if not is_first(item))


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _logit_bias(value: Any) -> Mapping[int, float]:
    """Token ids, which JSON spells as strings, with what to add to their logits.

    A mask has one for each token of the vocabulary, so this is fast.
    """
    if not isinstance(value, dict):
        raise ValueError("must be an object of token ids with numbers")
    try:
        biases = dict(zip(map(int, value), value.values(), strict=True))
        if not _ID_CHARS.fullmatch("".join(value)):
            raise ValueError
    except ValueError:
        wrong_key = next(key for key in value if not _is_id(key))
        raise WrongPart("must be an object whose keys are token ids", wrong_key) from None
    if not set(map(type, biases.values())) <= {int, float}:
        key = next(key for key, bias in value.items() if type(bias) not in (int, float))
        raise WrongPart(f"must be an object of token ids with numbers, as `{key}`", value[key])
    return biases


def _is_id(key: str) -> bool:
    try:
        int(key)
    except ValueError:
        return False
    return _ID_CHARS.fullmatch(key) is not None


_TEXT = {"type": "string"}
_STRINGS_SCHEMA = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_IDS_SCHEMA = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_PROMPT_SCHEMA = {
    "anyOf": [
        _TEXT,
        _IDS_SCHEMA,
        {"type": "array", "items": _TEXT, "minItems": 1},
        {"type": "array", "items": _IDS_SCHEMA, "minItems": 1},
    ]
}
_BIAS_SCHEMA = {"type": "object", "additionalProperties": {"type": "number"}}
Strings = Annotated[tuple[str, ...], PlainValidator(_strings), WithJsonSchema(_STRINGS_SCHEMA)]
Prompts = Annotated[tuple[Prompt, ...], PlainValidator(_prompts), WithJsonSchema(_PROMPT_SCHEMA)]
LogitBias = Annotated[
    Mapping[int, float], PlainValidator(_logit_bias), WithJsonSchema(_BIAS_SCHEMA)
]

_WRAPPED = "json_schema"
_SPACES = tuple(whitespace.value for whitespace in Whitespace)
_WORDS = ", ".join(f"`{word}`" for word in GRAMMAR_TYPES)
_OBJECT = {"type": "object"}
_FILLED_TEXT = {"type": "string", "minLength": 1}
# Of a grammar's value, by its type: the Python types, their names, the schema of the document.
_Value = tuple[tuple[type, ...], str, dict[str, Any]]
_ANY_SCHEMA: _Value = (
    *((dict, bool, str), "an object, true, false or a string"),
    {"anyOf": [_OBJECT, {"type": "boolean"}, _FILLED_TEXT]},
)
_SOURCE: _Value = ((str,), "a string", _FILLED_TEXT)
_VALUES: Mapping[str, _Value] = {
    "json": _ANY_SCHEMA,
    "json_object": _ANY_SCHEMA,
    _WRAPPED: (
        *((dict,), "an object"),
        {**_OBJECT, "properties": {"schema": _OBJECT}, "required": ["schema"]},
    ),
    "regex": _SOURCE,
    "choice": ((list,), "a list", {"type": "array", "items": _TEXT, "minItems": 1}),
    "lark": _SOURCE,
    "gbnf": _SOURCE,
    "where": _SOURCE,
}


# What happens where the tokens would run out: the text is ended in time, or cut.
CUTS: Mapping[str, bool] = MappingProxyType({"finish": False, "cut": True})


def _options(value: Mapping[str, Any]) -> dict[str, Any]:
    """`whitespace`, `lenient` and `on_budget`, as RawGrammar has them. Raises ValueError."""
    found: dict[str, Any] = {}
    if (whitespace := value.get("whitespace")) is not None:
        found["whitespace"] = Whitespace(_one_of("whitespace", whitespace, _SPACES))
    if (lenient := value.get("lenient")) is not None:
        if not isinstance(lenient, bool):
            raise WrongPart("must have true or false for `lenient`", lenient)
        found["lenient"] = lenient
    if (on_budget := value.get("on_budget")) is not None:
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
    types, shown, _ = _VALUES[word]
    if type(inner) not in types:
        raise WrongPart(f"of type `{word}` must have {shown} for its `value`", inner)
    if word == _WRAPPED:
        inner = inner.get("schema")
        if not isinstance(inner, dict):
            raise ValueError(f"of type `{_WRAPPED}` must have a `value` with a `schema`, an object")
    return RawGrammar(GRAMMAR_TYPES[word], inner, **_options(value))


_OPTIONS_SCHEMA = {
    "whitespace": {"enum": [*_SPACES, None]},
    "lenient": {"type": ["boolean", "null"]},
    "on_budget": {"enum": [*CUTS, None]},
}
_GRAMMAR_SCHEMA = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"type": {"const": word}, "value": schema, **_OPTIONS_SCHEMA},
            "required": ["type", "value"],
        }
        for word, (_, _, schema) in _VALUES.items()
    ]
}

Grammar = Annotated[RawGrammar, PlainValidator(_grammar), WithJsonSchema(_GRAMMAR_SCHEMA)]
