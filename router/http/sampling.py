"""Sampling parameters of request bodies: the fields that the APIs share, and OpenAI's defaults.

A parameter that is a field of `SamplingFields` reaches `RawParams` from every API whose body
inherits it. Clients of OpenAI, vLLM and Anthropic sample unless the temperature is 0, and have
values for what is our absence.
"""

from dataclasses import replace
from typing import Any

from pydantic import Field

from router.http.body import Schema
from router.http.fields import LogitBias
from router.request.parameters import WARPERS, check_parameters
from router.request.request import NUM_SEEDS
from router.request.validation import Limits, RawParams

# OpenAI's seeds have a sign.
_MIN_SEED = -(NUM_SEEDS // 2)
# Keeps the most probable token alone, which is what 0 says.
_SMALLEST_TOP_P = 1e-6


def bounded(**bounds: float) -> Any:
    """An optional number whose bounds the OpenAPI document shows; `parameters.py` checks them."""
    return Field(default=None, json_schema_extra=dict(bounds))


class SamplingFields(Schema):
    """Sampling parameters whose names TGI, OpenAI, vLLM and LMTP share.

    An API that documents other bounds, or reads another type, declares the field again.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = bounded(minimum=0, maximum=1)
    repetition_penalty: float | None = bounded(exclusiveMinimum=0)
    presence_penalty: float | None = bounded(minimum=-2, maximum=2)
    frequency_penalty: float | None = bounded(minimum=-2, maximum=2)
    seed: int | None = None
    logit_bias: LogitBias | None = None

    def sampling(self) -> dict[str, Any]:
        """The arguments of RawParams with these names."""
        return {name: getattr(self, name) for name in SamplingFields.model_fields}


def normalize(raw: RawParams, limits: Limits) -> RawParams:
    """`raw` with temperature, top_p, top_k and seed as given, as they are meant.

    Raises InvalidRequest for what breaks a rule though it means nothing.
    """
    _check_ranges(raw)
    is_greedy = raw.temperature == 0
    meant = replace(
        raw,
        do_sample=not is_greedy,
        temperature=None if is_greedy else raw.temperature,
        top_p=_SMALLEST_TOP_P if raw.top_p == 0 else None if raw.top_p == 1 else raw.top_p,
        top_k=None if raw.top_k in (0, -1) else raw.top_k,
        seed=_unsigned(raw),
    )
    if not is_greedy:
        return meant
    # With temperature 0 the other ways to narrow the choice mean nothing, but must be in order.
    check_parameters(meant, limits)
    unset: dict[str, Any] = dict.fromkeys(WARPERS)
    return replace(meant, **unset)


def _check_ranges(raw: RawParams) -> None:
    """Those that are wider here than the engine's, which has no value for what is neutral."""
    for word, rule, is_inside in (
        ("temperature", "at least 0", (raw.temperature or 0) >= 0),
        ("top_p", "between 0 and 1", 0 <= (raw.top_p or 0) <= 1),
        ("top_k", "at least -1 (all, as is 0)", (raw.top_k or 0) >= -1),
    ):
        if not is_inside:
            raise raw.refuse(word, rule, getattr(raw, word))


def _unsigned(raw: RawParams) -> int | None:
    """A negative seed is one of the upper half of the engine's."""
    if raw.seed is None or raw.seed >= 0:
        return raw.seed
    if raw.seed < _MIN_SEED:
        raise raw.refuse("seed", f"between {_MIN_SEED} and {NUM_SEEDS - 1}", raw.seed)
    return raw.seed % NUM_SEEDS
