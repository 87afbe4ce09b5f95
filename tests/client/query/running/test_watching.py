"""Runs that are watched: their partial states, then their results."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from client.calls import Answer, GenerateCall, GeneratedToken
from client.query import F, Result, query, watch
from client.query.running.results import State
from tests.client.query.running.scripted_model import ScriptedModel, in_turn


@query
async def shout(word: str) -> str:  # type: ignore[empty-body]
    """
    "{word}:[LOUD]"
    return LOUD.upper()
    """


@query
def whole(word, times=2):  # type: ignore[no-untyped-def]
    for _ in range(times):
        "{word}:[X]"


async def test_watching_shows_states_and_then_results() -> None:
    seen = [part async for part in watch('"Say [X]!"', model=ScriptedModel(in_turn("hi")))]

    *states, result = seen
    assert isinstance(result, Result)
    assert result.prompt == "Say hi!"
    assert isinstance(states[-1], State)
    assert (states[-1].prompt, states[-1].hole) == ("Say hi!", None)


@pytest.mark.parametrize("name", ["shout", "whole", "Shouting"])
async def test_a_query_is_watched_with_its_arguments(name: str) -> None:
    watched = {
        "shout": shout.using(model=ScriptedModel(in_turn("hi"))).watch("a"),
        "whole": whole.using(model=ScriptedModel(in_turn("hi"))).watch("a", times=1),
        "Shouting": F("{word}:[X]", model=ScriptedModel(in_turn("hi"))).watch(word="a"),
    }
    seen = [part async for part in watched[name]]

    *states, result = seen
    assert isinstance(result, Result)
    assert result.prompt == "a:hi"
    assert [type(state) for state in states] == [State] * len(states)
    assert states


async def test_a_query_given_to_watch_is_told_to_be_watched_by_itself() -> None:
    with pytest.raises(TypeError, match="has `run`, `run_all` and `watch` of its own"):
        await anext(watch(shout))  # type: ignore[arg-type]


class Endless(ScriptedModel):
    """Never answers; knows whether it is still asked."""

    num_asked = 0

    async def stream(self, call: GenerateCall) -> AsyncGenerator[GeneratedToken | Answer, None]:
        self.num_asked += 1
        try:
            await asyncio.Event().wait()
            yield GeneratedToken(0, "", 0.0)
        finally:
            self.num_asked -= 1


async def test_leaving_a_watched_run_early_ends_its_requests() -> None:
    model = Endless(in_turn())
    watched = watch('"Say [X]"', model=model)

    async for _ in watched:
        break
    asked = model.num_asked
    await watched.aclose()

    assert (asked, model.num_asked) == (1, 0)
