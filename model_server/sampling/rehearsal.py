"""A step of the sampler before the first real one, since a first launch compiles its kernel.

One row in three is greedy, one is drawn from all tokens and one from filtered ones; all of them
have a mask, a bias and penalties, and none of them remains.
"""

from dataclasses import replace
from itertools import cycle

import numpy as np
import torch

from model_server.sampling.logits_processors import BITS_PER_WORD, Masks
from model_server.sampling.sampler import Sampler
from proto.contract import LogprobParams, SamplingParams, StopParams

_EDITED = SamplingParams(
    logit_bias={0: 1.0}, repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1
)
_KINDS = (
    _EDITED,
    replace(_EDITED, do_sample=True),
    replace(_EDITED, do_sample=True, top_k=8, top_p=0.9),
)


def rehearse(sampler: Sampler, vocab_size: int, device: torch.device, num_rows: int) -> None:
    """Sample for at least `num_rows` requests of ids below 0, and remove them."""
    num_rows = max(num_rows, len(_KINDS))
    request_ids = range(-num_rows, 0)
    for request_id, sampling in zip(request_ids, cycle(_KINDS)):
        sampler.add(request_id, sampling, StopParams(max_new_tokens=1), LogprobParams(), (0,), 1)
    words = torch.full((num_rows, -(-vocab_size // BITS_PER_WORD)), -1, dtype=torch.int32)
    logits = torch.zeros(num_rows, vocab_size, device=device)
    sampler.sample(request_ids, logits, Masks(np.arange(num_rows), words))
    for request_id in request_ids:
        sampler.remove(request_id)
