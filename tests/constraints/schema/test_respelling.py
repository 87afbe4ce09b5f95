"""Texts that are judged: keys in any order, other spellings of numbers and characters."""

import json
import random
from typing import Any

import pytest

from constraints.check import judge
from constraints.errors import ConstraintError
from constraints.results import Judgement
from constraints.spec import ConstraintSpec, Kind, Whitespace
from tests.constraints.cases import demo_vocabulary, language_of
from tests.constraints.corpus.instances import Instances
from tests.constraints.corpus.judge import Judge
from tests.constraints.corpus.random_schemas import any_value, whole_schema
from tests.constraints.corpus.spelling import spelt

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "born": {"type": "string", "format": "date"},
        "home": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}},
            "additionalProperties": False,
        },
        "size": {"type": "number", "multipleOf": 0.25},
    },
    "required": ["name"],
}
# The order of the keys depends on the option.
SHAPES = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "r": {"type": "integer"}},
            "required": ["kind", "r"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"r": {"type": "string"}, "kind": {"const": "other"}},
            "required": ["kind", "r"],
            "additionalProperties": False,
        },
    ]
}
OLD = {"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"}


def judged(
    schema: Any, *texts: str, whitespace: Whitespace = Whitespace.FLEXIBLE
) -> tuple[Judgement, ...]:
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(schema), whitespace)
    return judge(
        language_of(spec, demo_vocabulary()), demo_vocabulary(), spec, texts, 200
    ).judgements


@pytest.mark.parametrize(
    ("schema", "text", "position", "said"),
    [
        (PERSON, '{"born": "2000-02-29", "name": "A"}', 1, "the keys in the order `name`, `born`"),
        (
            PERSON,
            '{"name": "A", "home": {"zip": 1, "city": "B"}}',
            23,
            "the keys in the order `city`, `zip`",
        ),
        (PERSON, '{"other": [], "name": "A"}', 1, "the keys in the order `name`, `other`"),
        (PERSON, '{"name": "A", "size": 5e-1}', 22, "0.5 for 5e-1"),
        (PERSON, '{"name": "A", "home": {"zip": 10.0}}', 30, "10 for 10.0"),
        (PERSON, '{"name": "A", "home": {"zip": 1e3}}', 30, "1000 for 1e3"),
        (PERSON, r'{"name": "\u0041"}', 9, r'"A" for "\u0041"'),
        (PERSON, '{"name": "A"}\n', 13, "other white space"),
        (SHAPES, '{"r": 1, "kind": "circle"}', 1, "the keys in the order `kind`, `r`"),
        (SHAPES, '{"kind": "other", "r": "1"}', 1, "the keys in the order `r`, `kind`"),
    ],
)
def test_an_instance_that_masks_write_otherwise_is_accepted_with_a_note(
    schema: Any, text: str, position: int, said: str
) -> None:
    (judgement,) = judged(schema, text)
    assert (judgement.accepted, judgement.position) == (True, None)
    assert judgement.note is not None
    assert judgement.note.position == position
    assert judgement.note.message == f"an instance; masks write {said}"


def test_what_masks_write_has_no_note() -> None:
    assert judged(PERSON, '{"name": "A", "size": 0.50}')[0].note is None


@pytest.mark.parametrize(
    ("schema", "text", "position"),
    [
        # Where the wrong value stands, not where the first key is another one than in masks.
        (PERSON, '{"born": "2000-02-30", "name": "A"}', 18),
        (PERSON, '{"home": {"zip": 1, "city": 2}, "name": "A"}', 28),
        (PERSON, '{"home": {"zip": 1.5, "city": ""}, "name": "A"}', 18),
        (PERSON, '{"size": 0.3, "name": "A"}', 11),
        (PERSON, '{"born": "2000-02-29"}', 2),
        (PERSON, '{"name": "A", "born": "2000-02-29", "name": "A"}', 41),
        (SHAPES, '{"r": "1", "kind": "circle"}', 6),
        (OLD, "1.0", 3),
    ],
)
def test_what_is_no_instance_in_any_order_is_refused_at_its_place(
    schema: Any, text: str, position: int
) -> None:
    (judgement,) = judged(schema, text)
    assert (judgement.accepted, judgement.position) == (False, position)
    assert judgement.note is None


def test_white_space_that_was_asked_for_is_part_of_the_constraint() -> None:
    texts = [
        '{"born":"2000-02-29","name":"A"}',
        '{"born": "2000-02-29", "name": "A"}',
        ' {"name":"A"}',
    ]
    compact = judged(PERSON, *texts, whitespace=Whitespace.COMPACT)
    assert [each.accepted for each in compact] == [True, False, False]
    spaced = judged(PERSON, *texts, whitespace=Whitespace.SPACED)
    assert [each.accepted for each in spaced] == [False, True, False]


def test_an_instance_that_masks_cannot_write_is_refused_with_a_note() -> None:
    # Masks write no control character where there are both declared and other keys.
    accepted, refused, violated = judged(
        PERSON, r'{"name": "\t"}', r'{"name": "\u0001"}', r'{"born": "\u0001", "name": ""}'
    )
    assert accepted.accepted
    assert not refused.accepted
    assert refused.note is not None
    assert "may be an instance" in refused.note.message
    assert (violated.accepted, violated.note) == (False, None)


def test_of_a_wrong_value_among_keys_that_may_stand_anywhere_no_order_is_sought() -> None:
    extras = ", ".join(f'"{name}": 1' for name in "abcdef")
    (judgement,) = judged(PERSON, f'{{{extras}, "born": "2000-02-30", "name": "A"}}')
    assert (judgement.accepted, judgement.note) == (False, None)
    assert judgement.expected


def test_an_object_of_many_keys_is_judged_in_the_reverse_order() -> None:
    names = [f"key{index}" for index in range(150)]
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    right = json.dumps(dict.fromkeys(reversed(names), 1))
    wrong = right.replace('"key0": 1', '"key0": "1"')
    accepted, refused = judged(schema, right, wrong)
    assert accepted.accepted
    assert (refused.accepted, refused.position) == (False, wrong.index('"1"'))


def shuffled(value: Any, draw: random.Random) -> Any:
    if isinstance(value, list):
        return [shuffled(each, draw) for each in value]
    if not isinstance(value, dict):
        return value
    keys = draw.sample(list(value), len(value))
    return {key: shuffled(value[key], draw) for key in keys}


# Of which the schemas are taken.
BY_DAY = (0, 7, 8, 11, 12, 13)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=() if seed in BY_DAY else pytest.mark.nightly)
        for seed in range(500)
    ],
)
def test_random_values_with_shuffled_keys_are_judged_as_instances(seed: int) -> None:
    draw = random.Random(f"judged {seed}")
    schema = whole_schema(draw)
    instances = Instances(schema, draw)
    values = [instances.value() for _ in range(8)] + [any_value(draw) for _ in range(4)]
    values += [instances.near_miss(value) for value in values]
    values = [shuffled(value, draw) for value in values]
    try:
        judgements = judged(schema, *map(spelt, values))
    except ConstraintError:
        pytest.skip("it is not taken")
    strict = Judge({key: value for key, value in schema.items() if key != "$schema"})
    for value, judgement in zip(values, judgements, strict=True):
        if not Judge(schema).is_instance(value):
            assert not judgement.accepted, spelt(value)
        elif strict.is_instance(value):
            assert judgement.accepted or judgement.note is not None, spelt(value)
