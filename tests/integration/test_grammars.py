"""Grammars without a lexer and patterns that look around, kept by a real server."""

import json
import re
import time
from itertools import product
from typing import Any

import httpx
import pytest

from tests.integration.server import RunningServer

pytestmark = pytest.mark.slow

LISTS = 'root ::= "[" (root ("," root)*)? "]" | word\nword ::= "x" | "xy" | [0-9]{1,3}'
# What is left of such a list when the innermost ones are taken out again and again.
_INNERMOST = re.compile(r"\[(?:@(?:,@)*)?\]|xy?|[0-9]{1,3}")


def posted(server: RunningServer, path: str, body: dict[str, Any]) -> httpx.Response:
    """The answer, asked for again while the machine is too busy to judge the constraint."""
    for _ in range(20):
        answer = server.http.post(path, json=body, timeout=60)
        if answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
            break
        time.sleep(1)
    return answer


def is_list(text: str) -> bool:
    before = ""
    while before != text:
        before, text = text, _INNERMOST.sub("@", text)
    return text == "@"


@pytest.mark.parametrize("seed", range(6))
def test_answers_are_of_the_grammar(server: RunningServer, seed: int) -> None:
    body = {"prompt": "List: ", "max_tokens": 3 + 8 * seed, "temperature": 1.5, "seed": seed}
    answer = posted(server, "/v1/completions", {**body, "guided_grammar": LISTS}).json()
    assert is_list(answer["choices"][0]["text"])
    assert answer["choices"][0]["constraint_satisfied"] is True


def test_a_grammar_is_judged_and_refused_with_its_place(server: RunningServer) -> None:
    body: dict[str, Any] = {
        "grammar": {"type": "gbnf", "value": LISTS},
        "texts": ["[xy,[7]]", "[x"],
    }
    judged = posted(server, "/constraints/check", body).json()
    assert [each["accepted"] for each in judged["results"]] == [True, False]
    body = {"grammar": {"type": "gbnf", "value": "root ::= <think>"}, "text": "a"}
    refused = posted(server, "/constraints/check", body)
    assert refused.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert "position 9: a token without text" in refused.text


def test_each_token_says_what_the_constraint_did_to_its_choice(server: RunningServer) -> None:
    pattern = "[0-9]=#[0-9]"
    body = {"prompt": "I have a", "temperature": 0, "max_tokens": 9, "guided_regex": pattern}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9}
    chat |= {"response_format": {"type": "regex", "value": pattern}, "logprobs": True}

    lists = posted(server, "/v1/completions", {**body, "logprobs": 1}).json()["choices"][0]
    chosen = posted(server, "/v1/chat/completions", {**chat, "top_logprobs": 1}).json()["choices"][
        0
    ]
    bare = posted(server, "/v1/chat/completions", chat).json()["choices"][0]

    effects = {"free", "steered", "forced"}
    assert len(lists["logprobs"]["constraint"]) == len(lists["logprobs"]["tokens"])
    assert set(lists["logprobs"]["constraint"]) <= effects
    content = chosen["logprobs"]["content"]
    assert {each["constraint"] for each in content} <= effects
    for each in content:
        is_favourite = each["token"] == each["top_logprobs"][0]["token"]
        # A favourite that was taken was allowed.
        assert each["constraint"] != "steered" or not is_favourite
    assert {"steered", "forced"} <= {each["constraint"] for each in content}
    assert "constraint" not in bare["logprobs"]["content"][0]


def test_a_text_that_may_be_cut_is_cut_within_what_is_forced(server: RunningServer) -> None:
    grammar = {"type": "regex", "value": "a{50}", "on_budget": "cut"}
    parameters = {"grammar": grammar, "max_new_tokens": 5, "details": True}
    told = posted(server, "/generate", {"inputs": "Say", "parameters": parameters}).json()
    assert told["generated_text"] == "aaaaa"
    assert told["details"]["finish_reason"] == "length"
    assert told["details"]["constraint_satisfied"] is False


def test_what_masks_cannot_keep_is_judged_where_a_value_ends(server: RunningServer) -> None:
    share = {"type": "number", "not": {"type": "integer"}, "minimum": 0, "maximum": 9}
    options = [{"required": ["share"]}, {"required": ["note"]}]
    schema = {
        "type": "object",
        "properties": {"note": {"type": "string", "maxLength": 8}, "share": share},
        "anyOf": options,
        "additionalProperties": False,
    }
    body = {
        "model": "tgi",
        "messages": [{"role": "user", "content": "Your share?"}],
        "max_tokens": 30,
        "temperature": 1.5,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "share", "schema": schema},
            "key_order": "any",
        },
    }
    for seed in range(4):
        answer = posted(server, "/v1/chat/completions", {**body, "seed": seed})
        choice = answer.json()["choices"][0]
        assert choice["constraint_satisfied"] is True
        told = json.loads(choice["message"]["content"])
        assert told
        assert told.get("share", 0.5) % 1 != 0
        assert "x-not-enforced" not in answer.headers


# What masks cannot keep whole, with the place that is left out.
ODD: list[tuple[dict[str, Any], str]] = [
    (
        {"tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}},
        "/properties/tags/uniqueItems",
    ),
    ({"a": {"type": "string", "pattern": r"^([a-z])\1*$"}}, "/properties/a/pattern"),
    ({"l": {"type": "array", "contains": {"const": 1}}}, "/properties/l/contains"),
    ({"o": {"type": "object", "minProperties": 2}}, "/properties/o/minProperties"),
    (
        {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}},
        "/properties/a/oneOf",
    ),
]
HELLO = {"role": "user", "content": "Hello"}


def odd_body(path: str, properties: dict[str, Any], choice: str, **more: Any) -> dict[str, Any]:
    """A request with a tool of these parameters, in the words of the route's API."""
    schema = {"type": "object", "properties": properties}
    if path == "/v1/messages":
        tool = {"name": "odd", "input_schema": schema, **more}
        word = {"auto": "auto", "required": "any", "named": "tool"}[choice]
        picked = {"type": word, **({"name": "odd"} if word == "tool" else {})}
        return {
            "model": "demo",
            "messages": [HELLO],
            "max_tokens": 200,
            "tools": [tool],
            "tool_choice": picked,
        }
    function = {"name": "odd", "parameters": schema, **more}
    if path == "/v1/responses":
        named = {"type": "function", "name": "odd"} if choice == "named" else choice
        tools = [{"type": "function", **function}]
        return {"input": "Hello", "max_output_tokens": 200, "tools": tools, "tool_choice": named}
    one = {"type": "function", "function": {"name": "odd"}}
    chosen: Any = one if choice == "named" else choice
    tools = [{"type": "function", "function": function}]
    return {"messages": [HELLO], "max_tokens": 200, "tools": tools, "tool_choice": chosen}


@pytest.mark.parametrize(
    ("number", "path", "choice"),
    [
        (number, path, choice)
        for number, (path, choice) in enumerate(
            product(
                ("/v1/chat/completions", "/v1/responses", "/v1/messages"),
                ("auto", "required", "named"),
            )
        )
    ],
)
def test_a_tool_that_masks_cannot_keep_whole_is_served_unless_it_is_strict(
    server: RunningServer, number: int, path: str, choice: str
) -> None:
    properties, pointer = ODD[number % len(ODD)]
    served = posted(server, path, odd_body(path, properties, choice))
    assert served.status_code == httpx.codes.OK, served.text
    assert f"#{pointer}" in served.headers["x-not-enforced"]

    strict = posted(server, path, odd_body(path, properties, choice, strict=True))
    assert strict.is_client_error
    assert pointer in strict.text
    assert "without `strict`" in strict.text


def test_a_call_that_breaks_what_was_left_out_is_told(server: RunningServer) -> None:
    one = {"type": "integer", "minimum": 1, "maximum": 1}
    ones = {"type": "array", "items": one, "minItems": 2, "maxItems": 2}
    properties = {"l": {**ones, "uniqueItems": True}}
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
        body = odd_body(path, properties, "required")
        tool = body["tools"][0]
        schema = tool.get("input_schema") or tool.get("function", tool)["parameters"]
        schema["required"] = ["l"]
        answer = posted(server, path, body).json()
        told = answer["choices"][0] if "choices" in answer else answer
        assert told["constraint_satisfied"] is False
        assert told["constraint_violation"].startswith("odd: at /l: ")


def test_a_form_that_masks_cannot_keep_whole_is_served_unless_it_is_strict(
    server: RunningServer,
) -> None:
    one = {"type": "integer", "minimum": 1, "maximum": 1}
    options = [{"uniqueItems": True}, {"maxItems": 0}]
    schema = {"type": "array", "items": one, "minItems": 2, "anyOf": options}

    def asked(**more: Any) -> httpx.Response:
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, **more}}
        body = {"messages": [HELLO], "max_tokens": 20, "response_format": form}
        return posted(server, "/v1/chat/completions", body)

    for more in ({}, {"strict": False}):
        answer = asked(**more)
        choice = answer.json()["choices"][0]
        assert json.loads(choice["message"]["content"])[:2] == [1, 1]
        assert answer.headers["x-not-enforced"] == "response_format#/anyOf/0/uniqueItems"
        assert choice["constraint_satisfied"] is False
        assert choice["constraint_violation"]
    refused = asked(strict=True)
    assert refused.status_code == httpx.codes.UNPROCESSABLE_ENTITY
    assert refused.json()["error"]["constraint"]["pointer"] == "/anyOf/0/uniqueItems"


def test_a_form_is_kept_beside_tools_that_are_not(server: RunningServer) -> None:
    properties, pointer = ODD[0]
    body = odd_body("/v1/chat/completions", properties, "auto")
    form = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    body["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": form}}
    body["response_format"]["json_schema"]["strict"] = True
    answer = posted(server, "/v1/chat/completions", body)
    assert pointer in answer.headers["x-not-enforced"]
    assert answer.json()["choices"][0]["constraint_satisfied"] is True
