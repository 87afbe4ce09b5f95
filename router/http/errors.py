"""Errors as a client reads them: the one place where domain words meet HTTP status codes.

Three dialects. TGI's routes answer `{"error", "error_type"}`; everything under `/v1` answers
OpenAI's `{"error": {"message", "type", "param", "code"}}`, but for `/v1/messages`, which answers
Anthropic's `{"type": "error", "error": {"type", "message"}, "request_id"}`. It does not know who
raised what, or where.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil

import orjson
from starlette.responses import Response

from router.request.errors import (
    Cancelled,
    ConstraintRefused,
    Draining,
    GenerationFailed,
    InvalidRequest,
    Overloaded,
    Refused,
    RouterError,
    ServerStopped,
    TemplateFailed,
    ToolsRefused,
    Unhealthy,
    Unsupported,
)

# What tells a front, in any dialect, that this server is on its way out.
DRAINING_HEADER = "x-tandem-state"
# What ended with the server may be asked of the next one.
_NEXT_SERVER_S = 1.0


class Dialect(Enum):
    """Whose error shape a route speaks."""

    TGI = "tgi"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"

    @classmethod
    def of_path(cls, path: str) -> "Dialect":
        """The dialect of a path, which also holds for routes that do not exist."""
        if path == "/v1/messages" or path.startswith("/v1/messages/"):
            return cls.ANTHROPIC
        return cls.OPENAI if path == "/v1" or path.startswith("/v1/") else cls.TGI


class HttpError(Exception):
    """A request refused before it has a meaning: its body, its route, its method.

    `error_type` is the word on TGI's routes, `code` OpenAI's; `field` the parameter at fault.
    """

    def __init__(
        self,
        status: int,
        error_type: str,
        message: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type
        self.field = field
        self.headers = headers or {}


def model_not_found(name: str) -> HttpError:
    """OpenAI's answer to a model's name that is not served."""
    return HttpError(
        404, "model_not_found", f"The model `{name[:200]}` does not exist", field="model"
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one class of error goes out; `text` is TGI's sentence, with the error's own in `{}`."""

    error_type: str
    text: str
    tgi_status: int
    openai_status: int
    openai_type: str
    code: str | None = None


_KINDS: Mapping[type[RouterError], _Kind] = {
    Unsupported: _Kind(
        "validation",
        "Input validation error: {}",
        422,
        422,
        "invalid_request_error",
        code="unserved",
    ),
    ToolsRefused: _Kind("tool_error", "{}", 422, 422, "invalid_request_error", code="tool_error"),
    TemplateFailed: _Kind(
        "template_error", "Template error: {}", 422, 400, "invalid_request_error"
    ),
    ConstraintRefused: _Kind(
        "constraint_error", "Constraint error: {}", 422, 422, "invalid_request_error"
    ),
    InvalidRequest: _Kind(
        "validation", "Input validation error: {}", 422, 400, "invalid_request_error"
    ),
    Overloaded: _Kind(
        "overloaded",
        "Model is overloaded",
        429,
        429,
        "rate_limit_error",
        code="overloaded",
    ),
    Unhealthy: _Kind("unhealthy", "{}", 503, 503, "service_unavailable_error", code="unhealthy"),
    Draining: _Kind("draining", "{}", 503, 503, "service_unavailable_error", code="draining"),
    ServerStopped: _Kind(
        "incomplete_generation",
        "Incomplete generation: {}",
        503,
        503,
        "service_unavailable_error",
        code="incomplete_generation",
    ),
    # Nobody reads it, but logs and metrics tell of it.
    Cancelled: _Kind("cancelled", "{}", 499, 499, "cancelled", code="cancelled"),
    GenerationFailed: _Kind(
        "generation",
        "Request failed during generation: Server error: {}",
        424,
        500,
        "server_error",
        code="generation",
    ),
    RouterError: _Kind("internal_error", "{}", 500, 500, "server_error", code="internal_error"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in one dialect: what to answer. `retry_after_s`: when it may be different."""

    status: int
    error_type: str
    body: bytes
    headers: Mapping[str, str]
    retry_after_s: float | None = None

    @classmethod
    def of(
        cls, error: RouterError | HttpError, dialect: Dialect, request_id: str | None = None
    ) -> "Problem":
        """Translates an error; the table is looked up along the error's class order.

        Anthropic's bodies and headers name the request.
        """
        if dialect is Dialect.ANTHROPIC:
            return _anthropic(cls.of(error, Dialect.OPENAI), error, request_id)
        if isinstance(error, HttpError):
            return cls(
                error.status, error.error_type, _edge_body(error, dialect), dict(error.headers)
            )
        kind = _kind_of(error)
        retry_after_s = _retry_after_s(error)
        headers = {} if retry_after_s is None else _retry_headers(retry_after_s)
        if isinstance(error, Draining):
            headers[DRAINING_HEADER] = "draining"
        if dialect is Dialect.TGI:
            body = _tgi_body(kind.text.format(error), kind.error_type, **_told_of(error))
            return cls(kind.tgi_status, kind.error_type, body, headers, retry_after_s)
        field = error.field if isinstance(error, InvalidRequest) else None
        body = _openai_body(str(error), kind.openai_type, field, kind.code, **_told_of(error))
        return cls(kind.openai_status, kind.error_type, body, headers, retry_after_s)

    def response(self) -> Response:
        """The whole answer, when nothing was sent yet."""
        return Response(self.body, self.status, headers=self.headers, media_type="application/json")

    def frame(self) -> bytes:
        """The answer inside a running event stream, whose status and headers are gone already."""
        body = self.body
        if self.retry_after_s is not None:
            told = {
                "retry_after": ceil(self.retry_after_s),
                "retry_after_ms": ceil(1000 * self.retry_after_s),
            }
            body = orjson.dumps({**orjson.loads(body), **told})
        return b"data: " + body + b"\n\n"


def _kind_of(error: RouterError) -> _Kind:
    if isinstance(error, ConstraintRefused):
        if error.reason == "malformed":
            return _KINDS[InvalidRequest]
        return replace(_KINDS[ConstraintRefused], code=error.reason)
    return next(_KINDS[base] for base in type(error).__mro__ if base in _KINDS)


def _told_of(error: RouterError) -> dict[str, object]:
    """Of a constraint why it is refused, with numbers and places, for programs to read."""
    if not isinstance(error, ConstraintRefused):
        return {}
    return {"constraint": {"reason": error.reason, **error.details}}


def _retry_after_s(error: RouterError) -> float | None:
    if isinstance(error, Refused):
        return error.retry_after_s
    return _NEXT_SERVER_S if isinstance(error, ServerStopped) else None


def _retry_headers(retry_after_s: float) -> dict[str, str]:
    """The standard's whole seconds, and the exact time for those who read it (openai does)."""
    return {
        "retry-after": str(ceil(retry_after_s)),
        "retry-after-ms": str(ceil(1000 * retry_after_s)),
    }


def _edge_body(error: HttpError, dialect: Dialect) -> bytes:
    if dialect is Dialect.TGI:
        return _tgi_body(str(error), error.error_type)
    openai_type = "invalid_request_error" if error.status < 500 else "server_error"
    return _openai_body(str(error), openai_type, error.field, error.error_type)


def _tgi_body(message: str, error_type: str, **more: object) -> bytes:
    return orjson.dumps({"error": message, "error_type": error_type, **more})


def _openai_body(
    message: str, error_type: str, param: str | None, code: str | None, **more: object
) -> bytes:
    fault = {"message": message, "type": error_type, "param": param, "code": code, **more}
    return orjson.dumps({"error": fault})


# Where Anthropic's word for a status is another than for its neighbours.
_ANTHROPIC_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def _anthropic(problem: Problem, error: Exception, request_id: str | None) -> Problem:
    """Anthropic's statuses are OpenAI's, without 422; its types follow from them."""
    if problem.status == 422:
        problem = replace(problem, status=400)
    other = "invalid_request_error" if problem.status < 500 else "api_error"
    fault = {"type": _ANTHROPIC_TYPES.get(problem.status, other), "message": str(error)}
    body = orjson.dumps({"type": "error", "error": fault, "request_id": request_id})
    headers = {} if request_id is None else {"request-id": request_id}
    return replace(problem, body=body, headers={**problem.headers, **headers})
