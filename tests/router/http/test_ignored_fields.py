"""Fields that a route does not know: named in the answer and the log, or refused."""

import logging
from typing import Any

import httpx
import pytest

from tests.fakes import FakeShard
from tests.router.http.harness import housing

HELLO = [{"role": "user", "content": "Hi"}]
CHAT = {"messages": HELLO, "max_tokens": 2}


async def asked(path: str, body: dict[str, Any], **edge: Any) -> httpx.Response:
    async with housing(FakeShard(), **edge) as house, house.client as client:
        return await client.post(path, json=body)


@pytest.mark.parametrize(
    ("path", "body", "ignored"),
    [
        ("/generate", {"inputs": "Hi", "max_tokens": 3}, "max_tokens"),
        (
            "/generate",
            {"inputs": "Hi", "parameters": {"max_new_token": 3, "do_smaple": True}},
            "parameters.max_new_token,parameters.do_smaple",
        ),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 2, "temprature": 1}, "temprature"),
        (
            "/v1/chat/completions",
            {**CHAT, "stream": True, "stream_options": {"include_usge": True}},
            "stream_options.include_usge",
        ),
        ("/generate", {"inputs": "Hi", "ä, ö\r\nx: y": 1}, "??????x:?y"),
        (
            "/generate",
            {"inputs": "Hi", **{f"x{i}": 1 for i in range(40)}},
            ",".join(f"x{i}" for i in range(16)),
        ),
    ],
)
async def test_unknown_fields_are_named(path: str, body: dict[str, Any], ignored: str) -> None:
    answer = await asked(path, body)

    assert answer.status_code == 200
    assert answer.headers["x-ignored-fields"] == ignored


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": "Hi", "model": "x", "parameters": {"max_new_tokens": 2}}),
        ("/v1/chat/completions", {**CHAT, "store": False, "user": "me", "functions": None}),
        ("/v1/chat/completions", {**CHAT, "tools": [], "chat_template_kwargs": {"a": 1}}),
    ],
)
async def test_of_known_fields_nothing_is_said(path: str, body: dict[str, Any]) -> None:
    for edge in ({}, {"strict_fields": True}):
        answer = await asked(path, body, **edge)
        assert answer.status_code == 200
        assert "x-ignored-fields" not in answer.headers


@pytest.mark.parametrize(
    ("path", "body", "ignored"),
    [
        ("/v1/chat/completions", {**CHAT, "reasoning_effort": "high"}, "reasoning_effort"),
        ("/v1/chat/completions", {**CHAT, "verbosity": "low"}, "verbosity"),
        ("/v1/responses", {"input": "Hi", "reasoning": {"effort": "high"}}, "reasoning.effort"),
        ("/v1/responses", {"input": "Hi", "text": {"verbosity": "low"}}, "text.verbosity"),
        (
            "/v1/messages",
            {"model": "", "max_tokens": 2, "messages": HELLO, "output_config": {"effort": "high"}},
            "output_config.effort",
        ),
    ],
)
async def test_hints_that_the_template_does_not_read_are_taken(
    path: str, body: dict[str, Any], ignored: str
) -> None:
    answer = await asked(path, body)

    assert (answer.status_code, answer.headers["x-ignored-fields"]) == (200, ignored)


async def test_the_log_names_them(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "router"):
        await asked("/generate", {"inputs": "Hi", "max_tokens": 3})

    assert "ignored_fields=max_tokens" in caplog.text


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (
            "/generate",
            {"inputs": "Hi", "parameters": {"max_new_token": 3}},
            "is not a parameter of this route; did you mean `parameters.max_new_tokens`?",
        ),
        ("/v1/completions", {"prompt": "Hi", "temprature": 1}, "did you mean `temperature`?"),
        ("/v1/chat/completions", {**CHAT, "xyzzy": 1}, "`xyzzy` is not a parameter of this route"),
    ],
)
async def test_strict_fields_refuses_them(path: str, body: dict[str, Any], words: str) -> None:
    answer = await asked(path, body, strict_fields=True)

    assert answer.status_code in (400, 422)
    assert words in answer.text
