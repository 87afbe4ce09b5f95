"""Null stands for the absence of every optional field, on every route that reads a body."""

from typing import Any

import pytest

from router.http.openai.schema import ChatBody, CompletionBody
from router.http.platforms import VertexBody
from router.http.schema import Schema
from router.http.tgi import CompatBody, GenerateBody, Parameters, TokenizeBody
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import housing

NULLS = dict.fromkeys(Parameters.model_fields)
TURN = {"role": "user", "content": "hello", "name": None, "tool_calls": None}


@pytest.mark.parametrize(
    ("path", "schema", "needed"),
    [
        ("/", CompatBody, {"inputs": "hello"}),
        ("/generate", GenerateBody, {"inputs": "hello"}),
        ("/generate", GenerateBody, {"inputs": "hello", "parameters": NULLS}),
        ("/generate_stream", GenerateBody, {"inputs": "hello", "parameters": NULLS}),
        ("/tokenize", TokenizeBody, {"inputs": "hello"}),
        ("/chat_tokenize", ChatBody, {"messages": [TURN]}),
        ("/invocations", CompatBody, {"inputs": "hello", "messages": None, "prompt": None}),
        ("/invocations", ChatBody, {"messages": [TURN], "inputs": None}),
        ("/vertex", VertexBody, {"instances": [{"inputs": "hello", "parameters": None}]}),
        ("/v1/chat/completions", ChatBody, {"messages": [TURN]}),
        ("/v1/completions", CompletionBody, {"prompt": "hello"}),
    ],
)
async def test_all_that_may_be_absent_may_be_null(
    path: str, schema: type[Schema], needed: dict[str, Any]
) -> None:
    body = {**dict.fromkeys(schema.model_fields), **needed}
    async with housing(FakeShard(script=saying("w", 5))) as house, house.client as client:
        answer = await client.post(path, json=body)

    assert answer.status_code == 200, answer.text
    assert '"error"' not in answer.text
