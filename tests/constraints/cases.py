"""Constraints of every kind, vocabularies to try them on, and judges that know no masks.

CASES                              constraints by name
demo_vocabulary, byte_vocabulary   of the bundled model; all bytes and a few longer tokens
drawn                              outputs under an output state, drawn as a shard draws them
judge_of(spec)                     says of a text whether it satisfies the constraint
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jsonschema
import lark
import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper

from constraints.after_thought import OutputState
from constraints.bitmask import allowed_ids
from constraints.compiler import Compiler
from constraints.matcher import Language, Matcher
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind, StopRule
from constraints.vocabulary import Vocabulary
from constraints.where.evaluate import dropped_phrases, holds
from constraints.where.parser import parse
from constraints.where.terms import Expression

Json = Any


def record(properties: Json, required: list[str] | None = None) -> Json:
    """A schema of an object that has these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def open_record(properties: Json, **more: Json) -> Json:
    """A schema of an object that has these properties, and any others."""
    return {"type": "object", "properties": properties, "required": list(properties), **more}


OBJECT, STRING, INTEGER = {"type": "object"}, {"type": "string"}, {"type": "integer"}
SCHEMAS: dict[str, Json] = {
    "flat": record({"name": STRING, "age": INTEGER, "ok": {"type": "boolean"}}),
    "nested": record({"a": record({"b": record({"c": STRING})}), "d": record({"e": INTEGER})}),
    "optional": record({"a": STRING, "b": record({"c": INTEGER, "d": STRING})}, []),
    "min-items": record({"l": {"type": "array", "items": record({"x": INTEGER}), "minItems": 3}}),
    "min-length": record({"s": {"type": "string", "minLength": 50}}),
    "length-range": record({"s": {"type": "string", "minLength": 20, "maxLength": 22}}),
    "pattern": record({"s": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}-x+yz$"}}),
    "date-time": record({"s": {"type": "string", "format": "date-time"}}),
    "uuid": record({"s": {"type": "string", "format": "uuid"}}),
    "email": record({"s": {"type": "string", "format": "email"}}),
    "ipv4": record({"s": {"type": "string", "format": "ipv4"}}),
    "minimum": record({"n": {"type": "integer", "minimum": 1000}}),
    "multiple": record({"n": {"type": "integer", "minimum": 1000, "multipleOf": 7}}),
    "negative": record({"n": {"type": "number", "maximum": -5.5}}),
    "enum": record({"c": {"enum": ["red", "green", "blue", {"a": 1}]}}),
    "any-of": record({"v": {"anyOf": [record({"deep": record({"x": STRING})}), {"type": "null"}]}}),
    "recursive": {
        "$defs": {
            "node": record(
                {"v": INTEGER, "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}}
            )
        },
        "$ref": "#/$defs/node",
    },
    "additional": {"type": "object", "additionalProperties": INTEGER},
    "all-of": {
        "allOf": [
            {"type": "object", "properties": {"a": STRING, "b": INTEGER}, "required": ["a"]},
            {"type": "object", "required": ["b"]},
        ]
    },
    "anything": {},
}
PATTERNS = [
    r"(ab)*c",
    r"[a-z]{3}-[0-9]{4}",
    r"[a-z]+xyz",
    r"(foo|bar[0-9]{4}-end)",
    r"[0-9a-f]{32}",
    r"(0|1)*0000001",
    r"[^a\n]*q[^b\n]*z",
]
GRAMMARS = {
    "arithmetic": """start: expr
expr: term (("+"|"-") term)*
term: factor (("*"|"/") factor)*
factor: NUMBER | "(" expr ")"
NUMBER: /[0-9]+/
""",
    "query": """start: "SELECT " cols " FROM " NAME (" WHERE " cond)? ";"
cols: "*" | NAME ("," NAME)*
cond: NAME "=" (NUMBER | STR)
NAME: /[a-z_]+/
NUMBER: /[0-9]+/
STR: /'[^']*'/
""",
}
EXPRESSIONS = [
    'len(X) < 20 and "fox" in X',
    "len(words(X)) == 3",
    "int(X) > 41",
    "len(tokens(X)) < 5 and len(X) > 6",
    'stops_at(X, ".") and len(words(X)) >= 4',
    "len(sentences(X)) == 2",
]

CASES: dict[str, ConstraintSpec] = {
    **{name: ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(each)) for name, each in SCHEMAS.items()},
    **{pattern: ConstraintSpec(Kind.REGEX, pattern) for pattern in PATTERNS},
    **{name: ConstraintSpec(Kind.LARK, grammar) for name, grammar in GRAMMARS.items()},
    "choice": ConstraintSpec(Kind.CHOICE, '["zebra", "cat", "catalogue", "ca"]'),
    **{each: ConstraintSpec(Kind.WHERE, each) for each in EXPRESSIONS},
}


def wide_schema() -> ConstraintSpec:
    """100 properties, about 20 kB: of each string its characters are counted."""
    properties: dict[str, Json] = {}
    for index in range(100):
        pattern = f"^([A-Z]?[a-z]{{1,{20 + index}}}[ ,.]?){{1,{30 + index}}}$"
        counted = (
            {"type": "string", "minLength": index, "maxLength": 1000 + index},
            {"type": "string", "pattern": pattern},
            {"type": "array", "items": {"type": "string", "maxLength": 100 + index}},
        )[index % 3]
        properties[f"property_{index}"] = {**counted, "description": "what it is for; " * 8}
    return ConstraintSpec(Kind.JSON_SCHEMA, json.dumps({"properties": properties, **OBJECT}))


def wide_text() -> str:
    """An instance of it, more than 4 000 of the bundled model's tokens."""
    draw = random.Random(7)
    words = "the man and the dog went to the house with a new car and they said it was good".split()
    long, matched, *items = (
        [" ".join(draw.choices(words, k=num_words)) for _ in range(34)]
        for num_words in (60, 20, 5, 4)
    )
    values = (long, matched, list(zip(*items, strict=True)))
    return json.dumps({f"property_{n}": values[n % 3][n // 3] for n in range(100)})


class TokenList:
    """A tokenizer that is nothing but its tokens: texts are cut into single bytes, if known."""

    def __init__(self, tokens: Sequence[bytes], end_id: int) -> None:
        self.tokens = [token or b"<end>" for token in tokens]
        self.eos_token_id = end_id
        self.bos_token_id = None
        self.special_token_ids = [index for index, token in enumerate(tokens) if not token]

    def __call__(self, text: bytes | str) -> list[int]:
        octets = text.encode() if isinstance(text, str) else text
        singles = [bytes([byte]) for byte in octets]
        return [self.tokens.index(single) for single in singles if single in self.tokens]


def vocabulary_of(
    tokens: Sequence[bytes], end_ids: Sequence[int], kind: type[TokenList] = TokenList
) -> Vocabulary:
    """A vocabulary of these very tokens."""
    backend = LLTokenizer(TokenizerWrapper(kind(tokens, end_ids[0])), n_vocab=len(tokens))
    return Vocabulary(tuple(tokens), tuple(end_ids), backend)


ROOT = Path(__file__).parents[2]
NO_STOPS = StopRule()
NONE: Mapping[int, float] = MappingProxyType({})
# Refusals of one token before its row is left to the completion that is known.
MAX_DRAWS = 4


@lru_cache(maxsize=1)
def demo_vocabulary() -> Vocabulary:
    """4 096 byte-level tokens; 0 ends an output."""
    return Vocabulary.load(ROOT / "models" / "demo" / "tokenizer.json", None, [0])


@lru_cache(maxsize=1)
def byte_vocabulary() -> Vocabulary:
    """All bytes by their value, a few longer tokens, and 256 as the end."""
    longer = [b'{"', b'":', b'"}', b"  ", b"ab", b"bc", b"the", b"\xc3\xa9", b"\xe2\x82", b"}\n"]
    return vocabulary_of([*(bytes([byte]) for byte in range(256)), b"", *longer], [256])


@lru_cache(maxsize=2)
def compiler_of(vocabulary: Vocabulary) -> Compiler:
    return Compiler(vocabulary)


def language_of(spec: ConstraintSpec, vocabulary: Vocabulary) -> Language:
    return compiler_of(vocabulary).compile(spec)


def judge_of(spec: ConstraintSpec) -> Callable[[str, int], bool]:
    """Says of a text and its number of tokens whether it satisfies the constraint."""
    match spec.kind:
        case Kind.JSON_SCHEMA:
            validator = jsonschema.Draft202012Validator(json.loads(spec.text))
            return lambda text, _: validator.is_valid(json.loads(text))
        case Kind.REGEX:
            return lambda text, _: re.fullmatch(spec.text, text) is not None
        case Kind.LARK:
            parser = lark.Lark(spec.text, parser="earley")
            return lambda text, _: parses(parser, text)
        case Kind.CHOICE:
            return lambda text, _: text in json.loads(spec.text)
        case Kind.GBNF:
            raise ValueError("a grammar in GBNF is judged by the oracle of its own tests")
        case Kind.WHERE:
            expression = parse(spec.text)
            return lambda text, num_tokens: accepts(expression, text, num_tokens)
        case Kind.TEXT:
            return lambda text, _: True


def parses(parser: lark.Lark, text: str) -> bool:
    try:
        parser.parse(text)
    except lark.exceptions.LarkError:
        return False
    return True


def needed_len(spec: ConstraintSpec, vocabulary: Vocabulary, stops: StopRule = NO_STOPS) -> int:
    """Tokens of the completion that an output state begins with, when it has room."""
    return OutputConstraintState(
        language_of(spec, vocabulary), vocabulary, Budget(10_000), stops
    ).needed_len


def legal_ids(output_state: OutputState, vocabulary: Vocabulary) -> list[int]:
    """The tokens that the output state's mask allows."""
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    output_state.fill(row)
    ids: list[int] = allowed_ids(row).tolist()
    return ids


def legal_of(matcher: Matcher, vocabulary: Vocabulary, max_len: int | None = None) -> list[int]:
    """The tokens that the matcher's mask allows; no bit is left as it was."""
    row = np.full(vocabulary.num_words, -1, dtype=np.int32)
    matcher.fill_mask(row, max_len)
    ids: list[int] = allowed_ids(row).tolist()
    assert not ids or ids[-1] < len(vocabulary.tokens)
    return ids


def drawn(
    output_state: OutputState,
    vocabulary: Vocabulary,
    max_len: int,
    rng: random.Random,
    end_odds: float = 0.3,
    favoured: Mapping[int, float] = NONE,
) -> list[int]:
    """An output, its end token left out; every draw is uniform over what the mask allows.

    At every step something is legal. `favoured`: tokens that are drawn with these odds before all
    others.
    """
    output = list(output_state.take_forced())
    while not output_state.is_over and len(output) < max_len:
        legal = legal_ids(output_state, vocabulary)
        assert legal, "everything is masked"
        ends = [token_id for token_id in legal if token_id in vocabulary.end_ids]
        if ends and rng.random() < end_odds:
            tried = ends[:1]
        else:
            odds = rng.random()
            few = [token_id for token_id in legal if favoured.get(token_id, 0.0) > odds] or legal
            tried = rng.sample(few, min(MAX_DRAWS, len(few)))
        token_id = next((each for each in tried if output_state.check(each)), None)
        if token_id is None:
            token_id = output_state.completion_token()
            assert token_id is None or output_state.check(token_id)
        if token_id is None or token_id in vocabulary.end_ids:
            assert output_state.is_satisfied
            break
        output_state.advance(token_id)
        output += (token_id, *output_state.take_forced())
    return output


def text_of(token_ids: list[int], vocabulary: Vocabulary) -> str:
    """The text of an output; fails where it is not whole."""
    return b"".join([vocabulary.tokens[token_id] for token_id in token_ids]).decode()


def accepts(expression: Expression, output: str, num_tokens: int = 0) -> bool:
    """Whether `output`, with a phrase that stops_before drops, is in the language.

    It ends with the phrase that is complete first; of several, the longest is dropped.
    """
    phrases = [each for each in dropped_phrases(expression) if each in output]
    if any(output.find(each) + len(each) < len(output) for each in phrases):
        return False
    dropped_len = max(map(len, phrases), default=0)
    return holds(expression, output[: len(output) - dropped_len], num_tokens)
