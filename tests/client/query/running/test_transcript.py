"""Prompts as they grow: turns, spans, cuts."""

import pytest

from client.calls import Message
from client.query import BadProgram
from client.query.program import Context
from client.query.running.transcript import Transcript, messages_of, prompt_of, spans_of, text_of
from tests.client.query.running.programs import HERE, hole, run_body, say
from tests.client.query.running.scripted_model import ScriptedModel, in_turn


def chat(*prompt_parts: str) -> tuple[Message, ...]:
    """Pieces that begin with a colon are roles."""
    transcript = Transcript()
    for part in prompt_parts:
        if part.startswith(":"):
            transcript.turn(part[1:])
        else:
            transcript.say(part)
    return messages_of(transcript.prompt_parts)


def test_without_roles_a_prompt_is_its_text() -> None:
    transcript = Transcript()
    transcript.say(" a ")
    transcript.fill("X", "b\n")

    assert prompt_of(transcript.prompt_parts) == " a b\n"


def test_white_space_around_turns_is_layout() -> None:
    assert chat(":user", " Hi!\n", ":assistant", " Well, ") == (
        Message("user", "Hi!"),
        Message("assistant", "Well, "),
    )


def test_text_before_the_first_tag_is_the_systems() -> None:
    assert chat("Be brief.\n", ":user", "Hi!") == (
        Message("system", "Be brief."),
        Message("user", "Hi!"),
    )


def test_a_turn_of_the_assistant_that_is_still_empty_is_left_to_the_template() -> None:
    assert chat(" \n", ":user", "Hi!", ":assistant", " ") == (Message("user", "Hi!"),)


def test_an_empty_turn_in_the_middle_stays() -> None:
    assert chat(":system", "", ":user", "Hi!") == (Message("system", ""), Message("user", "Hi!"))


def test_a_cut_takes_spans_and_turns_with_it() -> None:
    transcript = Transcript()
    transcript.say("a ")
    mark = transcript.mark()
    transcript.turn("user")
    transcript.fill("X", "b")

    dropped = transcript.truncate(mark)

    assert text_of(dropped) == "{:user}b"
    assert transcript.is_plain
    assert spans_of(transcript.prompt_parts) == ()


async def test_a_role_behind_a_hole_that_was_asked_as_text_is_refused() -> None:
    async def body(context: Context) -> None:
        say(context, "Hi ")
        await context.hole(hole("X"))
        context.role("user", HERE)

    with pytest.raises(BadProgram, match="comes too late"):
        await run_body(body, ScriptedModel(in_turn("a")))


async def test_a_role_that_there_is_not_is_refused() -> None:
    async def body(context: Context) -> None:
        context.role("king", HERE)

    with pytest.raises(BadProgram, match="king"):
        await run_body(body, ScriptedModel(in_turn()))
