"""Anthropic's package against /v1/messages: whole, streamed, counted, refused."""

from collections.abc import Iterable
from typing import Any

import anthropic
import pytest

from tests.conformance.serving import Fake, Served, faked, occupied

QUESTION: Any = [{"role": "user", "content": "Where does Doric Caldman live?"}]
STORY: Any = [{"role": "user", "content": "Tell me a story about a fox."}]


@pytest.fixture
def client(served: Served) -> Iterable[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def asked(served: Served) -> Any:
    # The package has lost its arguments for sampling; the API has not.
    return {"model": served.model, "max_tokens": 30, "extra_body": {"temperature": 0.0}}


def client_of(fake: Fake, **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(**{"base_url": fake.url, "api_key": "any", **options})


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def input_of(message: anthropic.types.Message) -> int:
    """All tokens of the prompt; `input_tokens` are those that the cache did not know."""
    return int(message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0))


LOOK: Any = {
    "name": "look_up",
    "description": "Look somebody up.",
    "input_schema": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "old": {"type": "boolean"}},
        "required": ["name", "old"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "look_up"}])
def test_tools_are_called_with_what_they_take(
    client: anthropic.Anthropic, asked: Any, choice: Any
) -> None:
    limits = {**asked, "max_tokens": 300}
    message = client.messages.create(messages=QUESTION, tools=[LOOK], tool_choice=choice, **limits)
    with client.messages.stream(
        messages=QUESTION, tools=[LOOK], tool_choice=choice, **limits
    ) as stream:
        streamed = stream.get_final_message()

    assert message.stop_reason == streamed.stop_reason == "tool_use"
    for told in (message, streamed):
        for block in told.content:
            assert block.type == "tool_use"
            assert block.name == "look_up"
            given: Any = block.input
            assert isinstance(given["name"], str)
            assert isinstance(given["old"], bool)
    assert len(message.content) == len(streamed.content)


def test_a_message_is_answered_with_text_reason_and_usage(
    client: anthropic.Anthropic, asked: Any, served: Served
) -> None:
    message = client.messages.create(messages=QUESTION, **asked)
    assert (message.type, message.role, message.model) == ("message", "assistant", served.model)
    assert message.id.startswith("msg_")
    assert text_of(message)
    assert message.stop_reason == "end_turn"
    assert input_of(message) > 0
    assert message.usage.output_tokens > 0


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"system": "You are Pip."},
        {"extra_body": {"temperature": 1.0, "top_k": 1}},
        {"stop_sequences": [" the"]},
        {"system": [{"type": "text", "text": "You are Pip."}]},
    ],
    ids=str,
)
def test_a_stream_adds_up_to_the_whole_message(
    client: anthropic.Anthropic, asked: Any, chosen: dict[str, Any]
) -> None:
    wanted = {**asked, **chosen}
    whole = client.messages.create(messages=STORY, **wanted)
    with client.messages.stream(messages=STORY, **wanted) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == text_of(whole) == text_of(final)
    assert final.stop_reason == whole.stop_reason
    assert final.stop_sequence == whole.stop_sequence
    assert input_of(final) == input_of(whole)
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_the_events_of_a_stream_come_in_their_order(
    client: anthropic.Anthropic, asked: Any
) -> None:
    kinds = [e.type for e in client.messages.create(messages=QUESTION, stream=True, **asked)]
    kinds = [kind for kind in kinds if kind != "ping"]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_a_message_ends_at_its_bound(client: anthropic.Anthropic, asked: Any) -> None:
    message = client.messages.create(messages=STORY, **{**asked, "max_tokens": 4})
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 4


def test_a_stop_sequence_is_named_and_left_out(client: anthropic.Anthropic, asked: Any) -> None:
    free = text_of(client.messages.create(messages=STORY, **asked))
    stop = free[10:14]
    message = client.messages.create(messages=STORY, stop_sequences=[stop], **asked)
    assert text_of(message) == free[: free.index(stop)]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)


def test_tokens_are_counted_as_they_will_be_charged(
    client: anthropic.Anthropic, asked: Any, served: Served
) -> None:
    counted = client.messages.count_tokens(model=served.model, messages=QUESTION)
    message = client.messages.create(messages=QUESTION, **asked)
    assert counted.input_tokens == input_of(message)


async def test_the_asynchronous_client_sees_the_same(
    client: anthropic.Anthropic, asked: Any, served: Served
) -> None:
    whole = text_of(client.messages.create(messages=STORY, **asked))
    async with anthropic.AsyncAnthropic(base_url=served.url, api_key="any") as other:
        assert text_of(await other.messages.create(messages=STORY, **asked)) == whole
        async with other.messages.stream(messages=STORY, **asked) as stream:
            assert "".join([text async for text in stream.text_stream]) == whole
        counted = await other.messages.count_tokens(model=served.model, messages=STORY)
        assert counted.input_tokens > 0


@pytest.mark.parametrize(
    "chosen",
    [{"temperature": -1.0}, {"top_p": 7.0}, {"max_tokens": 0}, {"max_tokens": 10_000}],
    ids=str,
)
def test_a_bad_parameter_is_named(fake: Fake, chosen: dict[str, Any]) -> None:
    (name,) = chosen
    with pytest.raises(anthropic.BadRequestError, match=f"`{name}`") as refused:
        client_of(fake).messages.create(
            model=fake.model, messages=QUESTION, max_tokens=5, extra_body=chosen
        )
    assert refused.value.type == "invalid_request_error"
    assert refused.value.request_id


def test_another_model_is_not_found(fake: Fake) -> None:
    with pytest.raises(anthropic.NotFoundError) as refused:
        client_of(fake).messages.create(model="claude-x", messages=QUESTION, max_tokens=5)
    assert refused.value.type == "not_found_error"


def test_a_full_server_raises_a_rate_limit_error() -> None:
    with faked("--max-concurrent-requests", "1") as fake:
        fake.order(delay_s=0.05)
        with occupied(fake), pytest.raises(anthropic.RateLimitError) as refused:
            client_of(fake, max_retries=0).messages.create(
                model=fake.model, messages=QUESTION, max_tokens=5
            )
    assert int(refused.value.response.headers["retry-after"]) >= 1


def test_a_failure_amid_a_stream_raises(fake: Fake) -> None:
    fake.order(delay_s=0.05)
    client = client_of(fake, max_retries=0)
    with client.messages.stream(model=fake.model, messages=QUESTION, max_tokens=200) as stream:
        texts = iter(stream.text_stream)
        next(texts)
        fake.order(row_error="the logits are not numbers")
        with pytest.raises(anthropic.APIError, match="the logits are not numbers"):
            list(texts)
