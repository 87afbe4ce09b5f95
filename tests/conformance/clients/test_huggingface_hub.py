"""huggingface_hub's InferenceClient: text_generation with each of its parameters, alone and beside
the next one, and chat."""

import math
import os
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import (
    GenerationError,
    HfHubHTTPError,
    IncompleteGenerationError,
    InferenceTimeoutError,
    OverloadedError,
    UnknownError,
    ValidationError,
)

from tests.conformance.serving import Fake, Served, faked, occupied, post

PROMPT = "Once there was a fox"
QUESTION = [{"role": "user", "content": "Where does Doric Caldman live?"}]

# Every parameter that text_generation has, with a value that changes what it does.
OPTIONS: dict[str, Any] = {
    "do_sample": True,
    "temperature": 0.8,
    "top_k": 20,
    "top_p": 0.9,
    "typical_p": 0.9,
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.5,
    "return_full_text": True,
    "stop": [" the"],
    "truncate": 3,
    "top_n_tokens": 3,
    "watermark": True,
    "max_new_tokens": 6,
}
PAIRS = [{}, *({name: value} for name, value in OPTIONS.items())] + [
    dict(pair) for pair in pairwise(OPTIONS.items())
]


@pytest.fixture(scope="module", autouse=True)
def _online() -> Iterator[None]:
    # In its offline mode the client refuses to speak to the loopback, too.
    before = os.environ.pop("HF_HUB_OFFLINE", None)
    yield
    if before is not None:
        os.environ["HF_HUB_OFFLINE"] = before


@pytest.fixture
def client(served: Served) -> InferenceClient:
    return InferenceClient(model=served.url)


def asked(chosen: dict[str, Any]) -> dict[str, Any]:
    return {"max_new_tokens": 10, "seed": 17, "return_full_text": False, **chosen}


@pytest.mark.parametrize("chosen", PAIRS, ids=lambda chosen: "+".join(chosen) or "defaults")
def test_text_is_the_same_with_and_without_details_streamed_or_not(
    client: InferenceClient, chosen: dict[str, Any]
) -> None:
    wanted = asked(chosen)
    text = client.text_generation(PROMPT, **wanted)
    detailed = client.text_generation(PROMPT, details=True, **wanted)
    streamed = list(client.text_generation(PROMPT, stream=True, **wanted))
    events = list(client.text_generation(PROMPT, stream=True, details=True, **wanted))

    assert isinstance(text, str)
    assert detailed.generated_text == text
    assert events[-1].generated_text == text
    assert text.startswith(PROMPT) == wanted["return_full_text"]

    details = detailed.details
    assert details is not None
    assert details.generated_tokens == len(details.tokens) == len(events) == len(streamed)
    assert details.generated_tokens <= wanted["max_new_tokens"]
    assert [event.token.id for event in events] == [token.id for token in details.tokens]
    assert [event.token.text for event in events] == streamed
    assert [event.index for event in events] == list(range(1, len(events) + 1))
    assert all(token.logprob <= 0 and math.isfinite(token.logprob) for token in details.tokens)
    prefix = PROMPT if wanted["return_full_text"] else ""
    visible = "".join(token.text for token in details.tokens if not token.special)
    assert prefix + visible == text

    last = events[-1].details
    assert last is not None
    assert last.finish_reason == details.finish_reason
    assert last.generated_tokens == details.generated_tokens
    assert last.input_length > 0
    if "truncate" in chosen:
        assert last.input_length == 3
    if "top_n_tokens" in chosen:
        # Tokens that a filter has ruled out have no logprob to tell.
        fewest = 1 if {"top_k", "top_p", "typical_p"} & set(chosen) else 3
        tops = details.top_tokens or []
        assert len(tops) == len(events)
        assert all(fewest <= len(top) <= 3 for top in tops)
    if details.finish_reason == "stop_sequence":
        assert text.endswith(" the")
    elif details.finish_reason == "length":
        assert details.generated_tokens == wanted["max_new_tokens"]


def test_a_prompt_is_scored_token_by_token(client: InferenceClient, served: Served) -> None:
    answer = client.text_generation(
        PROMPT, details=True, decoder_input_details=True, max_new_tokens=2
    )
    assert answer.details is not None
    # The client's types do not know that the first token has no logprob.
    prefill: Any = answer.details.prefill
    spans = post(f"{served.url}/tokenize", {"inputs": PROMPT})
    assert [token.id for token in prefill] == [span["id"] for span in spans]
    assert prefill[0].logprob is None
    assert all(token.logprob < 0 and math.isfinite(token.logprob) for token in prefill[1:])


def test_the_best_of_two_is_answered_with_the_other(client: InferenceClient) -> None:
    answer = client.text_generation(
        PROMPT, details=True, best_of=2, do_sample=True, max_new_tokens=8, return_full_text=False
    )
    assert answer.details is not None
    assert answer.details.best_of_sequences is not None
    (other,) = answer.details.best_of_sequences

    def mean(tokens: Any) -> float:
        return float(sum(token.logprob for token in tokens)) / len(tokens)

    assert mean(answer.details.tokens) >= mean(other.tokens)
    assert other.generated_tokens == len(other.tokens)


def test_without_a_word_about_it_the_prompt_comes_back_too(client: InferenceClient) -> None:
    text = client.text_generation(PROMPT, max_new_tokens=4)
    assert text.startswith(PROMPT)
    assert len(text) > len(PROMPT)


def test_a_chat_is_the_same_streamed_and_whole(client: InferenceClient) -> None:
    whole = client.chat_completion(QUESTION, temperature=0.0, max_tokens=30)
    stream = list(client.chat_completion(QUESTION, temperature=0.0, max_tokens=30, stream=True))
    text = whole.choices[0].message.content
    assert text
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text
    assert stream[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


@pytest.mark.parametrize(
    "chosen",
    [
        {"seed": 3, "temperature": 0.9},
        {"seed": 3, "top_p": 0.5},
        {"temperature": 0.0, "frequency_penalty": 0.5},
        {"temperature": 0.0, "presence_penalty": 0.5},
        {"temperature": 0.0, "stop": ["."]},
        {"temperature": 0.0, "logprobs": True, "top_logprobs": 2},
        {"temperature": 0.9, "seed": 4, "n": 2},
        {"temperature": 0.0, "response_format": {"type": "text"}},
        {"temperature": 0.0, "extra_body": {"min_tokens": 12}},
    ],
    ids=lambda chosen: "+".join(chosen),
)
def test_a_chat_takes_what_the_client_offers(
    client: InferenceClient, chosen: dict[str, Any]
) -> None:
    whole = client.chat_completion(QUESTION, max_tokens=16, **chosen)
    texts = {choice.index: choice.message.content for choice in whole.choices}
    streamed = dict.fromkeys(texts, "")
    for chunk in client.chat_completion(QUESTION, max_tokens=16, stream=True, **chosen):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts
    assert len(texts) == chosen.get("n", 1)


def test_the_alias_of_openai_chats_as_well(served: Served) -> None:
    client = InferenceClient(base_url=served.url)
    answer = client.chat.completions.create(
        model=served.model, messages=QUESTION, temperature=0.0, max_tokens=30
    )
    assert answer.model == served.model
    assert answer.choices[0].message.content


def test_the_operators_calls_know_the_server(served: Served) -> None:
    client = InferenceClient(model=served.url, provider="hf-inference")
    assert client.health_check(served.url)
    info = client.get_endpoint_info(model=served.url)
    assert info["model_id"] == "demo"
    assert info["max_total_tokens"] == 1024


async def test_the_asynchronous_client_sees_the_same(
    client: InferenceClient, served: Served
) -> None:
    async with AsyncInferenceClient(model=served.url) as other:
        wanted = asked({"do_sample": True})
        text = client.text_generation(PROMPT, **wanted)
        assert await other.text_generation(PROMPT, **wanted) == text
        detailed = await other.text_generation(PROMPT, details=True, **wanted)
        assert detailed.generated_text == text
        stream = await other.text_generation(PROMPT, stream=True, **wanted)
        assert "".join([token async for token in stream]) == text
        events = await other.text_generation(PROMPT, stream=True, details=True, **wanted)
        assert [event async for event in events][-1].generated_text == text
        whole = await other.chat_completion(QUESTION, temperature=0.0, max_tokens=20)
        chunks = await other.chat_completion(QUESTION, temperature=0.0, max_tokens=20, stream=True)
        said = [chunk.choices[0].delta.content or "" async for chunk in chunks]
        assert "".join(said) == whole.choices[0].message.content


@pytest.mark.parametrize(
    "chosen",
    [
        {"temperature": -1.0},
        {"top_p": 1.5},
        {"top_k": 0},
        {"max_new_tokens": 0},
        {"repetition_penalty": 0.0},
        {"best_of": 2},
        {"stop": ["a", "b", "c", "d", "e"]},
        {"truncate": 0},
        {"top_n_tokens": 100},
        {"max_new_tokens": 100_000},
        {"adapter_id": "mine"},
        {"grammar": {"type": "regex", "value": "[a-z"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_broken_rule_is_a_validation_error(
    fake: Fake, chosen: dict[str, Any], stream: bool
) -> None:
    client = InferenceClient(model=fake.url)
    (name,) = chosen
    with pytest.raises(ValidationError, match=f"`{name}`"):
        list(client.text_generation("Hello", stream=stream, **chosen))


def test_a_failed_step_is_a_generation_error(fake: Fake) -> None:
    # A client closes its streams when it is collected itself.
    client = InferenceClient(model=fake.url)
    fake.order(row_error="the logits are not numbers")
    with pytest.raises(GenerationError, match="the logits are not numbers"):
        client.text_generation("Hello")
    fake.order(row_error="the logits are not numbers")
    with pytest.raises(GenerationError, match="the logits are not numbers"):
        list(client.text_generation("Hello", stream=True))


def test_a_full_server_is_an_overloaded_error() -> None:
    with faked("--max-concurrent-requests", "1") as fake:
        fake.order(delay_s=0.05)
        with occupied(fake), pytest.raises(OverloadedError):
            InferenceClient(model=fake.url).text_generation("Hello")


def test_a_server_that_stops_amid_an_answer_is_an_incomplete_generation_error() -> None:
    with faked("--graceful-termination-timeout", "0.2") as fake:
        fake.order(delay_s=0.1)
        stopping = threading.Thread(target=fake.stop_amid_an_answer)
        stopping.start()
        with pytest.raises(IncompleteGenerationError):
            InferenceClient(model=fake.url).text_generation("Hello", max_new_tokens=300, stop=["~"])
        stopping.join()


def test_impatience_is_a_timeout_error(fake: Fake) -> None:
    fake.order(delay_s=0.5)
    with pytest.raises(InferenceTimeoutError):
        InferenceClient(model=fake.url, timeout=0.3).text_generation("Hello", max_new_tokens=20)


def test_a_chat_that_the_template_refuses_says_why(served: Served) -> None:
    strange = [{"role": "pirate", "content": "Arr"}]
    with pytest.raises(HfHubHTTPError, match="pirate"):
        InferenceClient(model=served.url).chat_completion(strange)


def test_a_failure_amid_a_chats_stream_raises(fake: Fake) -> None:
    fake.order(delay_s=0.05)
    client = InferenceClient(model=fake.url)
    stream = client.chat_completion(
        [{"role": "user", "content": "Hi"}],
        stream=True,
        max_tokens=50,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    fake.order(row_error="the logits are not numbers")
    with pytest.raises(UnknownError, match="the logits are not numbers"):
        list(stream)
