"""Programs run: prompts, holes, variables, requests, and what is told of them on the way."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from client.calls import Answer, GenerateCall, GeneratedToken, Message
from client.errors import ConstraintRefused, Overloaded, ServerFailed
from client.query import (
    BadProgram,
    NotSatisfied,
    Unsatisfiable,
    generate,
    run,
    run_all,
    sample,
    watch,
)
from client.query.api import RunOptions, execute
from client.query.reading.reader import read
from client.query.running.decoding import (
    Span,
    Transcript,
    messages_of,
)
from client.query.running.results import State
from tests.client.query.running.models import Failing, ScriptedModel, behind, in_turn

TWO_HOLES = r"""
"Name: [NAME]\n{NAME} is [AGE]"
return NAME, AGE
"""


async def test_a_hole_is_one_request_and_its_text_goes_on_in_the_prompt() -> None:
    model = ScriptedModel(in_turn("Ann", "nine"))

    result = await run(TWO_HOLES, model=model)

    assert model.prompts == ["Name: ", "Name: Ann\nAnn is "]
    assert result.prompt == "Name: Ann\nAnn is nine"
    assert result.variables == {"NAME": "Ann", "AGE": "nine"}
    assert result.value == ("Ann", "nine")
    assert result.spans == (Span("NAME", 6, 9), Span("AGE", 17, 21))
    rows = [(row.hole, row.usage.num_output_tokens) for row in result.requests]
    assert rows == [("NAME", 3), ("AGE", 4)]
    assert result.usage.num_output_tokens == 7
    assert result.logprob == pytest.approx(-0.7)


async def test_samples_run_side_by_side_each_with_a_seed_of_its_own() -> None:
    model = ScriptedModel(behind(Name=["Ann"], **{"is": ["nine"]}))

    results = await run_all(TWO_HOLES, model=model, decoder=sample(3, seed=7))

    assert [result["AGE"] for result in results] == ["nine"] * 3
    assert [call.sampling.seed for call in model.generate_calls] == [7, 8, 9, 7, 8, 9]


async def test_no_more_samples_run_at_once_than_servers_do() -> None:
    class Counting(ScriptedModel):
        num_now = most = 0

        async def generate(self, call: GenerateCall) -> Answer:
            self.num_now += 1
            self.most = max(self.most, self.num_now)
            await asyncio.sleep(0)
            self.num_now -= 1
            return await super().generate(call)

    model = Counting(lambda prompt: ["yes"])
    results = await run_all('"[X]"', model=model, decoder=sample(1200, seed=7))

    assert model.most == 1024
    assert len(results) == 1200
    assert sorted(call.sampling.seed or 0 for call in model.generate_calls) == [*range(7, 1207)]


async def test_roles_make_turns_and_holes_belong_to_the_assistant() -> None:
    text = '"Be brief. {:user} Hi! [X]{:user} And? {:assistant} Well, [Y]"'
    model = ScriptedModel(in_turn("Hello.", "bye."))

    result = await run(text, model=model)

    lead = (Message("system", "Be brief."), Message("user", "Hi!"))
    assert model.generate_calls[0].prompt == lead
    assert model.generate_calls[1].prompt == (
        *lead,
        Message("assistant", "Hello."),
        Message("user", "And?"),
        Message("assistant", "Well, "),
    )
    assert result.messages[-1] == Message("assistant", "Well, bye.")


GREETING = '"Say [X]!" where X in ["hi", "ho"]'


async def test_states_show_the_prompt_filling_in() -> None:
    states: list[State] = []

    await execute(
        read(GREETING), RunOptions(model=ScriptedModel(in_turn("hi"))), on_state=states.append
    )

    assert [(state.prompt, state.hole) for state in states] == [
        ("Say ", "X"),
        ("Say h", "X"),
        ("Say hi", "X"),
        ("Say hi!", None),
    ]
    assert states[1].constraint is not None


async def test_every_call_is_a_line_of_the_trace_file(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    await run(GREETING, model=ScriptedModel(in_turn("hi")), trace=path)

    (line,) = map(json.loads, path.read_text().splitlines())

    assert line["hole"] == "X"
    assert line["call"]["prompt"] == "Say "
    assert line["call"]["constraint"]["value"] == ["hi", "ho"]
    assert line["answer"]["text"] == "hi"
    assert line["answer"]["tokens"][0]["logprob"] == -0.1


async def test_max_len_bounds_all_holes_together() -> None:
    model = ScriptedModel(lambda prompt: ["abcdef"])
    text = 'argmax(max_len=8)\n "X:[X]X:[X]"'

    assert (await run(text, model=model)).prompt == "X:abcdefX:ab"
    with pytest.raises(Unsatisfiable, match="max_len=8"):
        await run(f'{text}\n "[X]"', model=model)


async def test_a_refused_constraint_points_at_its_hole() -> None:
    with pytest.raises(Unsatisfiable, match=r"<query>:1:6: \[X\]"):
        await run(GREETING, model=ScriptedModel(lambda prompt: ["hm"]))


async def test_errors_of_the_server_come_as_they_are() -> None:
    with pytest.raises(Overloaded, match="later"):
        await run(GREETING, model=Failing(Overloaded("later")))


class Hurried(ScriptedModel):
    """Has answers that a deadline cuts short."""

    async def generate(self, call: GenerateCall) -> Answer:
        return replace(await super().generate(call), finish_reason="deadline")


async def test_an_answer_that_was_broken_off_fills_no_hole_but_is_one_to_a_single_call() -> None:
    model = Hurried(lambda prompt: ["yes"])
    text = 'answer = await generate("a")\n"{answer.finish_reason}"'

    with pytest.raises(ServerFailed, match="the request ended by deadline"):
        await run('"[X]"', model=model)
    assert (await run(text, {"generate": generate}, model=model)).prompt == "deadline"


async def test_a_text_that_its_budget_cut_short_of_its_conditions_is_no_result() -> None:
    text = 'argmax(max_tokens=2)\n "[X]" where X in ["hello", "ho"]'

    with pytest.raises(NotSatisfied) as caught:
        await run(text, model=ScriptedModel(in_turn("hello")))

    assert caught.value.last_value == "he"


async def test_a_refusal_of_the_server_speaks_of_the_hole_by_its_name() -> None:
    what = "`constraint`: nothing satisfies `X != 'X'`"
    told = ConstraintRefused(what, "constraint_error", "constraint")
    with pytest.raises(Unsatisfiable, match=r"\[NAME\]: nothing satisfies `NAME != 'X'`"):
        await run('"[NAME]" where NAME != "X"', model=Failing(told))


async def test_a_line_of_the_trace_file_is_one_whatever_was_written(tmp_path: Path) -> None:
    path, odd = tmp_path / "calls.jsonl", "é\x85\u2028\u2029\x0b\n\ud800"

    await run('"[X]"', model=ScriptedModel(in_turn(odd)), trace=path)

    (line,) = path.read_text().splitlines()
    assert json.loads(line)["answer"]["text"] == odd
    assert "é" in line


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


@pytest.mark.parametrize(
    ("parts", "turns"),
    [
        # White space around turns is layout.
        ([":user", " Hi!\n", ":assistant", " Well, "], [("user", "Hi!"), ("assistant", "Well, ")]),
        # Text before the first tag is the system's.
        (["Be brief.\n", ":user", "Hi!"], [("system", "Be brief."), ("user", "Hi!")]),
        # A turn of the assistant that is still empty is left to the template.
        ([" \n", ":user", "Hi!", ":assistant", " "], [("user", "Hi!")]),
        ([":system", "", ":user", "Hi!"], [("system", ""), ("user", "Hi!")]),
    ],
)
def test_a_prompt_with_roles_is_turns(parts: list[str], turns: list[tuple[str, str]]) -> None:
    transcript = Transcript()
    for part in parts:
        if part.startswith(":"):
            transcript.turn(part[1:])
        else:
            transcript.say(part)

    assert messages_of(transcript.prompt_parts) == tuple(Message(*turn) for turn in turns)


async def test_a_role_behind_a_hole_that_was_asked_as_text_is_refused() -> None:
    with pytest.raises(BadProgram, match="comes too late"):
        await run('"Hi [X]{:user}"', model=ScriptedModel(in_turn("a")))
