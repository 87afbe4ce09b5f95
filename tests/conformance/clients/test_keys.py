"""Every client with a key that is wrong, and with one that is right."""

from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError, UnknownError
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.conformance.serving import Fake, faked

KEY = "one-of-two"
HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def locked() -> Iterator[Fake]:
    with faked("--api-key", KEY, "--api-key", "the-other") as fake:
        yield fake


@pytest.mark.parametrize("key", [KEY, "the-other"])
def test_openai_is_let_in_with_either_key(locked: Fake, key: str) -> None:
    client = openai.OpenAI(base_url=locked.openai_url, api_key=key, max_retries=0)
    answer = client.chat.completions.create(model=locked.model, messages=HELLO, max_tokens=2)
    assert answer.choices[0].message.content


def test_openai_without_a_key_that_fits_gets_an_authentication_error(locked: Fake) -> None:
    client = openai.OpenAI(base_url=locked.openai_url, api_key="wrong", max_retries=0)
    calls: list[Callable[[], object]] = [
        lambda: client.chat.completions.create(model=locked.model, messages=HELLO),
        lambda: client.completions.create(model=locked.model, prompt="Hello"),
        lambda: client.models.list(),
        lambda: client.responses.create(model=locked.model, input="Hello"),
    ]
    for call in calls:
        with pytest.raises(openai.AuthenticationError) as refused:
            call()
        assert refused.value.status_code == 401
        assert refused.value.response.headers["www-authenticate"].startswith("Bearer")


async def test_openai_asynchronously_gets_the_same_error(locked: Fake) -> None:
    async with openai.AsyncOpenAI(base_url=locked.openai_url, api_key="wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.completions.create(model=locked.model, prompt="Hello")


def test_langchain_gets_openais_error(locked: Fake) -> None:
    def chat(key: str) -> ChatOpenAI:
        return ChatOpenAI(
            base_url=locked.openai_url, api_key=SecretStr(key), model=locked.model, max_tokens=2
        )

    assert chat(KEY).invoke("Hello").text
    with pytest.raises(openai.AuthenticationError):
        chat("wrong").invoke("Hello")


def test_anthropic_is_let_in_by_its_own_header_and_by_the_other(locked: Fake) -> None:
    asked: Any = {"model": locked.model, "messages": HELLO, "max_tokens": 2}
    by_key = anthropic.Anthropic(base_url=locked.url, api_key=KEY)
    by_token = anthropic.Anthropic(base_url=locked.url, auth_token=KEY)
    for client in (by_key, by_token):
        assert client.messages.create(**asked).usage.output_tokens == 2
    with pytest.raises(anthropic.AuthenticationError) as refused:
        anthropic.Anthropic(base_url=locked.url, api_key="wrong").messages.create(**asked)
    assert refused.value.type == "authentication_error"


def test_the_hubs_client_is_let_in_and_refused(locked: Fake) -> None:
    client = InferenceClient(model=locked.url, token=KEY)
    assert client.text_generation("Hello", max_new_tokens=2, return_full_text=False)
    assert client.chat_completion(HELLO, max_tokens=2).choices[0].message.content
    stranger = InferenceClient(model=locked.url, token="wrong")
    with pytest.raises(UnknownError, match="API key"):
        stranger.text_generation("Hello")
    with pytest.raises(HfHubHTTPError, match="API key") as refused:
        stranger.chat_completion(HELLO)
    assert refused.value.response.status_code == 401
