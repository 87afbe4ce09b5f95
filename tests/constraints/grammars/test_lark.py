"""Grammars in Lark's notation, judged by the Lark package where both know the notation."""

from itertools import product

import lark
import numpy as np
import pytest

from constraints.errors import Contradiction, Malformed, NotEnforced
from constraints.grammars.lark import to_grammar
from constraints.spec import Kind
from tests.constraints.grammars.rig import accepts, compiled, walk
from tests.constraints.walks import parses

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


@pytest.mark.parametrize("name", SHARED)
def test_texts_are_those_that_lark_parses(name: str) -> None:
    grammar, letters = SHARED[name]
    parser = lark.Lark(grammar, parser="earley")
    language = compiled(Kind.LARK, grammar)
    for length in range(5):
        for text in map("".join, product(letters, repeat=length)):
            assert not accepts(language, text) or parses(parser, text), text


@pytest.mark.parametrize("name", [each for each in SHARED if each not in ("calculator", "common")])
def test_no_text_that_lark_parses_is_missing(name: str) -> None:
    grammar, letters = SHARED[name]
    parser = lark.Lark(grammar, parser="earley")
    language = compiled(Kind.LARK, grammar)
    for length in range(5):
        for text in map("".join, product(letters, repeat=length)):
            assert accepts(language, text) or not parses(parser, text), text


@pytest.mark.parametrize("name", SHARED)
def test_texts_drawn_from_masks_parse(name: str) -> None:
    grammar, _ = SHARED[name]
    for seed in range(5):
        text = walk(compiled(Kind.LARK, grammar), np.random.default_rng(seed), 30)
        assert text is None or parses(lark.Lark(grammar, parser="earley"), text)


def test_terminals_may_be_joined_and_excluded() -> None:
    grammar = "start: WORD\nWORD: /[ab]+/ & ~/(?s:.*)bb(?s:.*)/"
    language = compiled(Kind.LARK, grammar)
    assert accepts(language, "abab")
    assert not accepts(language, "abba")


def test_a_schema_may_stand_in_a_grammar() -> None:
    grammar = 'start: "<" %json {\n  "type": "integer",\n  "minimum": 3\n} ">"'
    language = compiled(Kind.LARK, grammar)
    assert accepts(language, "<3>")
    assert not accepts(language, "<2>")


@pytest.mark.parametrize(
    ("grammar", "line", "what"),
    [
        ("start: a\na[max_tokens=3]: /x+/", "line 2, column 3", "max_tokens"),
        ("start: a\na[temperature=0.5]: /x+/", "line 2", "temperature"),
        ('start: a\na[stop="."]: /x+/', "line 2", "stop"),
        ('start: a\na[capture, suffix="."]: /x+/', "line 2", "suffix"),
        ("start: <|eos|>", "position 7", "stand for no text"),
        ("start: <[7]>", "position 7", "stand for no text"),
        ("start: @other", "position 7", "no other grammars"),
        ('%llguidance {"no_forcing": false}\nstart: "a"', "position 0", "options"),
        ('start: %lark { start: "a" }', "position 7", "inside of a grammar"),
        ("start: /a(?=b)/", "position 9", "look-ahead"),
        ("start: /^a/", "position 8", "edge"),
        ('start: "a" %json {"contains": {}}', "/contains", "not enforced"),
    ],
)
def test_what_masks_cannot_hold_is_refused_with_its_place(
    grammar: str, line: str, what: str
) -> None:
    with pytest.raises(NotEnforced, match=what) as refusal:
        to_grammar(grammar)
    assert line in str(refusal.value)


@pytest.mark.parametrize(
    ("grammar", "position"),
    [
        ('start "a"', 6),
        ('start: "a', 7),
        ("start: foo", 7),
        ('start: "b" (b | "c")', 12),
        ('start: "a"\nb: ("x"', 17),
        ("start: /a(/", 9),
        ("start: 'a'", 7),
        ("start: %json {", 14),
    ],
)
def test_a_wrong_grammar_is_told_with_place_and_caret(grammar: str, position: int) -> None:
    with pytest.raises(Malformed) as wrong:
        compiled(Kind.LARK, grammar)
    assert wrong.value.position == position
    assert "^" in str(wrong.value)
    assert "llguidance" not in str(wrong.value)


def test_a_grammar_without_a_start_is_malformed() -> None:
    with pytest.raises(Malformed, match="start"):
        compiled(Kind.LARK, 'rule: "a"')


@pytest.mark.parametrize(
    ("grammar", "rules"),
    [
        ('start: "a" start', ("start",)),
        ('start: "a" x | "b"\nx: "c" x', ("x",)),
        ('start: x\nx: ("a" | y) y\ny: "b" y+', ("start", "x", "y")),
    ],
)
def test_a_rule_without_an_end_is_a_contradiction(grammar: str, rules: tuple[str, ...]) -> None:
    with pytest.raises(Contradiction, match="never ends") as contradiction:
        to_grammar(grammar)
    assert contradiction.value.parts == rules


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a" start?',
        'start: "a" start* "b"',
        'start: ("a" start)~0..3 "b"',
        'start: "a" [start]',
        '?start: x | "b"\n!x: "a" start',
        'start: "b"\nunused: "a" unused',
        'start: "a" | start "b"',
    ],
)
def test_a_rule_with_an_end_is_none(grammar: str) -> None:
    assert to_grammar(grammar)


@pytest.mark.parametrize(
    ("grammar", "place", "parts"),
    [
        ("start: A\nA: /a/ & /b/", "line 2, column 1", ("A", "start")),
        ('start: "x" y | "z"\ny: A\nA: /a/ & /b/', "line 3, column 1", ("A", "y")),
        ('start: "x" A?\nA: B "c"\nB: /[ab]/ & ~/[a-c]/', "line 3, column 1", ("B",)),
        (r'start: "x" | "y" /[^\s\S]/', "position 17", (r"/[^\s\S]/",)),
    ],
)
def test_a_terminal_without_a_text_is_a_contradiction_that_names_it(
    grammar: str, place: str, parts: tuple[str, ...]
) -> None:
    with pytest.raises(Contradiction) as contradiction:
        compiled(Kind.LARK, grammar)
    assert str(contradiction.value).startswith(f"{place}: no text satisfies this")
    assert set(contradiction.value.parts) == set(parts)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "x" A\nA: /a*/ & /(?:b*)/',
        "start: A\nA: /[^b]/ & ~/[^a]/",
        'start: "x"\nUNUSED: /a/ & /b/',
        'start: "x"~2 | /[^\\d]/',
    ],
)
def test_a_terminal_with_a_text_is_none(grammar: str) -> None:
    assert to_grammar(grammar)


def test_a_schema_within_that_nothing_satisfies_tells_its_parts() -> None:
    schema = '{"type": "string", "minLength": 3, "maxLength": 2}'
    with pytest.raises(Contradiction, match="position 11: in this schema") as contradiction:
        compiled(Kind.LARK, f'start: "x" %json {schema}')
    assert contradiction.value.parts == (
        '{"type": "string"}',
        '{"minLength": 3}',
        '{"maxLength": 2}',
    )


def test_a_wrong_schema_within_is_told_with_its_place_and_its_pointer() -> None:
    with pytest.raises(Malformed) as refused:
        compiled(Kind.LARK, 'start: "a" %json {"items": {"type": "text"}}')
    assert (refused.value.position, refused.value.pointer) == (11, "/items/type")
