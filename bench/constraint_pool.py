"""Constraints of every kind as users write them, each with a judge that is not ours.

JSON texts are judged by `jsonschema`, patterns by `re`, Lark grammars by python `lark`, `where`
expressions by the plain evaluator of their meanings.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jsonschema
from lark import Lark
from lark.exceptions import LarkError

from constraints.where.evaluate import holds
from constraints.where.parser import parse

# text, num_tokens -> whether it satisfies the constraint
Judge = Callable[[str, int], bool]


@dataclass(frozen=True, slots=True)
class PooledConstraint:
    """A constraint in the words of TGI's `grammar` field, and its judge."""

    type: str
    value: Any
    judge: Judge

    @property
    def grammar(self) -> dict[str, Any]:
        """The request's field."""
        return {"type": self.type, "value": self.value}


_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 4},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"answer": {"type": "boolean"}}, "required": ["answer"]},
    _PERSON,
    {"type": "array", "items": _PERSON, "minItems": 2, "maxItems": 5},
    {"enum": ["red", "green", 3, None, {"deep": [1, 2]}]},
    {"type": "number", "minimum": -1.5, "exclusiveMaximum": 1000},
    {"type": "integer", "minimum": 1000, "maximum": 99999},
    {"type": "string", "minLength": 12, "maxLength": 40},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
    {"type": "string", "format": "date-time"},
    {
        "type": "object",
        "properties": {"id": {"type": "string", "format": "uuid"}},
        "required": ["id"],
    },
    {
        "anyOf": [
            {"type": "string", "const": "none"},
            {"type": "array", "items": {"type": "integer"}},
        ]
    },
    {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["value"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "items": False,
        "minItems": 2,
    },
)
REGEXES = (
    r"[0-9]{3}-[0-9]{4}",
    r"(ab)*c",
    r"[a-z]+@[a-z]+\.(com|org)",
    r"#[0-9a-f]{6}",
    r"((25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])",
    r"(yes|no|perhaps), because [a-z ]{5,60}\.",
    r"[^\n]{0,30}\n?",
    r"(?:é|ü|ß|日本|🙂){2,6}",
    r"\([0-9]+(, [0-9]+)*\)",
    r"a{1,50}b{2}",
    r"(?=.*\d)(?=.*[a-z])\w{4,12}",
    r"(?!.*\b(?:fox|dog)\b)[a-z ]{5,40}",
)
LARKS = (
    'start: sum\nsum: product ("+" product)*\nproduct: atom ("*" atom)*\n'
    'atom: NUMBER | "(" sum ")"\nNUMBER: /[0-9]{1,3}/\n',
    'start: "[" (WORD ("," WORD)*)? "]"\nWORD: /[a-z]{1,6}/\n',
    'start: greeting " " NAME "!"\ngreeting: "hello" | "good " ("morning" | "night")\n'
    "NAME: /[A-Z][a-z]{1,8}/\n",
    'start: pair+\npair: KEY "=" VALUE "\\n"\nKEY: /[a-z]{1,5}/\nVALUE: /[0-9]{1,4}/\n',
    'start: "a" start "b" | "c"\n',
    'start: tag\ntag: "<b>" tag* "</b>" | "<i>" TEXT "</i>"\nTEXT: /[a-z ]{1,10}/\n',
)
# In GBNF, and the same in Lark for the judge.
GBNFS = (
    (
        "root ::= value\nvalue ::= list | word | number\n"
        'list ::= "[" (value ("," " "? value)*)? "]"\n'
        'word ::= "\\"" [^"\\n\\\\]{0,8} "\\""\nnumber ::= "-"? ("0" | [1-9] [0-9]{0,3})\n',
        'start: value\nvalue: list | WORD | NUMBER\nlist: "[" (value ("," " "? value)*)? "]"\n'
        'WORD: /"[^"\\n\\\\]{0,8}"/\nNUMBER: /-?(0|[1-9][0-9]{0,3})/\n',
    ),
    (
        'root ::= "a" root "b" | "ab" root? "c"\n',
        'start: "a" start "b" | "ab" start? "c"\n',
    ),
    (
        "root ::= words [.!]\nwords ::= word (ws words)?\nword ::= [a-zé]{1,7}\n"
        "ws ::= [ ] ws | [ ]\n",
        "start: words END\nwords: WORD (WS words)?\nWORD: /[a-zé]{1,7}/\nWS: / +/\nEND: /[.!]/\n",
    ),
)
CHOICES = (
    ("yes", "no"),
    ("Berlin", "Bern", "Bernau bei Berlin"),
    ("a", "ab", "abc", "abcd"),
    ("日本", "日本語", "日"),
    ("one two", "one", "one two three"),
    tuple(f"option {number}" for number in range(100)),
)
WHERES = (
    'len(words(X)) < 12 and "\\n" not in X',
    'len(X) >= 5 and len(X) <= 30 and not "e" in X',
    'X in ["cat", "dog", "catfish"]',
    "len(words(X)) == 3 and len(X) < 40",
    'stops_at(X, ".") and len(words(X)) > 2 and len(words(X)) < 20',
    'stops_at(X, ".", "!") and len(X) < 80',
    '"fox" in X and len(X) < 60',
    '"a" in X and "b" in X and "c" in X and len(X) <= 20',
    "int(X) and int(X) >= -20 and int(X) < 300",
    "float(X)",
    'starts_with(X, "The ", "A ") and ends_with(X, ".") and len(words(X)) <= 10',
    "len(sentences(X)) == 2 and len(X) < 100",
    'regex(X, "[a-z]{2,5}( [a-z]{2,5})*") and len(words(X)) >= 2 and len(X) < 50',
    'X == "exactly this" or X == "or that"',
    'not (X in ["yes", "no"]) and len(X) == 3',
    "len(tokens(X)) >= 3 and len(tokens(X)) < 9",
    'len(words(X)) < 40 and len(X) < 300 and "\\n" not in X and stops_at(X, ".")'
    ' and "Tweet" not in X',
    'X != "" and len(X) != 4 and len(X) < 6',
    '("yes" in X or len(words(X)) > 4) and len(X) < 50',
    'len(X) == 7 and "日" in X',
)


def pool() -> tuple[PooledConstraint, ...]:
    """All of them."""
    return (
        *(PooledConstraint("json", schema, _schema_judge(schema)) for schema in SCHEMAS),
        *(PooledConstraint("regex", pattern, _regex_judge(pattern)) for pattern in REGEXES),
        *(PooledConstraint("lark", grammar, _lark_judge(grammar)) for grammar in LARKS),
        *(PooledConstraint("gbnf", written, _lark_judge(same)) for written, same in GBNFS),
        *(PooledConstraint("choice", list(values), _choice_judge(values)) for values in CHOICES),
        *(PooledConstraint("where", text, _where_judge(text)) for text in WHERES),
    )


def _schema_judge(schema: dict[str, Any]) -> Judge:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    validator = jsonschema.Draft202012Validator(schema, format_checker=checker)

    def judge(text: str, num_tokens: int) -> bool:
        try:
            instance = json.loads(text)
        except ValueError:
            return False
        return bool(validator.is_valid(instance))

    return judge


def _regex_judge(pattern: str) -> Judge:
    compiled = re.compile(pattern)
    return lambda text, num_tokens: compiled.fullmatch(text) is not None


def _lark_judge(grammar: str) -> Judge:
    # Earley with a dynamic lexer accepts exactly the language, whatever its terminals share.
    parser = Lark(grammar, parser="earley", lexer="dynamic_complete")

    def judge(text: str, num_tokens: int) -> bool:
        try:
            parser.parse(text)
        except LarkError:
            return False
        return True

    return judge


def _choice_judge(values: tuple[str, ...]) -> Judge:
    return lambda text, num_tokens: text in values


def _where_judge(text: str) -> Judge:
    return partial(holds, parse(text))
