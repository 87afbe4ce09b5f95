"""What stands behind a hole's colon: the texts that it may have, and the values that they mean."""

import enum
import json
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel
from typing_extensions import TypedDict

from client.calls import Constraint
from client.query.conditions.kinds import kind_of
from client.query.conditions.planner import HolePlan, StopMode, plan
from client.query.conditions.terms import written
from client.query.errors import Unsatisfiable
from tests.client.query.conditions.clauses import admits, term


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Pet:
    name: str
    age: int | None = None


# A whole number's texts, beside conditions.
WHOLE = 'regex(X, "0|-?[1-9][0-9]*")'


def planned(kind: object, *clauses: str, **earlier: object) -> HolePlan:
    terms = tuple(term(clause, {"X", *earlier}, Colour=Colour) for clause in clauses)
    return plan(terms, "X", kind, earlier, StopMode.CUT)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (None, " a ", " a "),
        (str, "a", "a"),
        (int, "-07", -7),
        (float, "2.50", 2.5),
        (float, "3", 3.0),
        (bool, "True", True),
        (bool, "False", False),
        (["a", "b"], "b", "b"),
        (Literal[1, 2], "2", 2),
        (range(3), "2", 2),
        (Colour, "blue", Colour.BLUE),
        (r"[a-z]+", "ab", "ab"),
        ({"type": "array"}, "[1, null]", [1, None]),
    ],
)
def test_reads_a_text(kind: object, text: str, value: object) -> None:
    read = planned(kind).value(text)

    assert read == value
    assert type(read) is type(value)


def test_reads_whole_numbers_of_any_length() -> None:
    read = planned(int).value("-" + "7" * 10_000)

    assert isinstance(read, int)
    assert read % 10**9 == 10**9 - 777_777_777


@pytest.mark.parametrize("kind", [int, float, bool, ["a"], Colour, {"type": "null"}, Pet])
def test_another_text_is_no_value(kind: object) -> None:
    with pytest.raises(ValueError, match="x"):
        planned(kind).value("x")


@pytest.mark.parametrize(
    ("kind", "constraint"),
    [
        (int, Constraint("regex", "0|-?[1-9][0-9]*")),
        (float, Constraint("regex", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")),
        (bool, Constraint("choice", ["True", "False"])),
        (["a", "b", "a"], Constraint("choice", ["a", "b"])),
        (["a", ""], Constraint("where", 'X in ["a", ""]')),
        ({"a", "b"}, Constraint("choice", ["a", "b"])),
        (Literal["x", None], Constraint("choice", ["x", "None"])),
        (Colour, Constraint("choice", ["red", "blue"])),
        (r"\d+", Constraint("regex", r"\d+")),
        ({"type": "integer"}, Constraint("json", {"type": "integer"})),
    ],
)
def test_is_asked_as_one_constraint(kind: object, constraint: Constraint) -> None:
    made = planned(kind)

    assert made.constraint == constraint
    assert (made.stop, made.checks) == ((), ())


@pytest.mark.parametrize(
    ("kind", "clause", "asked"),
    [
        (int, "X < 5", f"{WHOLE} and int(X) < 5"),
        (int, "1 <= X <= 5 and X != 3", f"{WHOLE} and int(X) >= 1 and int(X) <= 5 and int(X) != 3"),
        (int, "X == 3", f"{WHOLE} and int(X) == 3"),
        (int, "X in range(1, 6)", f"{WHOLE} and int(X) >= 1 and int(X) <= 5"),
        (int, "len(X) < 3", f"{WHOLE} and len(X) < 3"),
        (int, "X < Y", f"{WHOLE} and int(X) < 7"),
        (int, "X < len(Y)", f"{WHOLE} and int(X) < 1"),
        (str, "len(X) < 3", "len(X) < 3"),
        (r"a*", "len(X) < 3", 'regex(X, "a*") and len(X) < 3'),
        (r"a*", "stops_at(X, 'aa')", 'regex(X, "a*") and stops_at(X, "aa")'),
        (int, "stops_before(X, '\\n')", f'{WHOLE} and stops_before(X, "\\n")'),
    ],
)
def test_a_type_and_conditions_are_one_constraint(kind: object, clause: str, asked: str) -> None:
    made = planned(kind, clause, Y=7)

    assert made.constraint == Constraint("where", asked)
    assert made.checks == ()


@pytest.mark.parametrize(
    ("kind", "clause", "choices"),
    [
        (bool, "X", ["True"]),
        (bool, "not X", ["False"]),
        (bool, "X is True", ["True"]),
        (bool, "X != True", ["False"]),
        (["a", "bb"], "len(X) > 1", ["bb"]),
        (["a", "bb"], "X != 'a'", ["bb"]),
        (Literal[1, 2, 3], "X >= 2", ["2", "3"]),
        (Literal[1, 2, 3], "X in [1, 5]", ["1"]),
        (range(10), "X > 7", ["8", "9"]),
        (Colour, "X is Colour.RED", ["red"]),
        (Colour, "X != Colour.RED", ["blue"]),
    ],
)
def test_of_finitely_many_values_those_that_satisfy(
    kind: object, clause: str, choices: list[str]
) -> None:
    assert planned(kind, clause).constraint == Constraint("choice", choices)


def test_python_is_asked_before_of_a_range_and_afterwards_of_any_number() -> None:
    few = planned(range(30), "X % 7 == 0")

    assert few.constraint == Constraint("choice", ["0", "7", "14", "21", "28"])
    assert few.checks == ()
    assert len(planned(int, "0 <= X < 30 and X % 7 == 0").checks) == 1


@pytest.mark.parametrize(
    ("kind", "clause", "holding", "others"),
    [
        (int, "X in [1, 5, -3]", ["1", "5", "-3"], ["05", "2", "-1", "x", "15"]),
        (int, "X not in [1, 5]", ["2", "-1"], ["1", "02", ""]),
        (int, "0 <= X < 10", ["0", "9"], ["-0", "-00", "00", "09"]),
        (int, "X > float('-inf')", ["0"], ["x"]),
        (int, "X != float('inf')", ["0"], ["x"]),
        (int, "X > 10 ** 20", ["1" + "0" * 19 + "11"], ["9" * 19, "-" + "9" * 30]),
        (float, "X < 2.5", ["2.49", "-7", "0", "2.4999999999999999999"], ["2.5", "2.50", "3"]),
        (float, "0 <= X <= 1", ["0.5", "1", "-0", "0", "1.000"], ["1.01", "-0.1", ".5"]),
        (float, "X == 0.1", ["0.1", "0.100"], ["00.1", "0.11", "1", "0.10000001"]),
        (float, "X not in [0.5]", ["0.51", "5"], ["0.5", "0.50", "00.51", "a"]),
        (float, "X != 2", ["2.1", "3"], ["2", "2.0"]),
        (None, "float(X) > 1.25", ["1.26", "2"], ["1.25", "x", "-2"]),
    ],
)
def test_numbers_are_compared_as_they_are_written(
    kind: object, clause: str, holding: list[str], others: list[str]
) -> None:
    made = planned(kind, clause)

    assert made.checks == ()
    assert [admits(made, text, 1) for text in holding] == [True] * len(holding)
    assert [admits(made, text, 1) for text in others] == [False] * len(others)


@pytest.mark.parametrize(
    ("kind", "clause"),
    [(bool, "X and not X"), (["a"], "len(X) > 1"), (int, "type(X) is float")],
)
def test_a_type_can_be_at_odds_with_its_conditions(kind: object, clause: str) -> None:
    with pytest.raises(Unsatisfiable):
        planned(kind, clause)


def test_conditions_on_the_value_of_json_are_checks_and_tokens_a_bound() -> None:
    made = planned(list[int], "sum(X) < 9", "len(tokens(X)) <= 30", "X != [1]", "len(X) < 3")

    assert made.constraint == Constraint("json", {"type": "array", "items": {"type": "integer"}})
    assert made.max_tokens == 30
    assert [written(check) for check in made.checks] == ["sum(X) < 9", "X != [1]", "len(X) < 3"]


def test_a_refused_number_is_left_out_however_it_is_written() -> None:
    made = plan((), "X", float, {}, StopMode.CUT, ("0.5", "-2"))

    assert [admits(made, text, 1) for text in ("0.50", "0.5", "-2.0")] == [False] * 3
    assert [admits(made, text, 1) for text in ("0.51", "2", "-2.1")] == [True] * 3


@dataclass
class Person:
    name: str
    pets: list[Pet]
    mood: Colour = Colour.BLUE
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


def objects_in(schema: Any) -> list[dict[str, Any]]:
    """All parts of a schema that declare properties."""
    parts = schema.values() if isinstance(schema, dict) else schema
    within = parts if isinstance(schema, dict | list) else []
    own = [schema] if isinstance(schema, dict) and "properties" in schema else []
    return [*own, *(each for part in within for each in objects_in(part))]


@pytest.mark.parametrize(
    ("annotation", "num_objects"),
    [(Pet, 1), (Person, 2), (Point, 1), (Node, 1), (Model, 1), (list[Pet | Point], 2)],
)
def test_objects_of_a_type_have_no_other_keys(annotation: object, num_objects: int) -> None:
    objects = objects_in(kind_of(annotation).schema)

    assert len(objects) == num_objects
    assert all(each["additionalProperties"] is False for each in objects)


def test_a_dict_has_any_keys_and_a_model_may_allow_others() -> None:
    class Open(BaseModel, extra="allow"):
        number: int

    for annotation in (dict[str, bool], Open):
        written = kind_of(annotation).schema
        assert written is not None
        assert written["additionalProperties"]


@pytest.mark.parametrize(
    ("annotation", "made"),
    [
        (Pet, Pet("Tom", 3)),
        (Pet, Pet("Tom")),
        (Person, Person("Ada", [Pet("Tom"), Pet("Jerry", 1)], Colour.RED, {"a": 1.0})),
        (Node, Node("branch", [Node("leaf", [])])),
        (Pet | None, None),
        (Pet | Point, Pet("a")),
        (Pet | Point, {"x": 1.0}),
        (dict[str, Colour], {"a": Colour.RED}),
        (tuple[int, str], (1, "a")),
        (tuple[Pet, ...] | None, (Pet("a"), Pet("b"))),
        (list[Any], [1, {"a": None}]),
        (Point, {"x": 1.0, "y": 2.0}),
        (Model, Model(number=3)),
    ],
)
def test_a_value_comes_back_from_its_text(annotation: object, made: object) -> None:
    text = json.dumps(made, default=_plain)

    Draft202012Validator(kind_of(annotation).schema or {}).validate(json.loads(text))
    assert kind_of(annotation).value(text) == made


def _plain(made: Any) -> object:
    if isinstance(made, enum.Enum):
        return made.value
    return made.model_dump() if isinstance(made, BaseModel) else vars(made)
