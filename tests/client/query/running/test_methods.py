"""Queries as methods: nested, with clauses that speak of self, and what goes wrong in them."""

import inspect

import pytest

from client.query import F, ProgramFailed, query, run_sync, sample
from tests.client.query.running.scripted_model import ScriptedModel

MODEL = ScriptedModel(lambda prompt: [str(len(prompt))])


class Asker:
    greeting = F("Say {a}: [X]", model=MODEL)

    def __init__(self, word: str, num_traces: int = 1) -> None:
        self.word = word
        self.num_traces = num_traces

    @query(model=MODEL)
    def samples(self, sign: str) -> None:
        """
        sample(n=self.num_traces)
            "{self.word}{sign}[X]"
        """

    @query(model=MODEL)
    async def failing(self) -> None:
        """
        "{self.word}[X]"
        "{self.nothing}"
        """


def test_clauses_speak_of_the_object() -> None:
    results = Asker("a", 3).samples.run_all_sync("!")

    assert [result.prompt for result in results] == ["a!2"] * 3


def test_a_method_keeps_what_was_chosen_for_it() -> None:
    assert len(Asker("a").samples.using(decoder=sample(2)).run_all_sync("!")) == 2


@pytest.mark.parametrize("kind", ["asker.samples('?')", "call('?')"])
def test_a_method_fills_a_hole(kind: str) -> None:
    asker = Asker("abc")

    result = run_sync(f'"He: [X: {kind}]!"', {"asker": asker, "call": asker.samples}, model=MODEL)

    assert result.prompt == "He: abc?8!"


def test_a_method_that_takes_no_object_fails_when_it_is_called() -> None:
    class Selfless:
        @query(model=MODEL)
        def none() -> None:
            "[X]"

        @query(model=MODEL)
        def kept(*, x: int = 1) -> None:
            "{x}[X]"

    assert {"none", "kept"} <= dict(inspect.getmembers(Selfless())).keys()
    for name in ("none", "kept"):
        with pytest.raises(ProgramFailed, match=rf"TypeError: {name}\(\) takes 0 positional"):
            getattr(Selfless(), name)()
    assert run_sync('"[X: f]"', {"f": Selfless.none}, model=MODEL).prompt == "0"


async def test_what_goes_wrong_in_a_method_is_shown_at_its_place() -> None:
    with pytest.raises(ProgramFailed, match="has no attribute 'nothing'") as raised:
        await Asker("a").failing()

    assert "self.nothing" in str(raised.value)


def test_a_template_in_a_class_is_no_method() -> None:
    assert Asker("a").greeting(a="no") == "8"
