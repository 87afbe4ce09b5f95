"""Routes with their documentation, and the OpenAPI document made from them.

Handlers read their bodies and write their answers themselves; what a route names here is checked
against both by tests.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import orjson
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from router.http.errors import Dialect

OPENAPI_PATH = "/api-doc/openapi.json"
# A type that pydantic knows, or a JSON Schema.
Shape = Any
Handler = Callable[[Request], Awaitable[Response]]

_REF = "#/components/schemas/{model}"
_REFERENCE = re.compile(_REF.format(model='([^"]+)'))
_JSON = "application/json"
FORM = "multipart/form-data"
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
    415: "The body is of another media type",
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


class Tag(Enum):
    """The parts of the document in their order: the name of each, and what it is."""

    OPENAI = ("OpenAI", "Chats, completions and batches as OpenAI's clients send them, the models")
    ANTHROPIC = ("Anthropic", "Messages as Anthropic's clients send them")
    RESPONSES = ("Responses", "OpenAI's Responses, kept or in the background as well")
    TGI = ("Text Generation Inference", "The routes of TGI 3, and of the platforms that it knows")
    CONSTRAINTS = ("Constraints", "Try a constraint and texts without generating")
    OPERATIONS = ("Operations", "Health, facts and metrics; LoRA adapters")

    @property
    def label(self) -> str:
        return self.value[0]

    def entry(self) -> dict[str, str]:
        """Of the document's list."""
        name, description = self.value
        return {"name": name, "description": description}


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteDocs:
    """What a route reads and answers. None stands for no body, no content, no stream.

    `summary` says in a few words what a client gets; the handler's docstring says more. `answer` is
    the content of a 200, `events` the data of each of its server-sent events, or an error, but for
    `last_event`, which is no JSON. A route that `generates` text can fail at it, and takes a
    timeout. `failures` are the statuses that not every such route answers.
    """

    tag: Tag
    summary: str
    body: Shape | None = None
    body_type: str = _JSON
    answer: Shape | None = None
    events: Shape | None = None
    last_event: str | None = None
    media_type: str = _JSON
    generates: bool = False
    failures: Mapping[int, str] | None = None
    parameters: Sequence[Mapping[str, Any]] = ()

    @property
    def shapes(self) -> list[Shape]:
        """The types among what the route reads and answers."""
        shapes = (self.body, self.answer, self.events)
        return [each for each in shapes if each is not None and not isinstance(each, Mapping)]

    @property
    def all_failures(self) -> dict[int, str]:
        """The statuses of errors, in order, with their reasons."""
        body = {} if self.body is None else _BODY
        generation = _GENERATION if self.generates else {}
        failures = {**_ANY_ROUTE, **body, **generation, **(self.failures or {})}
        return dict(sorted(failures.items()))


class ApiRoute(Route):
    """One method of one path. A GET answers HEAD too."""

    def __init__(
        self,
        method: str,
        path: str,
        handler: Handler,
        docs: RouteDocs | None = None,
        name: str | None = None,
    ) -> None:
        """`name` is the operation's id in the document. Without `docs` it is left out there."""
        super().__init__(path, handler, methods=[method])
        self.method = method
        self.docs = docs
        self.operation_id = name or re.sub(
            r"\W", "_", f"{self.name}{self.path_format}_{method.lower()}"
        )
        self.description = handler.__doc__ or ""


def openapi_document(info: Mapping[str, Any], routes: Iterable[Route]) -> dict[str, Any]:
    """The OpenAPI document of the routes that have docs. `info` is the document's own `info`."""
    documented = [
        (route, route.docs)
        for route in routes
        if isinstance(route, ApiRoute) and route.docs is not None
    ]
    shapes = {shape for _, docs in documented for shape in docs.shapes}
    schemas, definitions = TypeAdapter.json_schemas(
        [(shape, "validation", TypeAdapter(shape)) for shape in shapes], ref_template=_REF
    )
    types = {shape: schema for (shape, _), schema in schemas.items()}
    paths: dict[str, dict[str, Any]] = {}
    for route, docs in documented:
        operation = _operation(route, docs, types)
        paths.setdefault(route.path_format, {})[route.method.lower()] = operation
    components = {**definitions.get("$defs", {}), **dict(_ERRORS.values())}
    used = _used(paths, components)
    return {
        "openapi": "3.1.0",
        "info": dict(info),
        "tags": [tag.entry() for tag in Tag],
        "paths": paths,
        "components": {"schemas": {name: components[name] for name in sorted(used)}},
    }


def _used(paths: object, schemas: Mapping[str, Any]) -> set[str]:
    """The names of all schemas that are referred to; pydantic defines more."""
    used: set[str] = set()
    found = _referred(paths)
    while found:
        used |= found
        found = set().union(*(_referred(schemas[name]) for name in found)) - used
    return used


def _referred(node: object) -> set[str]:
    return set(_REFERENCE.findall(orjson.dumps(node).decode()))


def _operation(route: ApiRoute, docs: RouteDocs, types: Mapping[Shape, Any]) -> dict[str, Any]:
    def schema(shape: Shape) -> Any:
        return shape if isinstance(shape, Mapping) else types[shape]

    error_name, _ = _ERRORS[Dialect.of_path(route.path_format)]
    error = {"$ref": _REF.format(model=error_name)}
    content: dict[str, Any] = {}
    if docs.answer is not None:
        content[docs.media_type] = {"schema": schema(docs.answer)}
    if docs.events is not None:
        data = schema(docs.events)
        data = data if isinstance(docs.events, Mapping) else {"anyOf": [data, error]}
        content[_EVENTS] = {"itemSchema": _event(data, docs.last_event)}
    success = {"description": "As asked for", **({"content": content} if content else {})}
    failures = {
        str(status): {"description": reason, "content": {_JSON: {"schema": error}}}
        for status, reason in docs.all_failures.items()
    }
    operation: dict[str, Any] = {
        "tags": [docs.tag.label],
        "summary": docs.summary,
        "description": route.description,
        "operationId": route.operation_id,
    }
    if parameters := _parameters(route, docs):
        operation["parameters"] = parameters
    if docs.body is not None:
        body = {docs.body_type: {"schema": schema(docs.body)}}
        operation["requestBody"] = {"required": True, "content": body}
    return {**operation, "responses": {"200": success, **failures}}


def _parameters(route: ApiRoute, docs: RouteDocs) -> list[Mapping[str, Any]]:
    timeout = [_TIMEOUT] if docs.generates else []
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT}
        for name in route.param_convertors
    ]
    return [*docs.parameters, *timeout, *in_path]


def _event(data: Any, last: str | None) -> dict[str, Any]:
    """A server-sent event; its data is a string that holds JSON, or the `last` one's."""
    text: dict[str, Any] = {"type": "string", "contentMediaType": _JSON, "contentSchema": data}
    if last is not None:
        text = {"anyOf": [{"const": last}, text]}
    return {"type": "object", "properties": {"data": text}, "required": ["data"]}
