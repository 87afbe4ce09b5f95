"""Regular expressions for the oracle, by Antimirov's partial derivatives over characters.

It knows the part of Python's syntax that the tests use: literals, `.`, classes, \\d \\w \\s and
their complements, escaped signs, groups, `|`, `*`, `+`, `?`, `{m}`, `{m,}`, `{m,n}`. Lazy repeats
mean the same as others where the whole text must match. It shares nothing with the engine.
"""

import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Nothing:
    """The empty text."""


@dataclass(frozen=True)
class One:
    """One character, by a pattern that `re` decides."""

    pattern: str

    def has(self, char: str) -> bool:
        return re.fullmatch(self.pattern, char) is not None


@dataclass(frozen=True)
class Then:
    first: "Node"
    second: "Node"


@dataclass(frozen=True)
class Either:
    first: "Node"
    second: "Node"


@dataclass(frozen=True)
class Star:
    inner: "Node"


Node = Nothing | One | Then | Either | Star

_ONE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\()|*+?{}\[\]]", re.DOTALL)
_TIMES = re.compile(r"(\*|\+|\?|\{(\d*)(,?)(\d*)\})\??")


@cache
def step(nodes: frozenset[Node], char: str) -> frozenset[Node]:
    """What may still follow after `char`, of what might have followed before it."""
    return frozenset(rest for node in nodes for rest in _rests(node, char))


def is_done(nodes: frozenset[Node]) -> bool:
    return any(_may_be_empty(node) for node in nodes)


def _rests(node: Node, char: str) -> set[Node]:
    match node:
        case Nothing():
            return set()
        case One():
            return {Nothing()} if node.has(char) else set()
        case Either(first, second):
            return _rests(first, char) | _rests(second, char)
        case Star(inner):
            return {_then(rest, node) for rest in _rests(inner, char)}
        case Then(first, second):
            rests = {_then(rest, second) for rest in _rests(first, char)}
            return rests | _rests(second, char) if _may_be_empty(first) else rests


def _may_be_empty(node: Node) -> bool:
    match node:
        case Nothing() | Star():
            return True
        case One():
            return False
        case Either(first, second):
            return _may_be_empty(first) or _may_be_empty(second)
        case Then(first, second):
            return _may_be_empty(first) and _may_be_empty(second)


def _then(first: Node, second: Node) -> Node:
    return second if isinstance(first, Nothing) else Then(first, second)


def read(pattern: str) -> Node:
    node, end = _either(pattern, 0)
    assert end == len(pattern), f"{pattern!r} is beyond the oracle at {end}"
    return node


def _either(pattern: str, at: int) -> tuple[Node, int]:
    node, at = _sequence(pattern, at)
    while pattern.startswith("|", at):
        other, at = _sequence(pattern, at + 1)
        node = Either(node, other)
    return node, at


def _sequence(pattern: str, at: int) -> tuple[Node, int]:
    nodes: list[Node] = []
    while at < len(pattern) and pattern[at] not in "|)":
        node, at = _single(pattern, at)
        times = _TIMES.match(pattern, at)
        if times:
            node, at = _repeated(node, times), times.end()
        nodes.append(node)
    whole: Node = Nothing()
    for node in reversed(nodes):
        whole = node if isinstance(whole, Nothing) else Then(node, whole)
    return whole, at


def _single(pattern: str, at: int) -> tuple[Node, int]:
    if pattern[at] == "(":
        at += 3 if pattern.startswith("(?:", at) else 1
        node, at = _either(pattern, at)
        assert pattern[at] == ")"
        return node, at + 1
    one = _ONE.match(pattern, at)
    assert one, f"{pattern!r} is beyond the oracle at {at}"
    return One(one[0]), one.end()


def _repeated(node: Node, times: re.Match[str]) -> Node:
    sign, low, comma, high = times.groups()
    if sign == "*":
        return Star(node)
    if sign == "+":
        return Then(node, Star(node))
    if sign == "?":
        return Either(node, Nothing())
    at_least = int(low or 0)
    rest: Node = Nothing()
    if comma and not high:
        rest = Star(node)
    for _ in range(int(high) - at_least if high else 0):
        rest = Either(_then_node(node, rest), Nothing())
    for _ in range(at_least):
        rest = _then_node(node, rest)
    return rest


def _then_node(node: Node, rest: Node) -> Node:
    return node if isinstance(rest, Nothing) else Then(node, rest)
