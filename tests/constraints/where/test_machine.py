"""Machines have the fewest states, and steps of bytes miss nothing."""

import itertools
import random
from time import thread_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.regex.automaton import Sources, can_reach
from constraints.regex.char_sets import Partition
from constraints.token_trie import TokenTrie
from constraints.where.compile import compile_where
from constraints.where.machine import Machine, minimised
from constraints.where.terms import OneOf
from tests.constraints.cases import byte_vocabulary
from tests.constraints.where.expressions import compiled

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


@pytest.mark.slow
def test_long_texts_compile_in_a_time_that_grows_with_them() -> None:
    draw = np.random.default_rng(3)
    texts = ["".join(map(chr, draw.integers(97, 123, 1500))) for _ in range(3)]
    trie = TokenTrie(byte_vocabulary())
    began = thread_time()
    matcher = compile_where(OneOf(tuple(texts)), byte_vocabulary(), trie).matcher()
    assert thread_time() - began < 4  # 1 s on an idle core; going through all states for each 8 s
    assert matcher.num_legal(list(texts[1].encode())) == 1500


@pytest.mark.parametrize(
    "written",
    [
        'X == "abc"',
        'X in ["ab", "ac", "é"]',
        'len(words(X)) > 3 and "a" not in X',
        'stops_at(X, ".") and len(X) < 9',
        r'regex(X, r"\w{3} fox") and ends_with(X, "x")',
        'X == "é\U0001f600"',
    ],
)
def test_what_is_told_of_bytes_is_what_each_of_them_does(written: str) -> None:
    language = compiled(written)
    steps, live = language.steps, language.coaccessible_slacks
    draw = random.Random(0)
    for _ in range(20):
        packed, counts = language.table.start, [0] * len(language.counter_grid.counters)
        for _ in range(12):
            after = {byte: steps.read(bytes([byte]), packed, counts) for byte in range(256)}
            alive = [b for b, (to, held) in after.items() if to and steps.is_alive(live, to, held)]

            assert steps.only_byte(live, packed, counts) == (alive[0] if len(alive) == 1 else None)
            assert steps.goes_on(live, packed, counts) == bool(alive)

            if not alive:
                break
            packed, counts = after[draw.choice(alive)]


def test_several_bytes_read_at_once_lead_where_they_do_one_by_one() -> None:
    language = compiled('len(words(X)) > 2 and len(X) < 20 and "b" in X')
    steps, start = language.steps, (language.table.start, [0] * len(language.counter_grid.counters))
    for text in map("".join, itertools.product("ab ", repeat=4)):
        one_by_one = start
        for letter in text.encode():
            one_by_one = steps.read(bytes([letter]), *one_by_one)
        assert steps.read(text.encode(), *start) == one_by_one
