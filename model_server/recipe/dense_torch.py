"""The oracle: a recipe in plain torch, on whole sequences. Short rather than fast.

It runs small models of the reader's and real checkpoints alike: weights may be stored in bfloat16
while it computes in float32, and no more than a piece of one is converted at a time.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from model_server.recipe.pieces import feed_forward, multiply, normalise, rotate
from model_server.recipe.recipe import Attention, Head, Layer, Norm, Recipe
from model_server.recipe.rotary import Angles


class DenseTorch:
    """Computes logits in `dtype`. `weights` are the parameters that the recipe names."""

    def __init__(
        self,
        recipe: Recipe,
        weights: Mapping[str, Tensor],
        rotary: Sequence[Angles],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._recipe = recipe
        self._weights = weights
        self._rotary = rotary
        self._dtype = dtype

    @torch.inference_mode()
    def logits(self, token_ids: Tensor, lens: Sequence[int]) -> Tensor:
        """[num_tokens, vocab_size] of ragged sequences.

        token_ids: [num_tokens] int64, one sequence after the other
        lens:      tokens of each; their sum is num_tokens
        """
        recipe = self._recipe
        positions = torch.cat([torch.arange(each, device=token_ids.device) for each in lens])
        x = F.embedding(token_ids, self._weights[recipe.embedding]).to(self._dtype)
        x = x * recipe.embed_scale
        angles = [each(positions) for each in self._rotary]
        for layer in recipe.layers:
            x = self._layer(layer, x, angles, lens)
        x = self._norm(recipe.final_norm, x)
        logits = multiply(recipe.head, x, self._weights) * recipe.logit_scale
        if recipe.softcap is not None:
            logits = torch.tanh(logits / recipe.softcap) * recipe.softcap
        return logits

    def _layer(
        self,
        layer: Layer,
        x: Tensor,
        angles: Sequence[tuple[Tensor, Tensor]],
        lens: Sequence[int],
    ) -> Tensor:
        a = self._attention(layer.attention, self._norm(layer.attention_norm, x), angles, lens)
        y = x + self._norm(layer.attention_post_norm, a) * layer.residual_scale
        read = self._norm(layer.mlp_norm, x if layer.parallel else y)
        m = feed_forward(layer.mlp, read, self._weights)
        return y + self._norm(layer.mlp_post_norm, m) * layer.residual_scale

    def _attention(
        self,
        attention: Attention,
        x: Tensor,
        angles: Sequence[tuple[Tensor, Tensor]],
        lens: Sequence[int],
    ) -> Tensor:
        q = self._head(attention.query, attention.head_dim, x, angles)
        k = self._head(attention.key, attention.head_dim, x, angles)
        v = multiply(attention.value, x, self._weights).unflatten(-1, (attention.num_kv_heads, -1))
        num_shared = attention.num_heads // attention.num_kv_heads
        k, v = k.repeat_interleave(num_shared, 1), v.repeat_interleave(num_shared, 1)
        answers = [
            self._attend(attention, *(part.transpose(0, 1) for part in sequence))
            for sequence in zip(*(part.split(list(lens)) for part in (q, k, v)), strict=True)
        ]
        return multiply(attention.output, torch.cat(answers), self._weights)

    def _attend(self, attention: Attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """One sequence: q, k, v [num_heads, num_tokens, dim] -> [num_tokens, num_heads * dim]."""
        scores = q @ k.transpose(1, 2) * attention.scale
        if attention.softcap is not None:
            scores = torch.tanh(scores / attention.softcap) * attention.softcap
        scores = scores.masked_fill(_hidden(attention, q.shape[1], q.device), -torch.inf)
        if attention.sinks is not None:
            sinks = self._weights[attention.sinks].to(scores)[:, None, None]
            scores = torch.cat((scores, sinks.expand(-1, q.shape[1], 1)), -1)
        shares = scores.softmax(-1)[..., : q.shape[1]]
        return (shares @ v).transpose(0, 1).flatten(1)

    def _head(
        self, head: Head, head_dim: int, x: Tensor, angles: Sequence[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """[num_tokens, heads, head_dim]"""
        x = multiply(head.linear, x, self._weights)
        if not head.norm_after_rope:
            x = self._norm(head.norm, x)
        x = x.unflatten(-1, (-1, head_dim))
        if head.rope is not None:
            x = rotate(x, *angles[head.rope.source], head.rope.pairing)
        if head.norm_after_rope:
            x = self._norm(head.norm, x.flatten(1)).unflatten(-1, (-1, head_dim))
        return x

    def _norm(self, norm: Norm | None, x: Tensor) -> Tensor:
        return x if norm is None else normalise(norm, x, self._weights)


def _hidden(attention: Attention, num_tokens: int, device: torch.device) -> Tensor:
    """[num_tokens, num_tokens]: where a query (row) does not see a key (column)."""
    keys = torch.arange(num_tokens, device=device)
    queries = keys[:, None]
    hidden = keys > queries
    if attention.window_len is not None:
        hidden |= queries - keys >= attention.window_len
    if attention.chunk_len is not None:
        hidden |= keys < queries // attention.chunk_len * attention.chunk_len
    return hidden
