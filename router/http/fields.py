"""Fields of bodies that take more than one type, and what they become.

Hand-written checks, since a union's errors name every member but not the rule, and a list of half a
million token ids would be tried against each.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from router.request.error_text import WrongPart

Prompt = str | tuple[int, ...]

# Far beyond what any server takes at once; it bounds the time that looking at them takes.
_MAX_PROMPTS = 4096


def _strings(value: Any) -> tuple[str, ...]:
    """One string or several."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    given = value
    if isinstance(value, list):
        given = next(item for item in value if not isinstance(item, str))
    raise WrongPart("must be a string or a list of strings", given)


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
    """What is no prompt, or of another kind than the first; else all of it."""
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
    """Token ids, which JSON spells as strings, with what to add to their logits."""
    if not isinstance(value, dict):
        raise ValueError("must be an object of token ids with numbers")
    biases: dict[int, float] = {}
    for key, bias in value.items():
        if not (key.isascii() and key.isdigit() and len(key) < 12):
            raise WrongPart("must be an object whose keys are token ids", key)
        if type(bias) not in (int, float):
            raise WrongPart(f"must be an object of token ids with numbers, as `{key}`", bias)
        biases[int(key)] = float(bias)
    return MappingProxyType(biases)


_STRING_SCHEMA = {"type": "string"}
_STRINGS_SCHEMA = {"anyOf": [_STRING_SCHEMA, {"type": "array", "items": _STRING_SCHEMA}]}
_IDS_SCHEMA = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_PROMPT_SCHEMA = {
    "anyOf": [
        _STRING_SCHEMA,
        _IDS_SCHEMA,
        {"type": "array", "items": _STRING_SCHEMA, "minItems": 1},
        {"type": "array", "items": _IDS_SCHEMA, "minItems": 1},
    ]
}
_BIAS_SCHEMA = {"type": "object", "additionalProperties": {"type": "number"}}
Strings = Annotated[tuple[str, ...], PlainValidator(_strings), WithJsonSchema(_STRINGS_SCHEMA)]
Prompts = Annotated[tuple[Prompt, ...], PlainValidator(_prompts), WithJsonSchema(_PROMPT_SCHEMA)]
LogitBias = Annotated[
    Mapping[int, float], PlainValidator(_logit_bias), WithJsonSchema(_BIAS_SCHEMA)
]
