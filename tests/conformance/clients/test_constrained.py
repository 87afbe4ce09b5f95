"""Forms and tools as clients ask for them: what is asked for is what comes, whatever the model."""

import re
from collections.abc import Iterable
from typing import Any, Literal

import openai
import pytest
from huggingface_hub import InferenceClient
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai import pydantic_function_tool
from pydantic import BaseModel, ConfigDict, SecretStr

from tests.conformance.serving import Served

QUESTION: Any = [{"role": "user", "content": "Where does Doric Caldman live?"}]


class Address(BaseModel):
    """Where somebody lives."""

    model_config = ConfigDict(extra="forbid")

    street: str
    number: int
    kind: Literal["house", "flat"]


class LookUp(BaseModel):
    """Look somebody up."""

    model_config = ConfigDict(extra="forbid")

    name: str
    old: bool


class Wait(BaseModel):
    """Wait for a while."""

    model_config = ConfigDict(extra="forbid")

    seconds: int


TOOLS: Any = [pydantic_function_tool(LookUp), pydantic_function_tool(Wait)]
MODELS: dict[str, type[BaseModel]] = {"LookUp": LookUp, "Wait": Wait}


@pytest.fixture
def client(served: Served) -> Iterable[openai.OpenAI]:
    with openai.OpenAI(base_url=served.openai_url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def model(served: Served) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=served.openai_url,
        api_key=SecretStr("any"),
        max_retries=0,
        model=served.model,
        temperature=1.0,
        seed=1,
        max_completion_tokens=200,
    )


@pytest.fixture
def hub(served: Served) -> InferenceClient:
    return InferenceClient(base_url=served.url)


@pytest.mark.parametrize("seed", range(5))
def test_openai_s_parse_gives_an_object(client: openai.OpenAI, served: Served, seed: int) -> None:
    answer = client.chat.completions.parse(
        model=served.model,
        messages=QUESTION,
        response_format=Address,
        temperature=1.2,
        seed=seed,
        max_tokens=60,
    )

    assert isinstance(answer.choices[0].message.parsed, Address)
    assert answer.choices[0].finish_reason == "stop"


def test_openai_s_stream_gives_an_object_too(client: openai.OpenAI, served: Served) -> None:
    with client.chat.completions.stream(
        model=served.model, messages=QUESTION, response_format=Address, max_tokens=60
    ) as stream:
        events = list(stream)
        final = stream.get_final_completion()

    assert isinstance(final.choices[0].message.parsed, Address)
    assert any(event.type == "content.done" for event in events)


@pytest.mark.parametrize("parallel", [True, False])
def test_openai_s_required_calls_are_of_the_tools(
    client: openai.OpenAI, served: Served, parallel: bool
) -> None:
    answer = client.chat.completions.parse(
        model=served.model,
        messages=QUESTION,
        tools=TOOLS,
        tool_choice="required",
        parallel_tool_calls=parallel,
        max_tokens=300,
    )

    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls
    assert parallel or len(choice.message.tool_calls) == 1
    for call in choice.message.tool_calls:
        assert isinstance(call.function.parsed_arguments, MODELS[call.function.name])


def test_openai_s_stream_of_a_named_call_is_its_answer(
    client: openai.OpenAI, served: Served
) -> None:
    named: Any = {"type": "function", "function": {"name": "Wait"}}
    asked: Any = {
        "model": served.model,
        "messages": QUESTION,
        "tools": TOOLS,
        "tool_choice": named,
        "temperature": 0,
        "max_tokens": 100,
    }
    whole = client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()

    assert whole.choices[0].message.tool_calls
    assert final.choices[0].message.tool_calls
    (told,), (streamed,) = whole.choices[0].message.tool_calls, final.choices[0].message.tool_calls
    assert told.type == "function"
    assert streamed.function.name == told.function.name == "Wait"
    assert streamed.function.arguments == told.function.arguments
    assert "tool_calls.function.arguments.delta" in kinds
    assert final.choices[0].finish_reason == "tool_calls"


def test_calls_and_what_came_of_them_can_be_said_again(
    client: openai.OpenAI, served: Served
) -> None:
    first = client.chat.completions.create(
        model=served.model, messages=QUESTION, tools=TOOLS, tool_choice="required", max_tokens=300
    )
    message = first.choices[0].message
    assert message.tool_calls
    history = [
        *QUESTION,
        {**message.model_dump(exclude_none=True)},
        {"role": "user", "content": "It was of no use."},
    ]
    second = client.chat.completions.create(
        model=served.model, messages=history, tools=TOOLS, tool_choice="auto", max_tokens=60
    )

    assert second.choices[0].finish_reason in ("stop", "length", "tool_calls")


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_openai_s_parse_takes_a_form_and_tools(
    client: openai.OpenAI, served: Served, choice: Any
) -> None:
    answer = client.chat.completions.parse(
        model=served.model,
        messages=QUESTION,
        response_format=Address,
        tools=TOOLS,
        tool_choice=choice,
        max_tokens=300,
        seed=1,
    )

    (message,) = (choice.message for choice in answer.choices)
    calls = message.tool_calls or []
    assert calls or isinstance(message.parsed, Address)
    assert choice == "auto" or calls
    for call in calls:
        assert isinstance(call.function.parsed_arguments, MODELS[call.function.name])


def test_langchain_s_tools_are_called(model: ChatOpenAI) -> None:
    answer = model.bind_tools([LookUp, Wait], tool_choice="any").invoke("Who?")

    assert isinstance(answer, AIMessage)
    assert answer.tool_calls
    assert not answer.invalid_tool_calls
    for call in answer.tool_calls:
        assert MODELS[call["name"]].model_validate(call["args"])


def test_langchain_s_stream_adds_up_to_calls(model: ChatOpenAI) -> None:
    gathered: AIMessageChunk | None = None
    for part in model.bind_tools([LookUp, Wait], tool_choice="LookUp").stream("Who?"):
        assert isinstance(part, AIMessageChunk)
        gathered = part if gathered is None else gathered + part

    assert gathered is not None
    (call,) = gathered.tool_calls
    assert LookUp.model_validate(call["args"])
    assert gathered.response_metadata["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_s_structured_output_is_an_object(model: ChatOpenAI, method: Any) -> None:
    assert isinstance(
        model.with_structured_output(Address, method=method).invoke("Where?"), Address
    )


def test_langchain_s_turns_with_tools_are_read(model: ChatOpenAI) -> None:
    call: Any = {"name": "Wait", "args": {"seconds": 3}, "id": "call_1", "type": "tool_call"}
    turns = [HumanMessage("Wait."), AIMessage("", tool_calls=[call])]
    # The bundled model's template knows no such role: the user tells it.
    assert model.invoke([*turns, ToolMessage("done", tool_call_id="call_1")]).text
    assert isinstance(model.bind_tools([Wait]).invoke([*turns, HumanMessage("So?")]), AIMessage)


def test_the_hub_s_tools_and_formats_are_obeyed(hub: InferenceClient) -> None:
    schema = Address.model_json_schema()
    form: Any = {"type": "json_schema", "json_schema": {"schema": schema}}
    answer = hub.chat_completion(
        QUESTION,
        response_format=form,
        max_tokens=60,
    )
    assert Address.model_validate_json(answer.choices[0].message.content or "")

    called = hub.chat_completion(QUESTION, tools=TOOLS, tool_choice="required", max_tokens=300)
    calls = called.choices[0].message.tool_calls
    assert calls
    for call in calls:
        assert MODELS[call.function.name].model_validate_json(call.function.arguments or "")


def test_the_hub_s_loop_with_a_tool_comes_to_a_text(hub: InferenceClient) -> None:
    called = hub.chat_completion(QUESTION, tools=TOOLS, tool_choice="required", max_tokens=300)
    message = called.choices[0].message
    results: Any = [
        {"role": "tool", "tool_call_id": call.id, "content": "sea"}
        for call in message.tool_calls or []
    ]
    going_on: Any = [*QUESTION, message, *results]
    last = hub.chat_completion(going_on, tools=TOOLS, tool_choice="none", max_tokens=60)
    assert results
    assert last.choices[0].message.content

    chunks = list(
        hub.chat_completion(
            QUESTION, tools=TOOLS, tool_choice="required", max_tokens=300, stream=True
        )
    )
    told = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    names = [call.function.name for call in told if call.function.name]
    arguments = "".join(call.function.arguments for call in told if call.index == 0)
    assert MODELS[names[0]].model_validate_json(arguments)


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ({"type": "regex", "value": "[0-9]{3}-[0-9]{4}"}, r"[0-9]{3}-[0-9]{4}"),
        ({"type": "choice", "value": ["yes", "no"]}, "yes|no"),
        ({"type": "json", "value": {"enum": [1, "b"]}}, '1|"b"'),
    ],
)
def test_the_hub_s_grammars_are_obeyed(hub: InferenceClient, grammar: Any, pattern: str) -> None:
    answer = hub.text_generation(
        "Once", grammar=grammar, max_new_tokens=20, details=True, return_full_text=False
    )

    assert re.fullmatch(pattern, answer.generated_text)
    assert answer.details is not None
    assert str(answer.details.finish_reason) == "eos_token"


def test_what_cannot_be_kept_is_told_with_its_reason(client: openai.OpenAI, served: Served) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        client.chat.completions.create(
            model=served.model,
            messages=QUESTION,
            max_tokens=3,
            extra_body={"structured_outputs": {"regex": "[a-z]{100}"}},
        )

    assert (refused.value.param, refused.value.code) == ("structured_outputs.regex", "does_not_fit")
    body: Any = refused.value.body
    assert body["constraint"]["max_len"] == 3
