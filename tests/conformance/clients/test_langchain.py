"""LangChain's chat model for OpenAI: invoke, stream and batch, of both kinds, with usage."""

from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.conformance.serving import Served

QUESTION = "Where does Doric Caldman live?"
OTHER = "Who are you?"


def chat(served: Served, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=served.openai_url,
        api_key=SecretStr("any"),
        max_retries=0,
        **{"model": served.model, "temperature": 0, "max_tokens": 30, **options},
    )


def usage_of(message: AIMessage) -> tuple[int, int, int]:
    usage = message.usage_metadata
    assert usage is not None
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    return usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]


def test_invoke_answers_with_usage_and_reason(served: Served) -> None:
    answer = chat(served).invoke(QUESTION)
    assert isinstance(answer, AIMessage)
    assert answer.text
    assert answer.response_metadata["finish_reason"] == "stop"
    assert answer.response_metadata["model_name"] == served.model
    num_input, num_output, _ = usage_of(answer)
    assert num_input > 0
    assert num_output > 0


def test_the_parts_of_a_stream_add_up_to_the_answer(served: Served) -> None:
    model = chat(served, stream_usage=True)
    whole = model.invoke(QUESTION)
    gathered: AIMessageChunk | None = None
    num_parts = 0
    for part in model.stream(QUESTION):
        assert isinstance(part, AIMessageChunk)
        gathered = part if gathered is None else gathered + part
        num_parts += 1
    assert gathered is not None
    assert num_parts > 2
    assert gathered.text == whole.text
    assert usage_of(gathered) == usage_of(whole)
    assert gathered.response_metadata["finish_reason"] == "stop"


def test_a_batch_answers_each_as_alone(served: Served) -> None:
    model = chat(served)
    alone = [model.invoke(question).text for question in (QUESTION, OTHER)]
    assert [answer.text for answer in model.batch([QUESTION, OTHER])] == alone


async def test_the_asynchronous_calls_see_the_same(served: Served) -> None:
    model = chat(served)
    expected = model.invoke(QUESTION).text
    assert (await model.ainvoke(QUESTION)).text == expected
    assert "".join([part.text async for part in model.astream(QUESTION)]) == expected
    answers = await model.abatch([QUESTION, QUESTION])
    assert [answer.text for answer in answers] == [expected, expected]


def test_a_conversation_keeps_its_roles(served: Served) -> None:
    messages = [
        SystemMessage("You are Pip."),
        HumanMessage(OTHER),
        AIMessage("I am Pip."),
        HumanMessage(QUESTION),
    ]
    num_input, _, _ = usage_of(chat(served).invoke(messages))
    assert num_input > usage_of(chat(served).invoke(QUESTION))[0]


def test_a_chain_of_prompt_model_and_parser_runs(served: Served) -> None:
    prompt = ChatPromptTemplate.from_messages([("user", "Where does {name} live?")])
    chain = prompt | chat(served) | StrOutputParser()
    assert chain.invoke({"name": "Doric Caldman"}) == chat(served).invoke(QUESTION).text


def test_logprobs_and_choices_arrive(served: Served) -> None:
    answer = chat(served, logprobs=True, top_logprobs=2).invoke(QUESTION)
    tokens = answer.response_metadata["logprobs"]["content"]
    assert len(tokens) == usage_of(answer)[1]
    assert all(len(token["top_logprobs"]) == 2 for token in tokens)
    (drawn,) = chat(served, n=3, temperature=1.0).generate([[HumanMessage(QUESTION)]]).generations
    assert len(drawn) == 3


def test_stop_and_seed_are_obeyed(served: Served) -> None:
    free = chat(served).invoke(QUESTION).text
    stop = free[3:6]
    assert chat(served).invoke(QUESTION, stop=[stop]).text == free[: free.index(stop)]
    drawn = {chat(served, temperature=1.3, seed=7).invoke(QUESTION).text for _ in range(3)}
    assert len(drawn) == 1


def test_errors_are_those_of_openai(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        chat(served, temperature=-1).invoke(QUESTION)
    with pytest.raises(openai.NotFoundError):
        chat(served, model="gpt-4o").invoke(QUESTION)
