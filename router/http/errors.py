"""Errors as HTTP answers: the one place where domain errors meet status codes.

TGI's routes answer `{"error", "error_type"}`; everything under `/v1` answers OpenAI's
`{"error": {"message", "type", "param", "code"}}`, but for `/v1/messages`, which answers Anthropic's
`{"type": "error", "error": {"type", "message"}, "request_id"}`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import ceil

import orjson
from starlette.responses import Response

from router.request.errors import (
    Cancelled,
    ConstraintRefused,
    ContextExceeded,
    Draining,
    GenerationFailed,
    InvalidRequest,
    NoAdapter,
    Overloaded,
    RateLimited,
    Refused,
    RouterError,
    ServerStopped,
    TemplateFailed,
    ToolsRefused,
    Unhealthy,
    Unsupported,
    cut,
)

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
# From so many on, in such a time, failures by bugs are no chance.
_MANY = 5
_WITHIN_S = 60.0
# When a request that ended with its server may be asked of the next one.
NEXT_SERVER_S = 1.0
_INVALID = "invalid_request_error"
_UNAVAILABLE = "service_unavailable_error"


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


def tgi_body(message: str, error_type: str, **details: object) -> bytes:
    return orjson.dumps({"error": message, "error_type": error_type, **details})


def openai_body(
    message: str, error_type: str, param: str | None, code: str | None, **details: object
) -> bytes:
    error = {"message": message, "type": error_type, "param": param, "code": code, **details}
    return orjson.dumps({"error": error})


def in_anthropic(problem: Problem, message: str, request_id: str | None) -> Problem:
    """An OpenAI problem in Anthropic's dialect: the same status, but 400 for 422."""
    if problem.status == 422:
        problem = replace(problem, status=400)
    other = "invalid_request_error" if problem.status < 500 else "api_error"
    error = {"type": _ANTHROPIC_TYPES.get(problem.status, other), "message": message}
    body = orjson.dumps({"type": "error", "error": error, "request_id": request_id})
    headers = {} if request_id is None else {"request-id": request_id}
    return replace(problem, body=body, headers={**problem.headers, **headers})


def retry_headers(retry_after_s: float | None) -> dict[str, str]:
    """The standard's whole seconds, and the milliseconds that OpenAI's client reads."""
    if retry_after_s is None:
        return {}
    return {
        "retry-after": str(ceil(retry_after_s)),
        "retry-after-ms": str(ceil(1000 * retry_after_s)),
    }


@dataclass(frozen=True, slots=True)
class _Kind:
    """The answer to one class of errors; `text` is TGI's message, with the error's own in `{}`.

    `openai_status` is OpenAI's where it has another one.
    """

    error_type: str
    status: int
    openai_type: str
    text: str = "{}"
    code: str | None = None
    openai_status: int | None = None


_KINDS: Mapping[type[RouterError], _Kind] = {
    Unsupported: _Kind("validation", 422, _INVALID, "Input validation error: {}", "unserved"),
    ToolsRefused: _Kind("tool_error", 422, _INVALID, code="tool_error"),
    TemplateFailed: _Kind("template_error", 422, _INVALID, "Template error: {}", None, 400),
    ConstraintRefused: _Kind("constraint_error", 422, _INVALID, "Constraint error: {}"),
    ContextExceeded: _Kind(
        "validation",
        422,
        _INVALID,
        "Input validation error: {}",
        "context_length_exceeded",
        400,
    ),
    NoAdapter: _Kind("model_not_found", 404, _INVALID, code="model_not_found"),
    InvalidRequest: _Kind("validation", 422, _INVALID, "Input validation error: {}", None, 400),
    Overloaded: _Kind(
        "overloaded", 429, "rate_limit_error", "Model is overloaded", code="overloaded"
    ),
    RateLimited: _Kind("rate_limited", 429, "rate_limit_error", code="rate_limit_exceeded"),
    Unhealthy: _Kind("unhealthy", 503, _UNAVAILABLE, code="unhealthy"),
    Draining: _Kind("draining", 503, _UNAVAILABLE, code="draining"),
    ServerStopped: _Kind(
        "incomplete_generation",
        503,
        _UNAVAILABLE,
        "Incomplete generation: {}",
        code="incomplete_generation",
    ),
    # No client reads it, but logs and metrics hold it.
    Cancelled: _Kind("cancelled", 499, "cancelled", code="cancelled"),
    GenerationFailed: _Kind(
        "generation",
        424,
        "server_error",
        text="Request failed during generation: Server error: {}",
        code="generation",
        openai_status=500,
    ),
    RouterError: _Kind("internal_error", 500, "server_error", code="internal_error"),
}


def problem_of(
    error: RouterError | HttpError, dialect: Dialect, request_id: str | None = None
) -> Problem:
    """The answer to an error; the table is looked up along the error's class order.

    Anthropic's bodies and headers name the request.
    """
    if isinstance(error, HttpError):
        return Problem.of(error, dialect, request_id)
    message = _message(error, dialect)
    if dialect is Dialect.ANTHROPIC:
        return in_anthropic(problem_of(error, Dialect.OPENAI), message, request_id)
    kind = _kind_of(error)
    retry_after_s = _retry_after_s(error)
    headers = retry_headers(retry_after_s)
    if dialect is Dialect.TGI:
        body = tgi_body(kind.text.format(message), kind.error_type, **_details(error))
        return Problem(kind.status, kind.error_type, body, headers, retry_after_s)
    field = error.field if isinstance(error, InvalidRequest) else None
    body = openai_body(message, kind.openai_type, field, kind.code, **_details(error))
    status = kind.openai_status or kind.status
    return Problem(status, kind.error_type, body, headers, retry_after_s)


def _message(error: RouterError, dialect: Dialect) -> str:
    """What the error says, but in the words that the API's clients search for."""
    if not isinstance(error, ContextExceeded) or dialect is Dialect.TGI:
        return str(error)
    prompt_len = error.num_prompt_tokens
    if prompt_len > error.max_prompt_len or error.num_new_tokens is None:
        if dialect is Dialect.ANTHROPIC:
            return f"prompt is too long: {prompt_len} tokens > {error.max_prompt_len} maximum"
        return (
            f"This model's maximum context length is {error.max_prompt_len} tokens for "
            f"`{error.field}`. However, there are {prompt_len}. Please reduce their length"
        )
    new_len = cut(str(error.num_new_tokens))
    if dialect is Dialect.ANTHROPIC:
        return (
            f"input length and `{error.field}` exceed context limit: {prompt_len} + {new_len} > "
            f"{error.max_total_len}, decrease input length or `{error.field}` and try again"
        )
    return (
        f"This model's maximum context length is {error.max_total_len} tokens. However, the prompt "
        f"has {prompt_len}, and `{error.field}` is {new_len}. Please reduce the one or the other"
    )


def _kind_of(error: RouterError) -> _Kind:
    if isinstance(error, ConstraintRefused):
        if error.reason == "malformed":
            return _KINDS[InvalidRequest]
        return replace(_KINDS[ConstraintRefused], code=error.reason)
    return next(_KINDS[base] for base in type(error).__mro__ if base in _KINDS)


def _details(error: RouterError) -> dict[str, object]:
    """Why a constraint is refused, with numbers and places, for programs to read."""
    if not isinstance(error, ConstraintRefused):
        return {}
    return {"constraint": {"reason": error.reason, **error.details}}


def _retry_after_s(error: RouterError) -> float | None:
    if isinstance(error, Refused):
        return error.retry_after_s
    return NEXT_SERVER_S if isinstance(error, ServerStopped) else None


class InternalErrors:
    """Requests that failed by a bug, with no other that succeeded since the first of them.

    Owned by the access layer, read by the health routes.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_failed = 0
        self._last_s = 0.0

    @property
    def are_many(self) -> bool:
        """True from the fifth in a row on, until one succeeds or a minute passes without any."""
        return self._num_failed >= _MANY and self._clock() - self._last_s < _WITHIN_S

    def ended(self, method: str, error_type: str | None) -> None:
        """A request has ended. Those that only read, probes among them, prove nothing."""
        if error_type == "internal_error":
            now_s = self._clock()
            is_recent = now_s - self._last_s < _WITHIN_S
            self._num_failed = self._num_failed + 1 if is_recent else 1
            self._last_s = now_s
        elif error_type is None and method == "POST":
            self._num_failed = 0
