"""openai's package against /v1/responses: whole, streamed, continued, kept and forgotten."""

import math
import time
from collections.abc import Iterable
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseCreatedEvent, ResponseIncompleteEvent

from tests.conformance.serving import Fake, Served

QUESTION = "Where does Doric Caldman live?"
STORY = "Tell me a story about a fox."


@pytest.fixture
def client(served: Served) -> Iterable[openai.OpenAI]:
    with openai.OpenAI(base_url=served.openai_url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def asked(served: Served) -> Any:
    return {"model": served.model, "temperature": 0}


def test_an_answer_is_that_of_a_chat_with_a_usage_that_adds_up(
    client: openai.OpenAI, asked: Any, served: Served
) -> None:
    answer = client.responses.create(input=QUESTION, **asked)
    chat = client.chat.completions.create(messages=[{"role": "user", "content": QUESTION}], **asked)
    assert (answer.object, answer.status, answer.model) == ("response", "completed", served.model)
    assert answer.id.startswith("resp_")
    assert answer.output_text == chat.choices[0].message.content
    usage = answer.usage
    assert usage is not None
    assert chat.usage is not None
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert (usage.input_tokens, usage.output_tokens) == (
        chat.usage.prompt_tokens,
        chat.usage.completion_tokens,
    )


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"max_output_tokens": 16},
        {"instructions": "You are Pip."},
        {"temperature": 1.0, "top_p": 0.01},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"metadata": {"who": "me"}},
    ],
    ids=lambda chosen: "+".join(chosen) or "defaults",
)
def test_the_events_of_a_stream_add_up_to_the_whole_answer(
    client: openai.OpenAI, asked: Any, chosen: dict[str, Any]
) -> None:
    wanted = {"max_output_tokens": 40, **asked, **chosen}
    whole = client.responses.create(input=STORY, **wanted)
    events = list(client.responses.create(input=STORY, stream=True, **wanted))
    said = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert said == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last.type == f"response.{whole.status}"
    assert last.response.output_text == whole.output_text
    assert last.response.usage is not None
    assert whole.usage is not None
    assert last.response.usage.output_tokens == whole.usage.output_tokens
    assert last.response.incomplete_details == whole.incomplete_details
    assert whole.metadata == chosen.get("metadata", whole.metadata)


def test_the_stream_helper_gathers_the_whole_answer(client: openai.OpenAI, asked: Any) -> None:
    whole = client.responses.create(input=QUESTION, **asked)
    with client.responses.stream(input=QUESTION, **asked) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == whole.output_text


def test_an_answer_that_is_cut_says_so(client: openai.OpenAI, asked: Any) -> None:
    answer = client.responses.create(input=STORY, max_output_tokens=16, **asked)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage is not None
    assert answer.usage.output_tokens == 16


def test_logprobs_are_finite_and_spell_the_text(client: openai.OpenAI, asked: Any) -> None:
    answer = client.responses.create(
        input=QUESTION, include=["message.output_text.logprobs"], top_logprobs=2, **asked
    )
    (message,) = answer.output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert part.logprobs
    assert all(math.isfinite(token.logprob) and token.logprob <= 0 for token in part.logprobs)
    assert all(len(token.top_logprobs) == 2 for token in part.logprobs)
    assert b"".join(bytes(token.bytes) for token in part.logprobs).decode() == part.text


def test_a_conversation_goes_on_from_what_is_kept(client: openai.OpenAI, asked: Any) -> None:
    first = client.responses.create(input="Who are you?", **asked)
    second = client.responses.create(input=QUESTION, previous_response_id=first.id, **asked)
    spelt: Any = [
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": QUESTION},
    ]
    at_once = client.responses.create(input=spelt, **asked)
    assert second.previous_response_id == first.id
    assert second.output_text == at_once.output_text
    assert second.usage is not None
    assert at_once.usage is not None
    assert second.usage.input_tokens == at_once.usage.input_tokens


def test_an_answer_is_kept_until_it_is_deleted(client: openai.OpenAI, asked: Any) -> None:
    answer = client.responses.create(input=QUESTION, **asked)
    kept = client.responses.retrieve(answer.id)
    assert (kept.id, kept.output_text) == (answer.id, answer.output_text)
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def test_an_answer_is_made_in_the_background(client: openai.OpenAI, asked: Any) -> None:
    expected = client.responses.create(input=STORY, max_output_tokens=40, **asked)
    answer = client.responses.create(input=STORY, max_output_tokens=40, background=True, **asked)
    assert answer.background
    while answer.status in {"queued", "in_progress"}:
        time.sleep(0.05)
        answer = client.responses.retrieve(answer.id)

    assert answer.output_text == expected.output_text


def test_a_stream_of_the_background_is_read_on(client: openai.OpenAI, asked: Any) -> None:
    wanted: Any = {"input": STORY, "max_output_tokens": 40, "background": True, **asked}
    begun = []
    with client.responses.create(stream=True, **wanted) as events:
        for event in events:
            begun.append(event)
            if len(begun) == 8:
                break
    assert isinstance(begun[0], ResponseCreatedEvent)
    response_id, last = begun[0].response.id, begun[-1].sequence_number
    rest = list(client.responses.retrieve(response_id, stream=True, starting_after=last))

    numbers = [event.sequence_number for event in [*begun, *rest]]
    assert numbers == list(range(len(numbers)))
    assert isinstance(rest[-1], ResponseIncompleteEvent)
    assert rest[-1].response == client.responses.retrieve(response_id)


def test_a_background_answer_is_cancelled(client: openai.OpenAI, asked: Any) -> None:
    endless = {"ignore_eos": True}
    answer = client.responses.create(input=STORY, background=True, extra_body=endless, **asked)
    cancelled = client.responses.cancel(answer.id)

    assert cancelled.status == "cancelled"


def test_what_is_not_stored_is_not_found(client: openai.OpenAI, asked: Any) -> None:
    answer = client.responses.create(input=QUESTION, store=False, **asked)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)
    with pytest.raises(openai.APIStatusError) as refused:
        client.responses.create(input="And?", previous_response_id=answer.id, **asked)
    assert refused.value.status_code in (400, 404)


def test_tokens_are_counted_as_they_will_be_charged(client: openai.OpenAI, asked: Any) -> None:
    answer = client.responses.create(input=QUESTION, **asked)
    counted = client.responses.input_tokens.count(model=asked["model"], input=QUESTION)
    assert answer.usage is not None
    assert counted.input_tokens == answer.usage.input_tokens


async def test_the_asynchronous_client_sees_the_same(
    client: openai.OpenAI, asked: Any, served: Served
) -> None:
    whole = client.responses.create(input=QUESTION, **asked).output_text
    async with openai.AsyncOpenAI(base_url=served.openai_url, api_key="any") as other:
        answer = await other.responses.create(input=QUESTION, **asked)
        assert answer.output_text == whole
        stream = await other.responses.create(input=QUESTION, stream=True, **asked)
        said = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        assert "".join(said) == whole


@pytest.mark.parametrize(
    "chosen",
    [{"temperature": -1}, {"top_p": 7}, {"max_output_tokens": 0}, {"max_output_tokens": 10_000}],
    ids=str,
)
def test_a_bad_parameter_is_named(fake: Fake, chosen: dict[str, Any]) -> None:
    (name,) = chosen
    with (
        openai.OpenAI(base_url=fake.openai_url, api_key="any") as client,
        pytest.raises(openai.BadRequestError) as refused,
    ):
        client.responses.create(**{"model": fake.model, "input": "Hello", **chosen})
    assert refused.value.param == name


def test_a_failure_amid_a_stream_is_told(fake: Fake) -> None:
    fake.order(delay_s=0.05)
    with openai.OpenAI(base_url=fake.openai_url, api_key="any", max_retries=0) as client:
        stream = client.responses.create(
            model=fake.model, input="Hello", max_output_tokens=200, stream=True
        )
        for event in stream:
            if event.type == "response.output_text.delta":
                fake.order(row_error="the logits are not numbers")
                break
        *_, last = stream
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert "the logits are not numbers" in last.response.error.message
