"""What type checkers see of queries: `make types` is what holds these."""

from typing import assert_type

from client.query import AsyncQuery, Result, State, SyncQuery, query, sample
from tests.client.query.running.scripted_model import ScriptedModel

MODEL = ScriptedModel(lambda prompt: ["7"])


@query(model=MODEL)
async def number(word: str, *, times: int = 1) -> int:  # type: ignore[empty-body]
    """
    "{word * times}[X: int]"
    return X
    """


@query(model=MODEL)
def shown(word: str) -> None:
    """
    "{word}[X]"
    """


async def test_a_call_has_the_type_that_the_function_declares() -> None:
    value = await number("a", times=2)

    assert_type(value, int)
    assert value == 7


async def test_its_result_has_a_value_of_that_type() -> None:
    result = await number.using(decoder=sample(2)).run("a")

    assert_type(result, Result[int])
    assert result.value + 1 == 8


async def test_so_does_what_it_is_watched_for() -> None:
    async for part in number.watch("a", times=3):
        assert_type(part, State | Result[int])
    async for each in shown.watch("a"):
        assert_type(each, State | Result[None])

    assert isinstance(part, Result)
    assert (part.value, part.prompt) == (7, "aaa7")


def test_a_query_that_returns_nothing_gives_its_result() -> None:
    result = shown("a")

    assert_type(result, Result[None])
    assert result.prompt == "a7"


class Teller:
    """Its queries are methods."""

    def __init__(self, word: str) -> None:
        self.word = word

    @query(model=MODEL)
    async def number(self, times: int = 1) -> int:  # type: ignore[empty-body]
        """
        "{self.word * times}[X: int]"
        return X
        """

    @query(model=MODEL)
    def shown(self) -> None:
        """
        "{self.word}[X]"
        """


async def test_a_method_is_called_without_its_object() -> None:
    teller = Teller("a")

    value = await teller.number(times=2)
    result = await teller.number.run(3)

    assert_type(value, int)
    assert_type(result, Result[int])
    assert (value, result.prompt) == (7, "aaa7")


def test_a_method_of_the_class_is_the_query_that_it_was() -> None:
    assert_type(Teller.shown(Teller("b")), Result[None])
    assert Teller.shown.program.parameters == ("self",)
    assert Teller("b").shown.program.parameters == ()
    assert Teller("b").shown().prompt == Teller.shown(Teller("b")).prompt == "b7"


def test_parameters_are_those_of_the_function() -> None:
    assert isinstance(number, AsyncQuery)
    assert isinstance(shown, SyncQuery)
    assert (number.program.parameters, shown.program.parameters) == (("word", "times"), ("word",))
