"""What a run tells on the way: partial states, rows, the file of all calls."""

import json
from pathlib import Path

import pytest

from client.calls import Answer, GenerateCall
from client.errors import ConstraintRefused, Overloaded
from client.query import BadCondition, NotSatisfied, ProgramFailed, Unsatisfiable
from client.query.conditions import build
from client.query.conditions.terms import Term
from client.query.program import Context
from client.query.running.decoders import decoding
from client.query.running.execution import Job
from client.query.running.request_log import CallFile
from client.query.running.results import State
from client.query.running.session import RunSurroundings, run_job
from tests.client.query.running.programs import HERE, hole, one_of, program, ref, run_body, say
from tests.client.query.running.scripted_model import ScriptedModel, in_turn


async def greeting(context: Context) -> None:
    say(context, "Say ")
    await context.hole(hole("X", one_of("X", "hi", "ho")))
    say(context, "!")


async def test_states_show_the_prompt_filling_in() -> None:
    states: list[State] = []
    within = RunSurroundings(model=ScriptedModel(in_turn("hi")), on_state=states.append)

    await run_job(Job(program=program(greeting)), decoding("argmax", (), {}), within)

    assert [(state.prompt, state.hole) for state in states] == [
        ("Say ", "X"),
        ("Say h", "X"),
        ("Say hi", "X"),
        ("Say hi!", None),
    ]
    assert states[1].constraint is not None


async def test_every_call_is_a_line_of_the_trace_file(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with CallFile(path) as calls:
        within = RunSurroundings(model=ScriptedModel(in_turn("hi")), calls=calls)
        await run_job(Job(program=program(greeting)), decoding("argmax", (), {}), within)

    (line,) = map(json.loads, path.read_text().splitlines())

    assert line["hole"] == "X"
    assert line["call"]["prompt"] == "Say "
    assert line["call"]["constraint"]["value"] == ["hi", "ho"]
    assert line["answer"]["text"] == "hi"
    assert line["answer"]["tokens"][0]["logprob"] == -0.1


async def test_max_len_bounds_all_holes_together() -> None:
    async def body(context: Context) -> None:
        for _ in range(2):
            say(context, "X:")
            await context.hole(hole("X"))

    model = ScriptedModel(lambda prompt: ["abcdef"])

    result = await run_body(body, model, max_len=8)

    assert result.prompt == "X:abcdefX:ab"


async def test_a_hole_that_max_len_leaves_nothing_is_refused() -> None:
    async def body(context: Context) -> None:
        for _ in range(3):
            say(context, "X:")
            await context.hole(hole("X"))

    with pytest.raises(Unsatisfiable, match="max_len=8"):
        await run_body(body, ScriptedModel(lambda prompt: ["abcdef"]), max_len=8)


async def test_a_refused_constraint_points_at_its_hole() -> None:
    with pytest.raises(Unsatisfiable, match=r"<test>:1:1: \[X\]"):
        await run_body(greeting, ScriptedModel(lambda prompt: ["hm"]))


class Refusing(ScriptedModel):
    """Answers with an error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(in_turn())
        self._error = error

    async def generate(self, call: GenerateCall) -> Answer:
        raise self._error


async def test_errors_of_the_server_come_as_they_are() -> None:
    with pytest.raises(Overloaded, match="later"):
        await run_body(greeting, Refusing(Overloaded("later")))


async def test_a_text_that_its_budget_cut_short_of_its_conditions_is_no_result() -> None:
    async def body(context: Context) -> None:
        await context.hole(hole("X", one_of("X", "hello", "ho")))

    model = ScriptedModel(in_turn("hello"))

    with pytest.raises(NotSatisfied) as caught:
        await run_body(body, model, max_tokens=2)

    assert caught.value.last_value == "he"


async def test_what_a_body_raises_is_told_as_the_programs() -> None:
    async def body(context: Context) -> None:
        raise KeyError("x")

    with pytest.raises(ProgramFailed) as caught:
        await run_body(body, ScriptedModel(in_turn()))

    assert isinstance(caught.value.__cause__, KeyError)


async def test_a_condition_that_means_nothing_points_at_its_hole() -> None:
    async def body(context: Context) -> None:
        await context.hole(hole("X", kind=3))

    with pytest.raises(BadCondition, match="<test>:1:1"):
        await run_body(body, ScriptedModel(in_turn()))


async def test_a_refusal_of_the_server_speaks_of_the_hole_by_its_name() -> None:
    def differs() -> Term:
        return build.term(build.compare(HERE, ref("NAME"), "!=", "X"))

    async def body(context: Context) -> None:
        await context.hole(hole("NAME", differs))

    what = "`constraint`: nothing satisfies `X != 'X'`"
    told = ConstraintRefused(what, "constraint_error", "constraint")
    with pytest.raises(Unsatisfiable, match=r"\[NAME\]: nothing satisfies `NAME != 'X'`"):
        await run_body(body, Refusing(told))
