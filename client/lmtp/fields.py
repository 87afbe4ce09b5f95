"""Fields that several types of frames have: values to JSON's types, and back."""

import math
import sys
from collections.abc import Mapping
from typing import Any, TypeVar

from client.words import Constraint, Message, Prompt, Sampling, Usage

T = TypeVar("T")

# How the server writes the logarithm of nothing, for readers that know no infinity.
_LEAST = -sys.float_info.max


def prompt_fields(prompt: Prompt) -> dict[str, object]:
    """Text, turns or token ids."""
    if isinstance(prompt, str):
        return {"text": prompt}
    turns = [part for part in prompt if isinstance(part, Message)]
    if turns:
        return {"messages": [{"role": turn.role, "content": turn.content} for turn in turns]}
    return {"prompt": list(prompt)}


def penalty_fields(sampling: Sampling) -> dict[str, object]:
    """What changes the distribution that tokens are taken from."""
    return {
        "repetition_penalty": sampling.repetition_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias.items()} or None,
    }


def constraint_field(constraint: Constraint | None) -> dict[str, object] | None:
    """As TGI's `grammar`."""
    return None if constraint is None else {"type": constraint.type, "value": constraint.value}


def given(fields: Mapping[str, object]) -> dict[str, object]:
    """Without what is None: the server has its own neutral values."""
    return {name: value for name, value in fields.items() if value is not None}


def typed(fields: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """A field that must be there, and of this type. Raises KeyError, TypeError."""
    value = fields[name]
    if not isinstance(value, kind):
        raise TypeError(f"{name} {value!r}")
    return value


def logprob_of(value: float) -> float:
    """A log-probability; what cannot come has minus infinity."""
    return -math.inf if value <= _LEAST else float(value)


def usage_of(fields: Mapping[str, Any]) -> Usage:
    """Tokens of one request."""
    return Usage(
        num_prompt_tokens=typed(fields, "prompt_tokens", int),
        num_cached_tokens=fields.get("cached_tokens") or 0,
        num_output_tokens=fields.get("output_tokens") or 0,
    )
