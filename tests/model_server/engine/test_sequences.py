"""The books of a shard: what a step may do to a sequence."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.spec import ConstraintSpec, Kind
from model_server.engine.adapters import AdapterBook
from model_server.engine.sequences import Drafter, DraftRules, PlannedChunk, SequenceState
from model_server.errors import InvalidStep
from model_server.step import SequenceStep
from proto.contract import (
    FinishReason,
    LogprobParams,
    NewSequence,
    OutputConstraint,
    RunningUpdate,
    SamplingParams,
    StopParams,
)

BLOCK_SIZE = 4


def sequence(
    num_tokens: int = 10,
    *,
    request_id: int = 1,
    prompt_len: int | None = None,
    num_blocks: int = 3,
    stop: StopParams | None = None,
    prompt_logprobs: bool = False,
    constraint: OutputConstraint | None = None,
) -> SequenceState:
    return SequenceState.of(
        NewSequence(
            request_id=request_id,
            token_ids=tuple(range(100, 100 + num_tokens)),
            prompt_len=prompt_len or num_tokens,
            cached_len=0,
            chunk_len=0,
            block_ids=tuple(range(num_blocks)),
            sampling=SamplingParams(),
            stop=stop or StopParams(max_new_tokens=5),
            logprobs=LogprobParams(prompt=prompt_logprobs),
            constraint=constraint,
        )
    )


def decoding() -> SequenceState:
    state = sequence()
    state.computed_len = len(state.token_ids) - 1
    state.is_decoding = True
    return state


def test_a_decoding_sequence_computes_one_token_unless_told_otherwise() -> None:
    chunk = PlannedChunk.of(decoding(), None, BLOCK_SIZE)
    assert (chunk.chunk_len, chunk.num_logits, chunk.samples) == (1, 1, True)
    assert chunk.step(AdapterBook(0)) == SequenceStep([109], 9, chunk.block_ids)


def test_a_first_token_that_was_late_is_computed_again_whatever_room_the_step_has() -> None:
    state = sequence(constraint=OutputConstraint(ConstraintSpec(Kind.REGEX, "a*")))
    state.computed_len = len(state.token_ids)
    state.retry_sample(())
    # The step was sent before it was known that the token would be late.
    chunk = PlannedChunk.of(state, RunningUpdate(1, chunk_len=16), BLOCK_SIZE)
    assert (chunk.start, chunk.chunk_len, chunk.samples) == (9, 1, True)


def test_a_prompt_under_way_sits_the_step_out_unless_told_otherwise() -> None:
    assert PlannedChunk.of(sequence(), None, BLOCK_SIZE).chunk_len == 0
    assert PlannedChunk.of(sequence(), RunningUpdate(1, chunk_len=4), BLOCK_SIZE).chunk_len == 4
    assert PlannedChunk.of(decoding(), RunningUpdate(1, chunk_len=0), BLOCK_SIZE).chunk_len == 0


def test_a_chunk_in_the_middle_of_a_prompt_needs_no_logits() -> None:
    chunk = PlannedChunk.of(sequence(), RunningUpdate(1, chunk_len=9), BLOCK_SIZE)
    assert (chunk.num_logits, chunk.samples) == (0, False)


def test_the_last_chunk_of_a_prompt_samples() -> None:
    chunk = PlannedChunk.of(sequence(), RunningUpdate(1, chunk_len=10), BLOCK_SIZE)
    assert (chunk.num_logits, chunk.samples) == (1, True)


def test_a_prompt_to_be_scored_needs_the_logits_of_all_its_rows() -> None:
    state = sequence(prompt_logprobs=True)
    assert PlannedChunk.of(state, RunningUpdate(1, chunk_len=4), BLOCK_SIZE).num_logits == 4
    state.computed_len = 9
    assert PlannedChunk.of(state, RunningUpdate(1, chunk_len=1), BLOCK_SIZE).num_logits == 1


@pytest.mark.parametrize(
    ("update", "reason"),
    [
        (RunningUpdate(1, chunk_len=11), r"chunk_len 11 is not in 0\.\.10"),
        (RunningUpdate(1, chunk_len=-1), r"chunk_len -1 is not in 0\.\.10"),
    ],
)
def test_a_chunk_beyond_the_tokens_is_refused(update: RunningUpdate, reason: str) -> None:
    with pytest.raises(InvalidStep, match=reason):
        PlannedChunk.of(sequence(), update, BLOCK_SIZE)


def test_a_chunk_beyond_the_blocks_is_refused() -> None:
    with pytest.raises(InvalidStep, match="2 blocks of 4 tokens do not cover 9 tokens"):
        PlannedChunk.of(sequence(num_blocks=2), RunningUpdate(1, chunk_len=9), BLOCK_SIZE)


def test_planning_changes_nothing() -> None:
    state = sequence(num_blocks=2)
    chunk = PlannedChunk.of(state, RunningUpdate(1, (7,), chunk_len=9), BLOCK_SIZE)
    assert list(chunk.block_ids) == [0, 1, 7]
    assert list(state.block_ids) == [0, 1]
    assert state.computed_len == 0


@pytest.mark.parametrize(
    ("last", "stop", "expected"),
    [
        (5, StopParams(max_new_tokens=3), None),
        (2, StopParams(max_new_tokens=3), FinishReason.EOS),
        (2, StopParams(max_new_tokens=3, ignore_eos=True), None),
        (9, StopParams(max_new_tokens=3, stop_token_ids=(8, 9)), FinishReason.STOP_TOKEN),
        (5, StopParams(max_new_tokens=2), FinishReason.LENGTH),
        (2, StopParams(max_new_tokens=2), FinishReason.EOS),
        (2, StopParams(max_new_tokens=2, ignore_eos=True), FinishReason.LENGTH),
    ],
)
def test_a_sequence_ends_for_the_first_reason_that_holds(
    last: int, stop: StopParams, expected: FinishReason | None
) -> None:
    state = sequence(num_tokens=5, prompt_len=4, stop=stop)
    state.token_ids.append(last)
    assert state.finish_reason(eos_token_ids=(2,)) == expected


def test_output_made_before_a_preemption_counts_towards_the_length() -> None:
    state = sequence(num_tokens=8, prompt_len=4, stop=StopParams(max_new_tokens=5))
    assert state.finish_reason(()) is None
    state.token_ids.append(3)
    assert state.finish_reason(()) is FinishReason.LENGTH


@given(num_tokens=st.integers(1, 30), computed=st.integers(0, 29), chunk=st.integers(0, 30))
def test_a_chunk_is_either_refused_or_covered(num_tokens: int, computed: int, chunk: int) -> None:
    state = sequence(num_tokens=num_tokens, num_blocks=4)
    state.computed_len = min(computed, num_tokens)
    end = state.computed_len + chunk
    if end > num_tokens or end > 4 * BLOCK_SIZE:
        with pytest.raises(InvalidStep):
            PlannedChunk.of(state, RunningUpdate(1, chunk_len=chunk), BLOCK_SIZE)
        return
    planned = PlannedChunk.of(state, RunningUpdate(1, chunk_len=chunk), BLOCK_SIZE)
    assert planned.samples == (chunk > 0 and end == num_tokens)
    assert len(planned.step(AdapterBook(0)).token_ids) == chunk


@pytest.mark.parametrize(("chunk_len", "computed"), [(1, 1), (3, 3), (16, 3), (0, 0)])
def test_of_forced_tokens_a_step_computes_at_most_as_many_as_it_says(
    chunk_len: int, computed: int
) -> None:
    constraint = OutputConstraint(ConstraintSpec(Kind.REGEX, "a*"))
    state = sequence(num_tokens=20, num_blocks=8, constraint=constraint)
    state.computed_len = 20
    state.is_decoding = True
    state.token_ids += (5, 6, 7)
    chunk = PlannedChunk.of(state, RunningUpdate(1, (), chunk_len), BLOCK_SIZE)
    assert (chunk.chunk_len, chunk.samples) == (computed, computed == 3)


def test_a_draft_follows_the_longest_match() -> None:
    drafter = Drafter()
    assert drafter.draft((1, 2), 4) == ()
    assert drafter.draft((1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3), 4) == (4,)


def test_beside_many_rows_only_a_long_match_is_followed() -> None:
    few = DraftRules.of_rows(3, ())
    many = DraftRules.of_rows(4, ())
    short = (1, 2, 3, 9, 1, 2, 3)
    long = (*range(8), 20, *range(8))
    for token_ids, rules, drafts in (
        (short, few, (9,)),
        (short, many, ()),
        (long, many, (20,)),
    ):
        assert Drafter().draft(token_ids, 4, rules.min_match_len) == drafts


def test_a_draft_grows_with_its_success_and_repeats_what_repeats() -> None:
    drafter = Drafter()
    token_ids = [1, 2, 1, 2]
    assert drafter.draft(token_ids, 8) == (1,)
    drafter.note(1, 1)
    assert drafter.draft(token_ids, 8) == (1, 2)
    drafter.note(2, 2)
    assert drafter.draft(token_ids, 3) == (1, 2, 1)
    drafter.note(3, 0)
    assert drafter.draft(token_ids, 8) == (1,)


def planned(
    stop: StopParams | None = None,
    *,
    num_blocks: int = 4,
    prompt_len: int = 9,
    pause_len: int | None = None,
    max_drafts: int = 8,
    constraint: OutputConstraint | None = None,
    num_rows: int = 1,
) -> PlannedChunk:
    """A chunk of up to six tokens of 1, 2, 3, 1, 2, 3, .. which decodes; 3 ends a sequence."""
    new = NewSequence(
        request_id=1,
        token_ids=(1, 2, 3) * 3,
        prompt_len=prompt_len,
        cached_len=8,
        chunk_len=1,
        block_ids=tuple(range(num_blocks)),
        sampling=SamplingParams(),
        stop=stop or StopParams(20),
        pause_len=pause_len,
        max_drafts=max_drafts,
        constraint=constraint,
    )
    sequence = SequenceState.of(new)
    sequence.is_decoding = True
    sequence.draft(1, DraftRules())
    sequence.take_drafts(8, 8)
    sequence.computed_len = 8
    rules = replace(DraftRules.of_rows(num_rows, (3,)), min_match_len=2)
    return PlannedChunk.of(sequence, RunningUpdate(1, (), 6), 4, rules)


def test_no_draft_ends_the_sequence() -> None:
    assert planned().drafts == (1, 2)
    assert planned(StopParams(20, ignore_eos=True)).drafts == (1, 2, 3, 1, 2)
    assert planned(StopParams(20, ignore_eos=True, stop_token_ids=(2,))).drafts == (1,)


def test_drafts_keep_to_the_tokens_that_are_left_and_to_the_blocks() -> None:
    assert planned(StopParams(20, ignore_eos=True), num_blocks=3).drafts == (1, 2, 3)
    assert planned(StopParams(3, ignore_eos=True), prompt_len=8).drafts == (1,)
    assert planned(StopParams(20, ignore_eos=True), prompt_len=8, pause_len=3).drafts == (1,)
    last = planned(StopParams(2, ignore_eos=True), prompt_len=8)
    assert (last.drafts, last.num_logits) == ((), 1)
    assert planned(StopParams(20, ignore_eos=True), max_drafts=3).drafts == (1, 2, 3)
    assert planned(max_drafts=0).drafts == ()


def test_in_a_step_of_more_than_four_no_constrained_sequence_has_drafts() -> None:
    digits = OutputConstraint(ConstraintSpec(Kind.REGEX, "[0-9]+"))
    assert planned(constraint=digits, num_rows=4).drafts == (1, 2)
    assert planned(constraint=digits, num_rows=5).drafts == ()
    assert planned(num_rows=5).drafts == (1, 2)


@pytest.mark.parametrize(
    ("token_ids", "num_accepted"), [((1, 2, 9), 2), ((1, 2), 1), ((9,), 0), ((1, 9, 9), 1), ((), 0)]
)
def test_drafts_count_as_accepted_as_far_as_another_token_follows(
    token_ids: tuple[int, ...], num_accepted: int
) -> None:
    assert planned().num_accepted(token_ids) == num_accepted
