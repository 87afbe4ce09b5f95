"""Programs run: prompts, holes, variables, requests."""

import asyncio

import pytest

from client.calls import Answer, Constraint, GenerateCall, Message
from client.query.program import Context
from client.query.running.transcript import Span
from tests.client.query.running.programs import hole, one_of, run_bodies, run_body, say
from tests.client.query.running.scripted_model import ScriptedModel, behind, in_turn


async def two_holes(context: Context) -> object:
    say(context, "Name: ")
    name = await context.hole(hole("NAME"))
    say(context, f"\n{name} is ")
    age = await context.hole(hole("AGE"))
    return (name, age)


async def test_a_hole_is_one_request_and_its_text_goes_on_in_the_prompt() -> None:
    model = ScriptedModel(in_turn("Ann", "nine"))

    result = await run_body(two_holes, model)

    assert model.prompts == ["Name: ", "Name: Ann\nAnn is "]
    assert result.prompt == "Name: Ann\nAnn is nine"
    assert result.variables == {"NAME": "Ann", "AGE": "nine"}
    assert result.value == ("Ann", "nine")


async def test_spans_say_which_hole_made_which_text() -> None:
    result = await run_body(two_holes, ScriptedModel(in_turn("Ann", "nine")))

    assert result.spans == (Span("NAME", 6, 9), Span("AGE", 17, 21))
    assert [result.prompt[span.start : span.end] for span in result.spans] == ["Ann", "nine"]


async def test_each_request_has_a_row_with_its_tokens() -> None:
    result = await run_body(two_holes, ScriptedModel(in_turn("Ann", "nine")))

    assert [(row.hole, row.usage.num_output_tokens) for row in result.requests] == [
        ("NAME", 3),
        ("AGE", 4),
    ]
    assert result.usage.num_output_tokens == 7
    assert result.logprob == pytest.approx(-0.7)


async def test_a_condition_becomes_the_requests_constraint() -> None:
    async def body(context: Context) -> None:
        await context.hole(hole("X", one_of("X", "cat", "dog")))

    model = ScriptedModel(lambda prompt: ["cow", "dog"])

    assert (await run_body(body, model))["X"] == "dog"
    assert model.generate_calls[0].constraint == Constraint("choice", ["cat", "dog"])


async def test_samples_run_side_by_side_each_with_a_seed_of_its_own() -> None:
    model = ScriptedModel(behind(Name=["Ann"], **{"is": ["nine"]}))

    results = await run_bodies(two_holes, model, "sample", n=3, seed=7)

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

    async def body(context: Context) -> None:
        await context.hole(hole("X"))

    model = Counting(lambda prompt: ["yes"])
    results = await run_bodies(body, model, "sample", n=1200, seed=7)

    assert model.most == 1024
    assert len(results) == 1200
    assert sorted(call.sampling.seed or 0 for call in model.generate_calls) == [*range(7, 1207)]


async def test_roles_make_turns_and_holes_belong_to_the_assistant() -> None:
    async def body(context: Context) -> None:
        say(context, "Be brief. ")
        context.role("user", hole("X").place)
        say(context, " Hi! ")
        await context.hole(hole("X"))
        context.role("user", hole("X").place)
        say(context, " And? ")
        context.role("assistant", hole("X").place)
        say(context, " Well, ")
        await context.hole(hole("Y"))

    model = ScriptedModel(in_turn("Hello.", "bye."))

    result = await run_body(body, model)

    lead = (Message("system", "Be brief."), Message("user", "Hi!"))
    assert model.generate_calls[0].prompt == lead
    assert model.generate_calls[1].prompt == (
        *lead,
        Message("assistant", "Hello."),
        Message("user", "And?"),
        Message("assistant", "Well, "),
    )
    assert result.messages[-1] == Message("assistant", "Well, bye.")
