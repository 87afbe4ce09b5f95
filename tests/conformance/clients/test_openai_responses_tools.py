"""openai's package and LangChain with tools of /v1/responses: parsed, streamed, gone on from."""

import json
from collections.abc import Iterable
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai.types.responses import Response, ResponseFunctionToolCall
from pydantic import BaseModel, ConfigDict, SecretStr

from tests.conformance.serving import Served

QUESTION = "Where does Doric Caldman live?"


class LookUp(BaseModel):
    """Look somebody up."""

    model_config = ConfigDict(extra="forbid")

    name: str
    old: bool


LOOK: Any = {
    "type": "function",
    "name": "LookUp",
    "description": "Look somebody up.",
    "parameters": LookUp.model_json_schema(),
    "strict": True,
}
WAIT: Any = {
    "type": "function",
    "name": "Wait",
    "parameters": {
        "type": "object",
        "properties": {"seconds": {"type": "integer"}},
        "required": ["seconds"],
        "additionalProperties": False,
    },
    "strict": False,
}


@pytest.fixture
def client(served: Served) -> Iterable[openai.OpenAI]:
    with openai.OpenAI(base_url=served.openai_url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def asked(served: Served) -> Any:
    return {"model": served.model, "input": QUESTION, "temperature": 0, "max_output_tokens": 300}


def calls_of(answer: Response) -> list[ResponseFunctionToolCall]:
    return [item for item in answer.output if item.type == "function_call"]


def told(answer: Response) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in calls_of(answer)]


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "name": "LookUp"}], ids=["required", "named"]
)
def test_calls_are_of_the_tools(client: openai.OpenAI, asked: Any, choice: Any) -> None:
    answer = client.responses.create(tools=[LOOK], tool_choice=choice, **asked)

    calls = calls_of(answer)
    assert calls
    assert len(calls) == len(answer.output)
    for call in calls:
        assert (call.name, call.status) == ("LookUp", "completed")
        LookUp.model_validate_json(call.arguments)
    assert len({call.call_id for call in calls}) == len({call.id for call in calls}) == len(calls)
    assert answer.tools[0].type == "function"


def test_one_call_is_one_call(client: openai.OpenAI, asked: Any) -> None:
    answer = client.responses.create(
        tools=[LOOK, WAIT], tool_choice="required", parallel_tool_calls=False, **asked
    )

    assert len(calls_of(answer)) == 1


def test_the_events_of_a_stream_add_up_to_the_calls(client: openai.OpenAI, asked: Any) -> None:
    wanted = {"tools": [LOOK, WAIT], "tool_choice": "required", **asked}
    whole = client.responses.create(**wanted)
    events = list(client.responses.create(stream=True, **wanted))

    assert [event.sequence_number for event in events] == list(range(len(events)))
    joined: dict[str, str] = {}
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            joined[event.item_id] = joined.get(event.item_id, "") + event.delta
    last = events[-1]
    assert last.type == "response.completed"
    assert told(last.response) == told(whole)
    assert list(joined.values()) == [arguments for _, arguments in told(whole)]
    assert list(joined) == [call.id for call in calls_of(last.response)]


def test_the_stream_helper_gathers_and_parses_the_calls(client: openai.OpenAI, asked: Any) -> None:
    tools = [openai.pydantic_function_tool(LookUp)]
    snapshots = []
    with client.responses.stream(tools=tools, tool_choice="required", **asked) as stream:
        for event in stream:
            if event.type == "response.function_call_arguments.delta":
                snapshots.append(event.snapshot)
        final = stream.get_final_response()

    calls = [item for item in final.output if item.type == "function_call"]
    assert calls
    assert all(isinstance(call.parsed_arguments, LookUp) for call in calls)
    assert snapshots[-1] == calls[-1].arguments


def test_parse_gives_objects_of_the_models(client: openai.OpenAI, asked: Any) -> None:
    tools = [openai.pydantic_function_tool(LookUp)]
    answer = client.responses.parse(tools=tools, tool_choice="required", **asked)
    form = client.responses.parse(text_format=LookUp, **asked)

    for item in answer.output:
        assert item.type == "function_call"
        assert isinstance(item.parsed_arguments, LookUp)
    assert isinstance(form.output_parsed, LookUp)


@pytest.mark.parametrize("seed", range(3))
def test_parse_takes_a_form_and_tools(client: openai.OpenAI, asked: Any, seed: int) -> None:
    tools = [openai.pydantic_function_tool(LookUp)]
    sampled = {**asked, "temperature": 1.0, "extra_body": {"seed": seed}}
    answer = client.responses.parse(text_format=LookUp, tools=tools, **sampled)

    calls = [item for item in answer.output if item.type == "function_call"]
    assert calls or isinstance(answer.output_parsed, LookUp)
    assert all(isinstance(call.parsed_arguments, LookUp) for call in calls)


def test_items_are_referred_to_by_their_ids(client: openai.OpenAI, asked: Any) -> None:
    first = client.responses.create(**asked)
    reference: Any = {"type": "item_reference", "id": first.output[0].id}
    so: Any = {"role": "user", "content": "So?"}
    question: Any = {"role": "user", "content": QUESTION}
    referring = client.responses.create(**{**asked, "input": [question, reference, so]})
    spelt = client.responses.create(**{**asked, "input": [question, *first.output, so]})

    assert referring.output_text == spelt.output_text


@pytest.mark.parametrize("remembers", [True, False])
def test_a_loop_with_a_tool_comes_to_a_text(
    client: openai.OpenAI, asked: Any, remembers: bool
) -> None:
    first = client.responses.create(tools=[LOOK], tool_choice="required", store=remembers, **asked)
    outputs: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": '{"at": "sea"}'}
        for call in calls_of(first)
    ]
    if remembers:
        going_on: Any = {"input": outputs, "previous_response_id": first.id}
    else:
        going_on = {"input": [{"role": "user", "content": QUESTION}, *first.output, *outputs]}
    last = client.responses.create(tools=[LOOK], tool_choice="none", **{**asked, **going_on})

    assert [item.type for item in last.output] == ["message"]
    assert last.output_text
    counted = client.responses.input_tokens.count(
        model=asked["model"], tools=[LOOK], tool_choice="none", **going_on
    )
    assert last.usage is not None
    assert counted.input_tokens == last.usage.input_tokens


def test_an_answer_to_what_was_called_leaves_the_call_as_it_was(
    client: openai.OpenAI, asked: Any
) -> None:
    first = client.responses.create(tools=[LOOK], tool_choice="required", **asked)
    outputs: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "sea"}
        for call in calls_of(first)
    ]
    answered = {**asked, "input": outputs, "previous_response_id": first.id}
    last = client.responses.create(**{**answered, "max_output_tokens": 1})
    assert last.previous_response_id == first.id
    assert client.responses.retrieve(first.id).output == first.output


async def test_the_asynchronous_client_sees_the_same(
    client: openai.OpenAI, asked: Any, served: Served
) -> None:
    wanted = {"tools": [LOOK], "tool_choice": "required", **asked}
    whole = client.responses.create(**wanted)
    async with openai.AsyncOpenAI(base_url=served.openai_url, api_key="any") as other:
        assert told(await other.responses.create(**wanted)) == told(whole)
        async with other.responses.stream(**wanted) as stream:
            assert told(await stream.get_final_response()) == told(whole)


def test_an_output_of_no_call_is_refused_by_its_place(client: openai.OpenAI, asked: Any) -> None:
    lost: Any = [{"type": "function_call_output", "call_id": "fc_1", "output": "sea"}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**{**asked, "input": lost})

    assert refused.value.param == "input[0].call_id"


@pytest.mark.parametrize("streams", [False, True])
def test_langchain_calls_tools_over_responses(served: Served, streams: bool) -> None:
    model = ChatOpenAI(
        base_url=served.openai_url,
        api_key=SecretStr("any"),
        max_retries=0,
        model=served.model,
        temperature=0,
        use_responses_api=True,
        streaming=streams,
    )
    bound = model.bind_tools([LookUp], tool_choice="any", parallel_tool_calls=False)
    answer = bound.invoke(QUESTION)

    assert isinstance(answer, AIMessage)
    (call,) = answer.tool_calls
    LookUp.model_validate(call["args"])
    output = ToolMessage(json.dumps({"at": "sea"}), tool_call_id=call["id"])
    last = model.invoke([HumanMessage(QUESTION), answer, output])
    assert last.text
