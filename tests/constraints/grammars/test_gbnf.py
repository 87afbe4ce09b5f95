"""Grammars in GBNF have the texts that an oracle without a lexer finds.

A grammar is made as a value and written down from it, so the oracle reads no notation. It looks for
the ends of every rule at every place of a text until nothing new is found.
"""

import random
from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest

from constraints.errors import Contradiction, TooComplex
from constraints.grammars.gbnf import to_grammar
from constraints.regex.char_sets import complement, encodable, united
from constraints.regex.syntax import Chars, Choice, Concat, Pattern, Reference, Repeat, has
from constraints.spec import ConstraintSpec, Kind
from tests.constraints.cases import demo_vocabulary, needed_len
from tests.constraints.grammars.rig import accepts, compiled, walk

LETTERS = "abcéè"
Rules = Mapping[str, Pattern]
# The ends of each rule at each place of a text.
Ends = Mapping[tuple[str, int], set[int]]


def has_text(rules: Rules, text: str) -> bool:
    """Whether the text is what the rule `root` stands for."""
    ends: Ends = {(name, at): set() for name in rules for at in range(len(text) + 1)}
    is_new = True
    while is_new:
        is_new = False
        for (name, at), known in ends.items():
            found = _ends(rules[name], at, text, ends)
            is_new = is_new or not found <= known
            known |= found
    return len(text) in ends["root", 0]


def _ends(pattern: Pattern, at: int, text: str, known: Ends) -> set[int]:
    match pattern:
        case Chars():
            return {at + 1} if at < len(text) and has(pattern, text[at]) else set()
        case Reference(name):
            return known[name, at]
        case Concat(parts):
            found = {at}
            for part in parts:
                found = {end for begin in found for end in _ends(part, begin, text, known)}
            return found
        case Choice(options):
            return {end for option in options for end in _ends(option, at, text, known)}
        case Repeat(part, min_count, max_count):
            # Beyond the text's length nothing but empty repeats are left.
            last = min_count + len(text) + 1 if max_count is None else max_count
            current = {at}
            found = set()
            for count in range(last + 1):
                found |= current if count >= min_count else set()
                current = {end for begin in current for end in _ends(part, begin, text, known)}
            return found
    raise AssertionError(pattern)


def as_gbnf(rules: Rules) -> str:
    """The grammar in GBNF."""
    return "\n".join(f"{name} ::= {_written(pattern)}" for name, pattern in rules.items())


def _written(pattern: Pattern) -> str:
    match pattern:
        case Chars(ranges):
            pieces = [f"\\U{low:08X}-\\U{high:08X}" for low, high in encodable(ranges)]
            return f"[{''.join(pieces)}]"
        case Reference(name):
            return name
        case Concat(parts):
            return f"({' '.join(map(_written, parts))})"
        case Choice(options):
            return f"({' | '.join(map(_written, options))})"
        case Repeat(part, min_count, max_count):
            return f"({_written(part)}){{{min_count},{'' if max_count is None else max_count}}}"
    raise AssertionError(pattern)


def any_grammar(draw: random.Random) -> Rules:
    """A few rules that lead to each other."""
    names = ["root", "x", "y", "z"][: draw.randint(1, 4)]
    return {name: _any_pattern(draw, names, 3) for name in names}


def _any_pattern(draw: random.Random, names: list[str], depth: int) -> Pattern:
    kind = draw.choice(
        ["one", "literal", "rule"] + ["then", "then", "either", "times"] * (depth > 0)
    )
    match kind:
        case "one":
            return one("".join(draw.sample(LETTERS, draw.randint(1, 3))), draw.random() < 0.2)
        case "literal":
            return literal("".join(draw.choices(LETTERS, k=draw.randint(0, 3))))
        case "rule":
            return Reference(draw.choice(names), 0)
    several = [_any_pattern(draw, names, depth - 1) for _ in range(draw.randint(2, 3))]
    if kind != "times":
        return Concat((*several,)) if kind == "then" else Choice((*several,))
    min_count = draw.randint(0, 2)
    return Repeat(several[0], min_count, draw.choice([None, min_count + draw.randint(0, 2)]))


def one(chars: str, negated: bool = False) -> Pattern:
    ranges = united([((ord(char), ord(char)),) for char in chars])
    return Chars(complement(ranges) if negated else ranges)


def literal(text: str) -> Pattern:
    return Concat(tuple(map(one, text)))


def then(*parts: Pattern) -> Pattern:
    return Concat(parts)


def either(*options: Pattern) -> Pattern:
    return Choice(options)


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
ROOT, X = Reference("root", 0), Reference("x", 0)
A, B, C, AB, NOTHING = map(literal, ("a", "b", "c", "ab", ""))
WORD = Repeat(one("ab"), 1, None)
# Grammars whose largest pieces a greedy lexer would read wrongly.
TRAPS: dict[str, Rules] = {
    "a beginning": {"root": either(then(A, B), then(AB, C))},
    "a repeat": {"root": X, "x": then(Repeat(A, 1, None), Repeat(X, 0, 1), AB)},
    "a byte": {
        "root": either(then(X, literal("è")), C),
        "x": either(Repeat(literal("é"), 1, None), then(A, ROOT, B)),
    },
    "left": {"root": either(then(ROOT, B), A)},
    "right": {"root": either(then(A, ROOT), then(B, ROOT, C), NOTHING)},
    "both": {"root": either(then(ROOT, ROOT), A, NOTHING)},
    "words": {"root": either(then(WORD, X, ROOT), WORD), "x": Repeat(then(C, X), 0, 1)},
    "an end": {"root": then(A, Repeat(ROOT, 0, 1), Repeat(one("abc"), 1, 2))},
    "options": {"root": either(then(either(AB, literal("abc")), ROOT), C)},
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


@pytest.mark.parametrize(
    "root",
    ["item*", "item+", "(text | call)*", "node*", '(text | "{" node* "}")*', "items", "more"],
)
def test_a_long_text_between_recursive_parts_is_followed_to_its_end(root: str) -> None:
    grammar = f"""root ::= {root}
item ::= text | call
text ::= [^{{}}]+
call ::= "{{" (text | call)* "}}"
node ::= text | "{{" node* "}}"
items ::= text items | call items | ""
more ::= item more?
"""
    text = "Dear {name}, " + 3000 * "x" + "{upper {name}}"
    language = compiled(Kind.GBNF, grammar)
    assert accepts(language, text)
    assert not accepts(language, f"{text}}}")


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


def test_a_rule_in_many_loops_is_shown_in_the_first_of_them() -> None:
    loops = " ".join(f'(x | "{number}")*' for number in range(150))
    assert to_grammar(f'root ::= "(" {loops} ")"\nx ::= "a" root?').count("\nr") == 102
