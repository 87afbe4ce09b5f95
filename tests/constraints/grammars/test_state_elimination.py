"""An automaton's pattern has its texts."""

import random
from itertools import product

import numpy as np
import pytest

from constraints.grammars.engine import HEADER, GrammarLanguage
from constraints.grammars.engine_messages import explain
from constraints.grammars.limits import LIMITS
from constraints.grammars.patterns import Pattern
from constraints.grammars.regex import written
from constraints.grammars.state_elimination import pattern_of
from constraints.spec import Kind
from constraints.where.automata import Automaton
from constraints.where.code_points import Partition
from constraints.where.limits import OutOfReach
from tests.constraints.cases import byte_vocabulary
from tests.constraints.grammars.rig import accepts

TEXTS = ["".join(chars) for size in range(6) for chars in product("ab?", repeat=size)]


def an_automaton(draw: random.Random, num_states: int) -> Automaton:
    """Of "a", "b" and what is neither."""
    steps = [[draw.randrange(num_states) for _ in range(3)] for _ in range(num_states)]
    accepts = [draw.random() < 0.4 for _ in range(num_states)]
    return Automaton(Partition.of_chars("ab"), np.array(steps, np.int32), np.array(accepts))


def is_accepted(automaton: Automaton, text: str) -> bool:
    state = 0
    for char in text:
        state = int(automaton.steps[state, automaton.partition.label_of(ord(char))])
    return bool(automaton.accepts[state])


def has(pattern: Pattern | None, texts: list[str]) -> list[str]:
    if pattern is None:
        return []
    grammar = f"{HEADER}start: /{written(pattern)}/\n"
    language = GrammarLanguage(byte_vocabulary(), grammar, LIMITS[Kind.REGEX], explain)
    return [text for text in texts if accepts(language, text)]


@pytest.mark.parametrize("seed", range(30))
def test_the_pattern_has_the_texts_of_the_automaton(seed: int) -> None:
    automaton = an_automaton(random.Random(seed), 1 + seed % 6)
    expected = [text for text in TEXTS if is_accepted(automaton, text)]
    assert has(pattern_of(automaton), TEXTS) == expected


def test_too_many_states_are_out_of_reach() -> None:
    num_states = 400
    steps = np.minimum(np.arange(num_states)[:, None] + [1, 0, 0], num_states - 1)
    is_last = np.arange(num_states) == num_states - 1
    automaton = Automaton(Partition.of_chars("ab"), steps.astype(np.int32), is_last)
    with pytest.raises(OutOfReach):
        pattern_of(automaton)
