"""What somebody else makes of our tokens: transformers' own detector of watermarks."""

from collections.abc import Sequence

import torch
from transformers import GPT2Config, WatermarkDetector, WatermarkingConfig
from transformers.generation.watermarking import WatermarkDetectorOutput


def z_score(vocab_size: int, token_ids: Sequence[int], gamma: float, delta: float) -> float:
    """How many standard deviations more green tokens there are than chance brings.

    The detector thinks a text marked from 3 on. A pair of tokens counts once, since one that is
    repeated says nothing new. Of the model it reads the size of the vocabulary, and which token to
    skip at the beginning.
    """
    detector = WatermarkDetector(
        GPT2Config(vocab_size=vocab_size, bos_token_id=0, eos_token_id=0),
        "cpu",
        WatermarkingConfig(greenlist_ratio=gamma, bias=delta),
        ignore_repeated_ngrams=True,
    )
    found = detector(torch.LongTensor([list(token_ids)]), return_dict=True)
    assert isinstance(found, WatermarkDetectorOutput)
    assert found.z_score is not None
    return float(found.z_score[0])
