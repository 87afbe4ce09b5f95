"""Schemas as zod, pydantic and FastAPI write them: taken, and what is made under them is right."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from constraints.errors import NotEnforced
from constraints.grammars.schema.nullable import spelt_out
from tests.constraints.generated_schemas.pydantic_models import schemas
from tests.constraints.grammars.rig import of_schema, walk

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
