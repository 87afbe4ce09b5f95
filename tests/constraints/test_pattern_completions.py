"""Patterns whose masks do not tell how far a text has come: a short text is known from the start.

Behind `.*[0-9]` every mask of `.*[0-9]{3}` is as it was before, so that nothing but the pattern
itself says what leads to an end.
"""

import json
import random
import re
import time

import jsonschema
import pytest

from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind
from tests.constraints.cases import record
from tests.constraints.walks import demo_vocabulary, drawn, language_of, text_of

WHOLE = [
    ".*[0-9]{3}.*",
    ".*[0-9]{2}",
    r".*\d{4}-\d{2}.*",
    ".* [A-Z]{2}",
    ".*[0-9]+ kg",
    "(?s).*[0-9]{3}.*",
    r"\S+@\S+\.\S+",
]
FOUND = [
    "fox",
    "kg$",
    r"\d{4}",
    r"\.(jpg|png)$",
    r"^https://.*\.pdf$",
    r"^.+@example\.com$",
    "^SKU-.*-END$",
    "a.*b",
    "USD|EUR",
    "^#.*#$",
    "^.* (Street|Road)$",
    "^.{3,}xyz$",
    "^arn:aws:.*:role/.*$",
    "^.+ .+ .+$",
]
MAX_LEN = 20
SCHEMAS = [
    *({"type": "string", "pattern": pattern} for pattern in FOUND),
    *(record({"f": {"type": "string", "pattern": pattern}}) for pattern in FOUND),
    {"type": "string", "pattern": "a", "minLength": 9},
    {"type": "string", "allOf": [{"pattern": "[0-9]{2}"}, {"pattern": "[a-z]{2}$"}]},
    {"type": "string", "anyOf": [{"pattern": "[0-9]{2}"}, {"type": "object"}]},
    {"type": "array", "items": {"type": "string", "pattern": "[0-9]{2}$"}, "minItems": 2},
    {"type": "object", "propertyNames": {"pattern": "[0-9]{2}"}, "minProperties": 1},
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


@pytest.mark.parametrize("slack", [0, 2, 9])
@pytest.mark.parametrize("pattern", WHOLE)
def test_a_pattern_is_met_in_a_tight_budget(pattern: str, slack: int) -> None:
    assert re.fullmatch(pattern, drawn_tightly(ConstraintSpec(Kind.REGEX, pattern), slack))


@pytest.mark.parametrize("slack", [0, 2, 9])
@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_so_is_a_schema_s(schema: dict[str, object], slack: int) -> None:
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(schema))
    jsonschema.validate(json.loads(drawn_tightly(spec, slack)), schema)


@pytest.mark.parametrize("kind", [Kind.LARK, Kind.GBNF])
def test_so_is_a_grammar_s(kind: Kind) -> None:
    lark = 'start: "{" WORD "}"\nWORD: /[^}]*[0-9]{3}/\n'
    gbnf = 'root ::= "{" [^}]* [0-9][0-9][0-9] "}"\n'
    text = drawn_tightly(ConstraintSpec(kind, lark if kind is Kind.LARK else gbnf), 2)
    assert re.fullmatch("{[^}]*[0-9]{3}}", text)


@pytest.mark.alone
def test_that_takes_no_time() -> None:
    language = language_of(ConstraintSpec(Kind.REGEX, ".*[0-9]{3}.*"), demo_vocabulary())
    began_s = time.thread_time()
    OutputConstraintState(language, demo_vocabulary(), Budget(MAX_LEN))
    assert time.thread_time() - began_s < 0.1
