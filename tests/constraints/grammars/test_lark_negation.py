"""What negated terminals mean: all other texts, and nothing that is no text."""

import operator
from collections.abc import Callable
from functools import partial, reduce
from itertools import product
from time import thread_time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.errors import Contradiction, Malformed
from constraints.grammars.lark_negation import negations_as_texts
from constraints.grammars.lark_reader import words
from constraints.spec import Kind
from tests.constraints.grammars.rig import accepts, compiled, legal, walk

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
    for _ in range(10):
        walk(language, draw, 12)  # decodes what it wrote
    matcher = language.matcher()
    assert not set(legal(matcher)) & {*range(0x80, 0xC2), *range(0xF5, 0x100)}


def test_what_has_no_text_but_bytes_is_refused() -> None:
    with pytest.raises(Contradiction, match="line 2, column 1: no text satisfies this terminal"):
        compiled(Kind.LARK, "start: A\nA: ~/(?s:.*)/")


def test_a_negation_of_nothing_is_told_at_its_place() -> None:
    for grammar in ("start: A\nA: /x/ ~", "start: A\nA: ~", "start: A\nA: ~(/a/"):
        with pytest.raises(Malformed, match="line 2"):
            compiled(Kind.LARK, grammar)


def test_two_signs_in_a_row_say_nothing() -> None:
    for terminal in ("~~/a|b/ & /a|c/", "/a|c/ & ~~/a|b/", "/a|c/ & ~~~/c/", "~~~(~/a/)"):
        language = compiled(Kind.LARK, f"start: A\nA: {terminal}")
        assert [text for text in ("a", "b", "c", "d") if accepts(language, text)] == ["a"]


def test_repeats_are_no_negations() -> None:
    language = compiled(Kind.LARK, "start: A\nA: /a/~2 /b/ ~ 1..2")
    texts = ["".join(chars) for size in range(6) for chars in product("ab", repeat=size)]
    assert [text for text in texts if accepts(language, text)] == ["aab", "aabb"]


@pytest.mark.alone
def test_many_negations_are_read_in_a_time_that_grows_with_them() -> None:
    for terminal in (" & ".join(["~/a/"] * 20_000), "~" * 60_000 + "/a/"):
        text = f"A: {terminal}"
        found, began = words(text), thread_time()
        negations_as_texts(text, found, {})
        assert thread_time() - began < 3  # 0.2 s; minutes where each looks at all others
