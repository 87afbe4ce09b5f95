"""The requests that the front passes on to a model's server, and the model that each names."""

import re
from dataclasses import dataclass
from enum import Enum

from starlette.requests import Request

from router.http.server.body import BodyReader, parse_json
from router.http.server.docs import OPENAPI_PATH
from router.http.server.errors import Dialect, HttpError

# Of the router's API; the front answers its GET routes itself.
_POST_PATHS = frozenset(
    {
        "/",
        "/generate",
        "/generate_stream",
        "/tokenize",
        "/chat_tokenize",
        "/invocations",
        "/vertex",
        "/constraints/check",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/messages",
        "/v1/messages/count_tokens",
    }
)
_STORED = re.compile(r"/v1/responses/(?!input_tokens$)[^/]+(/input_items)?")
_DOCUMENTS = frozenset({OPENAPI_PATH, "/docs"})
_BODILESS = frozenset({"GET", "HEAD", "DELETE"})
_MAX_QUOTED_LEN = 60


class ModelSource(Enum):
    """Where a request's model is found.

    BODY: the body or the query string. LOADED: the loaded model that has what the path names, a
    stored response, or any loaded one.
    """

    BODY = "body"
    LOADED = "loaded"


@dataclass(frozen=True, slots=True)
class RequestedModel:
    """A request's body, unchanged, with its `model` (or that of the query string) and `stream`."""

    body: bytes
    model: str | None
    is_stream: bool = False


def methods_of(path: str) -> set[str]:
    """The methods by which requests for a path are passed on."""
    if stored := _STORED.fullmatch(path):
        return {"GET", "HEAD"} if stored[1] else {"GET", "HEAD", "DELETE"}
    if path in _DOCUMENTS:
        return {"GET", "HEAD"}
    return {"POST"} if path in _POST_PATHS else set()


def find_route(method: str, path: str) -> ModelSource | None:
    """Where the model of a request is found; None: the request is not passed on."""
    if method not in methods_of(path):
        return None
    is_of_loaded = path in _DOCUMENTS or _STORED.fullmatch(path)
    return ModelSource.LOADED if is_of_loaded else ModelSource.BODY


async def read_requested_model(request: Request, bodies: BodyReader) -> RequestedModel:
    """The request's body and what it names. Raises HttpError."""
    in_query = request.query_params.get("model")
    if request.method in _BODILESS:
        return RequestedModel(b"", in_query)
    body = await bodies.read(request)
    fields = parse_json(body)
    if not isinstance(fields, dict):
        raise _invalid(request, "the body must be a JSON object")
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        shown = repr(model)[:_MAX_QUOTED_LEN]
        raise _invalid(request, f"`model` must be a valid string. Given: {shown}", "model")
    return RequestedModel(body, model or in_query, fields.get("stream") is True)


def _invalid(request: Request, message: str, field: str | None = None) -> HttpError:
    """As the router answers it."""
    if Dialect.of_path(request.scope["path"]) is Dialect.TGI:
        return HttpError(422, "validation", f"Input validation error: {message}", field=field)
    return HttpError(400, "validation", message, field=field)
