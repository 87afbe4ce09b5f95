"""Chooses tokens by Triton kernels: the same as by torch, in two to four launches, without waiting.

    greedy:    chunk_bests -> take_best
    plain:     chunk_tops -> chunk_masses -> draw_from_all
    filtered:  chunk_tops -> chunk_masses -> gather_candidates -> draw_filtered

What the kernels do not know (typical decoding, alternatives to report) stays with torch.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from model_server.kernels import filtered_draw, sample_chunks, sample_draw
from model_server.kernels.launch import Launch, launch, padded
from model_server.sampling.choosing import Choice, choose_by_torch
from model_server.sampling.filters import Filters
from model_server.sampling.masses import mass_bits
from model_server.sampling.plan import WIDE, Group, Kind

# Of a row: what one program reads at a time, in the passes over chunks and in the search.
_CHUNK = 4096
_TILE = 2048
_NUM_WARPS = 8
_BUCKETS = 128
# Candidates of a row, at most. A row whose filters keep more is searched whole.
_CAPACITY = 4096


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """What all launches for one group share."""

    scores: Tensor  # [num_rows, width], of the step
    rows: Tensor  # [n] int64, of the group
    temperature: Tensor  # [n]

    @property
    def width(self) -> int:
        return self.scores.shape[-1]

    @property
    def num_chunks(self) -> int:
        return -(-self.width // _CHUNK)

    @property
    def unit(self) -> float:
        """The mass of the weight 1."""
        return 2.0 ** mass_bits(self.width)

    @property
    def grid(self) -> tuple[int, int]:
        return self.num_chunks, len(self.rows)

    def scratch(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Memory for each row of the group."""
        return self.scores.new_empty((len(self.rows), *shape), dtype=dtype)


class TritonChooser:
    """Chooses the tokens that `choose_by_torch` does.

    max_rows: of a step; more are taken, at the cost of an allocation
    """

    def __init__(self, device: torch.device, max_rows: int, launch: Launch = launch) -> None:
        self._launch = launch
        self._places = torch.arange(max_rows, device=device)
        # Filters that are off, for the rows of any group.
        self._off = (
            torch.zeros(1, dtype=torch.int64, device=device),
            torch.ones(1, dtype=torch.float64, device=device),
            torch.zeros(1, dtype=torch.float32, device=device),
        )

    def __call__(self, group: Group, scores: Tensor, uniforms: Tensor) -> Choice:
        """See `Choose`."""
        if group.top is not None or group.filters.typical_p is not None:
            return choose_by_torch(group, scores, uniforms)
        call = _Call(scores, self._rows_of(group), group.temperature)
        tokens = call.scratch(dtype=torch.int64)
        logprobs = call.scratch(dtype=torch.float64)
        if group.kind is Kind.GREEDY:
            self._take_best(call, tokens, logprobs)
        elif group.kind is Kind.PLAIN:
            self._draw_from_all(call, uniforms, tokens, logprobs)
        else:
            self._draw_filtered(call, group.filters, uniforms, tokens, logprobs)
        return Choice(tokens, logprobs, None, None)

    def _take_best(self, call: _Call, tokens: Tensor, logprobs: Tensor) -> None:
        tops = call.scratch(call.num_chunks)
        bests = call.scratch(call.num_chunks, dtype=torch.int32)
        sums = call.scratch(call.num_chunks, dtype=torch.float64)
        self._run(
            sample_chunks.chunk_bests,
            call.grid,
            *(call.scores, call.rows, tops, bests, sums, call.width),
            CHUNK=_CHUNK,
        )
        self._run(
            sample_draw.take_best,
            (len(call.rows),),
            *(tops, bests, sums, tokens, logprobs, call.num_chunks),
            CHUNKS_PAD=padded(call.num_chunks),
        )

    def _draw_from_all(
        self, call: _Call, uniforms: Tensor, tokens: Tensor, logprobs: Tensor
    ) -> None:
        tops, masses, _ = self._weigh(call, num_buckets=0)
        self._run(
            sample_draw.draw_from_all,
            (len(call.rows),),
            *(call.scores, call.rows, call.temperature, uniforms, tops, masses),
            *(tokens, logprobs, call.width, call.num_chunks, call.unit),
            CHUNK=_CHUNK,
            CHUNKS_PAD=padded(call.num_chunks),
        )

    def _draw_filtered(
        self, call: _Call, filters: Filters, uniforms: Tensor, tokens: Tensor, logprobs: Tensor
    ) -> None:
        tops, masses, counts = self._weigh(call, num_buckets=_BUCKETS)
        num_rows, num_chunks, unit = len(call.rows), call.num_chunks, call.unit
        columns = [
            off.expand(num_rows) if values is None else values
            for values, off in zip(filters.of_prefixes, self._off, strict=True)
        ]
        strides = [column.stride(0) for column in columns]
        found = (
            call.scratch(_CAPACITY),
            call.scratch(_CAPACITY),
            call.scratch(_CAPACITY, dtype=torch.int32),
            call.scratch(dtype=torch.int32),
        )
        self._run(
            sample_chunks.gather_candidates,
            call.grid,
            *(call.scores, call.rows, call.temperature, columns[0], tops, counts, *found),
            *(call.width, num_chunks, unit, strides[0]),
            WANTED=WIDE,
            CAPACITY=_CAPACITY,
            CHUNK=_CHUNK,
            CHUNKS_PAD=padded(num_chunks),
            BUCKETS=_BUCKETS,
        )
        self._run(
            filtered_draw.draw_filtered,
            (num_rows,),
            *(call.scores, call.rows, call.temperature, uniforms, *columns),
            *(tops, masses, *found, tokens, logprobs),
            *(call.width, num_chunks, unit, *strides),
            CAPACITY=_CAPACITY,
            TILE=_TILE,
            CHUNKS_PAD=padded(num_chunks),
        )

    def _weigh(self, call: _Call, num_buckets: int) -> tuple[Tensor, Tensor, Tensor]:
        """Each chunk's largest score, mass and counts, see sample_chunks."""
        tops = call.scratch(call.num_chunks)
        masses = call.scratch(call.num_chunks, dtype=torch.float64)
        counts = call.scratch(call.num_chunks, num_buckets, dtype=torch.int32)
        self._run(
            sample_chunks.chunk_tops,
            call.grid,
            *(call.scores, call.rows, call.temperature, tops, call.width),
            CHUNK=_CHUNK,
        )
        self._run(
            sample_chunks.chunk_masses,
            call.grid,
            *(call.scores, call.rows, call.temperature, tops, masses, counts),
            *(call.width, call.num_chunks, call.unit),
            CHUNK=_CHUNK,
            CHUNKS_PAD=padded(call.num_chunks),
            BUCKETS=num_buckets,
        )
        return tops, masses, counts

    def _run(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        # A fused multiplication and addition rounds once where torch rounds twice.
        self._launch(
            kernel, grid, *arguments, enable_fp_fusion=False, num_warps=_NUM_WARPS, **constants
        )

    def _rows_of(self, group: Group) -> Tensor:
        if group.rows is not None:
            return group.rows
        num_rows = len(group.places)
        if num_rows > len(self._places):
            self._places = torch.arange(num_rows, device=self._places.device)
        return self._places[:num_rows]
