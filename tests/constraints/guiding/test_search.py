"""The search for completions: what it finds, over bytes and over tokens, and what it proves.

Of some patterns no mask tells how far a text has come: behind `.*[0-9]` every mask of `.*[0-9]{3}`
is as it was before. A short text is known from the start all the same.
"""

import itertools
import json
import random
import re
import time
from typing import Any

import pytest

from constraints.guiding.alphabet import alphabet_of, byte_vocabulary
from constraints.guiding.completion import TimeLimit, completes
from constraints.guiding.completion import text_of as bytes_of
from constraints.guiding.search import dive
from constraints.guiding.search import shortest_completion as shortest
from constraints.output_constraint import OutputConstraintState
from constraints.schema.validation import violations
from constraints.spec import Budget, ConstraintSpec, Kind
from tests.constraints.cases import (
    CASES,
    Json,
    demo_vocabulary,
    drawn,
    judge_of,
    language_of,
    legal_of,
    open_record,
    record,
    text_of,
    vocabulary_of,
)
from tests.constraints.cases import byte_vocabulary as mixed_vocabulary
from tests.constraints.corpus.judge import Judge, loads
from tests.constraints.grammars.rig import of_schema, table

VOCABULARY = demo_vocabulary()
# A letter of many that ends a loop is not told by masks.
NEEDS_HINTS = ("[a-z]+xyz", r"[^a\n]*q[^b\n]*z")
GRAMMARS = [
    name for name, spec in CASES.items() if spec.kind is not Kind.WHERE and name not in NEEDS_HINTS
]


def pattern(text: str) -> ConstraintSpec:
    return ConstraintSpec(Kind.REGEX, text)


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_completion_is_found_without_any_hint(name: str) -> None:
    matcher = language_of(CASES[name], VOCABULARY).matcher()
    bytewise = language_of(CASES[name], byte_vocabulary()).matcher()
    found = shortest(matcher, VOCABULARY, 10_000, bytewise=bytewise)
    assert found is not None
    assert judge_of(CASES[name])(text_of(list(found), VOCABULARY), len(found))


@pytest.mark.parametrize("name", CASES)
def test_a_completion_is_found_from_wherever_an_output_stands(name: str) -> None:
    rng = random.Random(name)
    matcher = language_of(CASES[name], VOCABULARY).matcher()
    made: list[int] = []
    for _ in range(12):
        legal = [each for each in legal_of(matcher, VOCABULARY) if each not in VOCABULARY.end_ids]
        if not legal:
            break
        made.append(rng.choice(legal))
        matcher.advance(made[-1])
        found = matcher.shortest(10_000)
        assert found is not None, made
        assert completes(matcher, VOCABULARY, found)


@pytest.mark.parametrize(
    ("spec", "max_len"),
    [
        pytest.param(pattern("[a-z ]{500}"), 100, id="letters"),
        pytest.param(pattern("(?s).{500}"), 100, id="anything"),
        pytest.param(pattern(r"(?:\w+ ){100}\w+"), 250, id="words"),
        pytest.param(
            ConstraintSpec(Kind.JSON_SCHEMA, '{"type": "string", "minLength": 400}'), 80, id="json"
        ),
        pytest.param(pattern("(?:ab){600}"), 1200, id="one-way"),
    ],
)
def test_a_text_that_has_to_be_long_is_found_in_few_tokens(
    spec: ConstraintSpec, max_len: int
) -> None:
    language = language_of(spec, VOCABULARY)
    assert language.matcher().shortest(1 << 20) is not None
    found = language.matcher().shortest(max_len)
    assert found is not None
    assert len(found) <= max_len
    assert judge_of(spec)(text_of(list(found), VOCABULARY), len(found))


def test_nothing_longer_than_asked_for_is_answered() -> None:
    matcher = language_of(pattern("a{7}|b{3}c{3}"), byte_vocabulary()).matcher()
    assert shortest(matcher, byte_vocabulary(), 5) is None
    assert shortest(matcher, byte_vocabulary(), 6) == tuple(b"bbbccc")


def test_who_failed_again_and_again_may_look_at_little() -> None:
    matcher = language_of(pattern("[ab]{40}"), byte_vocabulary()).matcher()
    assert shortest(matcher, byte_vocabulary(), 40, num_failed=1) is not None
    assert shortest(matcher, byte_vocabulary(), 40, num_failed=10) is None


def test_a_number_that_has_to_be_above_zero_ends() -> None:
    matcher = language_of(pattern(r"\{0\.[0-9]*[1-9][0-9]*, 1\}"), byte_vocabulary()).matcher()
    assert shortest(matcher, byte_vocabulary(), 20) == tuple(b"{0.1, 1}")


def test_a_tail_is_joined_where_it_is_legal_again() -> None:
    language = language_of(pattern(r"(<[a-z]{9}>)*\.[0-9]{30}"), byte_vocabulary())
    matcher = language.matcher()
    matcher.advance(ord("<"))
    tail = tuple(b"." + b"7" * 30)
    found = shortest(matcher, byte_vocabulary(), 41, [tail])
    assert found is not None
    assert found[-31:] == tail


def test_a_hint_shows_the_way_out_of_a_loop() -> None:
    matcher = language_of(pattern("[a-z]+quit"), byte_vocabulary()).matcher()
    assert shortest(matcher, byte_vocabulary(), 20) is None
    assert shortest(matcher, byte_vocabulary(), 20, (), [b"quit"]) == tuple(b"quitquit")


def test_a_completed_place_needs_nothing() -> None:
    matcher = language_of(pattern("a*"), byte_vocabulary()).matcher()
    assert shortest(matcher, byte_vocabulary(), 0) == ()


def test_an_alphabet_takes_the_shortest_tokens_where_a_byte_has_none() -> None:
    tokens = [b"", b"a", b"bb", b"bbb", b"bc", b"c"]
    vocabulary = vocabulary_of(tokens, [0])
    alphabet = alphabet_of(vocabulary)
    assert {tokens[each] for each in alphabet.ids.tolist()} == {b"a", b"bb", b"bc", b"c"}
    assert alphabet.singles[ord("b")] is None


def test_a_word_in_either_case_is_come_by_in_any_text() -> None:
    spec = pattern("(?s:[^:]*)(?:[qQ][uU][iI][cC][kK] [fF][oO][xX])(?s:.*)")
    found = language_of(spec, VOCABULARY).matcher().shortest(12)
    assert found is not None
    assert "quick fox" in text_of(list(found), VOCABULARY)


def test_a_limit_begins_anew_once_at_half_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.9, 5.0, 5.0, 5.4, 5.6, 5.6])
    monkeypatch.setattr("constraints.guiding.completion.thread_time", lambda: next(times))
    limit = TimeLimit(1.0)
    assert [limit.is_over() for _ in range(5)] == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("items", "numbers"),
    [
        ({"type": "integer"}, range(12)),
        ({"type": "number", "minimum": 3}, range(3, 15)),
        ({"type": "integer", "minimum": 0, "maximum": 30}, range(25)),
    ],
)
def test_numbers_that_differ_are_counted(items: Json, numbers: range) -> None:
    schema = {"type": "array", "uniqueItems": True, "items": items, "minItems": len(numbers)}
    found = of_schema(schema).matcher().shortest(1 << 20)
    assert found is not None
    assert json.loads(text_of(list(found), mixed_vocabulary())) == list(numbers)


def test_what_has_no_text_is_not_looked_for_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr("constraints.guiding.completion.thread_time", lambda: next(ticks) / 200)
    grammar = ConstraintSpec(Kind.LARK, 'start: "a" start')
    assert language_of(grammar, VOCABULARY).matcher().shortest(1 << 20) is None
    assert next(ticks) / 200 < 0.5


WHOLE = [
    ".*[0-9]{3}.*",
    ".* [A-Z]{2}",
    ".*[0-9]+ kg",
    "(?s).*[0-9]{3}.*",
    r"\S+@\S+\.\S+",
]
FOUND = [
    "fox",
    r"\d{4}",
    r"\.(jpg|png)$",
    r"^https://.*\.pdf$",
    "^SKU-.*-END$",
    "a.*b",
    "USD|EUR",
    "^.* (Street|Road)$",
    "^.{3,}xyz$",
    "^arn:aws:.*:role/.*$",
    "^.+ .+ .+$",
]
MAX_LEN = 20
SCHEMAS = [
    *({"type": "string", "pattern": pattern} for pattern in FOUND),
    *(record({"f": {"type": "string", "pattern": pattern}}) for pattern in FOUND[::5]),
    {"type": "string", "pattern": "a", "minLength": 9},
    {"type": "string", "allOf": [{"pattern": "[0-9]{2}"}, {"pattern": "[a-z]{2}$"}]},
    {"type": "string", "anyOf": [{"pattern": "[0-9]{2}"}, {"type": "object"}]},
    {"type": "array", "items": {"type": "string", "pattern": "[0-9]{2}$"}, "minItems": 2},
    {"type": "object", "propertyNames": {"pattern": "[0-9]{2}"}, "minProperties": 1},
]


TIGHT = [
    *(pattern(each) for each in WHOLE),
    *(ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(each)) for each in SCHEMAS),
    ConstraintSpec(Kind.LARK, 'start: "{" WORD "}"\nWORD: /[^}]*[0-9]{3}/\n'),
]


def state_of(spec: ConstraintSpec, max_len: int) -> OutputConstraintState:
    return OutputConstraintState(
        language_of(spec, demo_vocabulary()), demo_vocabulary(), Budget(max_len)
    )


def drawn_tightly(spec: ConstraintSpec, slack: int) -> str:
    max_len = state_of(spec, MAX_LEN).needed_len + slack
    output_state = state_of(spec, max_len)
    output = drawn(output_state, demo_vocabulary(), max_len, random.Random(f"{spec.text} {slack}"))
    assert output_state.is_satisfied
    return text_of(output, demo_vocabulary())


@pytest.mark.parametrize("spec", TIGHT, ids=lambda spec: spec.text)
def test_a_text_is_met_in_a_tight_budget(spec: ConstraintSpec) -> None:
    is_right = judge_of(spec)
    for slack in (0, 2, 9):
        assert is_right(drawn_tightly(spec, slack), 0)


_ANY_LEN = 1 << 16
PROBABILITY = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
DATE = {"type": "string", "format": "date"}
TEXT = {"type": "string"}
# What stands around a part, so that its end is not the text's.
AROUND = {
    "when": {"type": "string", "format": "date-time"},
    "n": {"type": "integer", "minimum": 10},
    "l": {"type": "array", "items": TEXT, "minItems": 2},
}


# Each has the schema of a property, and more of the whole schema.
PARTS = table("guiding/parts")


def is_instance(schema: Any, text: str) -> bool:
    return Judge(schema).is_instance(loads(text)) and violations(json.dumps(schema), text) == ()


def dived(schema: Any, before: bytes = b"") -> bytes | None:
    language = of_schema(schema)
    matcher = language.matcher()
    for byte in before:
        matcher.advance(byte)
    found = dive(matcher, mixed_vocabulary(), _ANY_LEN, language.hints.all(), before)
    return None if found is None else bytes_of(found, mixed_vocabulary())


@pytest.mark.parametrize("row", PARTS, ids=json.dumps)
def test_an_ordinary_schema_needs_no_search(row: Json) -> None:
    schema = {**open_record({"f": row["part"], **AROUND}), **row.get("more", {})}

    found = dived(schema)

    assert found is not None
    assert is_instance(schema, found.decode()), found


def test_a_text_is_completed_from_any_of_its_places() -> None:
    schema = open_record(
        {
            "name": {"type": "string", "pattern": "^[a-z]{3,8}$"},
            "day": DATE,
            "kind": {"enum": ["first", "second"]},
            "share": PROBABILITY,
            "list": {
                "type": "array",
                "items": open_record({"i": {"type": "integer"}}),
                "minItems": 1,
            },
        }
    )
    text = b'{"name":"abcd","day":"2024-02-01","kind":"second","share":0.25,"list":[{"i":7}]}'

    for cut in range(len(text)):
        found = dived(schema, text[:cut])

        assert found is not None, text[:cut]
        assert is_instance(schema, (text[:cut] + found).decode()), (text[:cut], found)


def test_quotes_in_a_text_begin_and_end_no_string() -> None:
    schema = open_record({"a": TEXT, "b": {"enum": ["x", "y"]}})

    assert dived(schema, rb'{"a":"\"{[') == b'","b":"x"}'


def test_no_more_tokens_are_taken_than_there_are() -> None:
    language = of_schema(open_record({"a": {"const": "four"}}))
    text = b'{"a":"four"}'
    hints = language.hints.all()
    matcher = language.matcher()

    for max_len in (len(text) - 1, len(text)):
        found = dive(matcher, mixed_vocabulary(), max_len, hints)
        assert (found is None) == (max_len < len(text))
        assert found is None or completes(matcher, mixed_vocabulary(), found)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"type": "string"}, {"pattern": "^PT"}, {"format": "duration"}]},
        {"type": "string", "pattern": r"^(?:[a-z]*[0-9]){3}[a-f]{2}$", "minLength": 12},
    ],
    ids=str,
)
def test_what_no_dive_ends_is_found_by_a_search(schema: Any) -> None:
    state = OutputConstraintState(of_schema(schema), mixed_vocabulary(), Budget(_ANY_LEN))

    assert 0 < state.needed_len < 40


HOSTILE: dict[str, Any] = {
    "choices": {
        "allOf": [{"anyOf": [{"minimum": i}, open_record({f"x{i}": TEXT})]} for i in range(9)]
    },
    "nested": open_record({"a": {"anyOf": [{"$ref": "#"}, {"type": "integer", "multipleOf": 7}]}}),
    "long strings": open_record(
        {f"p{i}": {"type": "string", "minLength": 4_000 + i} for i in range(9)}
    ),
    "many items": {"type": "array", "minItems": 5_000, "items": PROBABILITY},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_schema_that_is_made_to_take_long_takes_little_time(name: str) -> None:
    language = of_schema(HOSTILE[name])
    hints = language.hints.all()
    began_s = time.thread_time()

    dive(language.matcher(), mixed_vocabulary(), _ANY_LEN, hints)

    assert time.thread_time() - began_s < 5  # 0.2 s on an idle core


def test_a_grammar_without_a_lexer_is_met_in_a_tight_budget() -> None:
    gbnf = 'root ::= "{" [^}]* [0-9][0-9][0-9] "}"\n'
    assert re.fullmatch("{[^}]*[0-9]{3}}", drawn_tightly(ConstraintSpec(Kind.GBNF, gbnf), 2))


def test_of_many_keys_only_the_required_ones_are_written() -> None:
    names = [f"k{index}" for index in range(500)]
    schema = {
        "type": "object",
        "properties": {name: {"type": "string"} for name in names},
        "required": names[::9],
    }
    vocabulary = demo_vocabulary()
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(schema))
    found = language_of(spec, vocabulary).matcher().shortest(_ANY_LEN)
    assert found is not None
    assert list(json.loads(bytes_of(found, vocabulary))) == names[::9]


def test_items_that_have_to_be_among_others_are_found() -> None:
    item = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    wanted = {"type": "object", "properties": {"id": {"const": 7}}, "required": ["id"]}
    schema = {"type": "array", "items": item, "contains": wanted, "minContains": 2}
    vocabulary = demo_vocabulary()
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(schema))
    found = language_of(spec, vocabulary).matcher().shortest(_ANY_LEN)
    assert found is not None
    assert json.loads(bytes_of(found, vocabulary)) == [{"id": 7}, {"id": 7}]
