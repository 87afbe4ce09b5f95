"""openai's exceptions, its retries and its patience, provoked on a router over a fake shard."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from tests.conformance.serving import Fake, faked, occupied

HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def narrow_router() -> Iterator[Fake]:
    with faked("--max-concurrent-requests", "1") as fake:
        yield fake


@pytest.fixture
def narrow(narrow_router: Fake) -> Iterator[Fake]:
    """A router that takes one request at a time."""
    yield narrow_router
    narrow_router.order()


def client_of(fake: Fake, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(**{"base_url": fake.openai_url, "api_key": "any", **options})


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 3}, "top_p"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": -5}, "max_completion_tokens"),
        ({"frequency_penalty": 9}, "frequency_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"messages": []}, "messages"),
        ({"max_tokens": 100_000}, "max_tokens"),
    ],
    ids=lambda told: told if isinstance(told, str) else "",
)
def test_a_bad_parameter_is_named(fake: Fake, body: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client_of(fake).chat.completions.create(**{"model": fake.model, "messages": HELLO, **body})
    error = refused.value
    assert error.status_code == 400
    assert error.type == "invalid_request_error"
    assert error.param == param
    assert f"`{param}`" in error.message
    assert error.request_id


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"response_format": {"type": "structural_tag"}}, "response_format.type"),
        ({"tools": [{"type": "custom", "custom": {"name": "look"}}]}, "tools[0]"),
        ({"modalities": ["audio"]}, "modalities"),
    ],
    ids=["response_format", "tools", "modalities"],
)
def test_what_is_not_served_is_refused_by_name(
    fake: Fake, body: dict[str, Any], param: str
) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        client_of(fake).chat.completions.create(**{"model": fake.model, "messages": HELLO, **body})
    assert refused.value.code == "unserved"
    assert (refused.value.param or "").startswith(param)


@pytest.mark.parametrize(
    "chosen",
    [{"extra_body": {"max_time": 1.5}}, {"extra_headers": {"x-request-timeout": "1.5"}}],
    ids=["max_time", "x-request-timeout"],
)
def test_a_deadline_ends_an_answer_with_what_there_is(fake: Fake, chosen: Any) -> None:
    fake.order(delay_s=0.1)
    choice = (
        client_of(fake)
        .completions.create(model=fake.model, prompt="Hello", max_tokens=100, **chosen)
        .choices[0]
    )
    assert 0 < len(choice.text) < 100
    assert str(choice.finish_reason) == "deadline"


def test_another_model_is_not_found(fake: Fake) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        client_of(fake).chat.completions.create(model="gpt-4o", messages=HELLO)
    assert refused.value.code == "model_not_found"
    assert "gpt-4o" in refused.value.message
    with pytest.raises(openai.NotFoundError):
        client_of(fake).models.retrieve("gpt-4o")


def test_a_route_that_is_not_there_is_not_found(fake: Fake) -> None:
    with pytest.raises(openai.NotFoundError):
        client_of(fake).embeddings.create(model=fake.model, input="x")


def test_too_many_requests_raise_a_rate_limit_error_that_says_when_to_come_back(
    narrow: Fake,
) -> None:
    narrow.order(delay_s=0.05)
    with occupied(narrow), pytest.raises(openai.RateLimitError) as refused:
        client_of(narrow, max_retries=0).chat.completions.create(
            model=narrow.model, messages=HELLO, max_tokens=1
        )
    assert refused.value.status_code == 429
    assert int(refused.value.response.headers["retry-after"]) >= 1


def test_the_client_comes_back_when_it_was_told_to_and_is_served(narrow: Fake) -> None:
    narrow.order(delay_s=0.05)
    sent_s: list[float] = []
    told_s: list[float] = []

    def on_request(request: httpx2.Request) -> None:
        sent_s.append(time.monotonic())

    def on_response(response: httpx2.Response) -> None:
        if response.status_code == 429:
            told_s.append(_seconds_to_wait(response))

    hooks: Any = {"request": [on_request], "response": [on_response]}
    with (
        openai.DefaultHttpxClient(event_hooks=hooks) as http_client,
        occupied(narrow, num_tokens=40),
    ):
        answer = client_of(narrow, max_retries=8, http_client=http_client).completions.create(
            model=narrow.model, prompt="Hello", max_tokens=2, extra_body={"ignore_eos": True}
        )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2
    assert told_s, "the first try was to be refused"
    assert len(sent_s) == len(told_s) + 1
    for number, wait_s in enumerate(told_s):
        assert wait_s <= sent_s[number + 1] - sent_s[number]


def test_retries_that_are_all_refused_end_in_the_error(narrow: Fake) -> None:
    narrow.order(delay_s=0.2)
    tries: list[int] = []
    hooks: Any = {"response": [lambda response: tries.append(response.status_code)]}
    with (
        openai.DefaultHttpxClient(event_hooks=hooks) as http_client,
        occupied(narrow, num_tokens=400),
        pytest.raises(openai.RateLimitError),
    ):
        client_of(narrow, max_retries=1, http_client=http_client).completions.create(
            model=narrow.model, prompt="Hello"
        )
    assert tries == [429, 429]


def test_a_failed_step_is_an_internal_server_error(fake: Fake) -> None:
    fake.order(row_error="the logits are not numbers")
    with pytest.raises(openai.InternalServerError) as failed:
        client_of(fake, max_retries=0).completions.create(model=fake.model, prompt="Hello")
    assert failed.value.status_code == 500
    assert "the logits are not numbers" in failed.value.message


def test_a_failure_amid_a_stream_raises_after_what_was_said(fake: Fake) -> None:
    fake.order(delay_s=0.05)
    stream = client_of(fake, max_retries=0).completions.create(
        model=fake.model,
        prompt="Hello",
        max_tokens=200,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    said = [next(stream).choices[0].text for _ in range(2)]
    fake.order(row_error="the logits are not numbers")
    with pytest.raises(openai.APIError, match="the logits are not numbers"):
        said += [chunk.choices[0].text for chunk in stream]
    assert 2 <= len("".join(said)) < 200


def test_a_stream_that_is_cut_does_not_end_as_if_it_were_whole() -> None:
    with faked() as fake:
        fake.order(delay_s=0.05)
        stream = client_of(fake, max_retries=0).completions.create(
            model=fake.model,
            prompt="Hello",
            max_tokens=200,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(stream)
        fake.kill()
        with pytest.raises((openai.APIConnectionError, httpx2.RemoteProtocolError)):
            list(stream)


def test_a_server_that_is_gone_is_a_connection_error() -> None:
    with faked() as fake:
        fake.kill()
        with pytest.raises(openai.APIConnectionError):
            client_of(fake, max_retries=0).models.list()


def test_impatience_is_a_timeout_error_and_gives_the_place_back(narrow: Fake) -> None:
    narrow.order(delay_s=0.3)
    client = client_of(narrow, max_retries=0)
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(model=narrow.model, prompt="Hello", max_tokens=100, timeout=0.5)
    narrow.order()
    assert _served_within(client, narrow, 20.0)


def test_a_stream_that_is_closed_early_gives_its_place_back(narrow: Fake) -> None:
    narrow.order(delay_s=0.05)
    client = client_of(narrow, max_retries=0)
    with client.completions.create(
        model=narrow.model, prompt="Hello", max_tokens=300, stream=True
    ) as stream:
        next(stream)
    assert _served_within(client, narrow, 20.0)


async def test_the_asynchronous_client_raises_and_retries_alike(narrow: Fake) -> None:
    narrow.order(delay_s=0.05)
    begun, release = threading.Event(), threading.Event()
    occupying = asyncio.create_task(asyncio.to_thread(_occupy, narrow, begun, release))
    async with openai.AsyncOpenAI(base_url=narrow.openai_url, api_key="any") as client:
        assert await asyncio.to_thread(begun.wait, 30)
        with pytest.raises(openai.RateLimitError):
            await client.with_options(max_retries=0).completions.create(
                model=narrow.model, prompt="Hello"
            )
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model=narrow.model, prompt="Hello", temperature=-1)
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="gpt-4o", prompt="Hello")
        release.set()
        await occupying
        answer = await client.with_options(max_retries=8).completions.create(
            model=narrow.model, prompt="Hello", max_tokens=1
        )
        assert answer.choices


def _occupy(fake: Fake, begun: threading.Event, release: threading.Event) -> None:
    with occupied(fake, num_tokens=400):
        begun.set()
        release.wait(30)


def _seconds_to_wait(response: httpx2.Response) -> float:
    if "retry-after-ms" in response.headers:
        return float(response.headers["retry-after-ms"]) / 1000
    return float(response.headers["retry-after"])


def _served_within(client: openai.OpenAI, fake: Fake, seconds: float) -> bool:
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        try:
            client.completions.create(model=fake.model, prompt="Hi", max_tokens=1)
        except openai.RateLimitError:
            time.sleep(0.05)
        else:
            return True
    return False
