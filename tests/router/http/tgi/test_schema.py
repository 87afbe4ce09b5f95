"""The answers as they are written are the answers that the OpenAPI document describes."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from router.http.operations import Info, ModelCard, ModelList
from router.http.platforms import VertexResponse
from router.http.tgi import (
    ChatTokenizeResponse,
    GenerateResponse,
    SimpleToken,
    StreamResponse,
)
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import housing

ALL = {"details": True, "decoder_input_details": True, "top_n_tokens": 2, "max_new_tokens": 2}


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/generate", {"inputs": "hello"}, GenerateResponse),
        ("/generate", {"inputs": "hello", "parameters": ALL}, GenerateResponse),
        (
            "/generate",
            {"inputs": "hello", "parameters": {**ALL, "best_of": 2, "top_k": 5}},
            GenerateResponse,
        ),
        ("/", {"inputs": "hello", "parameters": ALL}, list[GenerateResponse]),
        ("/tokenize", {"inputs": "hello"}, list[SimpleToken]),
        (
            "/chat_tokenize",
            {"messages": [{"role": "user", "content": "a"}]},
            ChatTokenizeResponse,
        ),
        ("/vertex", {"instances": [{"inputs": "hello"}]}, VertexResponse),
    ],
)
async def test_an_answer_is_of_its_model(path: str, body: Any, model: Any) -> None:
    async with housing(FakeShard(script=saying("world", 5))) as house, house.client as client:
        answer = await client.post(path, json=body)

    assert answer.status_code == 200, answer.text
    TypeAdapter(model).validate_json(answer.content, strict=True)


async def test_an_event_is_of_its_model() -> None:
    body = {"inputs": "hello", "parameters": {"details": True, "top_n_tokens": 2}}
    async with housing(FakeShard(script=saying("wo", 5))) as house, house.client as client:
        answer = await client.post("/generate_stream", json=body)

    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line]
    assert len(events) == 3
    for event in events:
        StreamResponse.model_validate(event, strict=True)


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/info", Info),
        ("/v1/models", ModelList),
        ("/v1/models/model", ModelCard),
    ],
)
async def test_a_description_of_the_server_is_of_its_model(
    path: str, model: type[BaseModel]
) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.get(path)

    assert answer.status_code == 200
    model.model_validate_json(answer.content, strict=True)
