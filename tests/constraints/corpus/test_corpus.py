"""Schemas as they are met: what is said of each, and that masks and `jsonschema` agree.

By day a part of them, at night all.
"""

import json
import random
import re
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from constraints.engine import GrammarLanguage
from constraints.errors import Contradiction, NotEnforced, TooComplex
from constraints.grammars.watching import WatchedLanguage
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind, StopRule
from tests.constraints.cases import demo_vocabulary, drawn, language_of, needed_len, text_of
from tests.constraints.corpus.instances import Instances
from tests.constraints.corpus.judge import Judge, loads, with_counts
from tests.constraints.corpus.pydantic_models import MODELS, schemas
from tests.constraints.corpus.random_schemas import any_value, whole_schema
from tests.constraints.corpus.schemas import FOLDER, SOURCES, compiled, read, verdicts_of
from tests.constraints.corpus.spelling import is_in_some_spelling, spelt
from tests.constraints.grammars.rig import accepts, walk

CORPUS: dict[str, dict[str, Any]] = {source: read(source) for source in SOURCES}
SCHEMAS = {name: schema for source in SOURCES for name, schema in CORPUS[source].items()}
VERDICTS = {
    line.partition(": ")[0]: line for line in (FOLDER / "verdicts.txt").read_text().splitlines()
}
ENFORCED = [name for name, line in VERDICTS.items() if ": refused" not in line]
CHECKED = [name for name, line in VERDICTS.items() if ", checked" in line]
# Python's `re` knows no properties of characters.
JUDGED = [name for name in ENFORCED if r"\\p{" not in json.dumps(SCHEMAS[name])]
_NUM_DRAWN = 8


def parted(names: list[str], odds: int) -> Iterator[Any]:
    """The names; by day about one in `odds` of them, which are always the same."""
    for name in names:
        marks = () if crc32(name.encode()) % odds == 0 else (pytest.mark.nightly,)
        yield pytest.param(name, marks=marks)


def test_there_are_hundreds() -> None:
    fewest = {"pydantic": 41, "zod": 372, "hand": 84}
    assert {source: len(CORPUS[source]) >= fewest[source] for source in SOURCES} == dict.fromkeys(
        fewest, True
    )


def test_pydantic_still_writes_them_so() -> None:
    assert json.loads(json.dumps(schemas())) == CORPUS["pydantic"]


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("pydantic", ""),
        ("hand", ""),
        ("zod", "draft-2020-12 output"),
        pytest.param("zod", "", marks=pytest.mark.nightly),
    ],
)
def test_what_is_said_of_each_is_as_written_down(source: str, part: str) -> None:
    asked = {name: schema for name, schema in CORPUS[source].items() if part in name}
    found = verdicts_of(asked)
    # On purpose? `python -m tests.constraints.corpus` writes it down anew.
    assert found == {name: VERDICTS[name] for name in asked}


@pytest.mark.parametrize("name", [*parted(JUDGED, 12), *CHECKED])
def test_instances_are_accepted_and_near_misses_are_not(name: str) -> None:
    language = compiled(SCHEMAS[name], strict=name not in CHECKED)
    assert isinstance(language, WatchedLanguage if name in CHECKED else GrammarLanguage)
    compare(language, Judge(SCHEMAS[name]), values_of(SCHEMAS[name], language, random.Random(name)))


@pytest.mark.parametrize("name", parted(JUDGED, 40))
def test_with_keys_in_any_order_too(name: str) -> None:
    language = compiled(SCHEMAS[name], any_key_order=True)
    # Which key is required is often for a choice to say.
    assert isinstance(language, GrammarLanguage | NotEnforced), language
    if isinstance(language, GrammarLanguage):
        draw = random.Random(name)
        values = [shuffled(value, draw) for value in values_of(SCHEMAS[name], language, draw)]
        compare(language, Judge(SCHEMAS[name]), values)


def shuffled(value: Any, draw: random.Random) -> Any:
    """The value with its keys in another order."""
    if isinstance(value, list):
        return [shuffled(each, draw) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: shuffled(value[key], draw) for key in draw.sample(list(value), len(value))}


# That pydantic asks for no more than the schema says; it knows which dates are to come.
VALIDATED = [
    each.__name__
    for each in MODELS
    if VERDICTS[f"pydantic/{each.__name__}"].endswith(": taken") and each.__name__ != "MoreTimes"
]


@pytest.mark.parametrize("model", parted(VALIDATED, 6))
def test_pydantic_validates_what_masks_write_in_any_order(model: str) -> None:
    class_ = next(each for each in MODELS if each.__name__ == model)
    language = compiled(class_.model_json_schema(), any_key_order=True)
    assert isinstance(language, GrammarLanguage | NotEnforced), language
    if isinstance(language, GrammarLanguage):
        for seed in range(4):
            text = walk(language, np.random.default_rng(seed), 60)
            assert text is not None
            assert isinstance(class_.model_validate_json(text), class_)


RANDOM = [str(number) for number in range(1500)]


@pytest.mark.parametrize("seed", parted(RANDOM, 50))
def test_random_values_are_accepted_as_instances_of_random_schemas(seed: str) -> None:
    draw = random.Random(seed)
    schema = whole_schema(draw)
    others = [any_value(draw) for _ in range(30)]
    judge = Judge(schema)
    language = compiled(schema)
    if isinstance(language, Contradiction):
        assert not any(map(judge.is_instance, others))
    elif isinstance(language, GrammarLanguage):
        compare(language, judge, [*others, *values_of(schema, language, draw)])
    else:
        assert isinstance(language, NotEnforced | TooComplex)
        checked = compiled(schema, strict=False)
        if isinstance(checked, WatchedLanguage) and not checked.not_enforced:
            compare(checked, judge, [*others, *values_of(schema, checked, draw)])


def compare(language: GrammarLanguage, judge: Judge, values: list[Any]) -> None:
    """Fails at the first value of which masks and the judge say different things."""
    for value in values:
        text = spelt(value)
        is_accepted = accepts(language, text)
        if not judge.is_instance(value):
            assert not is_accepted, text
        else:
            assert is_accepted or is_in_some_spelling(language, value), text


def values_of(schema: Any, language: GrammarLanguage, draw: random.Random) -> list[Any]:
    """Drawn from the schema and from its masks, and as many with one change."""
    instances = Instances(with_counts(schema), draw)
    values = [instances.value() for _ in range(_NUM_DRAWN)]
    for seed in range(2):
        text = walk(language, np.random.default_rng(seed), 60)
        if text is not None and not re.search(r"[eE][+-]?\d{3}", text):
            values.append(loads(text))
    return [*values, *(instances.near_miss(value) for value in values)]


@pytest.mark.parametrize("name", [*parted(JUDGED, 40), *CHECKED])
def test_an_answer_of_a_random_model_is_an_instance_within_its_budget(name: str) -> None:
    vocabulary = demo_vocabulary()
    is_checked = name in CHECKED
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(SCHEMAS[name]), strict=not is_checked)
    judge = Judge(SCHEMAS[name])
    rng = random.Random(name)
    least = needed_len(spec, vocabulary)
    for budget in (least, least + 40, least + 120) * (4 if is_checked else 1):
        state = OutputConstraintState(
            language_of(spec, vocabulary), vocabulary, Budget(budget), StopRule()
        )
        tokens = drawn(state, vocabulary, budget, rng)
        text = text_of(tokens, vocabulary)
        assert len(tokens) <= budget
        assert judge.is_instance(loads(text)), text
