"""Masks of what is watched, against all texts of languages that are finite; and outputs in budgets.

An enumeration knows what is legal behind each prefix: what leads on to a text of the language.
"""

import itertools
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import jsonschema
import numpy as np
import pytest

from constraints.compiler import Compiler
from constraints.grammars.watching import WatchedLanguage
from constraints.matcher import Language
from constraints.output_constraint import OutputConstraintState
from constraints.schema.validation import violations
from constraints.spec import Budget, ConstraintSpec, Kind, Whitespace
from constraints.vocabulary import Vocabulary
from tests.constraints.cases import drawn, vocabulary_of
from tests.constraints.grammars.rig import accepts, of_schema, table

# Tokens that end several values at once, or end one and begin another.
_LONGER = (
    *""""," ", "] ,"a ["a"," "a", "a","a"] a" b","b "]] a, ], ],[""".split(),
    *",1 1, 1,1 [1,1 1] ,true true, [true true,true] null] ,null 11 [[1],[ 0, ,0".split(),
    *'''":1 "},{" 1}, {"k":1} {"k":1},{"k": ]} "a"],"'''.split(),
)
_TOKENS = (*(bytes([byte]) for byte in range(256)), *(each.encode() for each in _LONGER), b"")
_END_ID = len(_TOKENS) - 1
SET: dict[str, Any] = {"type": "array", "uniqueItems": True}
# More than five: arrays of fewer are listed.
LETTERS = ["a", "b", "ab", "ba", "c", "1"]
ABC = {"a": {"enum": [1, 2]}, "b": {"enum": [1, 2]}, "c": {"enum": [1, 2]}}
CLOSED: dict[str, Any] = {"type": "object", "additionalProperties": False}


@lru_cache(maxsize=1)
def vocabulary() -> Vocabulary:
    return vocabulary_of(_TOKENS, (_END_ID,))


def named(file: str) -> dict[str, Any]:
    """The schemas of a file by their names."""
    return {each["name"]: each["schema"] for each in table(f"grammars/{file}")}


def language_of(schema: Any, **how: Any) -> WatchedLanguage:
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(schema), Whitespace.COMPACT, **how)
    language = Compiler(vocabulary()).compile(spec)
    assert isinstance(language, WatchedLanguage)
    return language


def arrays(items: Iterable[Any], max_len: int) -> Iterator[list[Any]]:
    values = list(items)
    for size in range(max_len + 1):
        yield from map(list, itertools.product(values, repeat=size))


def objects(keys: Sequence[str], values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """In the order of the keys, each with each value or absent."""
    absent = object()
    for chosen in itertools.product([absent, *values], repeat=len(keys)):
        yield {key: each for key, each in zip(keys, chosen, strict=True) if each is not absent}


# Schemas with few instances, all of them among these values.
FINITE = named("finite")
ATOMS = [None, True, False, 0, 1, 2, *LETTERS]
SETS = list(arrays(LETTERS, 2))
VALUES = [
    None,
    *arrays(ATOMS, 3),
    *objects("abc", [1, 2]),
    *arrays(objects("abc", [1, 2]), 1),
    *({"k": each} for each in SETS),
    *({"k": each, "l": letter} for each in SETS for letter in LETTERS),
]


# Values that are not listed may run out: masks lead there, and an output is led around it.
RUN_OUT = ("a pattern", "a tuple")


@pytest.mark.parametrize("name", [name for name in FINITE if name not in RUN_OUT])
def test_masks_are_those_of_an_enumeration(name: str) -> None:
    judge = jsonschema.Draft202012Validator(FINITE[name])
    texts = [json.dumps(each, separators=(",", ":")) for each in VALUES if judge.is_valid(each)]
    compare(language_of(FINITE[name]), [text.encode() for text in texts])


def compare(language: Language, texts: list[bytes]) -> None:
    """Fails where masks are not those of a language of these texts."""
    following: dict[bytes, set[bytes]] = {}
    for text in texts:
        for cut in range(len(text)):
            following.setdefault(text[:cut], set()).add(text[cut:])
    row = np.zeros(vocabulary().num_words, dtype=np.int32)
    complete = set(texts)
    for prefix, rests in following.items():
        matcher = language.matcher()
        for byte in prefix:
            matcher.advance(byte)
        matcher.fill_mask(row)
        bits = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()
        wanted = {
            index
            for index, token in enumerate(_TOKENS[:-1])
            if any(rest.startswith(token) for rest in rests)
        }
        assert {_TOKENS[index] for index in bits} == {_TOKENS[index] for index in wanted}, prefix
        assert matcher.is_complete is (prefix in complete)


UNORDERED = named("unordered")


@pytest.mark.parametrize("name", UNORDERED)
def test_keys_come_in_any_order_and_each_once(name: str) -> None:
    schema = UNORDERED[name]
    inner = [dict(each) for each in permuted(objects("abc", [1, 2]))]
    found = [*permuted(objects(["a", "ab", "b", 'c"'], [1])), *inner, None]
    if name == "within":
        found = [*permuted(objects("ab", [1, *inner]))]
    judge = jsonschema.Draft202012Validator(schema)
    texts = {json.dumps(each, separators=(",", ":")) for each in found if judge.is_valid(each)}
    compare(language_of(schema, any_key_order=True), [text.encode() for text in sorted(texts)])


def permuted(values: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for value in values:
        yield from map(dict, itertools.permutations(value.items()))


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {**ABC, "d": {"type": "string"}}, "required": ["d", "x", "c"]},
        {"allOf": [{"properties": ABC, "required": ["b"]}, {"required": ["c"], "type": "object"}]},
        {"type": "object", "patternProperties": {"^x": {"type": "null"}}, "required": ["xy", "b"]},
        {
            "$ref": "#/$defs/t",
            "$defs": {"t": {**CLOSED, "properties": {"t": {"$ref": "#/$defs/t"}}}},
        },
    ],
)
def test_an_output_with_keys_in_any_order_is_an_instance_within_its_budget(schema: Any) -> None:
    language = language_of(schema, any_key_order=True)
    for seed in range(4):
        output = OutputConstraintState(language, vocabulary(), Budget(60))
        tokens = drawn(output, vocabulary(), 60, random.Random(seed))
        text = b"".join(_TOKENS[each] for each in tokens).decode()
        assert violations(json.dumps(schema), text) == (), text


# Masks may lead to where an item of few values is an array or object; an output is led around it.
NESTED = named("watched")


@pytest.mark.parametrize("name", [*NESTED, *FINITE])
@pytest.mark.parametrize("max_len", [40, pytest.param(120, marks=pytest.mark.nightly)])
def test_an_output_is_an_instance_within_its_budget(name: str, max_len: int) -> None:
    schema = (NESTED | FINITE)[name]
    language = language_of(schema)
    for seed in range(2):
        output = OutputConstraintState(language, vocabulary(), Budget(max_len))
        tokens = drawn(output, vocabulary(), max_len, random.Random(seed))
        assert len(tokens) <= max_len
        text = b"".join(_TOKENS[each] for each in tokens).decode()
        assert violations(json.dumps(schema), text) == (), text


def test_a_long_set_is_written_to_its_end_and_no_item_comes_twice() -> None:
    language = of_schema({**SET, "items": {"type": "string"}})
    items = [f'{number} "\\ é' for number in range(300)]
    assert accepts(language, json.dumps(items, ensure_ascii=False))
    assert not accepts(language, json.dumps([*items, items[7]], ensure_ascii=False))


def test_a_translation_watches_as_well() -> None:
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(SET))
    first = Compiler(vocabulary()).compile(spec)
    assert first.translation is not None
    second = Compiler(vocabulary()).compile(spec, first.translation)
    assert second.translation == first.translation
    assert second.may_have_dead_ends
    assert second.matcher().num_legal([*b"[1,2]", _END_ID]) == len("[1,2]") + 1
    assert second.matcher().num_legal([*b"[1,1]", _END_ID]) == len("[1,1")


def test_a_number_of_more_digits_than_python_reads_equals_one_with_fewer() -> None:
    language = of_schema(SET)
    long = f"1e{'5'.zfill(5000)}"
    assert accepts(language, f"[{long}]")
    assert not accepts(language, f"[1e5,{long}]")
