"""Grammars in GBNF have the texts that an oracle without a lexer finds.

A grammar is made as a value and written down from it, so the oracle reads no notation. It looks for
the ends of every rule at every place of a text until nothing new is found.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest

from constraints.errors import Contradiction, TooComplex
from constraints.grammars.gbnf import to_grammar
from constraints.spec import ConstraintSpec, Kind
from tests.constraints.cases import demo_vocabulary, needed_len
from tests.constraints.grammars.rig import accepts, compiled, walk

LETTERS = "abcéè"


@dataclass(frozen=True)
class One:
    """One character."""

    chars: str
    is_negated: bool = False


@dataclass(frozen=True)
class Literal:
    text: str


@dataclass(frozen=True)
class Rule:
    name: str


@dataclass(frozen=True)
class Then:
    parts: tuple["Node", ...]


@dataclass(frozen=True)
class Either:
    options: tuple["Node", ...]


@dataclass(frozen=True)
class Times:
    part: "Node"
    example: int
    most: int | None


Node = One | Literal | Rule | Then | Either | Times


def has_text(rules: Mapping[str, Node], text: str) -> bool:
    """Whether the text is what the rule `root` stands for."""
    ends: dict[tuple[str, int], set[int]] = {
        (name, at): set() for name in rules for at in range(len(text) + 1)
    }
    is_new = True
    while is_new:
        is_new = False
        for (name, at), known in ends.items():
            found = _ends(rules[name], at, text, ends)
            is_new = is_new or not found <= known
            known |= found
    return len(text) in ends["root", 0]


def _ends(node: Node, at: int, text: str, known: Mapping[tuple[str, int], set[int]]) -> set[int]:
    match node:
        case One(chars, is_negated):
            fits = at < len(text) and (text[at] in chars) != is_negated
            return {at + 1} if fits else set()
        case Literal(literal):
            return {at + len(literal)} if text.startswith(literal, at) else set()
        case Rule(name):
            return known[name, at]
        case Then(parts):
            found = {at}
            for part in parts:
                found = {end for begin in found for end in _ends(part, begin, text, known)}
            return found
        case Either(options):
            return {end for option in options for end in _ends(option, at, text, known)}
        case Times(part, example, most):
            return _repeated(part, example, most, {at}, text, known)


def _repeated(
    part: Node,
    example: int,
    most: int | None,
    begins: set[int],
    text: str,
    known: Mapping[tuple[str, int], set[int]],
) -> set[int]:
    found = set(begins) if example == 0 else set()
    current, count = begins, 0
    # Beyond the text's length nothing but empty repeats are left.
    limit = example + len(text) + 1 if most is None else most
    while count < limit and current:
        count += 1
        current = {end for begin in current for end in _ends(part, begin, text, known)}
        if count >= example:
            found |= current
    return found


def as_gbnf(rules: Mapping[str, Node]) -> str:
    """The grammar in GBNF."""
    return "\n".join(f"{name} ::= {_written(node)}" for name, node in rules.items())


def _written(node: Node) -> str:
    match node:
        case One(chars, is_negated):
            return f"[{'^' if is_negated else ''}{chars}]"
        case Literal(text):
            return f'"{text}"'
        case Rule(name):
            return name
        case Then(parts):
            return f"({' '.join(map(_written, parts))})"
        case Either(options):
            return f"({' | '.join(map(_written, options))})"
        case Times(part, example, most):
            return f"({_written(part)}){{{example},{'' if most is None else most}}}"


def any_grammar(draw: random.Random) -> dict[str, Node]:
    """A few rules that lead to each other."""
    names = ["root", "x", "y", "z"][: draw.randint(1, 4)]
    return {name: _any_node(draw, names, 3) for name in names}


def _any_node(draw: random.Random, names: list[str], depth: int) -> Node:
    kind = draw.choice(
        ["one", "literal", "rule"] + ["then", "then", "either", "times"] * (depth > 0)
    )
    match kind:
        case "one":
            chars = "".join(draw.sample(LETTERS, draw.randint(1, 3)))
            return One(chars, draw.random() < 0.2)
        case "literal":
            return Literal("".join(draw.choices(LETTERS, k=draw.randint(0, 3))))
        case "rule":
            return Rule(draw.choice(names))
    several = tuple(_any_node(draw, names, depth - 1) for _ in range(draw.randint(2, 3)))
    if kind == "then":
        return Then(several)
    if kind == "either":
        return Either(several)
    example = draw.randint(0, 2)
    return Times(several[0], example, draw.choice([None, example + draw.randint(0, 2)]))


JSON = r"""
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
ROOT, X = Rule("root"), Rule("x")
A, B, C, NOTHING = (Literal(text) for text in ("a", "b", "c", ""))
WORD = Times(One("ab"), 1, None)
# Grammars whose largest pieces a greedy lexer would read wrongly.
TRAPS: dict[str, dict[str, Node]] = {
    "a beginning": {"root": Either((Then((A, B)), Then((Literal("ab"), C))))},
    "a repeat": {"root": X, "x": Then((Times(A, 1, None), Times(X, 0, 1), Literal("ab")))},
    "a byte": {
        "root": Either((Then((X, Literal("è"))), C)),
        "x": Either((Times(Literal("é"), 1, None), Then((A, ROOT, B)))),
    },
    "left": {"root": Either((Then((ROOT, B)), A))},
    "right": {"root": Either((Then((A, ROOT)), Then((B, ROOT, C)), NOTHING))},
    "both": {"root": Either((Then((ROOT, ROOT)), A, NOTHING))},
    "words": {
        "root": Either((Then((WORD, X, ROOT)), WORD)),
        "x": Times(Then((C, X)), 0, 1),
    },
    "an end": {"root": Then((A, Times(ROOT, 0, 1), Times(One("abc"), 1, 2)))},
    "options": {"root": Either((Then((Either((Literal("ab"), Literal("abc"))), ROOT)), C))},
}


@pytest.mark.parametrize("seed", range(40))
def test_texts_are_those_of_the_oracle(seed: int) -> None:
    draw = random.Random(seed)
    rules = any_grammar(draw)
    try:
        language = compiled(Kind.GBNF, as_gbnf(rules))
    except Contradiction:
        return
    texts = ["", *("".join(draw.choices(LETTERS, k=draw.randint(1, 5))) for _ in range(40))]
    for text in texts:
        assert accepts(language, text) == has_text(rules, text), text
    drawn = walk(language, np.random.default_rng(seed), 12)
    assert drawn is None or len(drawn) > 30 or has_text(rules, drawn)


@pytest.mark.parametrize("name", TRAPS)
def test_greed_loses_no_text(name: str) -> None:
    rules = TRAPS[name]
    written = as_gbnf(rules)
    language = compiled(Kind.GBNF, written)
    letters = sorted(set(written) & set(LETTERS))
    for length in range(6 if len(letters) < 4 else 5):
        for text in map("".join, product(letters, repeat=length)):
            assert accepts(language, text) == has_text(rules, text), text


def test_groups_in_groups_have_an_end() -> None:
    with pytest.raises(TooComplex):
        to_grammar(f"root ::= {'(' * 60}[a]{')' * 60}")


def test_what_needs_no_stack_is_one_terminal() -> None:
    grammar = to_grammar('root ::= word (ws word)*\nword ::= [a-z]+\nws ::= [ ] ws | "."')
    assert [line.partition(":")[0] for line in grammar.splitlines()[1:]] == ["start", "r0", "T0"]


def test_a_grammar_of_json_has_few_terminals() -> None:
    assert to_grammar(JSON).count("\nT") == 10


def test_a_grammar_of_many_words_is_one_terminal_and_one_of_too_many_parts_is_refused() -> None:
    words = " | ".join(f'"word {number}"' for number in range(3000))
    assert accepts(compiled(Kind.GBNF, f"root ::= {words}"), "word 2999")
    with pytest.raises(TooComplex, match="60000 parts"):
        to_grammar(f'root ::= "(" root ")" | {words} | "{"a" * 60_000}"')


def test_what_would_take_long_for_each_token_is_refused_before_the_first() -> None:
    rules = (f'r{i} ::= r{(i + 1) % 5} r{i} "a" | "" | [^b]{{0,{i}}}' for i in range(5))
    spec = ConstraintSpec(Kind.GBNF, "\n".join(("root ::= r0", *rules)))
    with pytest.raises(TooComplex):
        needed_len(spec, demo_vocabulary())


def test_a_rule_may_have_a_name_that_begins_as_a_macro_does() -> None:
    named = 'root ::= Token("," Token)*\nToken ::= [a-z]+'
    assert to_grammar(named).count("Token") == to_grammar(named.replace("Token", "word")).count(
        "word"
    )
