"""The fewest states, and how long it takes to find them."""

from time import thread_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.token_trie import TokenTrie
from constraints.where.automata import can_reach
from constraints.where.code_points import Partition
from constraints.where.compile import compile_where
from constraints.where.machine import Machine
from constraints.where.reduction import minimised
from constraints.where.sources import Sources
from constraints.where.terms import OneOf
from tests.constraints.walks import byte_vocabulary

Table = list[tuple[int, int]]  # two steps from each state

tables = st.integers(2, 12).flatmap(
    lambda size: st.lists(
        st.tuples(st.integers(0, size - 1), st.integers(0, size - 1)), min_size=size, max_size=size
    )
)


def machine_of(table: Table, accepting: set[int]) -> Machine:
    """State 0 is the dead one, state 1 the start."""
    steps = np.array([(0, 0), *table[1:]], dtype=np.int32)
    accepts = np.zeros((len(table), 1, 1, 1, 1), dtype=np.bool_)
    accepts[[state for state in accepting if 0 < state < len(table)]] = True
    return Machine(
        partition=Partition.of_chars("a"),
        start=1,
        steps=steps,
        gains=np.zeros((len(table), 2, 0), dtype=np.int64),
        pending=np.zeros((len(table), 0), dtype=np.int64),
        accepts=accepts,
        counters=(),
        tokens=None,
    )


def accepts(machine: Machine, text: str) -> bool:
    state = machine.start
    for char in text:
        state = int(machine.steps[state, "ab".index(char)])
    return bool(machine.accepts[state].any())


@given(tables, st.sets(st.integers(1, 11), min_size=1), st.lists(st.text("ab", max_size=14)))
def test_equal_states_are_one_and_no_others(
    table: Table, accepting: set[int], texts: list[str]
) -> None:
    machine = machine_of(table, accepting)
    least = minimised(machine)
    assert [accepts(least, text) for text in texts] == [accepts(machine, text) for text in texts]
    assert not least.accepts[0].any()
    # By going round among pairs: two states are the same where nothing tells them apart.
    apart = least.accepts.reshape(-1)[:, None] != least.accepts.reshape(-1)[None, :]
    for _ in range(least.num_states):
        for label in range(2):
            after = least.steps[:, label]
            apart = apart | apart[after[:, None], after[None, :]]
    assert (apart | np.eye(least.num_states, dtype=np.bool_)).all()


@given(tables, st.sets(st.integers(0, 11)))
def test_what_can_be_reached_is_found_backwards(table: Table, wanted: set[int]) -> None:
    steps = np.array(table, dtype=np.int32)
    flags = np.isin(np.arange(len(table)), list(wanted))
    reached = flags.copy()
    for _ in table:
        reached |= reached[steps].any(axis=1)
    assert can_reach(steps, flags).tolist() == reached.tolist()


@given(tables, st.sets(st.integers(0, 11), min_size=1))
def test_sources_are_those_that_lead_to_a_target(table: Table, asked: set[int]) -> None:
    targets = sorted(each for each in asked if each < len(table))
    found = Sources(np.array(table, dtype=np.int32), len(table)).of(np.array(targets, dtype=int))
    assert found.tolist() == [
        state for state, after in enumerate(table) if not set(after).isdisjoint(targets)
    ]


@pytest.mark.alone
@pytest.mark.slow
def test_long_texts_compile_in_a_time_that_grows_with_them() -> None:
    draw = np.random.default_rng(3)
    texts = ["".join(map(chr, draw.integers(97, 123, 1500))) for _ in range(3)]
    trie = TokenTrie(byte_vocabulary())
    began = thread_time()
    matcher = compile_where(OneOf(tuple(texts)), byte_vocabulary(), trie).matcher()
    assert thread_time() - began < 4  # 1 s on an idle core; going through all states for each 8 s
    assert matcher.num_legal(list(texts[1].encode())) == 1500
