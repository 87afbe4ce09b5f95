"""A decoder's weights for the native forward: read from its parameters once, and kept packed.

What a recipe leaves open is settled here, by the order of columns: interleaved ropes become halves
of a head, paired gates panels of 16 and 16, merged and transposed layers rows like all others.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model_server.executor import structs
from model_server.executor.head_rows import rows_of_heads
from model_server.executor.packing import Arena, Columns, Packer, interleave
from model_server.recipe.recipe import Attention, Head, Layer, Linear, Mlp, Moe, Norm, Recipe

_UNLIMITED = 1 << 62
ELEMENT_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16"}


class PackedWeights:
    """Owner of the packed weights; `model` is what the library reads.

    parameters: by the names in the recipe; any float dtype
    tables:     cos and sin [num_positions, n / 2] float32 of each entry of `recipe.rotary`
    dtype:      of keys, values and, unless `quantize` says "int8", weights: float32 or bfloat16;
                in float32, those that come as bfloat16 stay so, for the same results
    release:    called with a parameter's name once it is not needed any more
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        recipe: Recipe,
        parameters: Mapping[str, Tensor],
        tables: Sequence[tuple[Tensor, Tensor]],
        *,
        dtype: torch.dtype,
        num_threads: int,
        quantize: str | None = None,
        release: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Raises MemoryError."""
        self.arena = Arena()
        self._recipe = recipe
        self._parameters = parameters
        self._tables = [tuple(_array(part) for part in pair) for pair in tables]
        self._dtype = dtype
        self._quantize = quantize
        self._packer = Packer(library, self.arena, num_threads)
        self._keep: list[object] = []  # what pointers lead to, beside the arena
        self.layers = (structs.LayerStruct * len(recipe.layers))()

        last_use = recipe.last_uses()
        for index, layer in enumerate(recipe.layers):
            self.layers[index] = self._layer(layer)
            _release(release, last_use, index)
        self.model = self._model()
        _release(release, last_use, len(recipe.layers))
        del self._parameters

    def _model(self) -> structs.ModelStruct:
        recipe, embedding = self._recipe, self._parameters[self._recipe.embedding]
        hidden = embedding.shape[1]
        ropes = (structs.RopeStruct * max(1, len(self._tables)))(
            *(
                structs.RopeStruct(self.arena.put(cos), self.arena.put(sin), cos.shape[1])
                for cos, sin in self._tables
            )
        )
        self._keep.append(ropes)
        return structs.ModelStruct(
            element=structs.FORMATS[ELEMENT_NAMES[self._dtype]],
            embedding_element=structs.FORMATS[ELEMENT_NAMES[self._kept_dtype(embedding)]],
            num_layers=len(self.layers),
            hidden=hidden,
            vocab=recipe.head.rows.count,
            num_positions=min((len(cos) for cos, _ in self._tables), default=_UNLIMITED),
            layers=self.layers,
            ropes=ropes,
            embedding=None if self._is_tied() else self._rows(embedding),
            embed_scale=recipe.embed_scale,
            logit_scale=recipe.logit_scale,
            softcap=recipe.softcap or 0.0,
            final_norm=self._norm(recipe.final_norm, hidden),
            head=self._matrix(recipe.head),
        )

    def _is_tied(self) -> bool:
        """Whether the head's panels can serve as the embedding."""
        head, embedding = self._recipe.head, self._parameters[self._recipe.embedding]
        is_same = self._parameters[head.weight].data_ptr() == embedding.data_ptr()
        is_whole = head.rows.start == 0 and head.rows.count == embedding.shape[0]
        return is_same and is_whole and self._quantize is None

    def _kept_dtype(self, tensor: Tensor) -> torch.dtype:
        """In which a weight is kept: bfloat16 is not widened."""
        return torch.bfloat16 if tensor.dtype == torch.bfloat16 else self._dtype

    def _packed(self, columns: Columns) -> structs.MatrixStruct:
        format_name = self._quantize or ELEMENT_NAMES[self._dtype]
        if format_name == "f32" and columns.element == structs.FORMATS["bf16"]:
            format_name = "wide"
        return self._packer.matrix(columns, format_name)

    def _layer(self, layer: Layer) -> structs.LayerStruct:
        attention, hidden = layer.attention, layer.attention.output.rows.count
        query, key = attention.query, attention.key
        struct = structs.LayerStruct(
            attention_norm=self._norm(layer.attention_norm, hidden),
            query_norm=self._head_norm(attention, query, attention.num_heads),
            key_norm=self._head_norm(attention, key, attention.num_kv_heads),
            attention_post_norm=self._norm(layer.attention_post_norm, hidden),
            mlp_norm=self._norm(layer.mlp_norm, hidden),
            mlp_post_norm=self._norm(layer.mlp_post_norm, hidden),
            qkv=self._packed(self._qkv(attention)),
            output=self._matrix(attention.output),
            num_heads=attention.num_heads,
            num_kv_heads=attention.num_kv_heads,
            head_dim=attention.head_dim,
            window_len=attention.window_len or 0,
            chunk_len=attention.chunk_len or 0,
            rope=0 if query.rope is None else 1 + query.rope.source,
            norm_after_rope=query.norm_after_rope,
            is_parallel=layer.parallel,
            scale=attention.scale,
            softcap=attention.softcap or 0.0,
            residual_scale=layer.residual_scale,
            sinks=attention.sinks and self.arena.put(_array(self._parameters[attention.sinks])),
        )
        if isinstance(layer.mlp, Mlp):
            struct.mlp = self._mlp(layer.mlp)
        else:
            struct.experts = self._experts(layer.mlp)
        return struct

    def _qkv(self, attention: Attention) -> Columns:
        return Columns.concatenate(
            [
                self._columns(attention.query.linear).take(
                    self._head_order(attention, attention.query, attention.num_heads)
                ),
                self._columns(attention.key.linear).take(
                    self._head_order(attention, attention.key, attention.num_kv_heads)
                ),
                self._columns(attention.value),
            ]
        )

    def _head_order(
        self, attention: Attention, head: Head, num_heads: int
    ) -> npt.NDArray[np.int64]:
        angles_len = 0 if head.rope is None else self._tables[head.rope.source][0].shape[1]
        return rows_of_heads(head, range(num_heads), attention.head_dim, angles_len)

    def _mlp(self, mlp: Mlp) -> structs.MlpStruct:
        ins = Columns.concatenate([self._columns(linear) for linear in mlp.ins])
        return self._two_layers(ins, self._columns(mlp.out), mlp.layout, mlp.activation)

    def _two_layers(
        self, ins: Columns, out: Columns, layout: str, activation: str
    ) -> structs.MlpStruct:
        return structs.MlpStruct(
            ins=self._packed(_in_panels(ins, layout)),
            out=self._packed(out),
            inner=out.k,
            activation=structs.ACTIVATIONS[activation],
            is_gated=layout != "plain",
        )

    def _experts(self, moe: Moe) -> "ctypes._Pointer[structs.ExpertsStruct]":
        ins, outs = (
            (structs.MatrixStruct * moe.num_experts)(),
            (structs.MatrixStruct * moe.num_experts)(),
        )
        for index in range(moe.num_experts):
            columns = self._expert(moe, moe.gate_up, moe.gate_up_bias, index)
            ins[index] = self._packed(_in_panels(columns, moe.layout))
            columns = self._expert(moe, moe.down, moe.down_bias, index)
            outs[index] = self._packed(columns)
        # Scores decide between experts: they are computed in float32.
        scores = [self._columns(each) for each in (moe.router, moe.shared_gate) if each is not None]
        experts = structs.ExpertsStruct(
            num_experts=moe.num_experts,
            top_k=moe.top_k,
            is_normed=moe.scoring == "softmax_normed",
            has_shared=moe.shared is not None,
            has_shared_gate=moe.shared_gate is not None,
            router=self._packer.matrix(Columns.concatenate(scores), "f32"),
            ins=ins,
            outs=outs,
            each=structs.MlpStruct(
                inner=outs[0].k, activation=structs.ACTIVATIONS[moe.activation], is_gated=True
            ),
        )
        if moe.shared is not None:
            experts.shared = self._mlp(moe.shared)
        self._keep += (ins, outs, experts)
        return ctypes.pointer(experts)

    def _expert(self, moe: Moe, name: str, bias_name: str | None, index: int) -> Columns:
        weight = self._parameters[name][index]
        bias = None if bias_name is None else self._parameters[bias_name][index]
        return Columns.of(weight.T if moe.transposed else weight, bias)

    def _matrix(self, linear: Linear) -> structs.MatrixStruct:
        return self._packed(self._columns(linear))

    def _columns(self, linear: Linear) -> Columns:
        weight = self._parameters[linear.weight]
        bias = None if linear.bias is None else self._parameters[linear.bias]
        columns = Columns.of(weight.T if linear.transposed else weight, bias)
        return columns.take(np.array(linear.rows.indices()))

    def _rows(self, tensor: Tensor) -> int:
        """The address of an embedding's rows, which stay where they are if they can."""
        tensor = tensor.detach().to(self._kept_dtype(tensor)).contiguous()
        self._keep.append(tensor)
        return tensor.data_ptr()

    def _head_norm(self, attention: Attention, head: Head, num_heads: int) -> structs.NormStruct:
        order = self._head_order(attention, head, num_heads)
        return self._norm(head.norm, len(order), order)

    def _norm(
        self, norm: Norm | None, row_len: int, order: npt.NDArray[np.int64] | None = None
    ) -> structs.NormStruct:
        if norm is None:
            return structs.NormStruct()
        weights = self._row(norm.weights, row_len, default=1.0 - norm.plus_one) + norm.plus_one
        biases = self._row(norm.biases, row_len, default=0.0)
        if order is not None:
            weights, biases = weights[order], biases[order]
        return structs.NormStruct(
            kind=structs.NORM_KINDS[norm.kind],
            width=norm.width,
            eps=norm.eps,
            weights=self.arena.put(weights),
            biases=self.arena.put(biases) if norm.biases else None,
        )

    def _row(self, names: Sequence[str], row_len: int, default: float) -> npt.NDArray[np.float32]:
        """Concatenated parameters, repeated to the length of a row."""
        if not names:
            return np.full(row_len, default, np.float32)
        values = np.concatenate([_array(self._parameters[name]).ravel() for name in names])
        return np.tile(values, row_len // len(values))


def _in_panels(ins: Columns, layout: str) -> Columns:
    if layout == "plain":
        return ins
    order = np.arange(len(ins))
    if layout == "gate_up_pairs":
        return interleave(ins.take(order[::2]), ins.take(order[1::2]))
    return interleave(ins.take(order[: len(ins) // 2]), ins.take(order[len(ins) // 2 :]))


def _array(tensor: Tensor) -> npt.NDArray[np.float32]:
    return tensor.detach().float().contiguous().numpy()


def _release(release: Callable[[str], None], last_use: Mapping[str, int], index: int) -> None:
    for name, last in last_use.items():
        if last == index:
            release(name)
