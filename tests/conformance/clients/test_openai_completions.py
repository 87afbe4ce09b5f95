"""openai's package against /v1/completions: prompts of every kind, echo, logprobs, choices."""

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import openai
import pytest
from openai.types import Completion

from tests.conformance.serving import Served, post

PROMPT = "Once there was"
OTHER = "The weather was"


@pytest.fixture
def client(served: Served) -> Iterable[openai.OpenAI]:
    with openai.OpenAI(base_url=served.openai_url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def asked(served: Served) -> Any:
    return {"model": served.model, "temperature": 0, "max_tokens": 16}


def ids_of(served: Served, text: str) -> list[int]:
    return [token["id"] for token in post(f"{served.url}/tokenize", {"inputs": text})]


def texts_of(answer: Completion) -> list[str]:
    assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
    return [choice.text for choice in answer.choices]


def joined(chunks: Iterable[Completion], num_choices: int) -> list[str]:
    texts = [""] * num_choices
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    return texts


def test_an_answer_has_text_an_end_and_a_usage_that_adds_up(
    client: openai.OpenAI, served: Served, asked: Any
) -> None:
    answer = client.completions.create(prompt=PROMPT, **asked)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    assert answer.usage.prompt_tokens == len(ids_of(served, PROMPT))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 16


def test_a_prompt_says_the_same_as_text_and_as_ids_alone_and_in_lists(
    client: openai.OpenAI, served: Served, asked: Any
) -> None:
    ids, other_ids = ids_of(served, PROMPT), ids_of(served, OTHER)
    text, other_text = (
        texts_of(client.completions.create(prompt=prompt, **asked))[0] for prompt in (PROMPT, OTHER)
    )
    assert texts_of(client.completions.create(prompt=ids, **asked)) == [text]
    pair = client.completions.create(prompt=[PROMPT, OTHER], **asked)
    pair_of_ids = client.completions.create(prompt=[ids, other_ids], **asked)
    assert texts_of(pair) == [text, other_text]
    assert texts_of(pair_of_ids) == [text, other_text]
    assert pair.usage is not None
    assert pair.usage.prompt_tokens == len(ids) + len(other_ids)
    assert pair.usage.completion_tokens == 32


def test_choices_of_several_prompts_come_prompt_by_prompt(
    client: openai.OpenAI, served: Served
) -> None:
    asked: Any = {"model": served.model, "temperature": 1.0, "max_tokens": 12, "seed": 9}
    answer = client.completions.create(prompt=[PROMPT, OTHER], n=2, echo=True, **asked)
    texts = texts_of(answer)
    assert [text.startswith(PROMPT) for text in texts] == [True, True, False, False]
    assert [text.startswith(OTHER) for text in texts] == [False, False, True, True]
    assert len(set(texts)) == 4
    chunks = client.completions.create(prompt=[PROMPT, OTHER], n=2, echo=True, stream=True, **asked)
    assert joined(chunks, 4) == texts


def test_of_best_of_the_likeliest_are_kept(client: openai.OpenAI, served: Served) -> None:
    asked: Any = {"model": served.model, "temperature": 1.0, "max_tokens": 8, "seed": 2}
    drawn = client.completions.create(prompt=PROMPT, n=2, logprobs=0, **asked)
    best = client.completions.create(prompt=PROMPT, best_of=2, n=1, logprobs=0, **asked)
    means = {}
    for choice in drawn.choices:
        assert choice.logprobs is not None
        logprobs = [value or 0.0 for value in choice.logprobs.token_logprobs or ()]
        means[choice.text] = sum(logprobs) / len(logprobs)
    assert best.choices[0].text == max(means, key=lambda text: means[text])
    assert best.usage is not None
    assert best.usage.completion_tokens == 16


def test_logprobs_are_finite_and_their_tokens_spell_the_text(
    client: openai.OpenAI, asked: Any
) -> None:
    choice = client.completions.create(prompt=PROMPT, logprobs=3, **asked).choices[0]
    told = choice.logprobs
    assert told is not None
    assert told.tokens is not None
    assert told.token_logprobs is not None
    assert told.top_logprobs is not None
    assert told.text_offset is not None
    assert "".join(told.tokens) == choice.text
    assert len(told.token_logprobs) == len(told.tokens) == len(told.text_offset) == 16
    for token, logprob, top in zip(
        told.tokens, told.token_logprobs, told.top_logprobs, strict=True
    ):
        assert logprob is not None
        assert math.isfinite(logprob)
        assert top[token] == logprob == max(top.values())
        assert 3 <= len(top) <= 4
    starts = [*told.text_offset, len(choice.text)]
    for (start, end), token in zip(pairwise(starts), told.tokens, strict=True):
        assert choice.text[start:end] == token


def test_an_echoed_prompt_is_scored_like_text_that_the_model_wrote(
    client: openai.OpenAI, asked: Any
) -> None:
    written = client.completions.create(prompt=PROMPT, logprobs=2, **asked).choices[0]
    scored = client.completions.create(
        prompt=PROMPT + written.text, logprobs=2, echo=True, **{**asked, "max_tokens": 0}
    )
    choice = scored.choices[0]
    assert choice.text == PROMPT + written.text
    assert choice.logprobs is not None
    assert written.logprobs is not None
    logprobs, expected = choice.logprobs.token_logprobs, written.logprobs.token_logprobs
    assert logprobs is not None
    assert expected is not None
    assert logprobs[0] is None
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == choice.text
    assert scored.usage is not None
    assert scored.usage.prompt_tokens == len(logprobs)
    if len(logprobs) > len(expected):
        assert logprobs[-len(expected) :] == pytest.approx(expected, abs=1e-3)


def test_echo_without_logprobs_is_prompt_and_answer(client: openai.OpenAI, asked: Any) -> None:
    plain = client.completions.create(prompt=PROMPT, **asked)
    echoed = client.completions.create(prompt=PROMPT, echo=True, **asked)
    assert texts_of(echoed) == [PROMPT + texts_of(plain)[0]]
    assert echoed.usage is not None
    assert plain.usage is not None
    assert echoed.usage.completion_tokens == plain.usage.completion_tokens


@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize("echo", [False, True])
def test_streamed_text_is_the_text_of_the_whole_answer(
    client: openai.OpenAI, asked: Any, echo: bool, logprobs: int | None
) -> None:
    whole = client.completions.create(prompt=PROMPT, echo=echo, logprobs=logprobs, **asked)
    chunks = list(
        client.completions.create(
            prompt=PROMPT,
            echo=echo,
            logprobs=logprobs,
            stream=True,
            stream_options={"include_usage": True},
            **asked,
        )
    )
    assert joined(chunks, 1) == texts_of(whole)
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    ends = [c.finish_reason for chunk in chunks for c in chunk.choices if c.finish_reason]
    assert ends == ["length"]
    if logprobs is not None:
        streamed = [
            token
            for chunk in chunks
            for choice in chunk.choices
            if choice.logprobs is not None
            for token in choice.logprobs.tokens or ()
        ]
        assert whole.choices[0].logprobs is not None
        assert streamed == whole.choices[0].logprobs.tokens


def test_a_suffix_is_refused_by_name(client: openai.OpenAI, asked: Any) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        client.completions.create(prompt=PROMPT, suffix=" the end", **asked)
    assert (refused.value.param, refused.value.code) == ("suffix", "unserved")


async def test_the_asynchronous_client_sees_the_same(served: Served, asked: Any) -> None:
    async with openai.AsyncOpenAI(base_url=served.openai_url, api_key="any") as client:
        whole = await client.completions.create(prompt=PROMPT, **asked)
        stream = await client.completions.create(prompt=PROMPT, stream=True, **asked)
        assert joined([chunk async for chunk in stream], 1) == texts_of(whole)
