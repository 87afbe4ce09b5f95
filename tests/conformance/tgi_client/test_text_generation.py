"""TGI's own Python client, text-generation 0.7.0: every call of it that works with TGI itself.

Left out, since the client itself cannot read TGI's answers there: `chat(stream=True)`, which chokes
on `[DONE]` in the synchronous client and wants a `tool_calls` in every delta in the other.
"""

import math
import threading
from typing import Any

import pytest
from text_generation import AsyncClient, Client
from text_generation.errors import (
    GenerationError,
    IncompleteGenerationError,
    NotFoundError,
    OverloadedError,
    UnknownError,
    ValidationError,
)
from text_generation.types import Grammar, GrammarType, Message

from tests.conformance.serving import Fake, Served, faked, occupied

PROMPT = "Once there was a fox"
QUESTION = [Message(role="user", content="Where does Doric Caldman live?")]

VARIANTS: list[Any] = [
    pytest.param({}, id="defaults"),
    pytest.param({"do_sample": True, "seed": 3}, id="do_sample"),
    pytest.param({"temperature": 0.7, "seed": 3}, id="temperature"),
    pytest.param({"top_k": 5, "seed": 3}, id="top_k"),
    pytest.param({"top_p": 0.8, "seed": 3}, id="top_p"),
    pytest.param({"typical_p": 0.8, "seed": 3}, id="typical_p"),
    pytest.param({"repetition_penalty": 1.4}, id="repetition_penalty"),
    pytest.param({"frequency_penalty": 0.4}, id="frequency_penalty"),
    pytest.param({"return_full_text": True}, id="return_full_text"),
    pytest.param({"stop_sequences": [" the"]}, id="stop_sequences"),
    pytest.param({"truncate": 2}, id="truncate"),
    pytest.param({"top_n_tokens": 3}, id="top_n_tokens"),
    pytest.param({"max_new_tokens": 1}, id="one token"),
    pytest.param({"watermark": True}, id="watermark"),
]


@pytest.fixture
def client(served: Served) -> Client:
    return Client(served.url)


@pytest.mark.parametrize("chosen", VARIANTS)
def test_streamed_text_is_the_text_of_the_whole_answer(
    client: Client, chosen: dict[str, Any]
) -> None:
    whole = client.generate(PROMPT, **chosen)
    events = list(client.generate_stream(PROMPT, **chosen))
    details = whole.details
    assert events[-1].generated_text == whole.generated_text
    assert [event.token.id for event in events] == [token.id for token in details.tokens]
    assert details.generated_tokens == len(events) <= chosen.get("max_new_tokens", 20)
    assert all(math.isfinite(token.logprob) for token in details.tokens)
    prefix = PROMPT if chosen.get("return_full_text") else ""
    visible = "".join(token.text for token in details.tokens if not token.special)
    assert prefix + visible == whole.generated_text
    assert details.seed == chosen.get("seed")
    last = events[-1].details
    assert last is not None
    assert (last.finish_reason, last.generated_tokens) == (
        details.finish_reason,
        details.generated_tokens,
    )
    if "stop_sequences" in chosen:
        assert whole.generated_text.endswith(" the")
        assert details.finish_reason == "stop_sequence"
    if "top_n_tokens" in chosen:
        assert [len(top) for top in details.top_tokens or ()] == [3] * len(events)


def test_a_prompt_is_scored(client: Client) -> None:
    prefill = client.generate(PROMPT, decoder_input_details=True).details.prefill
    assert "".join(token.text for token in prefill) == PROMPT
    assert prefill[0].logprob is None
    assert all(token.logprob is not None and token.logprob < 0 for token in prefill[1:])


def test_the_best_of_two_is_answered_with_the_other(client: Client) -> None:
    details = client.generate(PROMPT, best_of=2, do_sample=True).details
    assert details.best_of_sequences is not None
    (other,) = details.best_of_sequences

    def mean(tokens: Any) -> float:
        return float(sum(token.logprob for token in tokens)) / len(tokens)

    assert mean(details.tokens) >= mean(other.tokens)


def test_a_chat_is_answered(client: Client) -> None:
    answer = client.chat(QUESTION, max_tokens=40, seed=1, temperature=0.1)
    assert answer.object == "chat.completion"
    assert answer.model == "demo"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    usage = answer.usage
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_the_asynchronous_client_sees_the_same(client: Client, served: Served) -> None:
    other = AsyncClient(served.url)
    for chosen in ({}, {"do_sample": True, "seed": 8}, {"stop_sequences": ["the"]}):
        wanted: Any = chosen
        whole = await other.generate(PROMPT, **wanted)
        assert whole.generated_text == client.generate(PROMPT, **wanted).generated_text
        events = [event async for event in other.generate_stream(PROMPT, **wanted)]
        assert events[-1].generated_text == whole.generated_text


async def test_the_asynchronous_client_chats_alike(client: Client, served: Served) -> None:
    asked: Any = {"max_tokens": 30, "temperature": 0.01, "seed": 1}
    answer = await AsyncClient(served.url).chat(QUESTION, **asked)
    assert answer.choices[0].message.content
    assert answer.choices[0].message == client.chat(QUESTION, **asked).choices[0].message


@pytest.mark.parametrize(
    "chosen",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": 100_000},
        {"stop_sequences": ["a", "b", "c", "d", "e"]},
        {"top_n_tokens": 50},
        {"truncate": 100_000},
        {"best_of": 5, "do_sample": True},
        {"grammar": Grammar(type=GrammarType.Regex, value="[a-z")},
    ],
    ids=str,
)
async def test_a_broken_rule_is_a_validation_error(fake: Fake, chosen: dict[str, Any]) -> None:
    wanted: Any = chosen
    with pytest.raises(ValidationError):
        Client(fake.url).generate("Hello", **wanted)
    with pytest.raises(ValidationError):
        await AsyncClient(fake.url).generate("Hello", **wanted)
    if "best_of" not in chosen:
        with pytest.raises(ValidationError):
            list(Client(fake.url).generate_stream("Hello", **wanted))
        with pytest.raises(ValidationError):
            async for _ in AsyncClient(fake.url).generate_stream("Hello", **wanted):
                pass


async def test_a_failed_step_is_a_generation_error(fake: Fake) -> None:
    for call in (
        lambda: Client(fake.url).generate("Hello"),
        lambda: list(Client(fake.url).generate_stream("Hello")),
    ):
        fake.order(row_error="the logits are not numbers")
        with pytest.raises(GenerationError, match="the logits are not numbers"):
            call()
    fake.order(row_error="the logits are not numbers")
    with pytest.raises(GenerationError, match="the logits are not numbers"):
        await AsyncClient(fake.url).generate("Hello")


async def test_a_full_server_is_an_overloaded_error() -> None:
    with faked("--max-concurrent-requests", "1") as fake:
        fake.order(delay_s=0.05)
        with occupied(fake):
            with pytest.raises(OverloadedError):
                Client(fake.url).generate("Hello")
            with pytest.raises(OverloadedError):
                await AsyncClient(fake.url).generate("Hello")
            with pytest.raises(OverloadedError):
                list(Client(fake.url).generate_stream("Hello"))


def test_a_server_that_stops_amid_an_answer_is_an_incomplete_generation_error() -> None:
    with faked("--graceful-termination-timeout", "0.2") as fake:
        fake.order(delay_s=0.1)
        stopping = threading.Thread(target=fake.stop_amid_an_answer)
        stopping.start()
        with pytest.raises(IncompleteGenerationError):
            Client(fake.url).generate("Hello", max_new_tokens=300)
        stopping.join()


def test_a_wrong_address_is_a_not_found_error(fake: Fake) -> None:
    with pytest.raises(NotFoundError):
        Client(f"{fake.url}/nowhere").generate("Hello")


def test_a_key_is_sent_as_a_header() -> None:
    with faked("--api-key", "secret") as fake:
        allowed = Client(fake.url, headers={"Authorization": "Bearer secret"})
        assert allowed.generate("Hello").generated_text
        with pytest.raises(UnknownError, match="API key"):
            Client(fake.url).generate("Hello")
