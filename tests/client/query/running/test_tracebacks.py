"""What users see of an error that nobody catches."""

import traceback
from pathlib import Path

import pytest

import client
from client.errors import ServerFailed, TandemError
from client.query import (
    BadProgram,
    ProgramFailed,
    Unsatisfiable,
    query,
    run,
    run_sync,
)
from client.query.tracebacks import TrimmedTracebacks
from tests.client.query.running.failing import Failing
from tests.client.query.running.scripted_model import ScriptedModel, in_turn

CLIENT = Path(client.__file__).parent


def frames(error: BaseException) -> list[str]:
    """The functions of the client in its traceback, and in those of all that it comes from."""
    named = []
    for each in (error, error.__cause__, error.__context__):
        found = traceback.extract_tb(each.__traceback__) if each else []
        named += [frame.name for frame in found if frame.filename.startswith(str(CLIENT))]
    return named


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ('"[X', BadProgram),
        ('"[X]" where len(X) < 0', Unsatisfiable),
        ('"{1 / 0}"', ProgramFailed),
        ('"[X]"', ServerFailed),
    ],
)
def test_an_error_shows_the_door_alone(program: str, kind: type[TandemError]) -> None:
    with pytest.raises(kind) as caught:
        run_sync(program, model=Failing())

    assert frames(caught.value) == ["run_sync"]


async def test_so_does_that_of_a_run_that_is_awaited() -> None:
    with pytest.raises(Unsatisfiable) as caught:
        await run('"[X]" where len(X) < 0', model=Failing())

    assert frames(caught.value) == ["run", "run_all"]


def test_a_function_that_is_no_program_shows_its_decorator() -> None:
    with pytest.raises(BadProgram) as caught:

        @query
        def broken() -> None:
            '"[X'

    assert frames(caught.value) == ["query", "_decorated"]


def test_a_cause_shows_the_programs_own_lines() -> None:
    def helper() -> None:
        raise KeyError("no")

    with pytest.raises(ProgramFailed) as caught:
        run_sync('"a"\nhelper()', {"helper": helper}, model=ScriptedModel(in_turn()))

    cause = caught.value.__cause__
    assert cause is not None
    shown = traceback.extract_tb(cause.__traceback__)
    assert [frame.line for frame in shown] == ["helper()", 'raise KeyError("no")']


def test_causes_that_go_round_are_gone_round_once() -> None:
    error, cause = TandemError("the one"), ValueError("the other")
    cause.__cause__ = error

    with pytest.raises(TandemError) as caught, TrimmedTracebacks():
        raise error from cause

    assert caught.value is error
    assert error.__cause__ is cause
