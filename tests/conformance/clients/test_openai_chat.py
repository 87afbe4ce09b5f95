"""openai's package against /v1/chat/completions: what it says must be true of the answer."""

import math
from collections.abc import Iterable
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.conformance.serving import Served

QUESTION: Any = [{"role": "user", "content": "Where does Doric Caldman live?"}]
STORY: Any = [{"role": "user", "content": "Tell me a story about a fox."}]

VARIANTS: list[Any] = [
    pytest.param({"temperature": 0}, id="greedy"),
    pytest.param({"temperature": 0.9, "seed": 11}, id="seeded"),
    pytest.param({"temperature": 0.9, "seed": 12, "top_p": 0.8}, id="top_p"),
    pytest.param({"temperature": 0, "stop": [" fox", "the"]}, id="stop strings"),
    pytest.param({"temperature": 0, "stop": "."}, id="one stop string"),
    pytest.param({"temperature": 0, "presence_penalty": 1.5}, id="presence_penalty"),
    pytest.param({"temperature": 0, "frequency_penalty": 0.7}, id="frequency_penalty"),
    pytest.param({"temperature": 0, "logit_bias": {"300": -100, "301": 5}}, id="logit_bias"),
    pytest.param({"temperature": 0, "logprobs": True, "top_logprobs": 3}, id="logprobs"),
    pytest.param({"temperature": 0.8, "seed": 5, "n": 3}, id="n"),
    pytest.param({"temperature": 0, "user": "somebody"}, id="user"),
    pytest.param({"temperature": 0, "extra_body": {"min_tokens": 20}}, id="min_tokens"),
    pytest.param({"temperature": 0.8, "seed": 3, "extra_body": {"top_k": 5}}, id="top_k"),
    pytest.param({"temperature": 0.8, "seed": 3, "extra_body": {"min_p": 0.1}}, id="min_p"),
    pytest.param({"temperature": 0, "extra_body": {"ignore_eos": True}}, id="ignore_eos"),
]


@pytest.fixture
def client(served: Served) -> Iterable[openai.OpenAI]:
    with openai.OpenAI(base_url=served.openai_url, api_key="any", max_retries=0) as client:
        yield client


def joined(chunks: Iterable[ChatCompletionChunk]) -> dict[int, str]:
    """The text of each choice of a stream."""
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    return texts


def texts_of(answer: ChatCompletion) -> dict[int, str]:
    return {choice.index: choice.message.content or "" for choice in answer.choices}


def test_an_answer_has_text_an_end_and_a_usage_that_adds_up(
    client: openai.OpenAI, served: Served
) -> None:
    answer = client.chat.completions.create(model=served.model, messages=QUESTION, temperature=0)
    choice = answer.choices[0]
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == served.model
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("variant", VARIANTS)
def test_streamed_text_is_the_text_of_the_whole_answer(
    client: openai.OpenAI, served: Served, variant: dict[str, Any]
) -> None:
    asked = {"model": served.model, "messages": STORY, "max_tokens": 40, **variant}
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    assert joined(chunks) == texts_of(whole)
    assert len(texts_of(whole)) == variant.get("n", 1)
    ends = {c.index: c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason}
    assert ends == {choice.index: choice.finish_reason for choice in whole.choices}
    *before, last = chunks
    assert last.choices == []
    assert last.usage is not None
    assert whole.usage is not None
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens
    assert last.usage.completion_tokens == whole.usage.completion_tokens
    assert {chunk.usage for chunk in before} == {None}
    assert {(chunk.id, chunk.object, chunk.model) for chunk in chunks} == {
        (last.id, "chat.completion.chunk", served.model)
    }


def test_the_stream_helper_gathers_the_whole_answer(client: openai.OpenAI, served: Served) -> None:
    whole = client.chat.completions.create(model=served.model, messages=QUESTION, temperature=0)
    with client.chat.completions.stream(
        model=served.model, messages=QUESTION, temperature=0
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == "stop"


def test_logprobs_are_finite_ranked_and_spell_the_text(
    client: openai.OpenAI, served: Served
) -> None:
    answer = client.chat.completions.create(
        model=served.model,
        messages=STORY,
        temperature=0,
        max_tokens=24,
        logprobs=True,
        top_logprobs=4,
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    tokens = choice.logprobs.content
    assert tokens is not None
    assert answer.usage is not None
    assert len(tokens) == answer.usage.completion_tokens == 24
    assert b"".join(bytes(token.bytes or ()) for token in tokens).decode() == choice.message.content
    for token in tokens:
        ranked = [top.logprob for top in token.top_logprobs]
        assert len(ranked) == 4
        assert ranked == sorted(ranked, reverse=True)
        assert token.top_logprobs[0].token == token.token
        assert token.top_logprobs[0].logprob == token.logprob
        assert all(math.isfinite(logprob) and logprob <= 0 for logprob in ranked)
        assert sum(math.exp(logprob) for logprob in ranked) <= 1 + 1e-5


def test_streamed_logprobs_are_those_of_the_whole_answer(
    client: openai.OpenAI, served: Served
) -> None:
    asked: Any = {"model": served.model, "messages": STORY, "temperature": 0, "max_tokens": 12}
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    chunks = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2, stream=True)
    streamed = [
        token
        for chunk in chunks
        for choice in chunk.choices
        if choice.logprobs is not None
        for token in choice.logprobs.content or ()
    ]
    assert whole.choices[0].logprobs is not None
    expected = whole.choices[0].logprobs.content
    assert expected is not None
    assert [token.token for token in streamed] == [token.token for token in expected]
    assert [token.bytes for token in streamed] == [token.bytes for token in expected]
    assert [token.logprob for token in streamed] == pytest.approx(
        [token.logprob for token in expected], abs=1e-4
    )


def test_choices_differ_and_are_all_counted(client: openai.OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(
        model=served.model,
        messages=STORY,
        temperature=1.0,
        seed=1,
        n=4,
        max_tokens=16,
        logprobs=True,
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in answer.choices}) > 1
    lengths = [len(choice.logprobs.content or ()) for choice in answer.choices if choice.logprobs]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(lengths)


def test_a_seed_brings_the_same_answer_again(client: openai.OpenAI, served: Served) -> None:
    texts = {
        client.chat.completions.create(
            model=served.model, messages=STORY, temperature=1.2, seed=42, max_tokens=30
        )
        .choices[0]
        .message.content
        for _ in range(3)
    }
    assert len(texts) == 1


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_an_answer_ends_at_its_bound(client: openai.OpenAI, served: Served, name: str) -> None:
    bound: Any = {name: 5}
    answer = client.chat.completions.create(
        model=served.model, messages=STORY, temperature=0, **bound
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


def test_a_stop_string_ends_the_answer_and_is_left_out(
    client: openai.OpenAI, served: Served
) -> None:
    asked: Any = {"model": served.model, "messages": STORY, "temperature": 0, "max_tokens": 40}
    free = client.chat.completions.create(**asked).choices[0].message.content
    assert free is not None
    stop = free[10:14]
    stopped = client.chat.completions.create(**asked, stop=stop).choices[0]
    assert stopped.message.content == free[: free.index(stop)]
    assert stopped.finish_reason == "stop"


def test_a_prompt_that_came_before_is_found_in_the_cache(
    client: openai.OpenAI, served: Served
) -> None:
    long: Any = [{"role": "user", "content": "Tell me a story about a fox. " * 12}]
    cached = []
    for _ in range(2):
        usage = client.chat.completions.create(
            model=served.model, messages=long, temperature=0, max_tokens=2
        ).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached.append(usage.prompt_tokens_details.cached_tokens or 0)
        assert cached[-1] < usage.prompt_tokens
    assert cached[1] > 0


def test_parts_of_text_are_one_message(client: openai.OpenAI, served: Served) -> None:
    parts: Any = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Where does "},
                {"type": "text", "text": "Doric Caldman live?"},
            ],
        }
    ]
    asked: Any = {"model": served.model, "temperature": 0}
    in_parts = client.chat.completions.create(**asked, messages=parts)
    at_once = client.chat.completions.create(**asked, messages=QUESTION)
    assert texts_of(in_parts) == texts_of(at_once)


def test_the_raw_response_carries_what_was_measured(client: openai.OpenAI, served: Served) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model=served.model,
        messages=QUESTION,
        temperature=0,
        extra_headers={"x-request-id": "mine-1"},
    )
    answer = raw.parse()
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.headers["content-type"] == "application/json"
    assert answer._request_id == "mine-1"
    assert answer.usage is not None
    assert int(raw.headers["x-prompt-tokens"]) == answer.usage.prompt_tokens
    assert int(raw.headers["x-generated-tokens"]) == answer.usage.completion_tokens
    assert float(raw.headers["x-compute-time"]) > 0


def test_the_model_is_listed_once_and_found_by_its_path_too(
    client: openai.OpenAI, served: Served
) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    for name in ("demo", served.model):
        found = client.models.retrieve(name)
        assert (found.id, found.object) == ("demo", "model")


async def test_the_asynchronous_client_sees_the_same(served: Served) -> None:
    async with openai.AsyncOpenAI(base_url=served.openai_url, api_key="any") as client:
        asked: Any = {"model": served.model, "messages": STORY, "temperature": 0, "max_tokens": 30}
        whole = await client.chat.completions.create(**asked)
        stream = await client.chat.completions.create(**asked, stream=True)
        assert joined([chunk async for chunk in stream]) == texts_of(whole)
        async with client.chat.completions.stream(
            model=served.model, messages=QUESTION, temperature=0
        ) as gathering:
            kinds = {event.type async for event in gathering}
            final = await gathering.get_final_completion()
        assert "content.done" in kinds
        assert final.choices[0].finish_reason == "stop"
        listed = [model.id async for model in client.models.list()]
        assert listed == ["demo"]
