"""Errors of HTTP requests, rendered as TGI's, OpenAI's or Anthropic's error bodies.

TGI's routes answer `{"error", "error_type"}`; everything under `/v1` answers OpenAI's
`{"error": {"message", "type", "param", "code"}}`, but for `/v1/messages`, which answers Anthropic's
`{"type": "error", "error": {"type", "message"}, "request_id"}`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil

import orjson
from starlette.responses import Response


class Dialect(Enum):
    """The API whose error body a route answers."""

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
    """A request that is refused with a status.

    `error_type` is TGI's `error_type` and OpenAI's `code`; `field` the parameter at fault;
    `retry_after_s` the seconds after which the same request may succeed.
    """

    def __init__(
        self,
        status: int,
        error_type: str,
        message: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type
        self.field = field
        self.headers = headers or {}
        self.retry_after_s = retry_after_s


def model_not_found(name: str, served_names: Sequence[str] = ()) -> HttpError:
    """OpenAI's answer to the name of a model that is not served, with the names that are."""
    message = f"The model `{name[:200]}` does not exist"
    if served_names:
        message += f"; served: {', '.join(f'`{served}`' for served in served_names)}"
    return HttpError(404, "model_not_found", message, field="model")


def internal_error(request_id: str) -> HttpError:
    """The answer to a request that fails by a bug; the server's log has the traceback."""
    message = f"a bug; the server's log has more under request_id {request_id}"
    return HttpError(500, "internal_error", message)


@dataclass(frozen=True, slots=True)
class Problem:
    """The answer to a failed request, in one dialect.

    `retry_after_s`: the seconds after which the same request may succeed.
    """

    status: int
    error_type: str
    body: bytes
    headers: Mapping[str, str]
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error: HttpError, dialect: Dialect, request_id: str | None = None) -> "Problem":
        """The error as a dialect has it. Anthropic's bodies and headers name the request."""
        if dialect is Dialect.ANTHROPIC:
            return in_anthropic(cls.of(error, Dialect.OPENAI), str(error), request_id)
        if dialect is Dialect.TGI:
            body = tgi_body(str(error), error.error_type)
        else:
            openai_type = "invalid_request_error" if error.status < 500 else "server_error"
            body = openai_body(str(error), openai_type, error.field, error.error_type)
        headers = {**error.headers, **retry_headers(error.retry_after_s)}
        return cls(error.status, error.error_type, body, headers, error.retry_after_s)

    def response(self) -> Response:
        """The whole answer, when nothing was sent yet."""
        return Response(self.body, self.status, headers=self.headers, media_type="application/json")

    def frame(self) -> bytes:
        """The answer as an event of a running stream, whose status and headers are sent already."""
        body = self.body
        if self.retry_after_s is not None:
            retry = {
                "retry_after": ceil(self.retry_after_s),
                "retry_after_ms": ceil(1000 * self.retry_after_s),
            }
            body = orjson.dumps({**orjson.loads(body), **retry})
        return b"data: " + body + b"\n\n"


def retry_headers(retry_after_s: float | None) -> dict[str, str]:
    """The standard's whole seconds, and the milliseconds that OpenAI's client reads."""
    if retry_after_s is None:
        return {}
    return {
        "retry-after": str(ceil(retry_after_s)),
        "retry-after-ms": str(ceil(1000 * retry_after_s)),
    }


def tgi_body(message: str, error_type: str, **details: object) -> bytes:
    """TGI's error body."""
    return orjson.dumps({"error": message, "error_type": error_type, **details})


def openai_body(
    message: str, error_type: str, param: str | None, code: str | None, **details: object
) -> bytes:
    """OpenAI's error body."""
    error = {"message": message, "type": error_type, "param": param, "code": code, **details}
    return orjson.dumps({"error": error})


# Statuses that have an error type of their own in Anthropic's API.
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


def in_anthropic(problem: Problem, message: str, request_id: str | None) -> Problem:
    """An OpenAI problem in Anthropic's dialect: the same status, but 400 for 422."""
    if problem.status == 422:
        problem = replace(problem, status=400)
    other = "invalid_request_error" if problem.status < 500 else "api_error"
    error = {"type": _ANTHROPIC_TYPES.get(problem.status, other), "message": message}
    body = orjson.dumps({"type": "error", "error": error, "request_id": request_id})
    headers = {} if request_id is None else {"request-id": request_id}
    return replace(problem, body=body, headers={**problem.headers, **headers})
