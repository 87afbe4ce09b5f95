"""Two hundred constraints that are made to cost, to break or to mislead whoever compiles them.

Generated, not listed: each family has a parameter that says how bad it is. All of them are short
to send but for the last family. Nothing here is random, so that a failure can be named.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice, pairwise

from constraints.spec import ConstraintSpec, Kind

NUM_HOSTILE = 200
_SCHEMA = "https://json-schema.org/draft/2020-12/schema"


@dataclass(frozen=True, slots=True)
class Hostile:
    """One of them. `name` is its family and how bad it is."""

    name: str
    spec: ConstraintSpec


def hostile() -> list[Hostile]:
    """All of them, one of each family after the other."""
    families = [family() for family in _FAMILIES]
    found: list[Hostile] = []
    while len(found) < NUM_HOSTILE:
        for family in families:
            found += islice(family, 1)
    return found[:NUM_HOSTILE]


# A grammar whose beginning is harmless: "x" will do. On any other way the engine's expressions
# multiply with every letter, and after some twenty of them it gives up.
BLOWS_UP_LATER = ConstraintSpec(Kind.REGEX, "x|(((a|b|ab|ba){1,50}c?){1,50}d?){1,50}")
BLOWS_UP_ON = "ab" * 50


def _regex(name: str, pattern: str) -> Hostile:
    return Hostile(f"regex {name}", ConstraintSpec(Kind.REGEX, pattern))


def _schema(name: str, schema: object) -> Hostile:
    return Hostile(f"schema {name}", ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(schema)))


def _lark(name: str, grammar: str) -> Hostile:
    return Hostile(f"lark {name}", ConstraintSpec(Kind.LARK, grammar))


def _gbnf(name: str, grammar: str) -> Hostile:
    return Hostile(f"gbnf {name}", ConstraintSpec(Kind.GBNF, grammar))


def _where(name: str, expression: str) -> Hostile:
    return Hostile(f"where {name}", ConstraintSpec(Kind.WHERE, expression))


def _nested_repeats() -> Iterator[Hostile]:
    for depth in count(2):
        pattern = "[a-z]"
        for _ in range(depth):
            pattern = f"({pattern}){{1,100}}"
        yield _regex(f"repeats nested {depth} deep", pattern)


def _long_repeats() -> Iterator[Hostile]:
    for power in count(3):
        yield _regex(
            f"repeats up to 10^{power % 9}", f"((a|b|[^c])x?){{{power},{10 ** (power % 9)}}}"
        )


def _exponential_states() -> Iterator[Hostile]:
    for length in count(10):
        yield _regex(f"an a {length} before the end", f".*a.{{{length}}}(b|c.*d.{{{length}}})")


def _deep_parentheses() -> Iterator[Hostile]:
    for power in count(6):
        depth = 2 ** (power % 15)
        yield _regex(
            f"{depth} parentheses, number {power}", "(" * depth + str(power) + ")?" * depth
        )


def _many_alternatives() -> Iterator[Hostile]:
    for thousands in count(1):
        words = "|".join(f"{index:x}[a-z]*{index % 7}" for index in range(1000 * thousands))
        yield _regex(f"{thousands} thousand alternatives", words)


def _unicode_classes() -> Iterator[Hostile]:
    for length in count(5):
        yield _regex(
            f"{length} Unicode classes", r"(\w+\W+[^\W\d_]*[^\s\w]?)" * length + f"{{{length}}}"
        )


def _broken_patterns() -> Iterator[Hostile]:
    shapes = ["(" * 50, "[a-", "(?P<n>a)(?P=n)", "a{9999999999}", "(?<=a)b", "\\", "*", "(?R)"]
    for index in count():
        yield _regex(f"broken, number {index}", shapes[index % len(shapes)] + "x" * (index // 8))


def _looks() -> Iterator[Hostile]:
    for length in count(2):
        looks = "".join(f"(?=.*{chr(97 + i % 26)}.{{{3 * i}}}z)" for i in range(length))
        yield _regex(f"{length} looks ahead", looks + r"\b.{1,80}\b")


def _huge_enum() -> Iterator[Hostile]:
    for thousands in count(5, 5):
        values = [f"value {index} {'é' * (index % 5)}" for index in range(1000 * thousands)]
        yield _schema(f"enum of {thousands} thousand", {"enum": values})


def _recursive_references() -> Iterator[Hostile]:
    for width in count(1):
        node = {
            "type": "object",
            "properties": {f"p{index}": {"$ref": "#/$defs/n"} for index in range(width * 20)},
            "required": [f"p{index}" for index in range(width)],
        }
        yield _schema(
            f"endless: {width} required of itself", {"$defs": {"n": node}, "$ref": "#/$defs/n"}
        )


def _circular_references() -> Iterator[Hostile]:
    for length in count(1):
        names = [f"d{index}" for index in range(length)]
        defs = {
            name: {"$ref": f"#/$defs/{after}"}
            for name, after in zip(names, names[1:] + names[:1], strict=True)
        }
        yield _schema(f"circle of {length} references", {"$defs": defs, "$ref": "#/$defs/d0"})


def _all_of() -> Iterator[Hostile]:
    for length in count(4):
        parts = [
            {"anyOf": [{"properties": {f"k{index}": {"const": value}}} for value in range(4)]}
            for index in range(length)
        ]
        yield _schema(f"product of {length} alternatives", {"type": "object", "allOf": parts})


def _complements() -> Iterator[Hostile]:
    for length in count(3):
        parts = [
            {"not": {"type": "string", "pattern": f"{chr(97 + i % 26)}.{{{i}}}z"}}
            for i in range(length)
        ]
        yield _schema(
            f"{length} complements", {"type": "string", "allOf": parts, "$schema": _SCHEMA}
        )


def _optional_properties() -> Iterator[Hostile]:
    for thousands in count(1):
        properties = {
            f"property_{index}": {"type": "string", "maxLength": 100}
            for index in range(500 * thousands)
        }
        yield _schema(
            f"{500 * thousands} optional properties", {"type": "object", "properties": properties}
        )


def _deep_schema() -> Iterator[Hostile]:
    for depth in count(50, 60):
        schema: dict[str, object] = {"type": "integer"}
        for _ in range(depth):
            schema = {"type": "array", "items": schema, "minItems": 1}
        yield _schema(f"{depth} levels", schema)


def _unsatisfiable_schema() -> Iterator[Hostile]:
    for number in count(1):
        parts = [{"minimum": number}, {"maximum": number - 1}, {"pattern": "^a$", "minLength": 2}]
        yield _schema(
            f"without instances, number {number}",
            {"type": "integer", "allOf": parts[: 1 + number % 3], "exclusiveMaximum": number},
        )


def _long_strings() -> Iterator[Hostile]:
    for power in count(3):
        low, high = 10 ** (power % 6), 10 ** (power % 7 + 1)
        yield _schema(
            f"strings from {low} to {high}, number {power}",
            {"type": "string", "minLength": low, "maxLength": high, "pattern": "^[a-f0-9-]*$"},
        )


def _left_recursion() -> Iterator[Hostile]:
    for length in count(1):
        rules = [
            f"r{index}: r{(index + 1) % length} | r{index} r{index} |" for index in range(length)
        ]
        yield _lark(f"left recursion through {length}", "start: r0\n" + "\n".join(rules) + "\n")


def _ambiguity() -> Iterator[Hostile]:
    for length in count(2):
        yield _lark(
            f"{length} ambiguous sums",
            "start: e\ne: " + " | ".join(["e e"] * length) + ' | "a" | "a" "a"\n',
        )


def _many_rules() -> Iterator[Hostile]:
    for thousands in count(1, 2):
        rules = "\n".join(f'r{i}: "a{i}" r{i + 1}?' for i in range(1000 * thousands))
        yield _lark(
            f"{thousands} thousand rules", f'start: r0\n{rules}\nr{1000 * thousands}: "z"\n'
        )


def _lark_complements() -> Iterator[Hostile]:
    for length in count(3):
        parts = " & ".join(
            f"~/(?s:.*){chr(97 + i % 26)}(?s:.{{{i}}})z(?s:.*)/" for i in range(length)
        )
        yield _lark(f"{length} complements", f"start: T\nT: {parts}\n")


def _broken_grammars() -> Iterator[Hostile]:
    shapes = [
        "start: missing",
        "start: (",
        "%import common.NOTHING",
        "start: %json {",
        "a: b",
        "start: /(/",
    ]
    for index in count():
        yield _lark(f"broken, number {index}", shapes[index % len(shapes)] + "\n" * (index // 6))


def _without_an_end() -> Iterator[Hostile]:
    """The lexer is greedy, so that no text is ever followed by the rest."""
    for length in count(1):
        yield _lark(f"that {length} letters never end", f'start: A "{"a" * length}b"\nA: /a+/\n')


def _gbnf_repeats() -> Iterator[Hostile]:
    for depth in count(2):
        body = "[a-z]"
        for _ in range(depth):
            body = f"({body}){{1,100}}"
        yield _gbnf(f"repeats nested {depth} deep", f'root ::= {body} "."\n')


def _gbnf_recursion() -> Iterator[Hostile]:
    for length in count(1):
        rules = [
            f'r{index} ::= r{(index + 1) % length} r{index} "a" | "" | [^b]{{0,{index}}}'
            for index in range(length)
        ]
        yield _gbnf(f"recursion through {length}", "root ::= r0\n" + "\n".join(rules) + "\n")


def _counters() -> Iterator[Hostile]:
    measures = ["len(X)", "len(words(X))", "len(sentences(X))", "len(tokens(X))"]
    for length in count(5, 9):
        parts = [f"{measures[i % 4]} {'<' if i % 2 else '>'} {20 + 7 * i}" for i in range(length)]
        yield _where(
            f"{length} counters",
            " or ".join(f"({part} and {after})" for part, after in pairwise(parts)),
        )


def _phrases() -> Iterator[Hostile]:
    for length in count(6, 6):
        parts = [f'"{chr(97 + i % 26)}{"b" * (i % 9)}{i}" in X' for i in range(length)]
        yield _where(f"{length} phrases to be contained", " and ".join(parts))


def _negations() -> Iterator[Hostile]:
    for depth in count(10, 40):
        yield _where(f"{depth} negations", "not (" * depth + 'len(X) < 5 or "a" in X' + ")" * depth)


def _where_patterns() -> Iterator[Hostile]:
    for length in count(2):
        parts = [f'not regex(X, r".*{chr(97 + i % 26)}.{{{4 * i}}}z.*")' for i in range(length)]
        yield _where(
            f"{length} patterns that must not match", " and ".join([*parts, "len(words(X)) < 40"])
        )


def _unsatisfiable_where() -> Iterator[Hostile]:
    for number in count(1):
        yield _where(
            f"without texts, number {number}",
            f'len(X) < {number} and len(words(X)) > {number} and "{"a" * number}" in X',
        )


def _huge_texts() -> Iterator[Hostile]:
    """Some 10 MB each: to send them is the attack."""
    for index in count():
        size = 10_000_000 + index
        match index % 4:
            case 0:
                yield _regex(f"of {size} bytes", "a?" * (size // 2))
            case 1:
                yield _schema(f"of {size} bytes", {"enum": ["x" * (size // 10)] * 9 + [str(index)]})
            case 2:
                yield _lark(f"of {size} bytes", 'start: "' + "a" * size + '"\n')
            case _:
                yield _where(f"of {size} bytes", 'X == "' + "b" * size + '"')


_FAMILIES = (
    *(_nested_repeats, _long_repeats, _exponential_states, _deep_parentheses, _many_alternatives),
    *(_unicode_classes, _broken_patterns, _huge_enum, _recursive_references, _circular_references),
    *(_all_of, _complements, _optional_properties, _deep_schema, _unsatisfiable_schema),
    *(_long_strings, _left_recursion, _ambiguity, _many_rules, _lark_complements),
    *(_looks, _without_an_end, _gbnf_repeats, _gbnf_recursion),
    *(_broken_grammars, _counters, _phrases, _negations, _where_patterns, _unsatisfiable_where),
    _huge_texts,
)
