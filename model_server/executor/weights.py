"""A decoder's weights for the native forward: read from its parameters once, and kept packed.

    structs   of `native/model.h` and the Matrix of `native/gemm.h`, field by field
    columns   the outputs of linear layers, wherever they lie; merged and permuted without a copy
    packer    columns -> panels of 32, in an arena of huge pages
    weights   a recipe and its parameters -> the struct that the library reads

What a recipe leaves open is settled here, by the order of columns: interleaved ropes become halves
of a head, paired gates panels of 16 and 16, merged and transposed layers rows like all others.

In a struct a null pointer or a zero is absence; arrays that it points to belong to whoever filled
it in.
"""

import ctypes
import logging
import mmap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from ctypes import POINTER, Structure, c_double, c_int64, c_void_p
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model_server.executor.device_weights import rows_of_heads
from model_server.executor.grouped import GROUP_LENS, GroupedParameters, GroupedWeight, alike
from model_server.recipe.recipe import (
    Attention,
    Conv,
    Delta,
    Head,
    Layer,
    Linear,
    Mamba2,
    Mixer,
    Mlp,
    Moe,
    Norm,
    Recipe,
    ShortConv,
)

# "wide" is bfloat16 weights for rows of float32, with the results of "f32"; of those from "int4" on
# see `native/groups.h`.
_FORMAT_NAMES = (
    "f32 bf16 int8 wide int4 int5 int6 grouped_int8 int4_wide int5_wide int6_wide grouped_int8_wide"
)


FORMATS = {name: number for number, name in enumerate(_FORMAT_NAMES.split())}


GROUP_STORAGES = {torch.float32: 0, torch.float16: 1, torch.int8: 2}


NORM_KINDS = {"rms": 1, "layer": 2}


ACTIVATIONS = {
    name: number
    for number, name in enumerate(
        ("silu", "gelu", "gelu_tanh", "relu", "relu2", "clamped_swiglu"),
    )
}


COLUMNS = 32  # of a panel


MAX_TAPS = 8  # of a convolution; kMaxTaps of the C++


def _integers(names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, c_int64) for name in names.split())


def _pointers(names: str) -> tuple[tuple[str, type], ...]:
    return tuple((name, c_void_p) for name in names.split())


class GroupValuesStruct(Structure):
    """Scales or minimums of groups: values and factors as in GroupValues."""

    _fields_ = _pointers("values factors")


class MatrixStruct(Structure):
    """A linear layer, packed by 32 columns."""

    _fields_ = (
        *_pointers("packed scales sums bias"),
        *_integers("n k format group_len zero storage"),
        ("group_scales", GroupValuesStruct),
        ("group_minimums", GroupValuesStruct),
    )


class GroupSourcesStruct(Structure):
    """Arrays of addresses: of what each column is packed from."""

    _fields_ = (
        *_pointers("numbers"),
        ("scales", GroupValuesStruct),
        ("minimums", GroupValuesStruct),
    )


class NormStruct(Structure):
    """A norm; its arrays are as long as a row."""

    _fields_ = (*_integers("kind width"), ("eps", c_double), *_pointers("weights biases"))


class RopeStruct(Structure):
    """Cosines and sines of all positions, and of a step's turned tokens."""

    _fields_ = (
        *_pointers("cos sin"),
        *_integers("half"),
        *_pointers("turned_cos turned_sin"),
    )


class MlpStruct(Structure):
    """A feed-forward part, or one expert's shape."""

    _fields_ = (
        ("ins", MatrixStruct),
        ("out", MatrixStruct),
        *_integers("inner activation is_gated"),
    )


class ExpertsStruct(Structure):
    """A mixture of experts."""

    _fields_ = (
        *_integers("num_experts top_k is_sigmoid is_normed has_shared has_shared_gate"),
        *_integers("num_groups top_groups num_best"),
        ("scale", c_double),
        *_pointers("correction"),
        ("router", MatrixStruct),
        ("ins", POINTER(MatrixStruct)),
        ("outs", POINTER(MatrixStruct)),
        ("each", MlpStruct),
        ("shared", MlpStruct),
    )


class RecurrenceStruct(Structure):
    """A gated delta rule or a selective state space; `states` is its part of the pool."""

    _fields_ = (
        *_integers("num_key_heads num_heads key_dim value_dim num_taps is_gate_first"),
        *((name, c_double) for name in ("beta_scale", "min_step", "max_step")),
        ("norm", NormStruct),
        *_pointers("taps conv_bias rates dt_bias skip states"),
    )


class ShortConvStruct(Structure):
    """A short convolution between two gates; `states` is its part of the pool."""

    _fields_ = (*_integers("num_channels num_taps"), *_pointers("taps bias states"))


class LayerStruct(Structure):
    """One decoder layer."""

    _fields_ = (
        *((name, NormStruct) for name in ("attention_norm", "query_norm", "key_norm")),
        *((name, NormStruct) for name in ("attention_post_norm", "mlp_norm", "mlp_post_norm")),
        ("qkv", MatrixStruct * 2),
        ("output", MatrixStruct),
        *_integers("num_heads num_kv_heads head_dim window_len chunk_len"),
        *_integers("rope norm_after_rope is_parallel"),
        *((name, c_double) for name in ("scale", "softcap", "residual_scale")),
        *_pointers("sinks"),
        ("mlp", MlpStruct),
        ("experts", POINTER(ExpertsStruct)),
        *_pointers("keys values"),
        ("recurrence", POINTER(RecurrenceStruct)),
        ("conv", POINTER(ShortConvStruct)),
        *_integers("is_gated"),
    )


class AdaptersStruct(Structure):
    """Low-rank adapters of all layers' products."""

    _fields_ = (*_integers("num_places width"), *_pointers("matrices"))


class ModelStruct(Structure):
    """A whole decoder."""

    _fields_ = (
        *_integers("element embedding_element num_layers hidden vocab num_positions"),
        ("layers", POINTER(LayerStruct)),
        ("ropes", POINTER(RopeStruct)),
        *_pointers("embedding"),
        *((name, c_double) for name in ("embed_scale", "logit_scale", "softcap")),
        ("final_norm", NormStruct),
        ("head", MatrixStruct),
        ("adapters", AdaptersStruct),
    )


class StepStruct(Structure):
    """One step's inputs, and where its logits go."""

    _fields_ = (
        *_integers("num_tokens num_seqs max_blocks num_logits"),
        *_pointers("token_ids positions slots block_tables cu_query_lens context_lens"),
        *_pointers("logits_rows logits"),
        *_pointers("state_reads cu_state_writes state_write_lens state_write_slots"),
        *_pointers("adapters"),
        *_integers("num_rows num_deep num_turned"),
        *_pointers("rows key_ends experts"),
    )


def sizes() -> int:
    """One number that changes with the size of every struct; the library answers the same."""
    return (
        ctypes.sizeof(ModelStruct)
        + 1000 * ctypes.sizeof(LayerStruct)
        + 1000_000 * ctypes.sizeof(ExpertsStruct)
        + 1000_000_000 * ctypes.sizeof(StepStruct)
        + 1000_000_000_000 * ctypes.sizeof(RecurrenceStruct)
        + 1000_000_000_000_000 * ctypes.sizeof(ShortConvStruct)
    )


_log = logging.getLogger(__name__)

_HUGE_PAGE = 2 << 20


_CHUNK_BYTES = 64 << 20


_ALIGNMENT = 64


_ELEMENTS = {torch.float32: FORMATS["f32"], torch.bfloat16: FORMATS["bf16"]}


class Arena:
    """Zeroed memory, in huge pages where the system grants them; freed all at once."""

    def __init__(self) -> None:
        self.num_bytes = 0  # that were taken
        self._chunks: list[tuple[mmap.mmap, int]] = []
        self._next = self._end = 0

    def take(self, num_bytes: int) -> int:
        """The address of so many bytes. Raises MemoryError."""
        if self._next + num_bytes > self._end:
            self._add_chunk(max(num_bytes, _CHUNK_BYTES))
        address = self._next
        self.num_bytes += num_bytes
        self._next += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return address

    def _add_chunk(self, num_bytes: int) -> None:
        size = -(-num_bytes // _HUGE_PAGE) * _HUGE_PAGE + _HUGE_PAGE
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"{size} bytes cannot be had: {error}") from error
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._chunks.append((memory, start))
        self._next = -(-start // _HUGE_PAGE) * _HUGE_PAGE
        self._end = start + size

    def put(self, array: npt.NDArray[np.generic]) -> int:
        """The address of a copy."""
        array = np.ascontiguousarray(array)
        address = self.take(array.nbytes)
        ctypes.memmove(address, array.ctypes.data, array.nbytes)
        return address


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Columns of one length, and the weights that they lie in.

    A column is one output of a layer: k weights in a row, wherever they lie, and a bias.
    """

    weights: tuple[Tensor | GroupedWeight, ...]  # of rows of k
    places: npt.NDArray[np.int64]  # [n, 2]: which of them, and which of its rows; -1: zeros
    biases: npt.NDArray[np.float32]
    k: int

    @classmethod
    def of(cls, weight: Tensor | GroupedWeight, bias: Tensor | None) -> "Columns":
        """Those of a layer's weight [n, k], any strides, and bias [n]."""
        if isinstance(weight, Tensor):
            weight = weight.detach()
            weight = (weight if weight.dtype in _ELEMENTS else weight.float()).contiguous()
        n, k = weight.shape
        places = np.stack((np.zeros(n, np.int64), np.arange(n)), 1)
        biases = np.zeros(n, np.float32) if bias is None else bias.detach().float().numpy()
        return cls((weight,), places, biases, k)

    @classmethod
    def concatenate(cls, parts: "Sequence[Columns]") -> "Columns":
        """One after the other. Raises ValueError when their lengths or elements differ."""
        weights: list[Tensor | GroupedWeight] = []
        places = []
        for part in parts:
            places.append(part.places + np.array([len(weights), 0]))
            places[-1][part.places[:, 0] < 0, 0] = -1
            weights += part.weights
        elements = {each.dtype for each in weights if isinstance(each, Tensor)}
        if len({part.k for part in parts}) > 1 or len(elements) > 1:
            raise ValueError("merged layers must read the same rows and be of one dtype")
        biases = np.concatenate([part.biases for part in parts])
        return cls(tuple(weights), np.concatenate(places), biases, parts[0].k)

    def __len__(self) -> int:
        return len(self.places)

    @property
    def element(self) -> int:
        """In which they lie, where none is in groups."""
        return next(_ELEMENTS[each.dtype] for each in self.weights if isinstance(each, Tensor))

    def grouped(self) -> list[GroupedWeight] | None:
        """Their weights, in groups of one kind; None: not all of them are in groups."""
        weights = [each for each in self.weights if isinstance(each, GroupedWeight)]
        return alike(weights) if len(weights) == len(self.weights) else None

    def dense(self) -> "Columns":
        """The same with no weight in groups."""
        others = [each.dtype for each in self.weights if isinstance(each, Tensor)]
        dtype = others[0] if others else torch.float32
        weights = tuple(
            each if isinstance(each, Tensor) else each.dense().to(dtype) for each in self.weights
        )
        return Columns(weights, self.places, self.biases, self.k)

    def in_parts(self) -> "tuple[Columns, ...]":
        """In two, if that takes less memory: some first ones' weights, and those behind them.

        Packed together, all have the bits of the longest numbers and the shortest groups, or are
        dense beside one that is.
        """
        parts: tuple[Columns, ...] = (self,)
        for index in range(1, len(self.weights)):
            num_columns = int((self.places[:, 0] < index).sum())
            if num_columns % COLUMNS == 0:
                two = self._parted(index, num_columns)
                parts = min(parts, two, key=lambda each: sum(part._num_bits() for part in each))
        return parts

    def _parted(self, index: int, num_columns: int) -> "tuple[Columns, Columns]":
        later = self.places[num_columns:] - np.array([index, 0])
        return (
            Columns(
                self.weights[:index],
                self.places[:num_columns],
                self.biases[:num_columns],
                self.k,
            ),
            Columns(self.weights[index:], later, self.biases[num_columns:], self.k),
        )

    def _num_bits(self) -> float:
        """That an input of all of them takes, or some more."""
        weights = [each for each in self.weights if isinstance(each, GroupedWeight)]
        if len(weights) < len(self.weights):
            return 32.0 * len(self)
        values = 32 / min(each.group_len for each in weights)
        return len(self) * (max(each.bits for each in weights) + values)

    def rounded(self, bits: int) -> "Columns | None":
        """The same with every weight in groups; None: no group divides its inputs."""
        weights = []
        for each in self.weights:
            weight = GroupedWeight.rounded(each, bits) if isinstance(each, Tensor) else each
            if weight is None:
                return None
            weights.append(weight)
        return Columns(tuple(weights), self.places, self.biases, self.k)

    def addresses(self, rows: Sequence[Tensor]) -> npt.NDArray[np.uint64]:
        """Where each column's part of such tensors is, one for each weight; 0: it has none."""
        starts = np.array([each.data_ptr() for each in rows], np.uint64)
        steps = np.array([each.stride(0) * each.itemsize for each in rows], np.uint64)
        weight, row = self.places.T
        found = starts[weight] + steps[weight] * row.astype(np.uint64)
        found[weight < 0] = 0
        return found

    def take(self, order: npt.NDArray[np.int64]) -> "Columns":
        """These of the columns, in this order."""
        return Columns(self.weights, self.places[order], self.biases[order], self.k)

    def padded(self, multiple: int) -> "Columns":
        """Filled up with columns of zeros."""
        num_zeros = -len(self) % multiple
        return Columns(
            self.weights,
            np.pad(self.places, ((0, num_zeros), (0, 0)), constant_values=-1),
            np.pad(self.biases, (0, num_zeros)),
            self.k,
        )


def interleave(gate: Columns, up: Columns) -> Columns:
    """Panels of 16 columns of the gate and 16 of what it multiplies."""
    half = COLUMNS // 2
    joined = Columns.concatenate((gate.padded(half), up.padded(half)))
    order = np.arange(len(joined)).reshape(2, -1, half).transpose(1, 0, 2).ravel()
    return joined.take(order)


def _format_of_groups(weights: Sequence[GroupedWeight], activation_bits: int) -> str:
    bits = max(each.bits for each in weights)
    name = "grouped_int8" if bits > 6 else f"int{bits}"
    # What is above 4 bits lies in runs of 32 numbers, or of 16.
    if bits == 5 and weights[0].group_len % 32 != 0:
        name = "int6"
    return name if activation_bits == 8 else f"{name}_wide"


class Packer:
    """Packs into an arena, `num_threads` panels at a time."""

    def __init__(self, library: ctypes.CDLL, arena: Arena, num_threads: int) -> None:
        self._pack = library.tandem_dense_pack
        matrix = ctypes.POINTER(MatrixStruct)
        panels = (ctypes.c_int64, ctypes.c_int64)
        self._pack.argtypes = (matrix, ctypes.c_int64, ctypes.c_void_p, *panels)
        self._pack.restype = None
        self._pack_groups = library.tandem_dense_pack_groups
        self._pack_groups.argtypes = (matrix, ctypes.POINTER(GroupSourcesStruct), *panels)
        self._pack_groups.restype = None
        self._packed_bytes = library.tandem_dense_packed_bytes
        self._packed_bytes.argtypes = (matrix,)
        self._packed_bytes.restype = ctypes.c_int64
        self._arena = arena
        self._num_threads = num_threads

    def matrix(self, columns: Columns, format_name: str) -> MatrixStruct:
        """Pack `columns`, none of them in groups, as "f32", "bf16", "wide" or "int8".

        Raises MemoryError.
        """
        columns = columns.padded(COLUMNS)
        matrix = self._empty(columns, format_name)
        if format_name == "int8":
            matrix.scales = self._arena.take(4 * len(columns))
            matrix.sums = self._arena.take(4 * len(columns))
        matrix.packed = self._arena.take(self._packed_bytes(matrix))
        addresses = columns.addresses(
            [each for each in columns.weights if isinstance(each, Tensor)]
        )
        self._run(
            len(columns),
            lambda first, end: self._pack(
                matrix, columns.element, addresses.ctypes.data, first, end
            ),
        )
        return matrix

    def grouped(
        self, columns: Columns, weights: Sequence[GroupedWeight], *, activation_bits: int
    ) -> MatrixStruct:
        """Pack columns of such weights, which are alike, for rows of 8 or 16 bits.

        Raises MemoryError.
        """
        columns = columns.padded(COLUMNS)
        first = weights[0]
        matrix = self._empty(columns, _format_of_groups(weights, activation_bits))
        matrix.group_len = first.group_len
        matrix.zero = first.zero
        matrix.storage = GROUP_STORAGES[first.scales.values.dtype]
        matrix.packed = self._arena.take(self._packed_bytes(matrix))
        numbers = columns.addresses([each.numbers for each in weights])
        sources = GroupSourcesStruct(numbers=numbers.ctypes.data)
        kept = [numbers]  # until they are read
        minimums = [each.minimums for each in weights if each.minimums is not None]
        for values, to, source in (
            ([each.scales for each in weights], matrix.group_scales, sources.scales),
            (minimums, matrix.group_minimums, sources.minimums),
        ):
            factors = [each.factors for each in values if each.factors is not None]
            for name, rows in (("values", [each.values for each in values]), ("factors", factors)):
                if rows:
                    kept.append(columns.addresses(rows))
                    setattr(source, name, kept[-1].ctypes.data)
                    setattr(to, name, self._arena.take(len(columns) * rows[0][0].nbytes))
        self._run(
            len(columns),
            lambda first, end: self._pack_groups(matrix, sources, first, end),
        )
        return matrix

    def _empty(self, columns: Columns, format_name: str) -> MatrixStruct:
        return MatrixStruct(
            bias=self._arena.put(columns.biases) if columns.biases.any() else None,
            n=len(columns),
            k=columns.k,
            format=FORMATS[format_name],
        )

    def _run(self, n: int, pack: Callable[[int, int], None]) -> None:
        """Each thread packs its part of the panels."""
        num_panels = n // COLUMNS
        bounds = [num_panels * i // self._num_threads for i in range(self._num_threads + 1)]
        with ThreadPoolExecutor(self._num_threads) as pool:
            list(pool.map(pack, bounds[:-1], bounds[1:]))


class ProductColumns:
    """The columns of a layer's products, merged and in the order in which the library reads them.

    weights:    of linear layers, by the names in the recipe
    tables:     cos and sin of each entry of `recipe.rotary`
    has_biases: whether `weights` has the layers' biases, too
    shapes:     outputs and inputs of the weights that were asked for, by their names
    """

    def __init__(
        self,
        weights: Mapping[str, Tensor],
        tables: Sequence[Sequence[npt.NDArray[np.float32]]],
        *,
        has_biases: bool = True,
    ) -> None:
        self._weights = weights
        self._tables = tables
        self._has_biases = has_biases
        self.shapes: dict[str, tuple[int, int]] = {}

    def of(self, linear: Linear) -> Columns:
        """Those of one linear layer."""
        weight = self._weight(linear)
        outputs, inputs = weight.shape
        self.shapes[linear.weight] = (outputs, inputs)
        bias = None
        if linear.bias is not None and self._has_biases:
            bias = self._weights[linear.bias]
        return Columns.of(weight, bias).take(np.array(linear.rows.indices()))

    def _weight(self, linear: Linear) -> Tensor | GroupedWeight:
        if isinstance(self._weights, GroupedParameters) and not linear.transposed:
            grouped = self._weights.grouped(linear.weight)
            if grouped is not None:
                return grouped
        weight = self._weights[linear.weight]
        return weight.T if linear.transposed else weight

    def of_mixer(self, mixer: Mixer) -> Columns:
        """Those of what reads the layer's input."""
        parts = [self.of(linear) for linear in mixer.ins]
        if isinstance(mixer, Attention):
            parts[0] = parts[0].take(self.head_order(mixer, mixer.query, mixer.num_heads))
            parts[1] = parts[1].take(self.head_order(mixer, mixer.key, mixer.num_kv_heads))
            if mixer.gate is not None:
                # One number for each head is as many equal ones.
                times = mixer.num_heads * mixer.head_dim // len(parts[3])
                parts[3] = parts[3].take(np.repeat(np.arange(len(parts[3])), times))
        return Columns.concatenate(parts)

    def of_mlp(self, mlp: Mlp) -> Columns:
        """Those of what reads the layer's inner input."""
        return _in_panels(Columns.concatenate([self.of(each) for each in mlp.ins]), mlp.layout)

    def head_order(self, attention: Attention, head: Head, num_heads: int) -> npt.NDArray[np.int64]:
        """In which columns of `head.linear` its heads lie."""
        angles_len = 0 if head.rope is None else self._tables[head.rope.source][0].shape[1]
        return rows_of_heads(head, range(num_heads), attention.head_dim, angles_len)


_UNLIMITED = 1 << 62


ELEMENT_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16"}


class PackedWeights:
    """Owner of the packed weights; `model` is what the library reads.

    parameters: by the names in the recipe; any float dtype, or in groups (GroupedParameters)
    tables:     cos and sin [num_positions, n / 2] float32 of each entry of `recipe.rotary`
    dtype:      of keys, values and, unless `quantize` says "int8" or "int4", weights: float32 or
                bfloat16; in float32, those that come as bfloat16 stay so, for the same results
    quantize:   "int4": weights in 4 bits, but for the head and what no group divides, which are in
                8; "int8": also what comes in groups, which else stays so
    activation_bits: of rows that weights in groups multiply, 8 or 16
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
        activation_bits: int = 8,
        release: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Raises MemoryError."""
        self.arena = Arena()
        self.recipe = recipe
        self.tables = [tuple(_array(part) for part in pair) for pair in tables]
        self._parameters = parameters
        self._columns = ProductColumns(parameters, self.tables)
        self._dtype = dtype
        self._quantize = quantize
        self._activation_bits = activation_bits
        self._packer = Packer(library, self.arena, num_threads)
        self._num_weights: Counter[str] = Counter()
        self._undivided: set[int] = set()  # inputs that are no whole groups
        self._keep: list[object] = []  # what pointers lead to, beside the arena
        self.layers = (LayerStruct * len(recipe.layers))()

        last_use = recipe.last_uses()
        for index, layer in enumerate(recipe.layers):
            self.layers[index] = self._layer(layer)
            _release(release, last_use, index)
        self.model = self._model()
        _release(release, last_use, len(recipe.layers))
        self.shapes = self._columns.shapes
        del self._parameters, self._columns
        if self._undivided:
            _log.info(
                "layers of %s inputs are in 8 bits, not in 4: no group of %s divides them",
                ", ".join(map(str, sorted(self._undivided))),
                ", ".join(map(str, GROUP_LENS)),
            )

    def _model(self) -> ModelStruct:
        recipe = self.recipe
        hidden = recipe.layers[0].mixer.output.rows.count
        head = self._columns.of(recipe.head)
        embedding = None if self._is_tied(head) else self._parameters[recipe.embedding]
        ropes = (RopeStruct * max(1, len(self.tables)))(
            *(
                RopeStruct(self.arena.put(cos), self.arena.put(sin), cos.shape[1])
                for cos, sin in self.tables
            )
        )
        self.ropes = ropes
        return ModelStruct(
            element=FORMATS[ELEMENT_NAMES[self._dtype]],
            embedding_element=FORMATS[ELEMENT_NAMES[self._kept_dtype(embedding)]],
            num_layers=len(self.layers),
            hidden=hidden,
            vocab=recipe.head.rows.count,
            num_positions=min((len(cos) for cos, _ in self.tables), default=_UNLIMITED),
            layers=self.layers,
            ropes=ropes,
            embedding=None if embedding is None else self._rows(embedding),
            embed_scale=recipe.embed_scale,
            logit_scale=recipe.logit_scale,
            softcap=recipe.softcap or 0.0,
            final_norm=self._norm(recipe.final_norm, hidden),
            head=self._packed(head, self._quantize, bits=8),
        )

    def _is_tied(self, columns: Columns) -> bool:
        """Whether the panels of these, the head's, can serve as the embedding."""
        head = self.recipe.head
        is_whole = head.rows.start == 0 and head.rows.count == columns.weights[0].shape[0]
        if self._quantize is not None or not is_whole:
            return False
        if head.weight == self.recipe.embedding:
            return True
        embedding = self._parameters[self.recipe.embedding]
        return self._parameters[head.weight].data_ptr() == embedding.data_ptr()

    def _kept_dtype(self, tensor: Tensor | None) -> torch.dtype:
        """In which a weight is kept: bfloat16 is not widened."""
        is_narrow = tensor is not None and tensor.dtype == torch.bfloat16
        return torch.bfloat16 if is_narrow else self._dtype

    @property
    def format_name(self) -> str:
        """What products are multiplied in, or are of the checkpoint's kinds; that of most weights
        first.
        """
        return "+".join(name for name, _ in self._num_weights.most_common())

    @contextmanager
    def in_wide_rows(self) -> Iterator[None]:
        """Whoever reads `model` meanwhile gives rows of all weights in groups 16 bits."""
        wider = FORMATS["int4_wide"] - FORMATS["int4"]
        narrow = [
            matrix
            for matrix in self._matrices()
            if FORMATS["int4"] <= matrix.format < FORMATS["int4_wide"]
        ]
        for matrix in narrow:
            matrix.format += wider
        try:
            yield
        finally:
            for matrix in narrow:
                matrix.format -= wider

    def _matrices(self) -> Iterator[MatrixStruct]:
        yield self.model.head
        for layer in self.layers:
            yield from (*layer.qkv, layer.output, layer.mlp.ins, layer.mlp.out)
            if layer.experts:
                experts = layer.experts.contents
                yield from (experts.shared.ins, experts.shared.out)
                yield from (experts.ins[index] for index in range(experts.num_experts))
                yield from (experts.outs[index] for index in range(experts.num_experts))

    def _packed(
        self,
        columns: Columns,
        quantize: str | None,
        bits: int = 4,
    ) -> MatrixStruct:
        if quantize == "int4":
            rounded = columns.rounded(bits)
            if rounded is None:
                self._undivided.add(columns.k)
                quantize = "int8"
            else:
                columns = rounded
        grouped = None if quantize == "int8" else columns.grouped()
        if grouped is not None:
            for index, weight in enumerate(grouped):
                num_columns = int((columns.places[:, 0] == index).sum())
                self._num_weights[weight.kind] += num_columns * columns.k
            return self._packer.grouped(columns, grouped, activation_bits=self._activation_bits)
        columns = columns.dense()
        format_name = quantize or ELEMENT_NAMES[self._dtype]
        if format_name == "f32" and columns.element == FORMATS["bf16"]:
            format_name = "wide"
        shown = "f32" if format_name == "wide" else format_name
        self._num_weights[shown] += len(columns) * columns.k
        return self._packer.matrix(columns, format_name)

    def _layer(self, layer: Layer) -> LayerStruct:
        hidden = layer.mixer.output.rows.count
        struct = LayerStruct(
            attention_norm=self._norm(layer.attention_norm, hidden),
            attention_post_norm=self._norm(layer.attention_post_norm, hidden),
            mlp_norm=self._norm(layer.mlp_norm, hidden),
            mlp_post_norm=self._norm(layer.mlp_post_norm, hidden),
            is_parallel=layer.parallel,
            residual_scale=layer.residual_scale,
        )
        for index, part in enumerate(self._columns.of_mixer(layer.mixer).in_parts()):
            struct.qkv[index] = self._packed(part, self._quantize)
        if isinstance(layer.mixer, Delta | Mamba2):
            struct.recurrence = self._recurrence(layer.mixer)
        elif isinstance(layer.mixer, ShortConv):
            struct.conv = self._short_conv(layer.mixer)
        else:
            self._set_attention(struct, layer.attention)
        struct.output = self._packed(self._columns.of(layer.mixer.output), self._quantize)
        if isinstance(layer.mlp, Mlp):
            struct.mlp = self._mlp(layer.mlp)
        elif isinstance(layer.mlp, Moe):
            struct.experts = self._experts(layer.mlp)
        return struct

    def _set_attention(self, struct: LayerStruct, attention: Attention) -> None:
        query = attention.query
        struct.query_norm = self._head_norm(attention, query, attention.num_heads)
        struct.key_norm = self._head_norm(attention, attention.key, attention.num_kv_heads)
        struct.num_heads = attention.num_heads
        struct.num_kv_heads = attention.num_kv_heads
        struct.head_dim = attention.head_dim
        struct.window_len = attention.window_len or 0
        struct.chunk_len = attention.chunk_len or 0
        struct.rope = 0 if query.rope is None else 1 + query.rope.source
        struct.norm_after_rope = query.norm_after_rope
        struct.scale = attention.scale
        struct.softcap = attention.softcap or 0.0
        struct.is_gated = attention.gate is not None
        if attention.sinks is not None:
            struct.sinks = self._floats(attention.sinks)

    def _recurrence(self, mixer: Delta | Mamba2) -> "ctypes._Pointer[RecurrenceStruct]":
        if isinstance(mixer, Delta):
            struct = RecurrenceStruct(
                num_key_heads=mixer.num_key_heads,
                key_dim=mixer.key_dim,
                value_dim=mixer.value_dim,
                beta_scale=mixer.beta_scale,
            )
        else:
            struct = RecurrenceStruct(
                num_key_heads=mixer.num_groups,
                key_dim=mixer.state_size,
                value_dim=mixer.head_dim,
                is_gate_first=mixer.gate_first,
                min_step=mixer.dt_limits[0],
                max_step=mixer.dt_limits[1],
                skip=self._floats(mixer.skip),
            )
        struct.num_heads = mixer.num_heads
        struct.num_taps = mixer.conv.num_taps
        struct.norm = self._norm(mixer.norm, mixer.gate.rows.count)
        struct.taps = self._taps(mixer.conv)
        struct.conv_bias = mixer.conv.bias and self._floats(mixer.conv.bias)
        struct.rates = self.arena.put(np.exp(_array(self._parameters[mixer.a_log])))
        struct.dt_bias = self._floats(mixer.dt_bias)
        self._keep.append(struct)
        return ctypes.pointer(struct)

    def _short_conv(self, conv: ShortConv) -> "ctypes._Pointer[ShortConvStruct]":
        struct = ShortConvStruct(
            num_channels=conv.value.rows.count,
            num_taps=conv.conv.num_taps,
            taps=self._taps(conv.conv),
            bias=conv.conv.bias and self._floats(conv.conv.bias),
        )
        self._keep.append(struct)
        return ctypes.pointer(struct)

    def _taps(self, conv: Conv) -> int:
        """The address of a convolution's weights [num_taps, channels]."""
        return self.arena.put(_array(self._parameters[conv.weight]).reshape(-1, conv.num_taps).T)

    def _floats(self, name: str) -> int:
        """The address of a parameter's copy in float32."""
        return self.arena.put(_array(self._parameters[name]))

    def _mlp(self, mlp: Mlp) -> MlpStruct:
        out = self._columns.of(mlp.out)
        return MlpStruct(
            ins=self._packed(self._columns.of_mlp(mlp), self._quantize),
            out=self._packed(out, self._quantize),
            inner=out.k,
            activation=ACTIVATIONS[mlp.activation],
            is_gated=mlp.layout != "plain",
        )

    def _experts(self, moe: Moe) -> "ctypes._Pointer[ExpertsStruct]":
        ins = (MatrixStruct * moe.num_experts)()
        outs = (MatrixStruct * moe.num_experts)()
        for index, columns in enumerate(self._each_expert(moe, moe.gate_up, moe.gate_up_bias)):
            ins[index] = self._packed(_in_panels(columns, moe.layout), self._quantize)
        for index, columns in enumerate(self._each_expert(moe, moe.down, moe.down_bias)):
            outs[index] = self._packed(columns, self._quantize)
        # Scores decide between experts: they are computed in float32.
        routing = (moe.router, moe.shared_gate)
        scores = [self._columns.of(each).dense() for each in routing if each is not None]
        groups = moe.groups
        experts = ExpertsStruct(
            num_experts=moe.num_experts,
            top_k=moe.top_k,
            is_sigmoid=moe.scoring in ("sigmoid", "sigmoid_normed"),
            is_normed=moe.scoring in ("softmax_normed", "sigmoid_normed"),
            num_groups=0 if groups is None else groups.num_groups,
            top_groups=0 if groups is None else groups.top_k,
            num_best=0 if groups is None else groups.num_best,
            scale=moe.scale,
            correction=moe.correction
            and self.arena.put(_array(self._parameters[moe.correction]).ravel()),
            has_shared=moe.shared is not None,
            has_shared_gate=moe.shared_gate is not None,
            router=self._packer.matrix(Columns.concatenate(scores), "f32"),
            ins=ins,
            outs=outs,
            each=MlpStruct(
                inner=outs[0].k,
                activation=ACTIVATIONS[moe.activation],
                is_gated=moe.layout != "plain",
            ),
        )
        if moe.shared is not None:
            experts.shared = self._mlp(moe.shared)
        self._keep += (ins, outs, experts)
        return ctypes.pointer(experts)

    def _each_expert(self, moe: Moe, name: str, bias_name: str | None) -> Iterator[Columns]:
        given = self._parameters
        biases = None if bias_name is None else given[bias_name]
        of_all: Tensor | None = None
        for index in range(moe.num_experts):
            bias = None if biases is None else biases[index]
            grouped = (
                given.grouped_expert(name, index) if isinstance(given, GroupedParameters) else ()
            )
            if grouped:
                columns = Columns.concatenate([Columns.of(each, None) for each in grouped])
                if moe.layout == "gate_up_pairs" and len(grouped) == 2:
                    columns = columns.take(np.arange(len(columns)).reshape(2, -1).T.ravel())
                yield columns if bias is None else replace(columns, biases=_array(bias))
                continue
            if of_all is None:
                of_all = given[name]
            weight = of_all[index]
            yield Columns.of(weight.T if moe.transposed else weight, bias)

    def _rows(self, tensor: Tensor) -> int:
        """The address of an embedding's rows, which stay where they are if they can."""
        tensor = tensor.detach().to(self._kept_dtype(tensor)).contiguous()
        self._keep.append(tensor)
        return tensor.data_ptr()

    def _head_norm(self, attention: Attention, head: Head, num_heads: int) -> NormStruct:
        order = self._columns.head_order(attention, head, num_heads)
        return self._norm(head.norm, len(order), order)

    def _norm(
        self, norm: Norm | None, row_len: int, order: npt.NDArray[np.int64] | None = None
    ) -> NormStruct:
        if norm is None:
            return NormStruct()
        weights = self._row(norm.weights, row_len, default=1.0 - norm.plus_one) + norm.plus_one
        biases = self._row(norm.biases, row_len, default=0.0)
        if order is not None:
            weights = weights[order]
            biases = biases[order]
        return NormStruct(
            kind=NORM_KINDS[norm.kind],
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
