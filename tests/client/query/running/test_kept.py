"""What outlives a run: its results, its errors, its text."""

import copy
import gc
import linecache
import pickle

import pytest

from client.errors import ConstraintRefused, ServerFailed
from client.query import BadProgram, run
from client.query.reading.reader import read
from tests.client.query.running.scripted_model import ScriptedModel


async def test_texts_are_shown_to_tracebacks_for_as_long_as_their_programs_are_there() -> None:
    def num_shown() -> int:
        gc.collect()
        return sum("known as" in "".join(linecache.getlines(name)) for name in _texts_shown())

    programs = [read(f'# a text that is known as {number}\n"[X]"') for number in range(3)]
    again = read(programs[0].source.text)
    assert num_shown() == 3

    del programs
    assert num_shown() == 1
    del again
    assert num_shown() == 0


def _texts_shown() -> list[str]:
    return [name for name in linecache.cache if name.startswith("<query")]


async def test_results_and_errors_go_to_other_processes() -> None:
    text = '"[X]" distribution X in ["a", "bb"]\nreturn {"x": X}'
    result = await run(text, model=ScriptedModel(lambda prompt: ["a"]))
    refused = ConstraintRefused("no", "constraint_error", "constraint", {"reason": "broken"})
    with pytest.raises(BadProgram) as caught:
        read("argmax\n [X")

    assert pickle.loads(pickle.dumps(result)) == result
    assert copy.deepcopy(result) == result
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(result)).variables["X"] = "b"
    for error in (refused, ServerFailed("it broke", "step_failed"), caught.value):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))
        assert again.__dict__ == error.__dict__
