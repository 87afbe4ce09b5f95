"""Schemas as zod, pydantic and FastAPI write them: taken, and what is made under them is right."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from constraints.errors import Contradiction, NotEnforced
from constraints.grammars.schema.nullable import spelt_out
from tests.constraints.generated_schemas.pydantic_models import schemas
from tests.constraints.grammars.rig import accepts_value, of_schema, walk

FOLDER = Path(__file__).parents[1] / "generated_schemas"
SCHEMAS: dict[str, Any] = {
    **json.loads((FOLDER / "zod.json").read_text()),
    **json.loads((FOLDER / "pydantic.json").read_text()),
}
# A set of anything has to be remembered; two patterns look ahead.
REFUSED = {
    "zod/dates": "/properties/dur/pattern",
    "zod/emoji": "/properties/e/pattern",
    "pydantic/a set": "/uniqueItems",
}
_MAX_LEN, _NUM_TEXTS = 400, 3


def test_there_are_sixty_and_three_are_refused() -> None:
    assert (len(SCHEMAS), len(REFUSED)) == (60, 3)


def test_pydantic_still_writes_them_so() -> None:
    written = schemas()

    assert {name: SCHEMAS[name] for name in written} == json.loads(json.dumps(written))


@pytest.mark.parametrize("name", [name for name in SCHEMAS if name not in REFUSED])
def test_what_is_made_under_a_schema_is_an_instance(name: str) -> None:
    schema = SCHEMAS[name]
    language = of_schema(schema)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    judge = kind(spelt_out(schema))
    texts = [walk(language, np.random.default_rng(seed), _MAX_LEN) for seed in range(_NUM_TEXTS)]
    shortest = language.matcher().shortest(_MAX_LEN)
    assert shortest is not None
    texts.append(bytes(token for token in shortest if token < 256).decode())

    for text in filter(None, texts):
        assert list(judge.iter_errors(json.loads(text))) == [], text


@pytest.mark.parametrize(("name", "pointer"), REFUSED.items())
def test_what_cannot_be_enforced_is_refused_with_its_pointer(name: str, pointer: str) -> None:
    with pytest.raises(NotEnforced) as raised:
        of_schema(SCHEMAS[name])

    assert raised.value.pointer == pointer


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "nullable": True, "maxLength": 1}, ["a", None], ["ab", 1]),
        ({"type": "string", "nullable": False}, ["a"], [None]),
        ({"type": ["integer", "null"], "nullable": True}, [1, None], ["a"]),
        ({"type": "string", "enum": ["a"], "nullable": True}, ["a"], [None, "b"]),
        ({"type": "string", "enum": ["a", None], "nullable": True}, ["a", None], ["b"]),
        (
            {
                "allOf": [{"$ref": "#/$defs/n"}],
                "nullable": True,
                "$defs": {"n": {"type": "number"}},
            },
            *([1.5, None], ["a"]),
        ),
    ],
)
def test_nullable_adds_null(schema: Any, right: list[Any], wrong: list[Any]) -> None:
    language = of_schema(schema)
    judge = jsonschema.Draft202012Validator(spelt_out(schema))

    for value in (*right, *wrong):
        assert accepts_value(language, value) is judge.is_valid(value) is (value in right), value


@pytest.mark.parametrize(
    ("bounds", "num_arrays"),
    [({}, 16), ({"minItems": 1}, 15), ({"maxItems": 1}, 4), ({"minItems": 4}, 0)],
)
def test_a_set_of_listed_values_has_each_once(bounds: dict[str, int], num_arrays: int) -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"enum": ["a", "b", "c"]}, **bounds}
    arrays = [list(each) for size in range(5) for each in product(["a", "b", "c"], repeat=size)]
    if num_arrays == 0:
        with pytest.raises(Contradiction):
            of_schema(schema)
        return
    language = of_schema(schema)

    accepted = [each for each in arrays if accepts_value(language, each)]
    assert accepted == [
        each for each in arrays if jsonschema.Draft202012Validator(schema).is_valid(each)
    ]
    assert len(accepted) == num_arrays


def test_unknown_formats_and_keywords_are_named_and_enforce_nothing() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "format": "slug", "pattern": "^[a-z]$"},
            "b": {"type": "string", "format": "postcode", "_own": 1, "x-ui": 2, "X-y": 3},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    language = of_schema(schema)

    assert language.not_enforced == (
        "/properties/a/format",
        "/properties/b/format",
        "/properties/b/_own",
        "/properties/b/x-ui",
        "/properties/b/X-y",
    )
