"""The OpenAPI document: every route, what it reads, and every answer that it can give."""

import json
from functools import cache
from typing import Any

import pytest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from router.http.app import openapi_without_server
from router.http.server.docs import ApiRoute, RouteDocs, Tag, openapi_document
from router.http.tgi import Parameters
from tests.fakes import FakeShard
from tests.router.http.harness import housing

# What TGI's own document has.
TGI_PATHS = {
    "post": [
        *"/ /chat_tokenize /generate /generate_stream /invocations /tokenize".split(),
        "/v1/chat/completions",
        "/v1/completions",
    ],
    "get": "/health /info /metrics /v1/models".split(),
}
OURS = {
    "post": ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/vertex"],
    "get": ["/v1/models/{model_name}"],
}
GENERATING = ("/", "/generate", "/generate_stream", "/invocations", "/vertex")
CHOOSING = ("/chat_tokenize", "/invocations", "/vertex", "/v1/chat/completions", "/v1/completions")


@cache
def document() -> dict[str, Any]:
    """What a server answers at /api-doc/openapi.json; see the last test."""
    return openapi_without_server("0.0.1")


def test_every_operation_says_in_words_what_a_client_gets() -> None:
    spec = document()
    operations = [each for path in spec["paths"].values() for each in path.values()]

    summaries = [each["summary"] for each in operations]
    for each in operations:
        words = each["summary"].replace("_", " ").split()
        assert len(words) > 1, each["summary"]
        # Not the name of a function or of the operation in other letters.
        assert "_".join(words).lower() not in each["operationId"]
        assert each["description"] not in ("", each["summary"])
    assert len(set(summaries)) == len(summaries)


def test_the_parts_of_the_document_are_in_order_and_none_is_empty() -> None:
    spec = document()

    used = {
        tag for path in spec["paths"].values() for each in path.values() for tag in each["tags"]
    }
    named = [each["name"] for each in spec["tags"]]
    assert named[:3] == ["OpenAI", "Anthropic", "Responses"]
    assert named[3:] == ["Text Generation Inference", "Constraints", "Operations"]
    assert set(named) == used
    about = spec["info"]["description"]
    for api in (*named[:4], "LMTP"):
        assert api in about


def references(node: Any) -> list[str]:
    """Every $ref below a node."""
    if isinstance(node, list):
        return [found for child in node for found in references(child)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return own + [found for child in node.values() for found in references(child)]


def test_the_document_knows_every_route_and_every_schema_that_it_names() -> None:
    spec = document()

    for paths in (TGI_PATHS, OURS):
        for method, wanted in paths.items():
            assert [path for path in wanted if method not in spec["paths"].get(path, {})] == []
    schemas = spec["components"]["schemas"]
    assert schemas["Parameters"]["properties"].keys() == Parameters.model_fields.keys()
    named = {reference.removeprefix("#/components/schemas/") for reference in references(spec)}
    assert named == schemas.keys()


def test_every_error_has_the_shape_of_its_path() -> None:
    spec = document()

    shapes: dict[str, set[str]] = {}
    for path, operations in spec["paths"].items():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    schema = response["content"]["application/json"]["schema"]
                    shapes.setdefault(schema["$ref"].split("/")[-1], set()).add(path)
    assert {path for path in shapes["OpenAiErrorResponse"] if path[:4] != "/v1/"} == set()
    assert {path for path in shapes["ErrorResponse"] if path[:4] == "/v1/"} == set()
    assert {"/vertex", "/generate"} <= shapes["ErrorResponse"]


@pytest.mark.parametrize("path", GENERATING)
def test_a_route_that_generates_documents_all_its_refusals(path: str) -> None:
    found = document()["paths"][path]["post"]["responses"]

    wanted = "200 400 401 408 413 415 422 424 429 431 500 503".split()
    assert [status for status in wanted if status not in found] == []


@pytest.mark.parametrize("path", CHOOSING)
def test_a_route_that_takes_a_model_s_name_documents_others(path: str) -> None:
    assert "404" in document()["paths"][path]["post"]["responses"]


def test_every_part_of_a_path_is_a_parameter() -> None:
    spec = document()

    (parameter,) = spec["paths"]["/v1/models/{model_name}"]["get"]["parameters"]
    assert parameter == {
        "name": "model_name",
        "in": "path",
        "required": True,
        "schema": {"type": "string"},
    }
    items = spec["paths"]["/v1/responses/{response_id}"]["get"]
    names = [each["name"] for each in items["parameters"] if each["in"] == "path"]
    assert names == ["response_id"]


def test_a_success_has_its_media_types() -> None:
    paths = document()["paths"]

    def kinds(method: str, path: str) -> list[str]:
        return sorted(paths[path][method]["responses"]["200"].get("content", {}))

    assert kinds("post", "/") == ["application/json", "text/event-stream"]
    assert kinds("post", "/generate") == ["application/json"]
    assert kinds("post", "/generate_stream") == ["text/event-stream"]
    assert kinds("get", "/metrics") == ["text/plain"]
    assert kinds("get", "/info") == ["application/json"]
    assert kinds("get", "/health") == []


@pytest.mark.parametrize(
    ("path", "schemas"),
    [
        ("/generate_stream", {"StreamResponse", "ErrorResponse"}),
        ("/", {"StreamResponse", "ErrorResponse"}),
        ("/v1/chat/completions", {"ChatCompletionChunk", "OpenAiErrorResponse"}),
        ("/v1/completions", {"TextCompletionChunk", "OpenAiErrorResponse"}),
    ],
)
def test_an_event_may_be_an_error(path: str, schemas: set[str]) -> None:
    found = document()["paths"][path]["post"]["responses"]["200"]["content"]

    data = found["text/event-stream"]["itemSchema"]["properties"]["data"]
    assert {name.rsplit("/", 1)[-1] for name in references(data)} == schemas


def test_only_streams_of_openai_document_a_last_event_that_is_no_json() -> None:
    found = document()["paths"]

    def data(path: str) -> Any:
        content = found[path]["post"]["responses"]["200"]["content"]
        return content["text/event-stream"]["itemSchema"]["properties"]["data"]

    for path in ("/v1/chat/completions", "/v1/completions"):
        last, event = data(path)["anyOf"]
        assert (last, event["contentMediaType"]) == ({"const": "[DONE]"}, "application/json")
    assert data("/generate_stream")["contentMediaType"] == "application/json"


def test_an_answer_is_documented_by_its_model_or_its_schema() -> None:
    class Thing(BaseModel):
        """A thing."""

    async def handle(request: Request) -> Response:
        return Response()

    for answer, schema in ((Thing, {"$ref": "#/components/schemas/Thing"}), ({}, {})):
        docs = RouteDocs(tag=Tag.OPERATIONS, summary="Get a thing", answer=answer)
        route = ApiRoute("GET", "/thing", handle, docs)
        operation = openapi_document({}, [route])["paths"]["/thing"]["get"]
        content = operation["responses"]["200"]["content"]
        assert content == {"application/json": {"schema": schema}}


async def test_the_page_shows_the_document() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.get("/docs")

    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "assets/docs.js" in answer.text


async def test_the_document_can_be_printed_without_a_server() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        served = (await client.get("/api-doc/openapi.json")).json()

    assert json.loads(json.dumps(document())) == served
