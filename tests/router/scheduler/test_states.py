"""Slots for states: who holds them, what is kept, and what may be evicted."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.scheduler.states import SequenceStates, StateSlots


def keep(slots: StateSlots, *prefix_ids: int) -> None:
    """States of these prefixes, kept in this order; who wrote them has left."""
    for prefix_id in prefix_ids:
        writer = slots.begin(None)
        slots.plan(writer, [16], num_spared=0)
        slots.keep(writer, 16, prefix_id)
        slots.leave(writer)


def test_a_sequence_works_in_two_slots_that_come_back_when_it_leaves() -> None:
    slots = StateSlots(5)
    first = slots.begin(None)
    second = slots.begin(None)
    assert len({*first.state_ids, *second.state_ids}) == 4
    assert (slots.num_used, slots.num_available, slots.max_sequences) == (4, 1, 2)
    assert not slots.has_room(None)
    slots.leave(first)
    assert slots.has_room(None)
    slots.check_invariants([second])


def test_what_a_sequence_wrote_is_found_once_it_was_computed_that_far() -> None:
    slots = StateSlots(6)
    writer = slots.begin(None)
    slots.plan(writer, [48, 16], num_spared=1)
    assert [each.position for each in writer.unwritten] == [16, 48]
    first, second = writer.unwritten
    slots.keep(writer, 16, 1)
    slots.keep(writer, 32, 2)
    assert (slots.keeps(1), slots.keeps(2), writer.unwritten) == (True, False, [second])
    # Others begin there while it still writes the next one.
    assert slots.begin(1).from_state == first.state_id


def test_the_more_useful_ones_get_the_slots_that_others_do_not_need() -> None:
    slots = StateSlots(7)
    writer = slots.begin(None)
    slots.plan(writer, [48, 16], num_spared=2)
    assert [each.position for each in writer.unwritten] == [48]
    other = slots.begin(None)
    slots.plan(other, [48, 16], num_spared=1)
    assert other.unwritten == []
    slots.check_invariants([writer, other])


def test_what_was_never_written_comes_back() -> None:
    slots = StateSlots(4)
    writer = slots.begin(None)
    slots.plan(writer, [16, 32], num_spared=0)
    assert slots.num_available == 0
    slots.leave(writer)
    assert (slots.num_used, slots.num_available, slots.num_kept) == (0, 4, 0)


def test_a_state_that_two_wrote_is_kept_once() -> None:
    slots = StateSlots(6)
    writers = [slots.begin(None), slots.begin(None)]
    for writer in writers:
        slots.plan(writer, [16], num_spared=0)
    kept_id = writers[0].unwritten[0].state_id
    for writer in writers:
        slots.keep(writer, 16, 1)
    slots.check_invariants(writers)
    assert (slots.num_kept, slots.num_available) == (1, 2)
    slots.leave(writers[1])
    assert slots.begin(1).from_state == kept_id


def test_kept_states_make_room_for_a_sequence_least_recently_used_first() -> None:
    slots = StateSlots(5)
    keep(slots, 1, 2, 3)
    slots.leave(slots.begin(1))
    slots.begin(None)
    assert slots.kept_ids == {1, 2, 3}
    slots.begin(None)
    assert slots.kept_ids == {1}


def test_a_state_stays_until_the_last_who_begins_there_has_read_it() -> None:
    slots = StateSlots(6)
    keep(slots, 1)
    readers = [slots.begin(1), slots.begin(1)]
    assert (slots.num_available, slots.has_room(None)) == (1, False)
    slots.was_read(readers[0])
    slots.was_read(readers[0])
    assert slots.num_available == 1
    slots.leave(readers[1])
    assert slots.num_available == 4
    slots.check_invariants(readers[:1])


def test_one_that_is_still_to_be_read_is_passed_over() -> None:
    slots = StateSlots(7)
    keep(slots, 1, 2, 3)
    live = [slots.begin(1)]
    keep(slots, 4)
    live += [slots.begin(None), slots.begin(None)]
    assert slots.kept_ids == {1}
    slots.check_invariants(live)


def test_there_is_no_room_behind_a_state_whose_slot_would_be_needed() -> None:
    slots = StateSlots(4)
    keep(slots, 1, 2)
    slots.begin(None)
    assert (slots.has_room(1), slots.has_room(None)) == (False, True)


def test_a_state_goes_with_its_prefix() -> None:
    slots = StateSlots(4)
    keep(slots, 1)
    slots.forget(1)
    slots.forget(2)
    assert (slots.num_kept, slots.num_available) == (0, 4)


def test_nothing_is_kept_after_everything_was_lost() -> None:
    slots = StateSlots(6)
    keep(slots, 1)
    slots.begin(1)
    slots.clear()
    assert (slots.num_used, slots.num_kept, slots.num_available) == (0, 0, 6)
    slots.check_invariants([])


def test_fewer_slots_than_one_sequence_needs_are_refused() -> None:
    with pytest.raises(ValueError, match="num_states is 1; it must be at least 2"):
        StateSlots(1)


class StatesMachine(RuleBasedStateMachine):
    """Sequences that begin, write, read and leave, in too few slots."""

    @initialize(num_states=st.integers(2, 12))
    def begin_with(self, num_states: int) -> None:
        self.slots = StateSlots(num_states)
        self.live: list[SequenceStates] = []
        # The slot of each kept prefix, least recently used first.
        self.kept: dict[int, int] = {}

    @rule(prefix_id=st.integers(0, 5))
    def begin(self, prefix_id: int) -> None:
        read = prefix_id if self.slots.keeps(prefix_id) else None
        pinned = {each.pinned for each in self.live} - {None}
        free = self.slots.num_states - len(self.kept) - self.slots.num_used
        room = free + len(self.kept.keys() - pinned - {read})
        assert self.slots.has_room(read) == (room >= 2)
        if room < 2:
            return
        evictable = [each for each in self.kept if each not in pinned | {read}]
        states = self.slots.begin(read)
        self.live.append(states)
        for evicted in evictable[: max(0, 2 - free)]:
            del self.kept[evicted]
        if read is not None:
            assert states.from_state == self.kept[read]
            self.kept[read] = self.kept.pop(read)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), num_positions=st.integers(1, 2), num_spared=st.integers(0, 2))
    def plan(self, data: st.DataObject, num_positions: int, num_spared: int) -> None:
        states = data.draw(st.sampled_from(self.live))
        if states.unwritten:
            return
        num_available = self.slots.num_available
        self.slots.plan(states, [32, 16][:num_positions], num_spared)
        assert self.slots.num_available == num_available - len(states.unwritten)
        assert not states.unwritten or self.slots.num_available >= 2 * num_spared
        self.kept = {each: slot for each, slot in self.kept.items() if self.slots.keeps(each)}

    @precondition(lambda self: self.live)
    @rule(data=st.data(), prefix_id=st.integers(0, 5))
    def keep(self, data: st.DataObject, prefix_id: int) -> None:
        states = data.draw(st.sampled_from(self.live))
        for written in states.unwritten[:1]:
            self.slots.keep(states, written.position, prefix_id)
            self.kept.setdefault(prefix_id, written.state_id)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        self.slots.was_read(data.draw(st.sampled_from(self.live)))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        states = data.draw(st.sampled_from(self.live))
        self.live.remove(states)
        self.slots.leave(states)

    @rule(prefix_id=st.integers(0, 5))
    def forget(self, prefix_id: int) -> None:
        if all(each.pinned != prefix_id for each in self.live):
            self.slots.forget(prefix_id)
            self.kept.pop(prefix_id, None)

    @invariant()
    def nothing_is_lost(self) -> None:
        self.slots.check_invariants(self.live)
        assert self.slots.kept_ids == self.kept.keys()
        num_held = sum(len(each.state_ids) + len(each.unwritten) for each in self.live)
        assert self.slots.num_used == num_held

    def teardown(self) -> None:
        if hasattr(self, "slots"):
            for states in self.live:
                self.slots.leave(states)
            self.slots.check_invariants([])
            assert self.slots.num_available == self.slots.num_states


TestStateSlots = StatesMachine.TestCase
