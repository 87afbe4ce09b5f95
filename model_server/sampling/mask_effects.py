"""What a token mask did to a row: reported to who asked for the model's own log-probabilities."""

from collections.abc import Mapping

import numpy as np

from model_server.sampling.logits_processors import BITS_PER_WORD, Masks
from model_server.sampling.plan import SamplingPlan
from proto.contract import MaskEffect, TopToken


def mask_effects(
    plan: SamplingPlan, masks: Masks, tops: Mapping[int, tuple[TopToken, ...]]
) -> dict[int, MaskEffect]:
    """By row of the step: of those with a mask that report the model's own log-probabilities.

    tops: the most probable tokens by row, the first one first
    """
    if plan.raw is None:
        return {}
    raw = frozenset(plan.raw.places.tolist())
    effects = {}
    for index, row in enumerate(masks.places.tolist()):
        if row in raw and tops.get(row):
            words = masks.words[index].numpy().view(np.uint32)
            effects[row] = _effect(words, tops[row][0].token_id)
    return effects


def _effect(words: np.ndarray[tuple[int], np.dtype[np.uint32]], favourite: int) -> MaskEffect:
    if int(np.bitwise_count(words).sum()) == 1:
        return MaskEffect.FORCED
    word, bit = divmod(favourite, BITS_PER_WORD)
    return MaskEffect.FREE if int(words[word]) >> bit & 1 else MaskEffect.STEERED
