"""A step's inputs, sequences of plain ints flattened into tensors without padding, and its output.

    rows:  | seq 0: prompt chunk ...... | seq 1: one token | seq 2: one token | padding (zoo) |
           cu_query_lens[0]             [1]                [2]                [3]

It knows no request, no layer and no model; the runner decides what each sequence computes.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model_server.errors import InvalidStep
from model_server.staging import PinnedStaging
from proto.contract import Generation, KeptState


class StateStep(NamedTuple):
    """The slots of a sequence's state in a step, in a model with states.

    read_id:  stands at cached_len; None: the sequence begins at 0, where its state is zeros
    write_id: another one; stands behind the step's tokens afterwards, before its drafts
    kept:     boundaries behind cached_len that the step's tokens reach or pass, in their order, and
              the slots that stand there afterwards
    num_drafts: the last of the step's tokens, of which write_id knows nothing; 0 where states are
              not kept
    """

    read_id: int | None
    write_id: int
    kept: tuple[KeptState, ...] = ()
    num_drafts: int = 0


class SequenceStep(NamedTuple):
    """What one sequence computes in a step. A tuple, because dozens are born in every step.

    token_ids:  this step's tokens, at positions cached_len, cached_len + 1, ...
    cached_len: tokens whose keys and values are in the cache already
    block_ids:  cover cached_len + len(token_ids) tokens; more are ignored. An int32 array (numpy or
                `array("i")`) is copied fastest
    num_logits: how many of the last rows need logits: none in the middle of a prompt, one for the
                next token, more for prompt logprobs or drafts
    state:      None: the model has none
    adapter:    the place of its adapter; None: the model alone
    images:     None: no token has anything of images
    """

    token_ids: Sequence[int]
    cached_len: int
    block_ids: Sequence[int] | npt.NDArray[np.int32]
    num_logits: int = 1
    state: StateStep | None = None
    adapter: int | None = None
    images: "ImagePart | None" = None


class ImagePart(NamedTuple):
    """What the tokens of a sequence's step have of its images, and have because of them.

    turns:    [3, num_tokens] int64 rotary positions; None: cached_len, cached_len + 1, ...
    rows:     for some of the tokens, counted within these; None: all are of text
    key_ends: [num_tokens], up to which position each token attends; None: to its own
    """

    turns: npt.NDArray[np.int64] | None
    rows: "ImageRows | None"
    key_ends: npt.NDArray[np.int64] | None


@dataclass(frozen=True, slots=True, eq=False)
class ImageRows:
    """What stands in the place of some tokens' embeddings.

    places: [num_rows] int64, these tokens in rising order
    rows:   [1 + num_deep, num_rows, hidden_size]: the embeddings, and what is added behind each of
            the first layers
    """

    places: Tensor
    rows: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class StateSlots:
    """Where a step's states are, for kernels; all int32, and -1 where there is no slot.

    cu_query_lens: [num_seqs + 1]
    sequences:     [num_tokens], each token's
    reads:         [num_seqs], the slot before its first token; -1: zeros
    writes:        [num_tokens], one of the sequence's own, written behind this token
    kept:          [num_tokens], one more
    """

    cu_query_lens: Tensor
    sequences: Tensor
    reads: Tensor
    writes: Tensor
    kept: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class StepInputs:
    """Tensors of one flattened step, on the model's device.

    Rows that only pad a short step form one more sequence at the end, which owns the scratch block:
    it is part of everything here except `logits_indices`, so callers who read logits never see it.
    """

    token_ids: Tensor  # [num_tokens] int64
    positions: Tensor  # [num_tokens] int64
    slot_mapping: Tensor  # [num_tokens] int64, slot = block_id * block_size + offset
    query_lens: tuple[int, ...]  # per sequence, this step's tokens
    context_lens: tuple[int, ...]  # per sequence, keys attended, this step's included
    block_tables: Tensor  # [num_seqs, max_blocks] int32, rows filled up with the scratch block
    cu_query_lens: Tensor  # [num_seqs + 1] int32
    device_context_lens: Tensor  # [num_seqs] int32, context_lens for kernels
    logits_indices: Tensor  # [num_logits] int64, rows whose logits are needed
    head_indices: Tensor  # logits_indices, filled up to the same minimum: see `logits_indices`
    states: tuple[StateStep | None, ...] = ()  # per sequence, None: of padding; (): model has none
    state_slots: StateSlots | None = None  # `states` for kernels
    adapters: tuple[int | None, ...] = ()  # per sequence, see SequenceStep; (): none has one
    device_adapters: Tensor | None = None  # [num_tokens] int32, row_adapters() for kernels
    # [3, num_tokens] int64 rotary positions, `positions` the first of them; None: all are alike
    turns: Tensor | None = None
    images: ImageRows | None = None  # of tokens counted within the step; None: all are of text
    key_ends: Tensor | None = None  # [num_tokens] int32, how many keys each sees; None: to its own

    @classmethod
    def build(
        cls,
        sequences: Sequence[SequenceStep],
        *,
        block_size: int,
        scratch_block_id: int,
        device: torch.device,
        min_tokens: int = 1,
    ) -> "StepInputs":
        """Flatten the sequences in their order.

        The step is filled up to `min_tokens` rows: see Executor.min_step_tokens. `head_indices`
        fills `logits_indices` up in the same way, since the output head is a linear layer too: run
        the head on these rows and keep the first len(logits_indices).

        Raises InvalidStep when there is no sequence, a sequence has no token, asks for more logits
        than it has rows, or its block ids do not cover it or lie outside of the pool.
        """
        query_lens = _query_lens(sequences)
        num_padding = max(0, min_tokens - sum(query_lens))
        if num_padding:
            padding = SequenceStep((0,) * num_padding, 0, (), 0)
            sequences = (*sequences, padding)
            query_lens.append(num_padding)

        flat = _flatten(sequences, query_lens, block_size, scratch_block_id, num_padding)
        logits_rows = _logits_rows(sequences, flat.cu_lens)
        head_rows = _filled(logits_rows, min_tokens)
        states = _states(sequences)
        adapters = _adapters(sequences)
        positions = flat.positions
        turns: npt.NDArray[np.int64] | None = None
        images: ImageRows | None = None
        key_ends: npt.NDArray[np.int32] | None = None
        parts = [
            (first, each.images)
            for first, each in zip(flat.cu_lens, sequences, strict=False)
            if each.images is not None
        ]
        if parts:
            positions, turns = _turned(parts, positions)
            images = _image_rows(parts, device)
            key_ends = _key_ends(parts, flat.positions)
        arrays: list[npt.NDArray[Any]] = [
            flat.token_ids,
            positions,
            flat.slots,
            logits_rows,
            head_rows,
            flat.tables,
            np.array(flat.cu_lens, np.int32),
            np.array(flat.context_lens, np.int32),
            *(_slots_of_states(sequences, flat.cu_lens) if states else ()),
        ]
        if adapters:
            arrays.append(_row_adapters(adapters, query_lens))
        tensors = PinnedStaging(device).to_device_all(arrays)
        return cls(
            token_ids=tensors[0],
            positions=tensors[1],
            slot_mapping=tensors[2],
            query_lens=tuple(query_lens),
            context_lens=tuple(flat.context_lens),
            block_tables=tensors[5],
            cu_query_lens=tensors[6],
            device_context_lens=tensors[7],
            logits_indices=tensors[3],
            head_indices=tensors[4],
            states=states,
            state_slots=StateSlots(tensors[6], *tensors[8:12]) if states else None,
            adapters=adapters,
            device_adapters=tensors[-1] if adapters else None,
            turns=None if turns is None else PinnedStaging(device).to_device(turns),
            images=images,
            key_ends=None if key_ends is None else PinnedStaging(device).to_device(key_ends),
        )

    @classmethod
    def of_decodes(
        cls,
        token_ids: Sequence[int],
        cached_lens: Sequence[int],
        block_tables: npt.NDArray[np.int32],
        block_size: int,
        device: torch.device,
    ) -> "StepInputs":
        """A step of one token of each sequence, which has logits: as `build`, in a third of the
        time. Not filled up.
        """
        num_seqs = len(token_ids)
        rows = np.arange(num_seqs)
        positions = np.array(cached_lens, np.int64)
        places, offsets = np.divmod(positions, block_size)
        slots = block_tables[rows, places].astype(np.int64) * block_size + offsets
        tensors = PinnedStaging(device).to_device_all(
            (
                np.array(token_ids, np.int64),
                positions,
                slots,
                block_tables,
                np.arange(num_seqs + 1, dtype=np.int32),
                (positions + 1).astype(np.int32),
                rows,
            )
        )
        return cls(
            token_ids=tensors[0],
            positions=tensors[1],
            slot_mapping=tensors[2],
            query_lens=(1,) * num_seqs,
            context_lens=tuple([cached_len + 1 for cached_len in cached_lens]),
            block_tables=tensors[3],
            cu_query_lens=tensors[4],
            device_context_lens=tensors[5],
            logits_indices=tensors[6],
            head_indices=tensors[6],
        )

    @property
    def num_tokens(self) -> int:
        """Rows of the step, padding included."""
        return self.token_ids.shape[0]

    @property
    def num_seqs(self) -> int:
        """Sequences of the step; padding counts as one."""
        return len(self.query_lens)

    def states_within(self, num_states: int) -> tuple[StateStep, ...]:
        """Each sequence's. Raises InvalidStep where one has none, or a slot beyond so many."""
        found = []
        for row, state in enumerate(self.states or (None,) * self.num_seqs):
            if state is None:
                raise InvalidStep(f"sequence {row} of the step has no slots for its states")
            top = max(state.read_id or 0, state.write_id, *[kept.state_id for kept in state.kept])
            if top >= num_states:
                raise InvalidStep(f"the step names the state {top}; the pool has {num_states}")
            found.append(state)
        return tuple(found)

    def row_adapters(self) -> npt.NDArray[np.int32]:
        """[num_tokens] the place of each row's adapter, -1: none; of a step that has some."""
        return _row_adapters(self.adapters, self.query_lens)


class BlockTables:
    """The block tables of steps whose rows are mostly those of the step before."""

    def __init__(self, scratch_block_id: int) -> None:
        self._scratch_block_id = scratch_block_id
        self._block_ids: Sequence[array[int] | None] = ()
        self._tables = np.empty((0, 0), np.int32)

    def of(self, block_ids: Sequence["array[int]"], width: int) -> npt.NDArray[np.int32]:
        """[num_seqs, width], a copy; filled up with the scratch block.

        Arrays are compared by identity: none of them changes. Raises InvalidStep for a block that
        is not in the pool.
        """
        before = self._block_ids
        self._block_ids = ()
        if len(block_ids) != len(before) or width > self._tables.shape[1]:
            before = (None,) * len(block_ids)
            self._tables = np.empty((len(block_ids), 2 * width), np.int32)
        for row, (ids, ids_before) in enumerate(zip(block_ids, before, strict=True)):
            if ids is not ids_before:
                self._write(row, ids)
        self._block_ids = block_ids
        return self._tables[:, :width].copy()

    def _write(self, row: int, ids: "array[int]") -> None:
        if min(ids) < 0 or max(ids) >= self._scratch_block_id:
            outside = next(each for each in ids if not 0 <= each < self._scratch_block_id)
            raise InvalidStep(
                f"sequence {row} of the step names block {outside};"
                f" the pool has blocks 0 to {self._scratch_block_id - 1}"
            )
        table = self._tables[row]
        num_blocks = min(len(ids), len(table))
        table[:num_blocks] = ids[:num_blocks]
        table[num_blocks:] = self._scratch_block_id


class _FlatStep(NamedTuple):
    """A flattened step, on the host; `StepInputs` documents the contents.

    Arrays are by token; of what is by sequence there is too little to be worth numpy's calls.
    """

    token_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    tables: npt.NDArray[np.int32]
    cu_lens: list[int]
    context_lens: list[int]


def _flatten(
    sequences: Sequence[SequenceStep],
    query_lens: Sequence[int],
    block_size: int,
    scratch_block_id: int,
    num_padding: int,
) -> _FlatStep:
    cached_lens = [s.cached_len for s in sequences]
    context_lens = [before + new for before, new in zip(cached_lens, query_lens, strict=True)]
    num_real = len(sequences) - bool(num_padding)
    tables = _block_tables(sequences, context_lens, num_real, block_size, scratch_block_id)

    cu_lens = [0, *accumulate(query_lens)]
    num_tokens = cu_lens[-1]
    positions = np.array(cached_lens, np.int64)
    row_sequence = np.arange(len(sequences))
    if num_tokens > len(sequences):
        row_sequence = row_sequence.repeat(query_lens)
        positions = (positions - cu_lens[:-1])[row_sequence] + np.arange(num_tokens)
    places, offsets = np.divmod(positions, block_size)
    slots = tables[row_sequence, places].astype(np.int64) * block_size + offsets
    token_ids = np.fromiter(
        chain.from_iterable(s.token_ids for s in sequences), np.int64, num_tokens
    )
    if token_ids.min() < 0:
        raise InvalidStep(f"token ids must not be negative, got {int(token_ids.min())}")
    return _FlatStep(token_ids, positions, slots, tables, cu_lens, context_lens)


def _query_lens(sequences: Sequence[SequenceStep]) -> list[int]:
    if not sequences:
        raise InvalidStep("a step needs at least one sequence")
    query_lens = [len(s.token_ids) for s in sequences]
    for index, (sequence, query_len) in enumerate(zip(sequences, query_lens, strict=True)):
        if query_len < 1:
            raise InvalidStep(f"sequence {index} of the step has no token to compute")
        if not 0 <= sequence.num_logits <= query_len:
            raise InvalidStep(
                f"sequence {index} of the step has {query_len} rows"
                f" and cannot give logits of {sequence.num_logits}"
            )
        if sequence.cached_len < 0:
            raise InvalidStep(f"cached_len must not be negative, got {sequence.cached_len}")
    return query_lens


def _block_tables(
    sequences: Sequence[SequenceStep],
    context_lens: Sequence[int],
    num_real: int,
    block_size: int,
    scratch_block_id: int,
) -> npt.NDArray[np.int32]:
    """Rows of block ids [num_seqs, max_blocks], all of the scratch block where there is none."""
    num_blocks = [-(-context_len // block_size) for context_len in context_lens]
    width = max(num_blocks)
    if num_real < len(sequences):
        num_blocks[num_real] = 0
    scratch = array("i", [scratch_block_id]) * width
    joined = array("i")
    for row, (sequence, needed) in enumerate(zip(sequences, num_blocks, strict=True)):
        if len(sequence.block_ids) < needed:
            raise InvalidStep(
                f"sequence {row} of the step has {len(sequence.block_ids)} blocks of {block_size}"
                f" tokens for a context of {context_lens[row]}"
            )
        joined.extend(sequence.block_ids[:needed])
        if needed < width:
            joined.extend(scratch[needed:])
    tables = np.frombuffer(joined, np.int32).reshape(len(sequences), width)
    # Without a sign a negative number is a large one.
    num_outside = np.count_nonzero(tables.view(np.uint32) >= scratch_block_id)
    if num_outside > tables.size - sum(num_blocks):
        _refuse_outside(tables, num_blocks, scratch_block_id)
    return tables


def _refuse_outside(
    tables: npt.NDArray[np.int32], num_blocks: Sequence[int], scratch_block_id: int
) -> NoReturn:
    """Raises InvalidStep for the first block of a sequence that is not in the pool."""
    is_named = np.arange(tables.shape[1]) < np.array(num_blocks)[:, None]
    outside = is_named & ((tables < 0) | (tables >= scratch_block_id))
    row, column = np.argwhere(outside)[0].tolist()
    raise InvalidStep(
        f"sequence {row} of the step names block {int(tables[row, column])};"
        f" the pool has blocks 0 to {scratch_block_id - 1}"
    )


def _logits_rows(
    sequences: Sequence[SequenceStep], cu_lens: Sequence[int]
) -> npt.NDArray[np.int64]:
    ends = zip(sequences, cu_lens[1:], strict=True)
    rows = [row for sequence, end in ends for row in range(end - sequence.num_logits, end)]
    return np.array(rows, np.int64)


def _states(sequences: Sequence[SequenceStep]) -> tuple[StateStep | None, ...]:
    states = tuple([sequence.state for sequence in sequences])
    return states if any(states) else ()


def _slots_of_states(
    sequences: Sequence[SequenceStep], cu_lens: Sequence[int]
) -> tuple[npt.NDArray[np.int32], ...]:
    """All of StateSlots behind cu_query_lens."""
    num_seqs = len(sequences)
    reads = np.full(num_seqs, -1, np.int32)
    writes = np.full(cu_lens[-1], -1, np.int32)
    kept = np.full_like(writes, -1)
    for row, sequence in enumerate(sequences):
        state = sequence.state
        if state is None:
            continue
        if state.read_id is not None:
            reads[row] = state.read_id
        writes[cu_lens[row + 1] - 1 - state.num_drafts] = state.write_id
        for each in state.kept:
            kept[cu_lens[row] + each.position - sequence.cached_len - 1] = each.state_id
    rows = np.repeat(np.arange(num_seqs, dtype=np.int32), np.diff(cu_lens))
    return rows, reads, writes, kept


def _adapters(sequences: Sequence[SequenceStep]) -> tuple[int | None, ...]:
    adapters = tuple([sequence.adapter for sequence in sequences])
    return () if all(place is None for place in adapters) else adapters


def _row_adapters(
    adapters: Sequence[int | None], query_lens: Sequence[int]
) -> npt.NDArray[np.int32]:
    places = [-1 if place is None else place for place in adapters]
    return np.repeat(np.array(places, np.int32), query_lens)


def _turned(
    parts: Sequence[tuple[int, ImagePart]], positions: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64] | None]:
    """Each token's first rotary position, and all three where they differ."""
    turns = np.repeat(positions[None], 3, axis=0)
    for first, part in parts:
        if part.turns is not None:
            turns[:, first : first + part.turns.shape[1]] = part.turns
    return turns[0].copy(), turns if (turns != turns[0]).any() else None


def _image_rows(parts: Sequence[tuple[int, ImagePart]], device: torch.device) -> ImageRows | None:
    found = [(first, part.rows) for first, part in parts if part.rows is not None]
    if not found:
        return None
    places = torch.cat([first + rows.places for first, rows in found])
    return ImageRows(places.to(device), torch.cat([rows.rows for _, rows in found], 1))


def _key_ends(
    parts: Sequence[tuple[int, ImagePart]], positions: npt.NDArray[np.int64]
) -> npt.NDArray[np.int32] | None:
    if all(part.key_ends is None for _, part in parts):
        return None
    ends = positions.astype(np.int32) + 1
    for first, part in parts:
        if part.key_ends is not None:
            ends[first : first + len(part.key_ends)] = part.key_ends
    return ends


def _filled(rows: npt.NDArray[np.int64], min_rows: int) -> npt.NDArray[np.int64]:
    if not 0 < len(rows) < min_rows:
        return rows
    return np.concatenate((rows, np.repeat(rows[-1:], min_rows - len(rows))))


class PlainTokens(NamedTuple):
    """A token, and its log-probability, of each of some requests that go on."""

    request_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The answer to a step. `request_ids` are those that go on.

    `others` are of requests of which more is to be said than `plain` does.
    `mask_ns` is the time of all threads that made this step's `num_masked_rows` masks, before
    the forward and beside it; the step had to wait `mask_wait_ns` for them.
    """

    others: tuple[Generation, ...]
    request_ids: tuple[int, ...]
    forward_ns: int
    sample_ns: int
    total_ns: int
    mask_ns: int = 0
    num_masked_rows: int = 0
    mask_wait_ns: int = 0
    plain: PlainTokens = field(default_factory=lambda: PlainTokens([], [], []))

    @property
    def generations(self) -> tuple[Generation, ...]:
        """What it brought to each request."""
        plain = zip(*self.plain, strict=True)
        return (*map(Generation.of_plain, plain), *self.others)
