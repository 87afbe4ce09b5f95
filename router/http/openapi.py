"""The OpenAPI document: bodies are read by hand, so it is told what they are.

FastAPI documents what it parses itself; here routes name their bodies and answers with `describe`
and `tell`, and `document` adds the schemas, the path's parameters, and to every error the shape of
its path's dialect.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from router.http.errors import Dialect

Answer = type[BaseModel] | Mapping[str, Any]

_REF = "#/components/schemas/{model}"
_JSON = "application/json"
_EVENTS = "text/event-stream"
_ANY_ROUTE = {
    400: "The request is malformed",
    401: "The API key is missing or wrong",
    408: "The request came too slowly",
    414: "The path is too long",
    431: "The headers are too large",
    500: "A bug",
}
_BODY = {
    400: "The body is not valid JSON, or a parameter breaks a rule",
    413: "The body is too large",
    415: "The body is not JSON",
    422: "A parameter breaks a rule",
}
_GENERATION = {
    424: "The generation failed",
    429: "Too many requests",
    503: "Not ready, or shutting down",
}
NO_MODEL = {404: "There is no such model"}
_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_TIMEOUT = {
    "name": "x-request-timeout",
    "in": "header",
    "required": False,
    "description": "Seconds from the request's arrival after which it ends with what there is",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


_ERRORS: Mapping[Dialect, tuple[str, dict[str, Any]]] = {
    Dialect.TGI: ("ErrorResponse", _object(error=_TEXT, error_type=_TEXT)),
    Dialect.OPENAI: (
        "OpenAiErrorResponse",
        _object(error=_object(message=_TEXT, type=_TEXT, param=_TEXT_OR_NULL, code=_TEXT_OR_NULL)),
    ),
    Dialect.ANTHROPIC: (
        "AnthropicErrorResponse",
        _object(
            type={"const": "error"},
            error=_object(type=_TEXT, message=_TEXT),
            request_id=_TEXT_OR_NULL,
        ),
    ),
}


def describe(
    body: Answer,
    *,
    answer: Answer | None = None,
    events: Answer | None = None,
    last_event: str | None = None,
    generates: bool = True,
    failures: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """Arguments of `add_api_route` for a route that reads `body`.

    `answer` is what a 200 holds, `events` the data of each of its server-sent events, but for
    `last_event`, which is no JSON; without either it is JSON, and events too if the body has
    `stream`. `failures` are statuses that not
    every such route can answer.
    """
    if answer is None and events is None:
        answer = {}
        events = {} if "stream" in getattr(body, "model_fields", ()) else None
    failures = {**_BODY, **(_GENERATION if generates else {}), **(failures or {})}
    content = {_JSON: {"schema": _schema(body)}}
    return {
        "openapi_extra": {
            "requestBody": {"required": True, "content": content},
            **({"parameters": [_TIMEOUT]} if generates else {}),
        },
        **tell(answer, events=events, last_event=last_event, failures=failures),
    }


def tell(
    answer: Answer | None = None,
    *,
    events: Answer | None = None,
    last_event: str | None = None,
    media_type: str = _JSON,
    failures: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """Arguments of `add_api_route` for what a route answers, besides what any route can."""
    content: dict[str, Any] = {}
    if answer is not None:
        content[media_type] = {"schema": _schema(answer)}
    if events is not None:
        content[_EVENTS] = {"itemSchema": _event(events, last_event)}
    success: dict[str, Any] = {"description": "As asked for"}
    if content:
        success["content"] = content
    told_failures = {**_ANY_ROUTE, **(failures or {})}
    return {
        # Without it FastAPI documents a JSON body for every route.
        "response_class": Response,
        "responses": {
            200: success,
            **{status: {"description": text} for status, text in sorted(told_failures.items())},
        },
    }


def document(app: FastAPI, models: Sequence[type[BaseModel]]) -> dict[str, Any]:
    """The OpenAPI document of `app`, with the schemas of `models`."""
    _, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template=_REF
    )
    spec = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        license_info=app.license_info,
        routes=app.routes,
    )
    schemas = spec.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(definitions["$defs"])
    schemas.update(dict(_ERRORS.values()))
    for path, operations in spec["paths"].items():
        for operation in operations.values():
            _add_parameters(path, operation)
            _add_errors(path, operation["responses"])
    used = _used(spec["paths"], schemas)
    spec["components"]["schemas"] = {name: schemas[name] for name in schemas if name in used}
    return spec


def _used(node: Any, schemas: Mapping[str, Any]) -> set[str]:
    """The names of all schemas below a node; what pydantic knows beyond them is nobody's."""
    used: set[str] = set()
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            name = str(node.get("$ref", "")).removeprefix(_REF.format(model=""))
            if name in schemas and name not in used:
                used.add(name)
                waiting.append(schemas[name])
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return used


def _schema(told: Answer) -> Mapping[str, Any]:
    return told if isinstance(told, Mapping) else {"$ref": _REF.format(model=told.__name__)}


def _event(data: Answer, last: str | None) -> dict[str, Any]:
    """A server-sent event; its data is a string that holds JSON, or the `last` one's."""
    text: dict[str, Any] = {
        "type": "string",
        "contentMediaType": _JSON,
        "contentSchema": _schema(data),
    }
    if last is not None:
        text = {"anyOf": [{"const": last}, text]}
    return {"type": "object", "properties": {"data": text}, "required": ["data"]}


def _add_parameters(path: str, operation: dict[str, Any]) -> None:
    told = {parameter["name"] for parameter in operation.get("parameters", ())}
    for name in re.findall(r"{(\w+)}", path):
        if name not in told:
            parameter = {"name": name, "in": "path", "required": True, "schema": _TEXT}
            operation.setdefault("parameters", []).append(parameter)


def _add_errors(path: str, responses: dict[str, Any]) -> None:
    name, _ = _ERRORS[Dialect.of_path(path)]
    content = {_JSON: {"schema": {"$ref": _REF.format(model=name)}}}
    for status, response in responses.items():
        if int(status) >= 400:
            response.setdefault("content", content)
