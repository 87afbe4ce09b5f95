"""Codex and Claude Code: a task of three turns and two tools, with requests of their shape.

Their requests are in `agents/`, written after their public documents: their fields, headers and
tools, with texts of our own. The answers are a script's, behind the real router.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.conformance.serving import Fake, faked

FOLDER = Path(__file__).with_name("agents")
# More than the tokens for an answer that Claude Code asks for.
_CONTEXT = ("--max-input-tokens", "27000", "--max-total-tokens", "60000")


@pytest.fixture(scope="module")
def roomy() -> Iterator[Fake]:
    """A server with the context that agents need."""
    with faked(*_CONTEXT) as fake:
        yield fake


def recorded(name: str) -> Any:
    return json.loads(FOLDER.joinpath(f"{name}.json").read_text())


def calling(name: str, arguments: object) -> str:
    """A call as the model's template has it."""
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


PLAN = {"plan": [{"step": "List the files", "status": "in_progress"}]}
LIST = {"command": ["ls", "-l"], "timeout_ms": 1000}
END = "There are two files."
# What the model of another maker thought, before the user came here.
THOUGHT = {
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "Planning"}],
    "content": None,
    "encrypted_content": "Z2liYmVyaXNo",
}


def ask_codex(client: openai.OpenAI, request: Any, given: list[Any]) -> Any:
    """What Codex keeps of the stream, and the fields that the answer names."""
    body = {**request["body"], "input": given}
    answer = client.responses.with_raw_response.create(
        **{field: value for field, value in body.items() if field != "client_metadata"},
        extra_headers=request["headers"],
        extra_body={"client_metadata": body["client_metadata"]},
    )
    assert answer.http_response.status_code == 200
    events = list(answer.parse())
    assert [event.type for event in events][-1] == "response.completed"
    assert events[-1].response.usage.output_tokens > 0
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.to_dict() for item in done] == [
        item.to_dict() for item in events[-1].response.output
    ]
    return done, answer.headers["x-ignored-fields"].split(",")


def test_codex_works_on_a_task_to_its_end(roomy: Fake) -> None:
    request = recorded("codex")
    given = [THOUGHT, *request["body"]["input"]]
    client = openai.OpenAI(base_url=roomy.openai_url, api_key="any", max_retries=0)
    with client:
        for said, name, arguments, output in (
            ("", "update_plan", PLAN, "Plan updated"),
            ("I look.", "shell", LIST, '{"output":"a\\nb\\n","metadata":{"exit_code":0}}'),
        ):
            roomy.order(says=said + calling(name, arguments))
            *before, call = ask_codex(client, request, given)[0]
            assert (call.type, call.name) == ("function_call", name)
            assert json.loads(call.arguments) == arguments
            assert [item.content[0].text for item in before] == ([said] if said else [])
            for item in before:
                part = {"type": "output_text", "text": item.content[0].text}
                given.append({"type": "message", "role": "assistant", "content": [part]})
            given += [
                {
                    "type": "function_call",
                    "name": call.name,
                    "arguments": call.arguments,
                    "call_id": call.call_id,
                },
                {"type": "function_call_output", "call_id": call.call_id, "output": output},
            ]
        roomy.order(says=END)
        (message,), ignored = ask_codex(client, request, given)
    assert message.content[0].text == END
    assert {"tools[3]", "tools[4]", "reasoning.summary"} <= set(ignored)


def ask_claude_code(client: anthropic.Anthropic, request: Any, messages: list[Any]) -> Any:
    """The message at the end of the stream, and the fields that the answer names."""
    body = {**request["body"], "messages": messages}
    # The package has lost its arguments for sampling; the API has not.
    sampling = {"temperature": body.pop("temperature")}
    with client.beta.messages.stream(
        **body, betas=request["betas"], extra_headers=request["headers"], extra_body=sampling
    ) as stream:
        message = stream.get_final_message()
        ignored = stream.response.headers["x-ignored-fields"].split(",")
    counted = {field: body[field] for field in ("model", "messages", "system", "tools", "thinking")}
    count = client.beta.messages.count_tokens(**counted, betas=request["betas"])
    usage = message.usage
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    return message, ignored


def test_claude_code_works_on_a_task_to_its_end(roomy: Fake) -> None:
    request = recorded("claude_code")
    messages: list[Any] = request["body"]["messages"]
    client = anthropic.Anthropic(base_url=roomy.url, api_key="any", max_retries=0)
    thought = {"type": "thinking", "thinking": "Search it.", "signature": "Z2liYmVyaXNo"}
    with client:
        for said, name, arguments, output in (
            ("I search.", "Grep", {"pattern": "port", "-n": True}, "app.py:3: port = 80"),
            ("", "Read", {"file_path": "/work/app/app.py", "limit": 5}, "1\timport os"),
        ):
            roomy.order(says=said + calling(name, arguments))
            message, _ = ask_claude_code(client, request, messages)
            *texts, call = message.content
            assert message.stop_reason == "tool_use"
            assert [block.text for block in texts] == ([said] if said else [])
            assert (call.type, call.name, call.input) == ("tool_use", name, arguments)
            content = [thought, *(block.to_dict() for block in message.content)]
            result = {
                "type": "tool_result",
                "tool_use_id": call.id,
                "content": [{"type": "text", "text": output}],
                "is_error": False,
                "cache_control": {"type": "ephemeral"},
            }
            messages += [
                {"role": "assistant", "content": content},
                {"role": "user", "content": [result]},
            ]
        roomy.order(says=END)
        message, ignored = ask_claude_code(client, request, messages)
    assert [block.text for block in message.content] == [END]
    assert message.stop_reason == "end_turn"
    assert {"context_management", "tools[6]"} <= set(ignored)
