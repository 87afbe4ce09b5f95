"""Streams that move, on a real shard: the same server is the other replica."""

import json
from typing import Any

import httpx
import pytest

from tests.integration.server import FRONT_SECRET, RunningServer
from tests.router.http.test_moving import StreamState, by_choice

pytestmark = pytest.mark.slow

PATTERN = {"type": "regex", "value": "([a-z]{2,9} ){4,8}end"}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann", "Bob"]}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
JSON_FORM = {"type": "json_schema", "json_schema": {"name": "who", "schema": SCHEMA}}
TURNS = [{"role": "user", "content": "Who is there?"}]
LOOK = {"name": "look", "parameters": {**SCHEMA, "additionalProperties": False}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tgi, a pattern, drawn": (
        "/generate_stream",
        {
            "inputs": "Once",
            "parameters": {
                "grammar": PATTERN,
                "do_sample": True,
                "repetition_penalty": 1.2,
                "max_new_tokens": 40,
                "details": True,
            },
        },
    ),
    "chat, a schema, two choices": (
        "/v1/chat/completions",
        {
            "messages": TURNS,
            "response_format": JSON_FORM,
            "n": 2,
            "temperature": 1.2,
            "max_tokens": 60,
            "stream_options": {"include_usage": True},
        },
    ),
    "chat, a call": (
        "/v1/chat/completions",
        {
            "messages": TURNS,
            "tools": [{"type": "function", "function": LOOK}],
            "tool_choice": "required",
            "max_tokens": 60,
        },
    ),
    "completions, penalties": (
        "/v1/completions",
        {"prompt": "Once", "max_tokens": 60, "frequency_penalty": 0.7, "stop": ["zzz"]},
    ),
    "responses": ("/v1/responses", {"input": "Hello", "max_output_tokens": 30}),
    "messages": ("/v1/messages", {"messages": TURNS, "max_tokens": 30, "top_k": 20}),
}


def asked(
    server: RunningServer, path: str, body: Any, told: StreamState | None = None
) -> httpx.Response:
    state = b"" if told is None else told.state
    headers = {"x-tandem-front": FRONT_SECRET, "content-type": "application/json"}
    if told is not None:
        headers["x-tandem-continue"] = str(len(state))
    content = state + json.dumps({**body, "stream": True}).encode()
    answer = server.http.post(path, content=content, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_stream_that_moves_is_the_one_that_does_not(
    server: RunningServer, case: tuple[str, dict[str, Any]]
) -> None:
    path, body = case
    answer = asked(server, path, body)
    whole = StreamState()
    whole.read(answer.content)
    # How many depends on the load: what waits goes out in one write.
    num_outs = answer.content.count(b": tandem out ")
    assert num_outs > 0
    for cut in {1, max(1, num_outs // 2), num_outs}:
        told = StreamState()
        told.read(answer.content, cut)
        told.read(asked(server, path, body, told).content)
        assert by_choice(told.events) == by_choice(whole.events), f"cut at {cut} of {num_outs}"
        assert told.out == whole.out
