"""Grammars in Lark's notation, judged by the Lark package where both know the notation.

The engine's terminals are greedy: what that leaves of a grammar, and of its forced bytes, is told.
Negated terminals mean all other texts, and nothing that is no text.
"""

import operator
from collections.abc import Callable
from functools import partial, reduce
from itertools import product
from time import thread_time

import lark
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.bitmask import allowed_ids
from constraints.engine import MAX_FORCED_BYTES
from constraints.errors import Contradiction, TooComplex
from constraints.grammars.lark import negations_as_texts, words
from constraints.guiding.alphabet import as_bytes
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, Kind
from tests.constraints.cases import byte_vocabulary, parses
from tests.constraints.grammars.rig import accepts, compiled, legal, walk

CALCULATOR = """\
start: sum
sum: product (("+" | "-") product)*
product: value (("*" | "/") value)*
value: NUMBER | "-" value | "(" sum ")"
NUMBER: /[0-9]+(\\.[0-9]+)?/
%ignore " "
"""
CSV = 'start: row ("\\n" row)*\nrow: cell ("," cell)*\ncell: /[^,\\n"]+/ | "\\"" [/[^"]+/] "\\""\n'
SHARED = {
    "calculator": (CALCULATOR, "1+(-2 *."),
    "csv": (CSV, 'a,"\n'),
    "brackets": ('start: "a" [start] "b"', "ab"),
    "repeats": ('start: "a"~2..3 ("b" | "c")* "a"?', "abc"),
    "flags": ('start: "ab"i /c/i', "aAbBcC"),
    "repeats behind flags": ('start: ("a"i)~1..2 "b"i~2..3', "aAbB"),
    "ranges": ('start: ("a".."c")+ /[x-z]{2}/', "abxz"),
    "comments": ('start: one // here\n  | "b"\n# there\none: "a" one | "c"\n', "abc"),
    "common": ("%import common.INT\n%import common.WS\nstart: INT+\n%ignore WS\n", "12 "),
}


# Greedy terminals leave out texts of these.
GREEDY = ("calculator", "common")


@pytest.mark.parametrize("name", SHARED)
def test_texts_are_those_that_lark_parses(name: str) -> None:
    grammar, letters = SHARED[name]
    parser = lark.Lark(grammar, parser="earley")
    language = compiled(Kind.LARK, grammar)
    for length in range(5):
        for text in map("".join, product(letters, repeat=length)):
            is_accepted = accepts(language, text)
            assert is_accepted or name in GREEDY or not parses(parser, text), text
            assert not is_accepted or parses(parser, text), text


@pytest.mark.parametrize("name", SHARED)
def test_texts_drawn_from_masks_parse(name: str) -> None:
    grammar, _ = SHARED[name]
    for seed in range(5):
        text = walk(compiled(Kind.LARK, grammar), np.random.default_rng(seed), 30)
        assert text is None or parses(lark.Lark(grammar, parser="earley"), text)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: A "ab"\nA: /a+/',
        'start: (A | B) "b"\nA: "a"\nB: /ab+/',
        'start: "a" start',
        'start: x\nx: ("a" | y) y\ny: "b" y+',
        'start: "x" y\ny: A\nA: /a/ & /b/',
        'start: "y" /[^\\s\\S]/',
    ],
)
def test_a_grammar_without_a_text_is_refused_and_the_message_says_what_to_look_for(
    grammar: str,
) -> None:
    language = compiled(Kind.LARK, grammar)
    with pytest.raises(TooComplex, match="no text") as refused:
        OutputConstraintState(language, byte_vocabulary(), Budget(20))
    assert "Terminals are greedy" in str(refused.value)


def test_forced_bytes_without_an_end_are_told_up_to_a_limit() -> None:
    matcher = compiled(Kind.LARK, 'start: "x" A "ab" | "c"\nA: /a+/').matcher()
    matcher.advance(byte_vocabulary().tokens.index(b"x"))
    assert matcher.deterministic_suffix() == b"a" * MAX_FORCED_BYTES


@pytest.mark.parametrize("may_truncate", [False, True])
@pytest.mark.parametrize(
    "grammar",
    [
        'start: "x" A "ab" | "c"\nA: /a+/',
        'start: x | "c"\nx: "x" x',
        'start: "x" A | "c"\nA: /a/ & /b/',
    ],
)
def test_what_has_no_end_is_not_begun(grammar: str, may_truncate: bool) -> None:
    known = byte_vocabulary()
    language = compiled(Kind.LARK, grammar)
    output_state = OutputConstraintState(language, known, Budget(20, may_truncate=may_truncate))
    assert not output_state.check(known.tokens.index(b"x"))
    assert output_state.check(known.tokens.index(b"c"))


@pytest.mark.parametrize("name", SHARED)
def test_forced_bytes_one_by_one_are_those_of_the_engine(name: str) -> None:
    language = compiled(Kind.LARK, SHARED[name][0])
    random = np.random.default_rng(0)
    row = np.zeros(byte_vocabulary().num_words, dtype=np.int32)
    for _ in range(5):
        matcher = language.matcher()
        for _ in range(12):
            forced = as_bytes(matcher._inner.deep_copy().compute_ff_bytes())
            assert matcher.deterministic_suffix() == forced[:MAX_FORCED_BYTES]
            matcher.fill_mask(row)
            legal = [each for each in allowed_ids(row).tolist() if byte_vocabulary().tokens[each]]
            if not legal:
                break
            matcher.advance(int(random.choice(legal)))


# Characters of two bytes that begin alike, and others.
CHARS = "aéèb"
ALL = frozenset("".join(chars) for size in range(4) for chars in product(CHARS, repeat=size))
Texts = frozenset[str]
# A terminal as it is written, and which of ALL it has.
Terminal = tuple[str, Texts]

atoms: st.SearchStrategy[Terminal] = st.one_of(
    st.sampled_from(["a", "é", "ab", "éè"]).map(lambda text: (f'"{text}"', frozenset([text]))),
    st.sampled_from(
        [
            ("/[aé]*/", frozenset(text for text in ALL if set(text) <= set("aé"))),
            ("/(?s:.)/", frozenset(text for text in ALL if len(text) == 1)),
            ("/(?s:.*)/", ALL),
        ]
    ),
)


def negated(whole: Terminal) -> Terminal:
    return f"~{whole[0]}", ALL - whole[1]


def joined(sign: str, join: Callable[[Texts, Texts], Texts], parts: list[Terminal]) -> Terminal:
    written = sign.join(part[0] for part in parts)
    return f"({written})", reduce(join, [part[1] for part in parts])


def behind(one: Texts, other: Texts) -> Texts:
    return frozenset(first + last for first in one for last in other) & ALL


def one_deeper(inner: st.SearchStrategy[Terminal]) -> st.SearchStrategy[Terminal]:
    several = st.lists(inner, min_size=2, max_size=3)
    return st.one_of(
        inner.map(negated),
        several.map(partial(joined, " | ", operator.or_)),
        several.map(partial(joined, " & ", operator.and_)),
        several.map(partial(joined, " ", behind)),
    )


terminals = st.recursive(atoms, one_deeper, max_leaves=5)


@given(terminals)
def test_a_terminal_has_the_texts_that_its_parts_tell(terminal: Terminal) -> None:
    written, texts = terminal
    try:
        language = compiled(Kind.LARK, f"start: A\nA: {written}")
    except Contradiction:
        assert not texts
        return
    assert {text for text in ALL if accepts(language, text)} == texts


@pytest.mark.parametrize(
    "grammar",
    [
        "start: A\nA: ~/a/",
        'start: "<" ~"a" ">"',
        "start: (~/a/){2,3}",
        "start: A\nA: ~(~/a/ & /b/) ~[ /c/ ]+",
        'start: A\nA: ~"a".."c" | "é"',
        "start: A\nA: ~B & ~/ab/ | ~~/b+/\nB: /a+/",
        "start: a\na[lazy]: ~/(?s:.*)é(?s:.*)/",
        'start: A\nA: "b"\n%ignore ~/[^a]/',
    ],
)
def test_masks_lead_to_texts_alone(grammar: str) -> None:
    language = compiled(Kind.LARK, grammar)
    draw = np.random.default_rng(5)
    for _ in range(4):
        walk(language, draw, 12)  # decodes what it wrote
    matcher = language.matcher()
    assert not set(legal(matcher)) & {*range(0x80, 0xC2), *range(0xF5, 0x100)}


def test_many_negations_are_read_in_a_time_that_grows_with_them() -> None:
    for terminal in (" & ".join(["~/a/"] * 20_000), "~" * 60_000 + "/a/"):
        text = f"A: {terminal}"
        found, began = words(text), thread_time()
        negations_as_texts(text, found, {})
        assert thread_time() - began < 10  # 0.2 s; minutes where each looks at all others
