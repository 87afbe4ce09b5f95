"""Every refusal quotes the field, the rule, and the value that broke it."""

from typing import Any

import pytest

from tests.fakes import FakeShard
from tests.router.http.harness import housing

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
HI = [{"role": "user", "content": "hi"}]
MANY = 10**30


def generate(**parameters: Any) -> dict[str, Any]:
    return {"inputs": "hi", "parameters": parameters}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": HI, **fields}


def respond(**fields: Any) -> dict[str, Any]:
    return {"input": "hi", **fields}


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": HI, "max_tokens": 3, **fields}


def saying(*blocks: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


BIAS = "must be an object of token ids with numbers"
TURN = 'must be a block like {"type": "text", "text": ...}; this model reads text'
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("/generate", generate(seed=MANY), f"`seed` must be between 0 and {2**64 - 1}. Given: {MANY}"),
    (
        "/generate",
        generate(max_new_tokens=-MANY),
        f"`max_new_tokens` must be a whole. Given: -{MANY}",
    ),
    (
        "/generate",
        generate(max_new_tokens=MANY),
        f"`max_new_tokens` must be at most. Given: {MANY}",
    ),
    ("/generate", generate(truncate=MANY), f"`truncate` must be between 1 and. Given: {MANY}"),
    (
        "/generate",
        generate(logit_bias={"5": "a"}),
        f'`parameters.logit_bias` {BIAS}, as `5`. Given: "a"',
    ),
    (
        "/generate",
        generate(stop_token_ids=[5, MANY, MANY]),
        f"`stop_token_ids` must be of token ids. Given: {MANY}",
    ),
    (
        "/generate",
        generate(stop_token_ids=[MANY, 0.5]),
        "`parameters.stop_token_ids[1]` must be a valid integer. Given: 0.5",
    ),
    ("/generate", generate(logit_bias={"a": 1}), 'whose keys are token ids. Given: "a"'),
    ("/generate", generate(adapter_id="a"), '`adapter_id` names an adapter. Given: "a"'),
    (
        "/generate",
        generate(grammar={"type": "json", "value": "nix"}),
        '`grammar` is not valid: the value is a string that is not JSON. Given: "nix"',
    ),
    ("/v1/completions", {"prompt": ["a", 5]}, "`prompt` must be a string. Given: 5"),
    ("/v1/completions", {"prompt": [[1], "a"]}, '`prompt` must be a string. Given: "a"'),
    ("/v1/completions", {"prompt": [True]}, "`prompt` must be a string. Given: true"),
    ("/v1/completions", {"prompt": []}, "`prompt` must be a string. Given: a list of 0"),
    (CHAT, chat(stop=["a", 5]), "`stop` must be a string or a list of strings. Given: 5"),
    (
        CHAT,
        chat(guided_json=5),
        "`guided_json` is not valid: the value must be a JSON schema. Given: 5",
    ),
    (
        CHAT,
        chat(guided_choice=[]),
        "`guided_choice` is not valid: the value of `choice` must be. Given: a list of 0",
    ),
    (CHAT, chat(verbosity=""), '`verbosity` must be one of low. Given: ""'),
    (CHAT, chat(top_logprobs=2), "`top_logprobs` needs `logprobs` to be true. Given: 2"),
    (CHAT, chat(metadata=5), "`metadata` must be an object. Given: 5"),
    (CHAT, chat(tool_choice="required"), '`tool_choice` asks for a call. Given: "required"'),
    (CHAT, chat(chat_template="x"), '`chat_template` must be the name of one. Given: "x"'),
    (RESPONSES, respond(background=5), "`background` must be a valid boolean. Given: 5"),
    (RESPONSES, respond(reasoning=5), "`reasoning` must be an object. Given: 5"),
    (
        RESPONSES,
        respond(text={"size": 5}),
        "`text.size` is not a parameter of this route. Given: 5",
    ),
    (
        RESPONSES,
        respond(text={"k" * 5000: 5}),
        f"`text.{'k' * 60}...` is not a parameter of this route. Given: 5",
    ),
    (CHAT, chat(metadata={"k" * 5000: 5}), f"`metadata.{'k' * 60}...` must be a valid. Given: 5"),
    (RESPONSES, respond(max_tool_calls=MANY), f"`max_tool_calls` must be between. Given: {MANY}"),
    (RESPONSES, respond(max_tool_calls=-MANY), f"`max_tool_calls` must be between. Given: -{MANY}"),
    (RESPONSES, respond(input=[5]), "`input[0]` must be an object. Given: 5"),
    (RESPONSES, respond(input=[{"role": 5}]), "`input[0].role` must be one of. Given: 5"),
    (
        RESPONSES,
        respond(previous_response_id="x"),
        "`previous_response_id`: Response `x` is not known",
    ),
    (MESSAGES, message(messages=5), "`messages` must be a list of at least one message. Given: 5"),
    (MESSAGES, message(messages=[{"role": 5}]), "`messages[0].role` must be one of. Given: 5"),
    (MESSAGES, message(messages=saying(5)), f"`messages[0].content[0]` {TURN}. Given: 5"),
    (
        MESSAGES,
        message(messages=saying({"type": "text", "text": 5})),
        f"`messages[0].content[0]` {TURN}. Given: the text 5",
    ),
    (
        MESSAGES,
        message(messages=saying({"type": 5})),
        f"`messages[0].content[0]` {TURN}. Given: a block of type 5",
    ),
    (MESSAGES, message(system=5), "`system` must be a string or a list of blocks. Given: 5"),
    (MESSAGES, message(max_tokens=MANY), f"`max_tokens` must be at most. Given: {MANY}"),
]


@pytest.mark.parametrize(("path", "body", "refusal"), CASES)
async def test_a_refusal_quotes_field_rule_and_value(path: str, body: Any, refusal: str) -> None:
    async with housing(FakeShard()) as house:
        answer = await house.client.post(path, json=body)

    assert 400 <= answer.status_code < 500
    error = answer.json()["error"]
    message = error if isinstance(error, str) else error["message"]
    begin, _, given = refusal.partition(". Given: ")
    for part in (begin, given):
        assert part in message
