"""docs/openai.md has a word on every field that is read; the OpenAPI document, on all answered."""

from pathlib import Path
from typing import Any

import pytest

from router.http.openai.schema import (
    ChatBody,
    ChatCompletion,
    ChatCompletionChunk,
    CompletionBody,
    StreamOptions,
    TextCompletion,
    TextCompletionChunk,
)
from router.http.schema import Schema
from tests.router.http.harness import housing
from tests.router.http.openai.asking import (
    CHAT,
    COMPLETIONS,
    HI,
    PROMPT,
    post,
    saying_after_hi,
    stream,
)

PAGE = Path(__file__).parents[4] / "docs" / "openai.md"


@pytest.mark.parametrize(
    "name",
    sorted({*ChatBody.model_fields, *CompletionBody.model_fields}),
)
def test_every_field_is_documented(name: str) -> None:
    assert f"`{name}`" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("schema", "place"), [(StreamOptions, "stream_options")])
def test_every_option_is_documented(schema: type[Schema], place: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in schema.model_fields:
        assert f"`{place}.{name}`" in text


OPTIONS = {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 2, "return_token_ids": True, "service_tier": "auto"},
        {"logprobs": True, "top_logprobs": 2},
    ],
)
@pytest.mark.parametrize("options", [None, OPTIONS, {"include_usage": True}])
async def test_chats_answer_what_the_document_says(fields: Any, options: Any) -> None:
    async with housing(saying_after_hi("a🙂")) as house:
        answer = await post(house, CHAT, {"messages": HI, "prompt_logprobs": 1, **fields})
        chunks = await stream(house, CHAT, {"messages": HI, "stream_options": options, **fields})

    ChatCompletion.model_validate(answer, strict=True)
    assert chunks
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"n": 2, "return_token_ids": True, "echo": True},
        {"logprobs": 2, "echo": True},
        {"logprobs": 0},
        {"echo": True, "max_tokens": 0, "logprobs": 1},
    ],
)
@pytest.mark.parametrize("options", [None, OPTIONS])
async def test_completions_answer_what_the_document_says(fields: Any, options: Any) -> None:
    streamed = {"prompt": PROMPT, "stream_options": options, **fields}
    async with housing(saying_after_hi("a🙂")) as house:
        answer = await post(house, COMPLETIONS, {"prompt": PROMPT, "prompt_logprobs": 1, **fields})
        chunks = await stream(house, COMPLETIONS, streamed)

    TextCompletion.model_validate(answer, strict=True)
    assert chunks
    for chunk in chunks:
        TextCompletionChunk.model_validate(chunk, strict=True)
