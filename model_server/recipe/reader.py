"""Reads the recipe of a narrow model: by what one recorded pass computes, not by names.

Who reads whose output, by exact equality, gives the structure: where norms stand, what is added to
what. What a piece computes is found by a few hypotheses on its own input and output, so that
hypotheses add instead of multiplying. No family is known here.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from model_server.recipe.heads import Heads, is_linear, whole
from model_server.recipe.mlps import read_mlp
from model_server.recipe.norms import Norms
from model_server.recipe.recipe import Attention, Layer, Linear, Norm, Recipe, Unreadable
from model_server.recipe.recording import (
    NUM_TOKENS,
    Attended,
    Call,
    Recording,
    close,
    record,
    rows,
    same,
)
from model_server.recipe.scalars import named, scalars

_LOGIT_TOLERANCE = 3e-6  # two scalars may be near each other


@torch.inference_mode()
def read(model: Any) -> Recipe:
    """The recipe of a model of `small.small_model`, with the model's own numbers.

    Raises Unreadable.
    """
    text = model.config.get_text_config()
    generator = torch.Generator().manual_seed(1)
    token_ids = torch.randint(0, text.vocab_size, (NUM_TOKENS,), generator=generator)
    try:
        recording = record(model, token_ids)
    except Unreadable:
        raise
    # The classes of other people fail in every way there is.
    except Exception as error:
        raise Unreadable(
            f"a narrow model of it does not run: {type(error).__name__}: {error}"
        ) from error
    return _Reader(model, token_ids, recording).recipe()


class _Reader:
    def __init__(self, model: Any, token_ids: Tensor, recording: Recording) -> None:
        self._model = model
        self._config = model.config.get_text_config()
        self._token_ids = token_ids
        self._calls = recording.calls
        self._attended = recording.attended
        self._logits = recording.logits
        self._norms = Norms(self._config)
        self._heads = Heads(recording.calls, self._norms)
        self._names = {module: name for name, module in model.named_modules()}

    def recipe(self) -> Recipe:
        blocks = [self._block(self._attended[index]) for index in range(len(self._attended))]
        embedding, embed_scale = self._embedding(rows(blocks[0].source))
        layers = []
        for index, block in enumerate(blocks):
            try:
                layers.append(self._layer(self._attended[index], block))
            except Unreadable as error:
                raise Unreadable(f"layer {index}: {error}") from error
        for before, after in pairwise(blocks):
            if not same(_first(before.output), after.source):
                raise Unreadable(f"something happens between {before.name} and {after.name}")
        last = rows(_first(blocks[-1].output))
        final = self._norms.reading(last, self._calls)
        head_call = [call for call in self._calls if is_linear(call)][-1]
        if not same(head_call.source, last if final is None else final.output):
            raise Unreadable("its head reads something else than the last layer's output")
        logit_scale, softcap = self._logit_scale(rows(head_call.output))
        return Recipe(
            embedding=embedding,
            embed_scale=embed_scale,
            layers=tuple(layers),
            final_norm=self._norm(final),
            head=self._tied(whole(head_call), head_call, embedding),
            logit_scale=logit_scale,
            softcap=softcap,
            rotary=self._heads.rotary,
        )

    def _block(self, attended: Attended) -> Call:
        """The call of the decoder layer around an attention."""
        name = self._names[attended.module]
        while name:
            call = next((call for call in self._calls if call.name == name), None)
            if call is not None and name.rpartition(".")[2].isdigit():
                return call
            name = name.rpartition(".")[0]
        raise Unreadable("its layers are no modules of their own")

    def _embedding(self, first: Tensor) -> tuple[str, float]:
        weight = self._model.get_input_embeddings().weight
        name = next(name for name, p in self._model.named_parameters() if p is weight)
        embedded = F.embedding(self._token_ids, weight)
        if embedded.shape != first.shape:
            raise Unreadable("its embeddings have another width than its layers")
        scale = _ratio(first, embedded)
        if not close(embedded * scale, first):
            raise Unreadable(
                "more than a scale lies between embeddings and first layer, such as learned"
                " positions or a norm"
            )
        return name, named(scale, self._config, "the scale of its embeddings")

    def _tied(self, head: Linear, call: Call, embedding: str) -> Linear:
        is_tied = call.module.weight is self._model.get_input_embeddings().weight
        return Linear(embedding, head.bias, head.transposed, head.rows) if is_tied else head

    def _layer(self, attended: Attended, block: Call) -> Layer:
        inside = [call for call in self._calls if call.name.startswith(block.name + ".")]
        x, out = rows(block.source), rows(_first(block.output))
        before_attention, attention, a = self._attention(attended, x, inside)
        post = self._norms.reading(a, inside)
        a = a if post is None else rows(post.output)
        used = {attention.query.linear, attention.key.linear, attention.value, attention.output}
        used_names = {linear.weight for linear in used}
        rest = [c for c in inside if is_linear(c) and f"{c.name}.weight" not in used_names]
        found = read_mlp(self._model, rest, inside)
        mlp_post = self._norms.reading(found.output, inside)
        m = found.output if mlp_post is None else rows(mlp_post.output)
        before_mlp = self._norms.writing(found.source, inside)
        y = found.source if before_mlp is None else rows(before_mlp.source)
        parallel = same(y, x)
        scale = _ratio(out - x, a + m) if parallel else _ratio(y - x, a)
        scale = named(scale, self._config, "the scale of its residuals")
        middle = x + scale * a
        if not (close(x if parallel else middle, y) and close(middle + scale * m, out)):
            raise Unreadable("its sums are not those of a residual stream")
        return Layer(
            attention_norm=self._norm(before_attention),
            attention=attention,
            attention_post_norm=self._norm(post),
            mlp_norm=self._norm(before_mlp),
            mlp=found.mlp,
            mlp_post_norm=self._norm(mlp_post),
            parallel=parallel,
            residual_scale=scale,
        )

    def _attention(
        self, attended: Attended, x: Tensor, inside: Sequence[Call]
    ) -> tuple[Call | None, Attention, Tensor]:
        """The norm before it, attention itself, and what it gives."""
        linears = [call for call in inside if is_linear(call)]
        value_call, value = self._heads.value(attended, linears)
        norm = None
        if not same(value_call.source, x):
            norm = self._norms.writing(rows(value_call.source), inside)
            if norm is None or not same(norm.source, x):
                raise Unreadable("attention reads something else than its layer's input")
        outputs = [call for call in linears if same(call.source, attended.answer)]
        if len(outputs) != 1:
            raise Unreadable("no one linear layer reads what attention gives")
        head_dim = attended.head_dim
        attention = Attention(
            query=self._heads.head(attended.query, head_dim, linears, inside),
            key=self._heads.head(attended.key, head_dim, linears, inside),
            value=value,
            output=whole(outputs[0]),
            num_heads=attended.num_heads,
            num_kv_heads=attended.num_kv_heads,
            head_dim=head_dim,
            scale=attended.scale,
            window_len=attended.window_len,
            chunk_len=attended.chunk_len,
            softcap=attended.softcap,
            sinks=None if attended.sinks is None else self._parameter(attended.sinks),
        )
        return norm, attention, rows(outputs[0].output)

    def _norm(self, call: Call | None) -> Norm | None:
        return None if call is None else self._norms.of(call)

    def _parameter(self, tensor: Tensor) -> str:
        for name, parameter in self._model.named_parameters():
            if parameter.shape == tensor.shape and torch.equal(parameter, tensor):
                return name
        raise Unreadable("its attention sinks are no parameter")

    def _logit_scale(self, raw: Tensor) -> tuple[float, float | None]:
        numbers = sorted({1.0, *scalars(self._config).values()}, key=lambda each: each != 1)
        for softcap in (None, *numbers):
            for scale in numbers:
                tried = raw * scale
                if softcap is not None:
                    tried = torch.tanh(tried / softcap) * softcap
                if close(tried, self._logits, _LOGIT_TOLERANCE):
                    return scale, softcap
        raise Unreadable("what happens to its logits is not known")


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) else output


def _ratio(whole_tensor: Tensor, part: Tensor) -> float:
    return float((whole_tensor * part).sum() / part.square().sum())
