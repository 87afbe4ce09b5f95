"""Sampling as OpenAI's, vLLM's and Anthropic's clients spell it, in the words of `RawParams`.

They sample unless the temperature is 0, and have values for what is our absence.
"""

from dataclasses import replace

from router.request.parameters import check_parameters
from router.request.request import NUM_SEEDS
from router.request.validation import Limits, RawParams

# OpenAI's seeds have a sign.
_MIN_SEED = -(NUM_SEEDS // 2)
# Keeps the most probable token alone, which is what 0 says.
_SMALLEST_TOP_P = 1e-6


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
    return replace(meant, top_p=None, top_k=None, min_p=None)


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
