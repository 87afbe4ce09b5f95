"""Machines have the fewest states, and steps of bytes miss nothing."""

import itertools
import random
from time import thread_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.regex.char_sets import NUM_CODE_POINTS, WHITESPACE, Partition, Utf8, join, utf8_of
from constraints.token_trie import PLACE_MASK
from constraints.where.engine import compile_where
from constraints.where.evaluate import holds
from constraints.where.machine import Machine, automaton_of, minimised
from constraints.where.parser import parse
from constraints.where.terms import Compare, Measure, OneOf, Relation
from tests.constraints.cases import byte_vocabulary
from tests.constraints.grammars.rig import takes
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


@pytest.mark.slow
def test_long_texts_compile_in_a_time_that_grows_with_them() -> None:
    draw = np.random.default_rng(3)
    texts = ["".join(map(chr, draw.integers(97, 123, 1500))) for _ in range(3)]
    began = thread_time()
    matcher = compile_where(OneOf(tuple(texts)), byte_vocabulary()).matcher()
    assert thread_time() - began < 6  # 1 s on an idle core; going through all states for each 8 s
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
    live = language.coaccessible_slacks
    draw = random.Random(0)
    for _ in range(20):
        packed, counts = language.table.start, [0] * len(language.counter_grid.counters)
        for _ in range(12):
            after = {byte: language.read(bytes([byte]), packed, counts) for byte in range(256)}
            alive = [
                byte
                for byte, (to, held) in after.items()
                if to and language.is_alive(live, to, held)
            ]

            assert language.only_byte(packed, counts) == (alive[0] if len(alive) == 1 else None)

            if not alive:
                break
            packed, counts = after[draw.choice(alive)]


@pytest.mark.parametrize("written", ["len(words(X)) <= 2", r'regex(X, r"\w{3}")', 'X == "日本"'])
def test_inside_of_characters_no_step_of_a_byte_is_missing(written: str) -> None:
    table = compiled(written).table
    inside = table.utf8.num_places
    sources, targets, gains = table.steps_inside(np.arange(1, inside))
    entries = table.entries.reshape(-1, table.width)
    wanted = {
        (place, int(table.targets(entry)), tuple(table.gains_of(int(entry))))
        for place in range(len(entries))
        for entry in entries[place]
        if place % inside and entry & PLACE_MASK
    }
    assert (
        set(zip(sources.tolist(), targets.tolist(), map(tuple, gains.tolist()), strict=True))
        == wanted
    )


def test_several_bytes_read_at_once_lead_where_they_do_one_by_one() -> None:
    language = compiled('len(words(X)) > 2 and len(X) < 20 and "b" in X')
    start = (language.table.start, [0] * len(language.counter_grid.counters))
    for text in map("".join, itertools.product("ab ", repeat=4)):
        one_by_one = start
        for letter in text.encode():
            one_by_one = language.read(bytes([letter]), *one_by_one)
        assert language.read(text.encode(), *start) == one_by_one


ATOMS = (
    '"" in X',
    'ends_with(X, "", "a")',
    'starts_with(X, "")',
    '"aba" in X',
    'starts_with(X, "ab", "b1")',
    'ends_with(X, "aba", "ba.", "ä")',
    'stops_at(X, "aa", ".", "ba")',
    'X in ["", "ab", "aba", "ä1"]',
    "int(X)",
    "float(X)",
    'regex(X, "a*b|(ab)+1?")',
    'regex(X, "[^a]{2,3}")',
    'regex(X, "(a|ab)(ba)?.")',
    'regex(X, r"^\\w+$|-?\\d\\.\\d")',
    'regex(X, r"(a?){3}\\S*?\\s")',
    'regex(X, r"(^a|b)*\\Z")',
    'regex(X, "a*$^")',
    'regex(X, "[a-c1-]+|\\n")',
)
ALPHABET = "ab1-.ä\n "


@pytest.mark.parametrize("written", ATOMS)
def test_an_automaton_accepts_what_the_evaluator_does(written: str) -> None:
    atom = parse(written)
    automaton = automaton_of(atom)
    for length in range(5):
        for chars in itertools.product(ALPHABET, repeat=length):
            text = "".join(chars)
            assert takes(automaton, text) == holds(atom, text), text


@pytest.mark.parametrize("relation", Relation)
def test_integers_compare_by_their_value(relation: Relation) -> None:
    written = [
        f"{sign}{zeros}{value}"
        for sign in ("", "-")
        for zeros in ("", "0", "00")
        for value in range(120)
    ]
    others = ["", "-", "--1", "1-", "1.0", " 1", "+1", "٣", "9" * 50, "-" + "9" * 50]
    for bound in (0, 1, 9, 10, 47, 100, -1, -10, -47):
        atom = Compare(Measure.INT, relation, bound)
        automaton = automaton_of(atom)
        for text in (*written, *others):
            assert takes(automaton, text) == holds(atom, text), (bound, text)


def test_whitespace_is_what_splits_words() -> None:
    named = {code for first, last in WHITESPACE for code in range(first, last + 1)}
    assert named == {code for code in range(NUM_CODE_POINTS) if len(f"a{chr(code)}a".split()) == 2}


def spelled_label(utf8: Utf8, text: bytes) -> int | None:
    """The label of the one character that the bytes spell; None where they spell none."""
    place = 0
    for index, byte in enumerate(text):
        column = utf8.classes[byte]
        label, deeper = int(utf8.labels[place, column]), int(utf8.places[place, column])
        if label >= 0:
            return label if index == len(text) - 1 else None
        if deeper < 0:
            return None
        place = deeper
    return None


PARTITIONS = (
    Partition.of_sets([]),
    Partition.of_sets([WHITESPACE]),
    Partition.of_chars("aä日😀\U0010ffff"),
    join([Partition.of_sets([WHITESPACE]), Partition.of_chars(" \u2003.")])[0],
)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_every_character_is_spelled_with_its_label(partition: Partition) -> None:
    utf8 = utf8_of(partition)
    labels = np.repeat(
        partition.labels, np.diff(np.append(partition.starts, NUM_CODE_POINTS))
    ).tolist()
    surrogates = range(0xD800, 0xE000)
    scattered = (*range(0x3100, surrogates.start, 61), *range(surrogates.stop, NUM_CODE_POINTS, 61))
    for code in (*range(0x3100), *scattered, NUM_CODE_POINTS - 1):
        assert spelled_label(utf8, chr(code).encode()) == labels[code], hex(code)


@given(st.binary(min_size=1, max_size=4))
def test_what_is_no_character_is_spelled_by_nothing(text: bytes) -> None:
    try:
        is_character = len(text.decode()) == 1
    except UnicodeDecodeError:
        is_character = False
    assert (spelled_label(utf8_of(PARTITIONS[1]), text) is not None) == is_character


def test_surrogates_and_overlong_forms_are_no_characters() -> None:
    utf8 = utf8_of(PARTITIONS[0])
    surrogate = "\ud800".encode("utf-8", "surrogatepass")
    for text in (surrogate, b"\xc0\x80", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80"):
        assert spelled_label(utf8, text) is None
