"""Clients whose model is loaded for them: streams that wait for it, and failed loads."""

import json
import time
import urllib.request
from typing import Any

import openai
import pytest
from huggingface_hub import InferenceClient

from tests.conformance.serving import Served, get

HELLO: Any = [{"role": "user", "content": "Hello"}]


@pytest.fixture(autouse=True)
def unloaded(front: Served) -> None:
    """Nothing is in memory, so that the next request waits for a load."""
    deadline_s = time.monotonic() + 30
    while any(card["state"] != "absent" for card in cards(front) if card["id"] == "demo"):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def cards(front: Served) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(get(f"{front.openai_url}/models"))["data"]
    return listed


def test_a_stream_waits_until_its_model_is_there(front: Served) -> None:
    asked = {"model": "demo", "inputs": "Once", "parameters": {"max_new_tokens": 3}}
    request = urllib.request.Request(
        f"{front.url}/generate_stream",
        json.dumps(asked).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        lines = [line for line in answer if line.strip()]
    assert [line[:5] for line in lines] == [b"data:"] * 3


def test_openai_streams_whole_and_streamed_alike(front: Served) -> None:
    client = openai.OpenAI(base_url=front.openai_url, api_key="none", max_retries=0)
    asked: Any = {"model": "demo", "messages": HELLO, "max_tokens": 4, "temperature": 0}
    parts = list(client.chat.completions.create(stream=True, **asked))
    streamed = "".join(part.choices[0].delta.content or "" for part in parts)
    whole = client.chat.completions.create(**asked)
    assert streamed == whole.choices[0].message.content


def test_huggingface_hub_streams_chats(front: Served) -> None:
    client = InferenceClient(front.url)
    parts = client.chat_completion(HELLO, model="demo", max_tokens=3, stream=True)
    assert len([part for part in parts if part.choices[0].delta.content]) == 3


def test_a_failed_load_is_an_exception_of_each_client(front: Served) -> None:
    client = openai.OpenAI(base_url=front.openai_url, api_key="none", max_retries=0)
    asked: Any = {"model": "broken", "messages": HELLO, "max_tokens": 1}
    with pytest.raises(openai.APIError, match="'broken' could not be loaded"):
        list(client.chat.completions.create(stream=True, **asked))
    with pytest.raises(openai.InternalServerError, match="'broken' could not be loaded"):
        client.chat.completions.create(**asked)
    with pytest.raises(Exception, match="'broken' could not be loaded"):
        list(InferenceClient(front.url).chat_completion(HELLO, model="broken", stream=True))
