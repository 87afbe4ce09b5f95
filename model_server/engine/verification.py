"""Samples behind draft tokens, as long as these are what is sampled in their places.

    chunk:    | last token | draft 1 | draft 2 | draft 3 |
    sampled:     = draft 1   = draft 2   another            three tokens, two drafts accepted

Each position is sampled with the sampler's own state after the tokens before it, so penalties,
least lengths and the draws of a seed are those of a step for each token.
"""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from model_server.sampling.sampler import Sampler
from proto.contract import SampledToken


def sample_behind_drafts(
    sampler: Sampler,
    drafts: Mapping[int, Sequence[int]],
    first_token_ids: Mapping[int, int],
    rows_of: Callable[[Sequence[int], int], Tensor],
) -> dict[int, tuple[SampledToken, ...]]:
    """By request, the tokens behind its accepted drafts: one for each of these.

    drafts, first_token_ids: of each request with drafts, and what it sampled before them
    rows_of: the logits behind the drafts of that number of these requests, from 1 on

    A request that fails there has sampled nothing: its draft is not accepted, and a later step that
    computes the token again says why.
    """
    behind: dict[int, tuple[SampledToken, ...]] = {}
    place = 0
    sampled: Mapping[int, int] = first_token_ids
    while True:
        going_on = [
            request_id
            for request_id, token_id in sampled.items()
            if place < len(drafts[request_id]) and drafts[request_id][place] == token_id
        ]
        if not going_on:
            return behind
        place += 1
        rows = sampler.sample(going_on, rows_of(going_on, place))
        sampled = {
            request_id: rows.token_ids[row]
            for row, request_id in enumerate(going_on)
            if row not in rows.errors
        }
        for row, request_id in enumerate(going_on):
            if row not in rows.errors:
                token = SampledToken(rows.token_ids[row], rows.logprobs[row], rows.top_tokens[row])
                behind[request_id] = (*behind.get(request_id, ()), token)
