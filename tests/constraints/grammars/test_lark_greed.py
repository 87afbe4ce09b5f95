"""Greedy terminals that leave a grammar no text are told of before anything is compiled."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.errors import ConstraintError, Contradiction
from constraints.grammars.engine import HEADER, GrammarLanguage
from constraints.grammars.engine_messages import explain
from constraints.grammars.lark import to_grammar
from constraints.grammars.limits import LIMITS
from constraints.spec import Kind
from tests.constraints.grammars.rig import accepts
from tests.constraints.walks import byte_vocabulary

WITHOUT_TEXT = [
    'start: A "ab"\nA: /a+/',
    'start: /a+/ "ab"',
    'start: "<" item+ ">"\nitem: NAME "x"\nNAME: /[a-z]+/',
    'start: WORD (WORD "!")+\nWORD: /[a-z]*[a-z0-9]+/',
    'start: "x" start | A "a"\nA: /(?:ba*)+/',
    "start: A B\nA: /[^x]+/\nB: /[ab]{2,3}/",
]
WITH_TEXT = [
    'start: A "ab" | "c"\nA: /a+/',
    'start: A "ab"\nA: /a{1,3}/',
    'start: A "ab"\nA: /a+b?/',
    'start: A "ab"\nA: /a+/\n%ignore " "',
    'start: A* "ab"\nA: /a+/',
    'start: A "ab"\nA[lazy]: /a+/',
    'start: A "Ab"i\nA: /a+/',
    "start: A B\nA: /a+/\nB: /[ab]+/",
    'start: %json {"type": "integer"} "1"',
]


@pytest.mark.parametrize("grammar", WITHOUT_TEXT)
def test_a_grammar_that_greed_leaves_no_text_is_a_contradiction(grammar: str) -> None:
    with pytest.raises(Contradiction, match="terminals are greedy"):
        to_grammar(grammar)


@pytest.mark.parametrize("grammar", WITH_TEXT)
def test_what_may_have_a_text_is_left_to_the_search(grammar: str) -> None:
    to_grammar(grammar)


def test_the_rule_is_named_with_its_place() -> None:
    with pytest.raises(Contradiction) as told:
        to_grammar('start: "<" item ">"\nitem: A "ab"\nA: /a+/')
    assert told.value.parts == ("start", "item")
    assert "line 2" in str(told.value)
    assert 'item: A "ab"' in str(told.value)


PATTERNS = ["a+", "ab*", "[ab]+", "a|bb", "(?:ab)+", "b{1,2}", "[^b]", "a?b"]
ATOMS = st.sampled_from([*(f"/{pattern}/" for pattern in PATTERNS), '"a"', '"ab"', '"b"'])
ITEMS = st.builds("{}{}".format, ATOMS | st.just("other"), st.sampled_from(["", "", "*", "?", "+"]))
BODIES = st.lists(st.lists(ITEMS, min_size=1, max_size=3).map(" ".join), min_size=1, max_size=2)


@given(start=BODIES, other=BODIES)
def test_no_grammar_with_a_text_is_refused(start: list[str], other: list[str]) -> None:
    grammar = f'start: {" | ".join(start)}\nother: {" | ".join(other)} | "c"\n'
    assert not (is_refused(grammar) and any(accepts_text(grammar, n) for n in range(1, 6)))


def is_refused(grammar: str) -> bool:
    try:
        to_grammar(grammar)
    except Contradiction:
        return True
    return False


def accepts_text(grammar: str, length: int) -> bool:
    """Whether the engine takes some text of so many letters."""
    try:
        language = GrammarLanguage(
            byte_vocabulary(), HEADER + grammar, LIMITS[Kind.LARK], explain, may_run_on=True
        )
    except ConstraintError:
        return False
    return any(accepts(language, "".join(text)) for text in product("abc", repeat=length))
