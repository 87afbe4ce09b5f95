"""A step's tensors say for each row which token, where, into which slot, seeing what."""

from array import array
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from model_server.errors import InvalidStep
from model_server.step import BlockTables, SequenceStep, StateStep, StepInputs
from proto.contract import KeptState
from tests.model_server.attention.attention_cases import CPU

SCRATCH = 99


def build(*sequences: SequenceStep, min_tokens: int = 1) -> StepInputs:
    return StepInputs.build(
        sequences, block_size=4, scratch_block_id=SCRATCH, device=CPU, min_tokens=min_tokens
    )


def test_a_chunk_and_a_decode_are_flattened_in_order() -> None:
    step = build(
        SequenceStep([11, 12, 13], cached_len=3, block_ids=[7, 5], num_logits=0),
        SequenceStep([21], cached_len=8, block_ids=[1, 2, 3]),
    )
    assert step.token_ids.tolist() == [11, 12, 13, 21]
    assert step.positions.tolist() == [3, 4, 5, 8]
    assert step.slot_mapping.tolist() == [7 * 4 + 3, 5 * 4, 5 * 4 + 1, 3 * 4]
    assert step.query_lens == (3, 1)
    assert step.context_lens == (6, 9)
    assert step.device_context_lens.tolist() == [6, 9]
    assert step.block_tables.tolist() == [[7, 5, SCRATCH], [1, 2, 3]]
    assert step.cu_query_lens.tolist() == [0, 3, 4]
    assert step.logits_indices.tolist() == [3]


def test_the_last_rows_of_a_chunk_may_all_need_logits() -> None:
    step = build(
        SequenceStep([1, 2, 3], 0, [4], num_logits=2), SequenceStep([1, 2], 0, [5], num_logits=2)
    )
    assert step.logits_indices.tolist() == [1, 2, 3, 4]


def test_slots_of_states_lie_behind_the_tokens_that_they_stand_behind() -> None:
    kept = (KeptState(4, 7), KeptState(8, 9))
    step = build(
        SequenceStep([11], 4, [7, 5], state=StateStep(5, 6)),
        SequenceStep([21, 22, 23, 24, 25, 26], 3, [1, 2, 3], state=StateStep(None, 3, kept, 1)),
    )
    slots = step.state_slots
    assert slots is not None
    assert slots.cu_query_lens.tolist() == [0, 1, 7]
    assert slots.sequences.tolist() == [0, 1, 1, 1, 1, 1, 1]
    assert slots.reads.tolist() == [5, -1]
    assert slots.writes.tolist() == [6, -1, -1, -1, -1, 3, -1]
    assert slots.kept.tolist() == [-1, 7, -1, -1, -1, 9, -1]
    assert build(SequenceStep([11], 4, [7, 5])).state_slots is None


def test_a_short_step_is_filled_up_with_rows_that_nobody_reads() -> None:
    step = build(SequenceStep([11], 5, [7, 5]), min_tokens=4)
    assert step.token_ids.shape == (4,)
    assert step.query_lens == (1, 3)
    assert step.block_tables.tolist() == [[7, 5], [SCRATCH, SCRATCH]]
    assert step.slot_mapping.tolist()[1:] == [SCRATCH * 4, SCRATCH * 4 + 1, SCRATCH * 4 + 2]
    assert step.logits_indices.tolist() == [0]
    assert step.head_indices.tolist() == [0, 0, 0, 0]


def test_a_long_enough_step_is_not_filled_up() -> None:
    step = build(SequenceStep([1, 2, 3, 4], 0, [0]), min_tokens=4)
    assert step.num_tokens == 4
    assert step.num_seqs == 1


def test_a_step_without_logits_has_no_head_rows() -> None:
    step = build(SequenceStep([1, 2, 3, 4], 0, [0], num_logits=0), min_tokens=4)
    assert step.logits_indices.tolist() == []
    assert step.head_indices.tolist() == []


@pytest.mark.parametrize("blocks", [[3, 1], array("i", [3, 1]), np.array([3, 1], dtype=np.int32)])
def test_block_ids_come_in_any_sequence(blocks: list[int]) -> None:
    assert build(SequenceStep([1], 4, blocks)).slot_mapping.tolist() == [4]


def test_blocks_granted_ahead_are_ignored() -> None:
    assert build(SequenceStep([1], 0, [3, 1, 2])).block_tables.tolist() == [[3]]


@pytest.mark.parametrize(
    ("sequence", "reason"),
    [
        (SequenceStep([], 0, [1]), "sequence 0 of the step has no token"),
        (SequenceStep([1], 4, [1]), "has 1 blocks of 4 tokens for a context of 5"),
        (SequenceStep([1], 0, [SCRATCH]), "names block 99; the pool has blocks 0 to 98"),
        (SequenceStep([1], 0, [-1]), "names block -1"),
        (SequenceStep([1], -1, [1]), "cached_len must not be negative, got -1"),
        (SequenceStep([1], 0, [1], 2), "has 1 rows and cannot give logits of 2"),
        (SequenceStep([-5], 0, [1]), "token ids must not be negative, got -5"),
    ],
)
def test_a_broken_promise_is_refused(sequence: SequenceStep, reason: str) -> None:
    with pytest.raises(InvalidStep, match=reason):
        build(sequence)


def test_a_step_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidStep, match="at least one sequence"):
        build()


@given(
    shapes=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=6),
    block_size=st.integers(1, 5),
    min_tokens=st.integers(1, 12),
    data=st.data(),
)
def test_equals_the_plain_loop(
    shapes: list[tuple[int, int]], block_size: int, min_tokens: int, data: st.DataObject
) -> None:
    num_blocks = 0
    sequences: list[SequenceStep] = []
    rows: list[tuple[int, int, int]] = []
    logits_rows: list[int] = []
    for cached_len, query_len in shapes:
        needed = -(-(cached_len + query_len) // block_size)
        blocks = list(range(num_blocks, num_blocks + needed))[::-1]
        num_blocks += needed
        num_logits = data.draw(st.integers(0, query_len))
        sequences.append(SequenceStep(range(query_len), cached_len, blocks, num_logits))
        for index in range(query_len):
            position = cached_len + index
            if index >= query_len - num_logits:
                logits_rows.append(len(rows))
            block = blocks[position // block_size]
            rows.append((index, position, block * block_size + position % block_size))
    step = StepInputs.build(
        sequences,
        block_size=block_size,
        scratch_block_id=num_blocks,
        device=CPU,
        min_tokens=min_tokens,
    )
    columns = (step.token_ids, step.positions, step.slot_mapping)
    assert torch.stack(columns, 1)[: len(rows)].tolist() == [list(row) for row in rows]
    assert step.logits_indices.tolist() == logits_rows
    assert step.num_tokens == max(min_tokens, len(rows))
    padding = step.slot_mapping[len(rows) :]
    assert bool((padding // block_size >= num_blocks).all())


@given(data=st.data(), block_size=st.integers(1, 4))
def test_steps_of_one_token_each_are_what_they_would_be_without_the_steps_before(
    data: st.DataObject, block_size: int
) -> None:
    """Sequences come, grow and leave."""
    tables = BlockTables(SCRATCH)
    running: list[tuple[int, array[int]]] = []
    free = list(range(SCRATCH))
    for _ in range(data.draw(st.integers(1, 8))):
        running = [each for each in running if not data.draw(st.sampled_from([False, False, True]))]
        for cached_len in data.draw(st.lists(st.integers(0, 6), max_size=2)):
            running.append((cached_len, array("i")))
        if not running:
            continue
        steps: list[SequenceStep] = []
        for place, (cached_len, block_ids) in enumerate(running):
            num_missing = cached_len // block_size + 1 - len(block_ids)
            if num_missing > 0:
                block_ids = block_ids + array("i", [free.pop() for _ in range(num_missing)])
            running[place] = (cached_len + 1, block_ids)
            steps.append(SequenceStep([place], cached_len, block_ids))
        expected = StepInputs.build(
            steps, block_size=block_size, scratch_block_id=SCRATCH, device=CPU
        )
        step = StepInputs.of_decodes(
            [place for (place,), *_ in steps],
            [each.cached_len for each in steps],
            tables.of([block_ids for _, block_ids in running], expected.block_tables.shape[1]),
            block_size,
            CPU,
        )
        for field in fields(StepInputs):
            one, other = getattr(step, field.name), getattr(expected, field.name)
            same = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
            assert same, field.name
            if isinstance(one, torch.Tensor):
                assert one.dtype == other.dtype, field.name


def test_a_block_outside_of_the_pool_is_refused_and_the_next_step_is_right() -> None:
    tables = BlockTables(SCRATCH)
    good = array("i", [3, 4])
    assert tables.of([good, array("i", [5])], 2).tolist() == [[3, 4], [5, SCRATCH]]
    for outside in (SCRATCH, -1):
        with pytest.raises(InvalidStep, match=f"sequence 1 of the step names block {outside};"):
            tables.of([good, array("i", [5, outside])], 2)
    assert tables.of([array("i", [7]), good], 2).tolist() == [[7, SCRATCH], [3, 4]]
