"""Images as openai, anthropic and huggingface_hub send them, to a tiny model that sees."""

import base64
import os
from typing import Any

import anthropic
import openai
import pytest
from huggingface_hub import InferenceClient

from tests.conformance.images import png
from tests.conformance.serving import Served


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch) -> None:
    # In its offline mode huggingface_hub refuses to speak to the loopback, too.
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert "HF_HUB_OFFLINE" not in os.environ


RED = base64.b64encode(png(255)).decode()
URL = f"data:image/png;base64,{RED}"
OTHER = f"data:image/png;base64,{base64.b64encode(png(20)).decode()}"


def chat(*urls: str) -> Any:
    images = [{"type": "image_url", "image_url": {"url": url, "detail": "auto"}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": "see "}, *images]}]


def test_openais_chats_whole_and_streamed(seeing: Served) -> None:
    client = openai.OpenAI(base_url=seeing.openai_url, api_key="any", max_retries=0)
    options: Any = {"model": seeing.model, "max_tokens": 6, "temperature": 0}
    whole = client.chat.completions.create(messages=chat(URL, OTHER), **options)
    stream = client.chat.completions.create(messages=chat(URL, OTHER), stream=True, **options)
    other = client.chat.completions.create(messages=chat(OTHER, URL), **options)

    said = whole.choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == said
    assert other.choices[0].message.content != said
    assert whole.usage is not None
    # 16 tokens for each image.
    assert whole.usage.prompt_tokens > 32


def test_openais_responses(seeing: Served) -> None:
    client = openai.OpenAI(base_url=seeing.openai_url, api_key="any", max_retries=0)
    image = {"type": "input_image", "image_url": URL, "detail": "auto"}
    given: Any = [{"role": "user", "content": [{"type": "input_text", "text": "see "}, image]}]
    first = client.responses.create(model=seeing.model, input=given, max_output_tokens=4)
    then = client.responses.create(
        model=seeing.model, input="and?", previous_response_id=first.id, max_output_tokens=4
    )

    assert first.usage is not None
    assert then.usage is not None
    assert then.usage.input_tokens > first.usage.input_tokens > 16


def test_openais_error_names_the_place(seeing: Served) -> None:
    client = openai.OpenAI(base_url=seeing.openai_url, api_key="any", max_retries=0)
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(
            model=seeing.model, messages=chat("data:image/png;base64,AAAA")
        )

    assert raised.value.param == "messages[0].content[1].image_url.url"


def test_anthropics_messages_whole_streamed_and_counted(seeing: Served) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": RED}
    image = {"type": "image", "source": source}
    text = {"type": "text", "text": "see"}
    call = {"type": "tool_use", "id": "call1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "call1", "content": [text, image]}
    messages: Any = [
        {"role": "user", "content": [text, image]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    with anthropic.Anthropic(base_url=seeing.url, api_key="any", max_retries=0) as client:
        options: Any = {"model": seeing.model, "messages": messages}
        sampling: Any = {"max_tokens": 4, "extra_body": {"temperature": 0.0}}
        counted = client.messages.count_tokens(**options)
        whole = client.messages.create(**options, **sampling)
        with client.messages.stream(**options, **sampling) as stream:
            streamed = stream.get_final_message()

    usage = whole.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert [block.to_dict()["text"] for block in streamed.content] == [
        block.to_dict()["text"] for block in whole.content
    ]


def test_huggingface_hubs_chats_and_texts(seeing: Served) -> None:
    client = InferenceClient(base_url=seeing.url)
    answer = client.chat_completion(chat(URL), max_tokens=4, temperature=0)
    plain = client.text_generation("see it", max_new_tokens=4, details=True)
    seen = client.text_generation(f"see ![]({URL}) it", max_new_tokens=4, details=True)

    assert answer.usage.prompt_tokens > 16
    assert seen.generated_text != plain.generated_text
