"""The router's errors as HTTP answers: the one place where domain errors meet status codes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from router.http.server.errors import (
    Dialect,
    HttpError,
    Problem,
    in_anthropic,
    openai_body,
    retry_headers,
    tgi_body,
)
from router.request.errors import (
    Cancelled,
    ConstraintRefused,
    Draining,
    GenerationFailed,
    InvalidRequest,
    Overloaded,
    RateLimited,
    Refused,
    RouterError,
    ServerStopped,
    TemplateFailed,
    ToolsRefused,
    Unhealthy,
    Unsupported,
)

# When a request that ended with its server may be asked of the next one.
_NEXT_SERVER_S = 1.0


_INVALID = "invalid_request_error"
_UNAVAILABLE = "service_unavailable_error"


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
    InvalidRequest: _Kind("validation", 422, _INVALID, "Input validation error: {}", None, 400),
    Overloaded: _Kind(
        "overloaded", 429, "rate_limit_error", "Model is overloaded", code="overloaded"
    ),
    RateLimited: _Kind("rate_limited", 429, "rate_limit_error", code="rate_limit_exceeded"),
    Unhealthy: _Kind("unhealthy", 503, _UNAVAILABLE, code="unhealthy"),
    Draining: _Kind("draining", 503, _UNAVAILABLE, code="draining"),
    ServerStopped: _Kind(
        *("incomplete_generation", 503, _UNAVAILABLE, "Incomplete generation: {}"),
        code="incomplete_generation",
    ),
    # No client reads it, but logs and metrics hold it.
    Cancelled: _Kind("cancelled", 499, "cancelled", code="cancelled"),
    GenerationFailed: _Kind(
        *("generation", 424, "server_error"),
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
    if dialect is Dialect.ANTHROPIC:
        return in_anthropic(problem_of(error, Dialect.OPENAI), str(error), request_id)
    kind = _kind_of(error)
    retry_after_s = _retry_after_s(error)
    headers = retry_headers(retry_after_s)
    if dialect is Dialect.TGI:
        body = tgi_body(kind.text.format(error), kind.error_type, **_details(error))
        return Problem(kind.status, kind.error_type, body, headers, retry_after_s)
    field = error.field if isinstance(error, InvalidRequest) else None
    body = openai_body(str(error), kind.openai_type, field, kind.code, **_details(error))
    status = kind.openai_status or kind.status
    return Problem(status, kind.error_type, body, headers, retry_after_s)


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
    return _NEXT_SERVER_S if isinstance(error, ServerStopped) else None
