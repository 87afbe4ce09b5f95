"""Python's types as JSON schemas, and JSON back as their values."""

import enum
import json
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, Optional, TypedDict

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from client.query.conditions.instances import value
from client.query.conditions.schemas import schema
from client.query.errors import BadCondition


class Mood(enum.Enum):
    GLAD = "glad"
    SAD = "sad"


@dataclass
class Pet:
    name: str
    age: int | None = None


@dataclass
class Person:
    name: str
    pets: list[Pet]
    mood: Mood = Mood.GLAD
    scores: dict[str, float] = field(default_factory=dict)


@dataclass
class Node:
    label: Literal["leaf", "branch"]
    below: "list[Node]"


class Point(TypedDict):
    x: float
    y: NotRequired[float]


class Model(BaseModel):
    number: int


def an_object(properties: dict[str, object], *required: str) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


PET = an_object(
    {"name": {"type": "string"}, "age": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}, "name"
)


@pytest.mark.parametrize(
    ("annotation", "written"),
    [
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (list, {"type": "array", "items": {}}),
        (dict[str, bool], {"type": "object", "additionalProperties": {"type": "boolean"}}),
        (Optional[str], {"anyOf": [{"type": "string"}, {"type": "null"}]}),  # noqa: UP045
        (Pet, PET),
        (
            Person,
            an_object(
                {
                    "name": {"type": "string"},
                    "pets": {"type": "array", "items": PET},
                    "mood": {"enum": ["glad", "sad"]},
                    "scores": {"type": "object", "additionalProperties": {"type": "number"}},
                },
                "name",
                "pets",
            ),
        ),
        (Point, an_object({"x": {"type": "number"}, "y": {"type": "number"}}, "x")),
        (
            Node,
            {
                "$ref": "#/$defs/Node",
                "$defs": {
                    "Node": an_object(
                        {
                            "label": {"enum": ["leaf", "branch"]},
                            "below": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                        },
                        "label",
                        "below",
                    )
                },
            },
        ),
        (Model, Model.model_json_schema()),
    ],
)
def test_a_type_has_a_schema(annotation: object, written: dict[str, object]) -> None:
    assert schema(annotation) == written


@pytest.mark.parametrize(
    ("annotation", "made"),
    [
        (Pet, Pet("Tom", 3)),
        (Pet, Pet("Tom")),
        (Person, Person("Ada", [Pet("Tom"), Pet("Jerry", 1)], Mood.SAD, {"a": 1.0})),
        (Node, Node("branch", [Node("leaf", [])])),
        (list[Pet], [Pet("a"), Pet("b")]),
        (Pet | None, None),
        (Pet | Point, Pet("a")),
        (Pet | Point, {"x": 1.0}),
        (dict[str, Mood], {"a": Mood.SAD}),
        (tuple[int, str], (1, "a")),
        (tuple[int, ...], (1, 2, 3)),
        (tuple[Pet, ...] | None, (Pet("a"), Pet("b"))),
        (list[Any], [1, {"a": None}]),
        (Point, {"x": 1.0, "y": 2.0}),
        (Model, Model(number=3)),
    ],
)
def test_a_value_comes_back_from_its_text(annotation: object, made: object) -> None:
    text = json.dumps(made, default=_plain)

    Draft202012Validator(schema(annotation)).validate(json.loads(text))
    assert value(annotation, text) == made


def _plain(made: Any) -> object:
    if isinstance(made, enum.Enum):
        return made.value
    return made.model_dump() if isinstance(made, BaseModel) else vars(made)


@pytest.mark.parametrize("text", ["{", "[]", '{"nam": "a"}', "{}", "3"])
def test_another_text_is_no_value(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        value(Pet, text)


@dataclass
class Strange:
    what: set[int]


@dataclass
class Unknown:
    what: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        (Strange, "is no type that JSON has"),
        (Unknown, "the types of `Unknown` cannot be found: name 'Nowhere'"),
        (list[Literal[b"a"]], "has b'a', which JSON cannot write"),
    ],
)
def test_what_json_does_not_have_is_refused(annotation: object, told: str) -> None:
    with pytest.raises(BadCondition) as caught:
        schema(annotation)
    assert told in str(caught.value)
