"""Largest, first and sorted elements along the last axis, without sorting whole vocabularies.

It knows scores alone, not what they mean. On a CPU the sorts are numpy's, which are vectorised:
32 rows of 32 000 floats sort in 2 ms instead of torch's 60, and a partition costs the same for any
number of elements. Scores come in rows whose width is a multiple of `CHUNK_LEN`.
"""

import numpy as np
import torch
from torch import Tensor

# Tokens in a chunk: the unit in which wide rows are first reduced, then looked into.
CHUNK_LEN = 64

# Up to here torch.topk, which uses all threads, beats numpy's partition, which uses one.
_MAX_TOPK = 64


def in_chunks(rows: Tensor) -> Tensor:
    """[n, width] -> [n, width / CHUNK_LEN, CHUNK_LEN], a view."""
    return rows.view(rows.shape[0], -1, CHUNK_LEN)


def chunk_at(chunks: Tensor, indices: Tensor) -> Tensor:
    """The chunks of each row that `indices` [n, k] name: [n, k, CHUNK_LEN]."""
    return chunks.gather(1, indices.unsqueeze(-1).expand(-1, -1, CHUNK_LEN))


def first_argmax(scores: Tensor) -> Tensor:
    """The first index of each row's maximum, as torch.argmax does, in a quarter of the time: [n].

    The first chunk whose maximum is the row's holds the first such element.
    """
    chunks = in_chunks(scores)
    chunk = chunks.amax(-1).argmax(-1, keepdim=True)  # [n, 1]
    within = chunk_at(chunks, chunk).squeeze(1).argmax(-1)
    return chunk.squeeze(1) * CHUNK_LEN + within


def largest(scores: Tensor, count: int) -> Tensor:
    """Indices of `count` largest elements of each row, in rising order: [n, count].

    Of equal elements at the boundary any may be taken. NaN counts as largest.
    """
    if scores.device.type == "cpu" and count > _MAX_TOPK:
        boundary = scores.shape[-1] - count
        return torch.from_numpy(
            np.sort(np.argpartition(scores.numpy(), boundary, axis=-1)[:, boundary:], axis=-1)
        )
    return scores.topk(count, sorted=False).indices.sort(-1).values


def descending(values: Tensor) -> Tensor:
    """Each row's values sorted, largest (NaN before all) first."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=-1)).flip(-1)
    return values.sort(dim=-1, descending=True).values


def ascending_order(values: Tensor) -> Tensor:
    """Indices that sort each row, smallest first; equal values in any order."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.argsort(values.numpy(), axis=-1))
    return values.argsort(dim=-1)


def _ordered_keys(scores: Tensor) -> Tensor:
    """Distinct int64 keys that order [n, k] by score, then by the earlier place in the row.

    Read as integers, floats of one sign are ordered as their values are; flipping the lower bits of
    the negative ones turns their order round. Adding zero makes -0.0 and 0.0 equal.
    """
    bits = (scores + 0.0).view(torch.int32)
    monotone = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    places = torch.arange(scores.shape[-1], 0, -1, device=scores.device)
    return (monotone.to(torch.int64) << 32) + places


def top_ids(scores: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest of each row, by score, then by index: [n, count].

    Chunks are ranked by their maximum, equal ones by place, so that the `count` best elements lie
    in the `count` best chunks; only those are looked into.
    """
    chunks = in_chunks(scores)
    num_chunks = min(count, chunks.shape[1])
    best = _ordered_keys(chunks.amax(-1)).topk(num_chunks).indices.sort(-1).values
    candidates = chunk_at(chunks, best).flatten(1)
    places = _ordered_keys(candidates).topk(count).indices
    return best.gather(1, places // CHUNK_LEN) * CHUNK_LEN + places % CHUNK_LEN
