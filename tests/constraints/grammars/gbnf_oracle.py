"""Which texts a grammar in GBNF has, found without any automaton; and grammars at random.

A grammar is made as a value and written down from it, so the oracle reads no notation. It looks for
the ends of every rule at every place of a text until nothing new is found.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass

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
