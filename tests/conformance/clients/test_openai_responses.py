"""OpenAI's package against /v1/responses: whole, streamed, gone on from, listed, forgotten."""

from collections.abc import Callable, Iterable
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.conformance.serving import Fake, Served

QUESTION = "Where does Doric Caldman live?"
STORY = "Tell me a story about a fox."
LOGPROBS: Any = ["message.output_text.logprobs"]


@pytest.fixture
def client(served: Served) -> Iterable[openai.OpenAI]:
    with openai.OpenAI(base_url=served.openai_url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def asked(served: Served) -> Any:
    return {"model": served.model, "max_output_tokens": 30, "temperature": 0.0}


def client_of(fake: Fake, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(**{"base_url": fake.openai_url, "api_key": "any", **options})


def check(response: Response) -> None:
    """The package reads answers leniently; this is its own types' strict opinion."""
    Response.model_validate(response.to_dict())


def test_a_response_is_all_that_the_package_s_types_want(
    client: openai.OpenAI, asked: Any, served: Served
) -> None:
    response = client.responses.create(input=QUESTION, **asked)
    check(response)
    assert (response.object, response.status, response.model) == (
        "response",
        "completed",
        served.model,
    )
    assert response.output_text
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_a_response_says_what_a_chat_says(client: openai.OpenAI, asked: Any) -> None:
    turns: Any = [{"role": "user", "content": QUESTION}]
    response = client.responses.create(input=turns, instructions="You are Pip.", **asked)
    chat = client.chat.completions.create(
        model=asked["model"],
        messages=[{"role": "system", "content": "You are Pip."}, *turns],
        max_tokens=30,
        temperature=0.0,
    )
    assert response.output_text == chat.choices[0].message.content
    assert response.usage is not None
    assert chat.usage is not None
    assert response.usage.input_tokens == chat.usage.prompt_tokens


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"instructions": "You are Pip."},
        {"include": LOGPROBS, "top_logprobs": 3},
        {"extra_body": {"stop": " the"}},
    ],
    ids=str,
)
def test_a_stream_adds_up_to_the_whole_response(
    client: openai.OpenAI, asked: Any, chosen: dict[str, Any]
) -> None:
    wanted = {**asked, **chosen, "input": STORY}
    whole = client.responses.create(**wanted)
    with client.responses.stream(**wanted) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
    events = list(client.responses.create(**wanted, stream=True))
    last: Any = events[-1]
    check(last.response)
    assert "".join(texts) == last.response.output_text == whole.output_text
    assert last.response.output[0].content == whole.output[0].content
    assert (last.response.status, last.type) == (whole.status, f"response.{whole.status}")


def test_every_event_is_of_the_package_s_types_and_numbered(
    client: openai.OpenAI, asked: Any
) -> None:
    events = list(
        client.responses.create(input=STORY, **asked, stream=True, include=LOGPROBS, top_logprobs=1)
    )
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event.to_dict())
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_a_cut_response_is_incomplete(client: openai.OpenAI, asked: Any) -> None:
    response = client.responses.create(**{**asked, "max_output_tokens": 3}, input=STORY)
    check(response)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is not None
    assert response.usage.output_tokens == 3


def test_going_on_by_id_is_going_on_by_hand(client: openai.OpenAI, asked: Any) -> None:
    with client.responses.stream(input=QUESTION, **asked) as stream:
        first = stream.get_final_response()
    by_id = client.responses.create(input="Who are you?", previous_response_id=first.id, **asked)
    turns: Any = [
        {"role": "user", "content": QUESTION},
        *(item.to_dict() for item in client.responses.retrieve(first.id).output),
        {"role": "user", "content": "Who are you?"},
    ]
    by_hand = client.responses.create(input=turns, **asked)
    counted = client.responses.input_tokens.count(model=asked["model"], input=turns)
    assert by_id.output_text == by_hand.output_text
    assert by_id.usage is not None
    assert by_hand.usage is not None
    assert by_id.usage.input_tokens == by_hand.usage.input_tokens == counted.input_tokens
    assert by_id.usage.input_tokens_details.cached_tokens > 0


def test_a_response_is_read_again_listed_and_forgotten(client: openai.OpenAI, asked: Any) -> None:
    first = client.responses.create(input=QUESTION, metadata={"a": "b"}, **asked)
    second = client.responses.create(input="And?", previous_response_id=first.id, **asked)
    assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
    listed: Any = list(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [item.content[0].text for item in listed] == [QUESTION, first.output_text, "And?"]
    client.responses.delete(first.id)
    forgotten: list[Callable[[], object]] = [
        lambda: client.responses.retrieve(first.id),
        lambda: client.responses.delete(first.id),
        lambda: client.responses.create(input="And?", previous_response_id=second.id, **asked),
    ]
    for call in forgotten:
        with pytest.raises(openai.NotFoundError):
            call()


async def test_the_asynchronous_client_sees_the_same(
    client: openai.OpenAI, asked: Any, served: Served
) -> None:
    whole = client.responses.create(input=STORY, **asked)
    async with openai.AsyncOpenAI(base_url=served.openai_url, api_key="any") as asynchronous:
        response = await asynchronous.responses.create(input=STORY, **asked)
        stream = await asynchronous.responses.create(input=STORY, **asked, stream=True)
        texts = [
            event.delta async for event in stream if event.type == "response.output_text.delta"
        ]
    assert response.output_text == "".join(texts) == whole.output_text


@pytest.mark.parametrize(
    ("chosen", "param", "error"),
    [
        ({"max_output_tokens": 0}, "max_output_tokens", openai.BadRequestError),
        ({"truncation": "some"}, "truncation", openai.BadRequestError),
        ({"model": "another"}, "model", openai.NotFoundError),
        ({"previous_response_id": "resp_0"}, "previous_response_id", openai.NotFoundError),
        ({"background": True}, "background", openai.UnprocessableEntityError),
        ({"conversation": "conv_0"}, "conversation", openai.UnprocessableEntityError),
    ],
)
def test_a_refusal_is_of_its_class_and_names_the_parameter(
    fake: Fake, chosen: dict[str, Any], param: str, error: type[openai.APIStatusError]
) -> None:
    asked: dict[str, Any] = {"model": fake.model, "input": "Hello", **chosen}
    with pytest.raises(error) as refused:
        client_of(fake, max_retries=0).responses.create(**asked)
    assert refused.value.param == param


def test_a_failure_amid_a_stream_is_told_by_its_last_events(fake: Fake) -> None:
    fake.order(delay_s=0.05)
    stream = client_of(fake, max_retries=0).responses.create(
        model=fake.model, input="Hello", stream=True, extra_body={"ignore_eos": True}
    )
    events: list[Any] = []
    for event in stream:
        events.append(event)
        if len(events) == 6:
            fake.order(row_error="the logits are not numbers")
    *_, error, failed = events
    assert (error.type, error.message) == ("error", "the logits are not numbers")
    assert (failed.type, failed.response.status) == ("response.failed", "failed")
    assert failed.response.error.message == "the logits are not numbers"
    check(failed.response)
