"""Delta rule and state space against a plain loop, for every instruction set that this CPU has."""

import ctypes
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from model_server.executor.weights import NormStruct, RecurrenceStruct, StepStruct
from native.compiler import Source
from native.instruction_sets import usable
from native.library import load_native
from tests.native.compiler import needs_compiler

_SOURCE = Path(__file__).with_name("recurrence_driver.cpp")
_HEADERS = Path(__file__).parents[3] / "model_server" / "native"
INSTRUCTION_SETS = [each.name for each in usable(Source.read(_SOURCE).instruction_sets)]
NUM_SLOTS = 12
STEPS = (0.3, 1.5)  # of a state space: least and most

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ctypes.CDLL]:
    folder = tmp_path_factory.mktemp("recurrence")
    for file in (_SOURCE, *_HEADERS.glob("*.h")):
        shutil.copy(file, folder)
    libraries = {name: load_native(folder / _SOURCE.name, only=[name]) for name in INSTRUCTION_SETS}
    for library in libraries.values():
        library.row_floats.restype = ctypes.c_int64
        library.slot_floats.restype = ctypes.c_int64
    return libraries


@dataclass(frozen=True, slots=True)
class Part:
    """Some tokens of a sequence: rows of its product, the slot to begin with, and those to write.

    writes: tokens of this part, slot
    """

    rows: Tensor
    read: int | None
    writes: Sequence[tuple[int, int]]


class Layer:
    """A layer with random weights, and its pool."""

    def __init__(
        self,
        library: ctypes.CDLL,
        *,
        num_key_heads: int = 2,
        num_heads: int = 4,
        key_dim: int = 32,
        value_dim: int = 32,
        num_taps: int = 4,
        is_scan: bool = False,
        is_gate_first: bool = False,
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        keys = num_key_heads * key_dim
        values = num_heads * value_dim
        self.widths = (values, keys, keys) if is_scan else (keys, keys, values)
        self.values = values
        self.is_scan = is_scan
        self.is_gate_first = is_gate_first
        self.key_dim = key_dim
        self.value_dim = value_dim
        self.num_key_heads = num_key_heads
        self.num_heads = num_heads
        self.taps = torch.randn(num_taps, sum(self.widths), generator=generator)
        self.bias = torch.randn(sum(self.widths), generator=generator)
        self.norm = torch.randn(values, generator=generator)
        self.skip = torch.randn(num_heads, generator=generator)
        self.rates = torch.rand(num_heads, generator=generator) * 3
        self.dt_bias = torch.randn(num_heads, generator=generator)
        self._library = library
        self._struct = RecurrenceStruct(
            num_key_heads=num_key_heads,
            num_heads=num_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            num_taps=num_taps,
            is_gate_first=is_gate_first,
            beta_scale=2.0,
            min_step=STEPS[0],
            max_step=STEPS[1],
            norm=NormStruct(kind=1, width=value_dim, weights=self.norm.data_ptr()),
            taps=self.taps.data_ptr(),
            conv_bias=self.bias.data_ptr(),
            rates=self.rates.data_ptr(),
            dt_bias=self.dt_bias.data_ptr(),
            skip=self.skip.data_ptr() if is_scan else None,
        )
        # NaN wherever nothing was written: it would show.
        slot_floats = library.slot_floats(ctypes.byref(self._struct))
        self.pool = torch.full((NUM_SLOTS, slot_floats), torch.nan)
        self._struct.states = self.pool.data_ptr()
        self.stride = library.row_floats(ctypes.byref(self._struct))

    @property
    def row_len(self) -> int:
        """Of the product: channels, gates, betas of a rule, and alphas."""
        return sum(self.widths) + self.values + (2 - self.is_scan) * self.num_heads

    def rows(self, num_tokens: int, seed: int = 2) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(num_tokens, self.row_len, generator=generator)

    def run(self, parts: Sequence[Part], num_threads: int = 1) -> list[tuple[Tensor, Tensor]]:
        """Of each part, answers [num_tokens, num_heads, value_dim], and gates alike."""
        lens = [len(part.rows) for part in parts]
        product = torch.zeros(sum(lens), self.stride)
        product[:, : self.row_len] = torch.cat([part.rows for part in parts])
        mixed = torch.empty_like(product)
        answers = torch.empty_like(product)
        writes = [write for part in parts for write in part.writes]
        arrays = [
            torch.tensor([-1 if part.read is None else part.read for part in parts]).int(),
            torch.tensor([0, *lens]).cumsum(0).int(),
            torch.tensor([0, *(len(part.writes) for part in parts)]).cumsum(0).int(),
            torch.tensor([length for length, _ in writes]).int(),
            torch.tensor([slot for _, slot in writes]).int(),
        ]
        step = StepStruct(
            num_tokens=sum(lens),
            num_seqs=len(lens),
            state_reads=arrays[0].data_ptr(),
            cu_query_lens=arrays[1].data_ptr(),
            cu_state_writes=arrays[2].data_ptr(),
            state_write_lens=arrays[3].data_ptr(),
            state_write_slots=arrays[4].data_ptr(),
        )
        self._library.run_recurrence(
            ctypes.byref(self._struct),
            ctypes.byref(step),
            num_threads,
            *(ctypes.c_void_p(rows.data_ptr()) for rows in (product, mixed, answers)),
        )
        first = sum(self.widths)
        found = answers[:, : self.values].unflatten(1, (self.num_heads, self.value_dim))
        gates = mixed[:, first : first + self.values].unflatten(1, found.shape[1:])
        return list(zip(found.split(lens), gates.split(lens), strict=True))

    def plain(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The same in float64, token by token, from the beginning."""
        channels, gates, *betas, alphas = rows.double().split(
            (sum(self.widths), self.values, *[self.num_heads] * (2 - self.is_scan)), 1
        )
        padded = torch.cat((channels.new_zeros(len(self.taps) - 1, channels.shape[1]), channels))
        mixed = self.bias + sum(
            padded[i : i + len(rows)] * tap for i, tap in enumerate(self.taps.double())
        )
        parts = F.silu(mixed).split(self.widths, 1)
        values, keys, queries = parts if self.is_scan else parts[::-1]
        queries = self._of_heads(queries, self.key_dim**-0.5)
        keys = self._of_heads(keys, 1.0)
        values = values.unflatten(1, (self.num_heads, -1))
        steps = F.softplus(alphas + self.dt_bias)
        if self.is_scan:
            steps = steps.clamp(*STEPS)
        written = steps if self.is_scan else 2 * betas[0].sigmoid()
        decays = torch.exp(-self.rates.double() * steps)
        state = gates.new_zeros(self.num_heads, self.key_dim, self.value_dim)
        answers = []
        for q, k, v, decay, beta in zip(queries, keys, values, decays, written, strict=True):
            state = state * decay[:, None, None]
            known = 0 if self.is_scan else torch.einsum("hkv,hk->hv", state, k)
            change = (v - known) * beta[:, None]
            state = state + k[:, :, None] * change[:, None, :]
            answers.append(torch.einsum("hkv,hk->hv", state, q))
        answer = torch.stack(answers)
        if self.is_scan:
            answer = answer + values * self.skip[:, None]
        gates = F.silu(gates)
        if self.is_gate_first:
            answer = answer * gates.unflatten(1, values.shape[1:])
        else:
            gates = gates * self.norm
        return answer, gates.unflatten(1, values.shape[1:])

    def _of_heads(self, channels: Tensor, scale: float) -> Tensor:
        """A rule's are of a length, a state space's as they come."""
        heads = channels.unflatten(1, (-1, self.key_dim))
        if not self.is_scan:
            heads = heads * torch.rsqrt(heads.square().sum(-1, keepdim=True) + 1e-6) * scale
        return heads.repeat_interleave(self.num_heads // self.num_key_heads, 1)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"num_key_heads": 3, "num_heads": 3, "value_dim": 48},
        {"key_dim": 128, "value_dim": 128, "num_taps": 2},
        {"key_dim": 16, "value_dim": 16, "num_taps": 1},
        {"is_scan": True, "is_gate_first": True},
        {"is_scan": True, "num_key_heads": 1, "key_dim": 128, "value_dim": 48},
    ],
    ids=str,
)
def test_it_is_the_plain_loop(
    libraries: dict[str, ctypes.CDLL], name: str, shape: dict[str, Any]
) -> None:
    layer = Layer(libraries[name], **shape)
    rows = layer.rows(70)
    ((answers, gates),) = layer.run([Part(rows, None, [(70, 0)])])
    for found, expected in zip((answers, gates), layer.plain(rows), strict=True):
        assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("is_scan", [False, True])
def test_bits_do_not_depend_on_chunks_or_neighbours(
    libraries: dict[str, ctypes.CDLL], name: str, num_threads: int, is_scan: bool
) -> None:
    layer = Layer(libraries[name], is_scan=is_scan, is_gate_first=is_scan)
    rows = layer.rows(70)
    ((expected, _),) = layer.run([Part(rows, None, [(16, 3), (32, 4), (70, 0), (70, 5)])])
    kept = layer.pool.clone()
    assert kept[0].isfinite().all()
    assert torch.equal(kept[0], kept[5])

    rng = random.Random(4)
    found = []
    done = 0
    read, write = None, 1
    for length in (1, 2, 13, 37, 1, 1, 15):
        other = layer.rows(rng.choice((1, 9)), seed=done)
        parts = [
            Part(rows[done : done + length], read, [(length, write)]),
            Part(other, None, [(len(other), 6)]),
        ]
        swapped = rng.random() < 0.5
        found.append(layer.run(parts[::-1] if swapped else parts, num_threads)[swapped][0])
        done += length
        if done == 16:
            assert torch.equal(layer.pool[write], kept[3])
        read, write = write, 3 - write
    assert torch.equal(torch.cat(found), expected)
    assert torch.equal(layer.pool[read], kept[0])

    # From what was kept, twice: it is read and stays.
    for _ in range(2):
        ((answers, _),) = layer.run([Part(rows[32:], 4, [(38, 7)])], num_threads)
        assert torch.equal(answers, expected[32:])
        assert torch.equal(layer.pool[7], kept[0])
    assert torch.equal(layer.pool[4], kept[4])
