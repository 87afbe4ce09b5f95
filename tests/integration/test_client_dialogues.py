"""Dialogues with a served model, as they are typed on a terminal."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.client.cli.on_terminal import Terminal
from tests.integration.dialogues import talking
from tests.integration.server import RunningServer, launched
from tests.integration.test_answer_forms import FAMILIES, SAYS, THOUGHT
from tests.scripted_model import ids_of

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

CAPITAL = "What is the capital of France?"
UNKNOWN = "I do not know the capital of France. I only know a small invented world"
SUMMARY = re.compile(r"\[\w+: (\d+) tokens in ([\d.]+) s, (\d+) of the prompt's (\d+) cached")


async def said(terminal: Terminal, line: str) -> str:
    """What stands between a typed line and the next prompt, without how long the queue is."""
    terminal.type(f"{line}\r")
    await terminal.read_until(line)
    told = (await terminal.read_until("> ")).rpartition("\r\n")[0]
    return re.sub(r"\[queued: [^\]]*\]\s*", "", told).strip()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def terminal(
    server: RunningServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Terminal]:
    async with talking(server, tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def chat(terminal: Terminal) -> Terminal:
    """A new chat on the one terminal of those who leave no system prompt and no parameters."""
    assert await said(terminal, "/clear") == "[a new chat]"
    return terminal


async def test_a_question_is_answered_as_a_chat(chat: Terminal) -> None:
    assert UNKNOWN in await said(chat, CAPITAL)
    assert "I am Pip, a very small" in await said(chat, "Hello, who are you?")


async def test_the_model_remembers_until_it_is_cleared(chat: Terminal) -> None:
    lens = [
        int(found[4])
        for line in (CAPITAL, CAPITAL)
        if (found := SUMMARY.search(await said(chat, line)))
    ]
    assert await said(chat, "/clear") == "[a new chat]"
    again = SUMMARY.search(await said(chat, CAPITAL))

    assert lens[1] > lens[0] + 20
    assert again is not None
    assert int(again[4]) == lens[0]


async def test_a_system_prompt_comes_first(server: RunningServer, tmp_path: Path) -> None:
    async with talking(server, tmp_path) as terminal:
        bare = SUMMARY.search(await said(terminal, CAPITAL))
        await said(terminal, "/clear")
        assert await said(terminal, "/system Answer in one word.") == "[system prompt set]"
        longer = SUMMARY.search(await said(terminal, CAPITAL))

    assert bare is not None
    assert longer is not None
    assert int(longer[4]) > int(bare[4])


async def test_a_chat_is_kept_and_gone_on_with(server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    async with talking(server, tmp_path) as terminal:
        await said(terminal, "/system Be kind.")
        await said(terminal, "Hello")
        assert await said(terminal, f"/save {file}") == f"[2 turns kept in {file}]"
    messages = json.loads(file.read_text())["messages"]
    assert [each["role"] for each in messages] == ["system", "user", "assistant"]
    async with talking(server, tmp_path) as terminal:
        assert await said(terminal, f"/load {file}") == f"[2 turns of {file}]"
        found = SUMMARY.search(await said(terminal, CAPITAL))
        assert found is not None
        assert int(found[4]) > 30
        file.write_text('{"messages": [{"role": "robot", "content": "x"}]}')
        refused = await said(terminal, f"/load {file}")
        assert "`messages[0]`: `role` must be user or assistant. Given: robot" in refused


async def test_parameters_hold_from_when_they_are_set(chat: Terminal) -> None:
    assert await said(chat, "/set max_tokens 5") == "[from now on: max_tokens=5]"
    assert "[length: 5 tokens" in await said(chat, CAPITAL)
    assert "temperature must be a number. Given: hot" in await said(chat, "/set temperature hot")
    assert "did you mean temperature?" in await said(chat, "/set temprature 1")
    assert "[length: 3 tokens" in await said(chat, f"{CAPITAL} max_tokens=3")
    assert await said(chat, "/set max_tokens") == "[from now on: no parameters]"


async def test_people_may_write_of_equations(chat: Terminal) -> None:
    assert SUMMARY.search(await said(chat, "What is y, where x=3 and y=x"))
    assert "did you mean max_tokens?" in await said(chat, "Hello max_token=3")


async def test_answers_fit_a_schema_of_a_file(chat: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    schema = {"type": "object", "properties": {"n": digit}, "required": ["n"]}
    file.write_text(json.dumps({**schema, "additionalProperties": False}))
    assert "json=" in await said(chat, f"/schema {file}")
    answer, _, _ = (await said(chat, "Say a number")).partition("[constraint_complete")
    assert 0 <= json.loads(answer)["n"] <= 9
    assert await said(chat, "/schema") == "[from now on: no parameters]"
    assert "No such file" in await said(chat, "/schema nowhere.json")


async def test_answers_satisfy_a_condition(chat: Terminal) -> None:
    await said(chat, "/where len(words(X)) <= 3")
    lines = (await said(chat, CAPITAL)).splitlines()
    answer = next(line for line in lines if not line.startswith("[queued"))
    assert len(answer.split()) <= 3
    wrong = await said(chat, "/where len(words(X) <= 3")
    assert "where=" in wrong
    assert "error:" in await said(chat, CAPITAL)
    assert await said(chat, "/where") == "[from now on: no parameters]"


async def test_a_text_is_gone_on_with_as_it_is(chat: Terminal) -> None:
    once = await said(chat, "/raw The weather in winter max_tokens=5")
    assert once.startswith("was cold that day.")
    await said(chat, "/raw")
    assert "was cold that day." in await said(chat, "The weather in winter max_tokens=5")
    await said(chat, "/chat")
    assert UNKNOWN in await said(chat, CAPITAL)


async def test_ctrl_c_stops_an_answer_and_no_key_lands_in_it(
    server: RunningServer, tmp_path: Path
) -> None:
    async with talking(server, tmp_path) as terminal:
        terminal.type('Tell me a long story where="len(X) > 2000"\r')
        await terminal.read_until('2000"')
        # Typed while the answer is written: not shown in it, but the beginning of the next line.
        await asyncio.sleep(0.3)
        terminal.type("QQQQ")
        await asyncio.sleep(0.3)
        terminal.type("\x03")
        answer = await terminal.read_until("[cancelled]")
        assert "QQQQ" not in answer
        await terminal.read_until("> ")
        terminal.type("\x15")  # takes back what is in the line
        assert UNKNOWN in await said(terminal, CAPITAL)


async def templated(server: RunningServer, *messages: dict[str, str]) -> Any:
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{server.url}/chat_tokenize", json={"messages": messages})
    return answer.json()


@pytest.mark.nightly
async def test_a_thought_is_folded_and_goes_out_with_the_next_turn(tmp_path: Path) -> None:
    family = FAMILIES["channels"]
    with launched(model=family.save(tmp_path)) as server:
        question = {"role": "user", "content": "?"}
        num_tokens = len((await templated(server, question))["tokenize_response"])
        async with talking(server, tmp_path) as terminal:
            first = await said(terminal, "?" * (SAYS - num_tokens + 1))
            thought = await said(terminal, "/thought")
            file = tmp_path / "chat.json"
            await said(terminal, f"/save {file}")
        messages = json.loads(file.read_text())["messages"]
        shown = (await templated(server, *messages, question))["templated_text"]

    told = re.fullmatch(
        r"\[thinking \.\.\.\]\s+\[thought for [\d.]+ s, (\d+) tokens; /thought shows it\]\s+"
        r"Hello!\s+\[eos: (\d+) tokens in .*\]",
        first,
    )
    assert told is not None, first
    assert int(told[1]) == len(ids_of(family.thought, family.tokens))
    assert thought.split() == THOUGHT.split()
    assert f"analysis<|message|>{THOUGHT.strip()}<|end|>" in shown


async def test_help_models_and_info_answer(server: RunningServer, tmp_path: Path) -> None:
    async with talking(server, tmp_path) as terminal:
        listed = await said(terminal, "/help")
        for name in ("/system", "/clear", "/save", "/load", "/set", "/schema", "/where", "/raw"):
            assert name in listed
        assert await said(terminal, "/models") == "demo"
        assert "max_total_len: 1024" in await said(terminal, "/info")
        assert "/nothing: no such command" in await said(terminal, "/nothing")
        terminal.type("/quit\r")
        assert await asyncio.wait_for(terminal.process.wait(), 30) == 0
