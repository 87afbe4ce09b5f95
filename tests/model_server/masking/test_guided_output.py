"""One guided output: refusals narrow its mask, and end in the completion that is known to fit."""

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest

from constraints.bitmask import Bitmask
from constraints.errors import EngineFailed
from model_server.masking.guided_output import TOO_SLOW, Advance, GuidedOutput

NUM_WORDS = 2
EOS_ID = 0
STOP_ID = 33


class ScriptedGuide:
    """A guide that allows some tokens and accepts fewer."""

    def __init__(
        self,
        allowed: Collection[int],
        accepted: Collection[int] = (),
        completion: int | None = None,
        forced: tuple[int, ...] = (),
    ) -> None:
        self.allowed = allowed
        self.accepted = accepted
        self.completion = completion
        self.forced = forced
        self.given: list[int] = []
        self.is_over = False
        self.is_satisfied = True

    def fill(self, row: Bitmask) -> None:
        bits = np.zeros(NUM_WORDS * 32, dtype=np.uint8)
        bits[list(self.allowed)] = 1
        row[:] = np.packbits(bits, bitorder="little").view(np.int32)

    def check(self, token_id: int) -> bool:
        if token_id == 13:
            raise EngineFailed("thirteen")
        return token_id in self.accepted

    def completion_token(self) -> int | None:
        return self.completion

    def advance(self, token_id: int) -> None:
        self.given.append(token_id)

    def take_forced(self) -> tuple[int, ...]:
        return self.forced


def output_of(
    guide: ScriptedGuide, *, ignored_ids: Collection[int] = (), left_len: int = 10
) -> GuidedOutput:
    opened: Any = guide
    output = GuidedOutput(
        1,
        lambda: opened,
        num_words=NUM_WORDS,
        end_ids=(EOS_ID, STOP_ID),
        ignored_ids=ignored_ids,
        left_len=left_len,
    )
    output.open()
    return output


def allowed(words: Bitmask) -> list[int]:
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()


def test_a_refused_token_is_taken_out_of_the_mask() -> None:
    output = output_of(ScriptedGuide({3, 31, 40}, accepted={40}))
    assert not output.accepts(31, output.words)
    assert allowed(output.words) == [3, 40]
    assert output.accepts(40, output.words)
    assert output.error is None


@pytest.mark.parametrize(("completion", "left"), [(9, [9]), (None, [EOS_ID, STOP_ID])])
def test_after_a_few_refusals_only_the_known_completion_is_left(
    completion: int | None, left: list[int]
) -> None:
    guide = ScriptedGuide(set(range(1, 30)), accepted={9, EOS_ID, STOP_ID}, completion=completion)
    output = output_of(guide)
    for token_id in (1, 2, 3, 4):
        assert not output.accepts(token_id, output.words)
    assert allowed(output.words) == left
    assert output.accepts(left[0], output.words)


def test_an_ignored_end_is_legal_once_all_else_was_refused() -> None:
    guide = ScriptedGuide({EOS_ID, 5, 6}, accepted={EOS_ID, STOP_ID}, completion=None)
    output = output_of(guide, ignored_ids=(EOS_ID,))
    assert not output.accepts(5, output.words)
    assert allowed(output.words) == [6]
    assert not output.accepts(6, output.words)
    assert allowed(output.words) == [EOS_ID, STOP_ID]
    assert output.accepts(EOS_ID, output.words)


def test_refusals_are_counted_anew_for_every_token() -> None:
    guide = ScriptedGuide(set(range(1, 30)), accepted={9}, completion=9)
    output = output_of(guide)
    for _ in range(3):
        output.fill()
        for token_id in (1, 2, 3):
            assert not output.accepts(token_id, output.words)
        assert len(allowed(output.words)) == 26
        assert output.accepts(9, output.words)
        output.advance(9)


def test_a_known_completion_that_is_refused_as_well_is_an_error() -> None:
    output = output_of(ScriptedGuide({1, 2, 3, 4, 5}, completion=5))
    for token_id in (1, 2, 3, 4, 5):
        assert not output.accepts(token_id, output.words)
    assert allowed(output.words) == []
    assert "was refused" in str(output.error)


def test_a_guide_that_fails_leaves_no_token() -> None:
    output = output_of(ScriptedGuide({13, 14}))
    assert not output.accepts(13, output.words)
    assert allowed(output.words) == []
    assert output.error == "thirteen"


@pytest.mark.parametrize(
    ("legal", "left"), [({EOS_ID, 5}, [5]), ({EOS_ID, STOP_ID}, [STOP_ID]), ({EOS_ID}, [EOS_ID])]
)
def test_an_ignored_end_is_legal_only_where_nothing_else_is(
    legal: set[int], left: list[int]
) -> None:
    assert allowed(output_of(ScriptedGuide(legal), ignored_ids=(EOS_ID,)).words) == left


def test_forced_tokens_come_with_the_one_that_was_drawn() -> None:
    guide = ScriptedGuide({5}, accepted={5}, forced=(6, 7))
    assert output_of(guide).advance(5) == Advance((6, 7))


@pytest.mark.parametrize(
    ("token_id", "left_len", "expected"),
    [
        pytest.param(EOS_ID, 10, Advance((), is_over=False, is_satisfied=True), id="end"),
        pytest.param(STOP_ID, 10, Advance((), is_over=False, is_satisfied=True), id="stop"),
        pytest.param(5, 1, Advance((), is_over=False, is_satisfied=True), id="last"),
        pytest.param(5, 3, Advance((6, 7), is_over=False, is_satisfied=True), id="last-forced"),
        pytest.param(5, 4, Advance((6, 7)), id="goes-on"),
    ],
)
def test_at_its_end_an_output_says_whether_it_is_satisfied(
    token_id: int, left_len: int, expected: Advance
) -> None:
    guide = ScriptedGuide({5}, forced=(6, 7))
    assert output_of(guide, left_len=left_len).advance(token_id) == expected


def test_an_output_that_is_over_forces_nothing() -> None:
    guide = ScriptedGuide({5}, forced=(6, 7))
    output = output_of(guide)
    guide.is_over = True
    assert output.advance(5) == Advance((), is_over=True, is_satisfied=True)


def test_the_allowance_grows_with_the_tokens() -> None:
    output = output_of(ScriptedGuide({5}))
    output.charge(499_000_000)
    output.advance(5)
    output.charge(2_000_000)
    assert output.error is None
    output.charge(10_000_000)
    assert output.error == TOO_SLOW


def test_an_output_that_its_constraint_makes_too_slow_is_refused() -> None:
    output = output_of(ScriptedGuide({5}))
    output.charge(501_000_000)
    assert output.is_refused


def test_an_error_of_a_mask_made_on_this_thread_ends_the_output_and_nothing_else() -> None:
    guide = ScriptedGuide({3})
    output = output_of(guide)
    guide.allowed = {1_000}
    output.fill_here()
    assert "IndexError" in (output.error or "")
