"""Automata of patterns accept what re.fullmatch matches, whatever looks around in them."""

import random
import re
from itertools import product

import pytest

from constraints.compiler import Compiler
from constraints.errors import Contradiction, NotEnforced, OutOfReach
from constraints.regex.dfa import matches
from constraints.spec import ConstraintSpec, Kind
from tests.constraints.cases import byte_vocabulary
from tests.constraints.grammars.rig import accepts, takes

TEXTS = ["".join(chars) for length in range(5) for chars in product("ab \n", repeat=length)]
PATTERNS = [
    *(r"\bab\b.*", r"a\b b", r"\B", r"\b", r"a\Bb|\B\n", r"(?:a|\b)*", r"(?a)a\b\W?"),
    *(r"(?m)^a$\n^b$", r"(?m)(?:^a*$\n?)+", r"(?m)a$.", r"(?ms)a$.", r"(?ms)^.*$"),
    *(r"a$\n?", r"^$\n?", r"(?s)a$.?", r"\Aab\Z", r"(?s)(?:a$\n?)*.?"),
    *(r"(?s).*(?<=a)b.*", r"(?<=^a)b|a(?<=^a)b", r"(?s)(?:(?<!a)b|a| )*"),
    *(r"(?s)(?!.*ab).*", r"(?s)(?!a\b).*", r"(?s)(?:(?!ab).)*", r"(?s)(?!(?:a|b)+\Z).+"),
    *(r"(?=a)(?!ab).*", r"(?s)a(?=b|\n).*", r"(?s)(?:a(?=b)|b(?=a|\Z))*", r"(?:(?=a)a|(?!a)b)*"),
    *(r"(?=a(?=b))ab", r"(?s)(?!a\Z|b(?!c)).*", r"(?!a(?!b(?= )))a.*", r"(?:(?!a(?=b)).)*"),
    *(r"(?s)(?=.*\bb\b)(?!.*\n\n).*", r"(?s)(?=.*a)(?=.*b)(?=.* ).*", r"(?s)(?<![ab])[ab](?!b)"),
]


def wrong_texts(pattern: str) -> list[str]:
    automaton, judge = matches(pattern), re.compile(pattern)
    return [each for each in TEXTS if takes(automaton, each) != bool(judge.fullmatch(each))]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_are_those_that_python_matches(pattern: str) -> None:
    assert wrong_texts(pattern) == []


def any_pattern(draw: random.Random, depth: int) -> str:
    kind = draw.choice(
        ["char", "char", "at", "look", *(["then", "then", "or", "times"] * (depth > 0))]
    )
    if kind == "char":
        return draw.choice(["a", "b", "\\n", ".", "[ab]", "[^a]", " ", "\\w"])
    if kind == "at":
        return draw.choice([r"\b", r"\B", "^", "$", r"\A", r"\Z"])
    if kind == "look":
        sign = draw.choice(["=", "!", "<=", "<!"])
        parts = ["a", "b", "\\n", ".", " ", *([r"\b", "(?!a)", "(?=b)", "$"] * ("<" not in sign))]
        return f"(?{sign}{''.join(draw.choices(parts, k=draw.randint(1, 2)))})"
    one = any_pattern(draw, depth - 1)
    if kind == "times":
        return f"(?:{one}){draw.choice(['*', '+', '?', '{1,2}'])}"
    return one + any_pattern(draw, depth - 1) if kind == "then" else f"(?:{one}|{one}b)"


def test_texts_of_any_pattern_are_those_that_python_matches() -> None:
    draw = random.Random(0)
    for _ in range(60):
        pattern = draw.choice(["", "(?m)", "(?s)", "(?ms)"]) + any_pattern(draw, 4)
        assert wrong_texts(pattern) == [], pattern


@pytest.mark.parametrize(
    "pattern", [r"(a)\1", r"(?>a+)b", "a++", "(?<=a(?=b))b", r"a(?<=\ba)b", r"(a)?(?(1)b|c)"]
)
def test_what_has_no_automaton_is_out_of_reach(pattern: str) -> None:
    with pytest.raises(OutOfReach):
        matches(pattern)


def test_a_constraint_may_look_around() -> None:
    compiler = Compiler(byte_vocabulary())
    language = compiler.compile(ConstraintSpec(Kind.REGEX, r"(?!.*\bfox\b)[a-zé ]{3,9}"))
    assert accepts(language, "foxes é")
    assert not accepts(language, "a fox")
    matcher = language.matcher()
    for byte in b"a fox":
        matcher.advance(byte)
    assert not matcher.is_complete
    assert matcher.num_legal([ord(" ")]) == 0
    assert matcher.num_legal([ord("y")]) == 1


def test_looks_that_exclude_each_other_are_a_contradiction() -> None:
    compiler = Compiler(byte_vocabulary())
    with pytest.raises(Contradiction):
        compiler.compile(ConstraintSpec(Kind.REGEX, "(?=a)(?!a).*"))
    with pytest.raises(NotEnforced, match="reference back"):
        compiler.compile(ConstraintSpec(Kind.REGEX, r"(?!b)(a)\1"))


def test_characters_that_make_no_difference_share_a_label() -> None:
    automaton = matches(r"(?!.*\bfox\b)[a-c ]{2,9}")
    assert len(automaton.partition.starts) < 10
