"""Terminals that take every byte that could end them: forced bytes without an end."""

import numpy as np
import pytest

from constraints.bitmask import allowed_ids
from constraints.compiler import Compiler
from constraints.errors import TooComplex
from constraints.grammars.deterministic_suffix import MAX_FORCED_BYTES, deterministic_suffix_of
from constraints.grammars.lark import to_grammar
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind
from tests.constraints.grammars.rig import compiled
from tests.constraints.grammars.test_lark import SHARED
from tests.constraints.walks import byte_vocabulary

RUNS_ON = [
    'start: A "ab" | "c"\nA: /a+/',
    'start: A "ab" | "c"\nA: "a"+',
    'start: A "ab" | "c"\nA: /(a|a)*/',
    'start: A "éb" | "c"\nA: /é+/',
    'start: A "ab" | "c"\nA: /(?:a|b[^\\s\\S])+/',
    'start: A "ab" | "c"\nA: /[^\\x00-\\x60\\x62-\\U0010ffff]+/',
    'start: A "ab" | "c"\nA: /(?:a|(?i:[^\\x00-@C-\\U0010ffff]))+/',
    'start: A "ab" | "c"\nA: /[a-z]+/ & /a+/',
    'start: A "ab" | "c"\nA: /\\p{Zl}+/',
    'start: x "ab" | "c"\nx[lazy]: "a"+',
    'start: %json {"type": "number", "multipleOf": 0.5} "0b"',
]
ENDS = [
    'start: A "1"\nA: /[a-z]+/',
    'start: A " "\nA: /\\w+\\d*\\S+/',
    'start: A "b"\nA: /a{1,9}/',
    'start: "a"+ "ab"',
    'start: %json {"type": "string"} "b"',
]


@pytest.mark.parametrize("grammar", RUNS_ON)
def test_loops_over_one_byte_are_found(grammar: str) -> None:
    assert to_grammar(grammar).may_run_on


@pytest.mark.parametrize("grammar", ENDS)
def test_loops_that_leave_a_choice_are_none(grammar: str) -> None:
    assert not to_grammar(grammar).may_run_on


def test_forced_bytes_without_an_end_are_told_up_to_a_limit() -> None:
    matcher = compiled(Kind.LARK, 'start: "x" A "ab" | "c"\nA: /a+/').matcher()
    matcher.advance(byte_vocabulary().tokens.index(b"x"))
    assert matcher.deterministic_suffix() == b"a" * MAX_FORCED_BYTES


def test_what_only_a_greedy_terminal_could_end_is_not_begun() -> None:
    known = byte_vocabulary()
    language = compiled(Kind.LARK, 'start: "x" A "ab" | "c"\nA: /a+/')
    output_state = OutputConstraintState(language, known, Budget(20))
    assert not output_state.check(known.tokens.index(b"x"))
    assert output_state.check(known.tokens.index(b"c"))


def test_no_text_is_found_where_a_terminal_takes_all_that_could_end_it() -> None:
    spec = ConstraintSpec(Kind.LARK, 'start: (A | B) "b"\nA: "a"\nB: /ab+/')
    language = Compiler(byte_vocabulary()).compile(spec)
    with pytest.raises(TooComplex, match="no text"):
        OutputConstraintState(language, byte_vocabulary(), Budget(20))


@pytest.mark.parametrize("name", SHARED)
def test_forced_bytes_one_by_one_are_those_of_the_engine(name: str) -> None:
    language = compiled(Kind.LARK, SHARED[name][0])
    random = np.random.default_rng(0)
    row = np.zeros(byte_vocabulary().num_words, dtype=np.int32)
    for _ in range(5):
        matcher = language.matcher()
        for _ in range(12):
            forced = matcher.deterministic_suffix()
            ahead = matcher._inner.deep_copy()
            assert deterministic_suffix_of(ahead, byte_vocabulary()) == forced[:MAX_FORCED_BYTES]
            matcher.fill_mask(row)
            legal = [each for each in allowed_ids(row).tolist() if byte_vocabulary().tokens[each]]
            if not legal:
                break
            matcher.advance(int(random.choice(legal)))
