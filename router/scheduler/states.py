"""The slots for states, of a model whose layers hold a state of each sequence.

    free --> held by a sequence: two in which it works, others that it is to write for later ones
     ^                                        |
     +--- it leaves <---+                     | the step that wrote it was answered
     +--- evicted <---- kept, found by the prefix at whose end it stands; any number may read it

A kept slot is evicted for any other use, least recently used first; not while a step that may read
it is not answered. It knows no block: a prefix is a number, given by the allocator.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from proto.contract import NUM_OWN_STATES, KeptState


@dataclass(slots=True, eq=False)
class SequenceStates:
    """The slots of one sequence. Only its `StateSlots` changes it.

    It works in `state_ids`. `from_state`: the kept slot that it begins with; `pinned`: the prefix
    of that slot until it was read. `unwritten`: what it is to write for others, by position.
    """

    state_ids: tuple[int, ...]
    from_state: int | None
    pinned: int | None
    unwritten: list[KeptState]


class StateSlots:
    """Hands slots out and takes them back."""

    def __init__(self, num_states: int) -> None:
        """Raises ValueError for fewer slots than one sequence works in."""
        if num_states < NUM_OWN_STATES:
            raise ValueError(f"num_states is {num_states}; it must be at least {NUM_OWN_STATES}")
        self.num_states = num_states
        self._free_ids = list(range(num_states - 1, -1, -1))
        # By prefix, least recently used first.
        self._kept: OrderedDict[int, int] = OrderedDict()
        # Sequences that still have to read the state of a prefix, where there are any.
        self._num_readers: dict[int, int] = {}

    @property
    def max_sequences(self) -> int:
        """So many can work at once."""
        return self.num_states // NUM_OWN_STATES

    @property
    def num_available(self) -> int:
        """Slots that could be had now: the free ones, and those to be evicted."""
        return len(self._free_ids) + len(self._kept) - len(self._num_readers)

    @property
    def num_used(self) -> int:
        """Slots that sequences hold."""
        return self.num_states - len(self._free_ids) - len(self._kept)

    @property
    def num_kept(self) -> int:
        """Slots that are kept."""
        return len(self._kept)

    @property
    def kept_ids(self) -> set[int]:
        """The prefixes at whose end a state is kept."""
        return set(self._kept)

    def keeps(self, prefix_id: int) -> bool:
        """Whether the state at the end of a prefix is kept."""
        return prefix_id in self._kept

    def has_room(self, prefix_id: int | None) -> bool:
        """Whether a sequence can begin behind a prefix, whose state is kept; None: with zeros."""
        is_taken = prefix_id is not None and prefix_id not in self._num_readers
        return self.num_available - is_taken >= NUM_OWN_STATES

    def begin(self, prefix_id: int | None) -> SequenceStates:
        """The slots of a sequence for which there is room."""
        from_state = None
        if prefix_id is not None:
            from_state = self._kept[prefix_id]
            self._kept.move_to_end(prefix_id)
            self._num_readers[prefix_id] = self._num_readers.get(prefix_id, 0) + 1
        state_ids = tuple([self._take() for _ in range(NUM_OWN_STATES)])
        return SequenceStates(state_ids, from_state, prefix_id, [])

    def plan(self, states: SequenceStates, positions: Sequence[int], num_spared: int) -> None:
        """Has the sequence write slots at these positions, the more useful ones first.

        As many as leave slots for `num_spared` sequences.
        """
        num_slots = max(0, self.num_available - num_spared * NUM_OWN_STATES)
        for position in sorted(positions[:num_slots]):
            states.unwritten.append(KeptState(position, self._take()))

    def keep(self, states: SequenceStates, position: int, prefix_id: int) -> None:
        """The sequence was computed up to there; what it wrote there, if anything, is found now."""
        if not states.unwritten or states.unwritten[0].position != position:
            return
        written = states.unwritten.pop(0)
        if prefix_id in self._kept:
            self._free_ids.append(written.state_id)
        else:
            self._kept[prefix_id] = written.state_id

    def was_read(self, states: SequenceStates) -> None:
        """The sequence stands behind the state that it began with."""
        prefix_id = states.pinned
        if prefix_id is None:
            return
        states.pinned = None
        self._num_readers[prefix_id] -= 1
        if not self._num_readers[prefix_id]:
            del self._num_readers[prefix_id]

    def leave(self, states: SequenceStates) -> None:
        """Takes back what a sequence holds, which no step in flight may use any more."""
        self.was_read(states)
        self._free_ids += states.state_ids
        self._free_ids += [unwritten.state_id for unwritten in states.unwritten]
        states.state_ids = ()
        states.unwritten = []

    def forget(self, prefix_id: int) -> None:
        """The prefix is no longer cached, which no sequence used."""
        state_id = self._kept.pop(prefix_id, None)
        if state_id is not None:
            self._free_ids.append(state_id)

    def clear(self) -> None:
        """Frees all; what sequences hold becomes void."""
        self._free_ids = list(range(self.num_states - 1, -1, -1))
        self._kept.clear()
        self._num_readers.clear()

    def check_invariants(self, live: Iterable[SequenceStates]) -> None:
        """Slots and all who hold some agree. Raises AssertionError."""
        places = [*self._free_ids, *self._kept.values()]
        num_readers: dict[int, int] = {}
        for states in live:
            places += states.state_ids
            places += [unwritten.state_id for unwritten in states.unwritten]
            if states.pinned is not None:
                assert self._kept[states.pinned] == states.from_state, "evicted before it was read"
                num_readers[states.pinned] = num_readers.get(states.pinned, 0) + 1
        assert sorted(places) == list(range(self.num_states)), "a slot is lost, or held twice"
        assert num_readers == self._num_readers, "stray readers of kept states"

    def _take(self) -> int:
        """A slot, of those that are available."""
        if not self._free_ids:
            evicted = next(each for each in self._kept if each not in self._num_readers)
            self._free_ids.append(self._kept.pop(evicted))
        return self._free_ids.pop()
