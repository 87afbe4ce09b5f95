"""The answers as they are written are the answers as the OpenAPI document tells them."""

import json
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from router.http.tgi import answers
from tests.fakes import FakeShard, saying
from tests.router.http.harness import housing

ALL = {"details": True, "decoder_input_details": True, "top_n_tokens": 2, "max_new_tokens": 2}
TENSOR = {"name": "in", "shape": [1], "datatype": "BYTES", "data": ["hello"]}
INTS = {**TENSOR, "data": list(b"hello")}


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/generate", {"inputs": "hello"}, answers.GenerateResponse),
        ("/generate", {"inputs": "hello", "parameters": ALL}, answers.GenerateResponse),
        (
            "/generate",
            {"inputs": "hello", "parameters": {**ALL, "best_of": 2, "top_k": 5}},
            answers.GenerateResponse,
        ),
        ("/", {"inputs": "hello", "parameters": ALL}, list[answers.GenerateResponse]),
        ("/tokenize", {"inputs": "hello"}, list[answers.SimpleToken]),
        (
            "/chat_tokenize",
            {"messages": [{"role": "user", "content": "a"}]},
            answers.ChatTokenizeResponse,
        ),
        ("/vertex", {"instances": [{"inputs": "hello"}]}, answers.VertexResponse),
        ("/v2/models/a/infer", {"inputs": [TENSOR]}, answers.InferenceOutput),
        ("/v2/models/a/versions/1/infer", {"id": "", "inputs": [INTS]}, answers.InferenceOutput),
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
        answers.StreamResponse.model_validate(event, strict=True)


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/info", answers.Info),
        ("/v1/models", answers.ModelList),
        ("/v1/models/model", answers.ModelCard),
        ("/v2", answers.MetadataServerResponse),
        ("/v2/health/live", answers.LiveResponse),
        ("/v2/health/ready", answers.ReadyResponse),
        ("/v2/models/a", answers.MetadataModelResponse),
        ("/v2/models/a/versions/1", answers.MetadataModelResponse),
        ("/v2/models/a/versions/1/ready", answers.ReadyResponse),
    ],
)
async def test_what_is_told_of_the_server_is_of_its_model(
    path: str, model: type[BaseModel]
) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.get(path)

    assert answer.status_code == 200
    model.model_validate_json(answer.content, strict=True)
