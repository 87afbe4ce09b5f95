"""Types whose own code judges their values: what it refuses, and what it does wrong."""

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from client.query import NotSatisfied, ProgramFailed, QueryError, argmax, run, sample
from tests.client.query.running.scripted_model import ScriptedModel, in_turn


@dataclass
class Even:
    """Refuses odd numbers, as Python's own types refuse what they are not."""

    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("odd")


class Town(BaseModel):
    """Refuses small letters."""

    name: str

    @field_validator("name")
    @classmethod
    def begins_large(cls, name: str) -> str:
        if not name.istitle():
            raise ValueError("small")
        return name


class Raising(Exception):
    """What a type's own code raises."""


def raising(error: Exception) -> type:
    @dataclass
    class Failing:
        number: int

        def __post_init__(self) -> None:
            raise error

    return Failing


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (Even, ('{"number": 1}', '{"number": 2}')),
        (Town, ('{"name": "ulm"}', '{"name": "Ulm"}')),
        (list[Even], ('[{"number": 1}]', '[{"number": 2}]')),
    ],
)
async def test_a_value_that_a_type_refuses_is_asked_for_again(
    kind: Any, texts: tuple[str, str]
) -> None:
    model = ScriptedModel(in_turn(*texts))

    result = await run('"[X: kind]"', {"kind": kind}, model=model, decoder=sample(1))

    assert result.prompt == texts[1]
    assert len(model.calls) == 2


@pytest.mark.parametrize(
    ("kind", "text", "why"),
    [(Even, '{"number": 1}', "odd"), (Town, '{"name": "ulm"}', "small")],
)
async def test_one_that_would_come_again_is_told(kind: type, text: str, why: str) -> None:
    with pytest.raises(NotSatisfied, match=why) as caught:
        await run('"[X: kind]"', {"kind": kind}, model=ScriptedModel(in_turn(text, text)))

    assert caught.value.last_value == text
    assert _caret(caught.value) == "[X: kind]"


@pytest.mark.parametrize(
    "error",
    [AssertionError("no"), KeyError("no"), ZeroDivisionError("no"), TypeError("no"), Raising()],
)
@pytest.mark.parametrize("decoder", [argmax(), sample(2)])
async def test_a_mistake_in_a_types_code_is_told_at_the_hole(
    error: Exception, decoder: Any
) -> None:
    model = ScriptedModel(lambda prompt: ['{"number": 1}'])

    with pytest.raises(ProgramFailed) as caught:
        await run('"[X: kind]"', {"kind": raising(error)}, model=model, decoder=decoder)

    said = f": {error}" if str(error) else ""
    assert caught.value.message.endswith(f"'{{\"number\": 1}}': {type(error).__name__}{said}")
    assert caught.value.__cause__ is error
    assert _caret(caught.value) == "[X: kind]"


def _caret(error: QueryError) -> str:
    """What the caret of an error is under."""
    _, line, carets = str(error).split("\n")[-3:]
    return line[carets.index("^") :][: carets.count("^")]


async def test_a_number_that_no_float_holds_is_no_mistake_of_the_program() -> None:
    with pytest.raises(NotSatisfied, match="list"):
        await run('"[X: list[float]]"', model=ScriptedModel(in_turn(f"[{10**400}]")))
