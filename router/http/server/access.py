"""The layers around every route: the access log, and the origins whose pages may ask.

`Access` is the outermost one. It gives every request an id, and writes one line when its answer or
its socket ends. It knows no route; the layers below write what they learn about a request to its
record.
"""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from processes.logs import MessageWithFields
from processes.worker_threads import stop_on_panic
from router.http.errors import (
    NEXT_SERVER_S,
    Dialect,
    HttpError,
    InternalErrors,
    Problem,
    internal_error,
)
from router.request.request import NO_KEY, ApiKey

_logger = logging.getLogger(__name__)
_SCOPE_KEY = "tandem.record"
_SANE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}", re.ASCII)
_MAX_PATH_LEN = 200
# Of places in schemas; their header stays below 3 kB.
_MAX_PLACES = 16
_MAX_PLACE_LEN = 160

_UNSHOWN = frozenset({"status", "seed", "validation_ms", "inference_ms"})
_PROBED = frozenset({"/", "/health", "/ping"})
ANY_ORIGIN = ("*",)
_METHODS = ("GET", "POST", "DELETE", "OPTIONS")
_EXPOSED = (
    "x-request-id",
    "request-id",
    "retry-after",
    "retry-after-ms",
    "www-authenticate",
    "x-compute-type",
    "x-compute-time",
    "x-compute-characters",
    "x-total-time",
    "x-validation-time",
    "x-queue-time",
    "x-inference-time",
    "x-time-per-token",
    "x-prompt-tokens",
    "x-generated-tokens",
    "x-ignored-fields",
    "x-not-enforced",
)


def is_probe(method: str, path: str) -> bool:
    """Whether a request only asks how the server is."""
    return method in ("GET", "HEAD") and (path in _PROBED or path.startswith("/health/"))


@dataclass(slots=True)
class AccessRecord:
    """One request and its answer, or one socket, for its line in the log.

    `started_s` is of time.monotonic, which is finer than uvloop's clock. `error_type` is the
    client's name for what went wrong, inside a stream too, where `status` stays 200. `cut_by` is
    why the server hung up; it comes before what the routes take for the client's leaving.
    `key` is the client's. `ignored_fields` of its body had no effect; `not_enforced` are the places
    in its schemas that masks do not keep. The answer names both.
    """

    request_id: str
    started_s: float
    is_stream: bool = False
    status: int | None = None
    error_type: str | None = None
    cut_by: str | None = None
    key: ApiKey = NO_KEY
    ignored_fields: list[str] = field(default_factory=list)
    not_enforced: list[str] = field(default_factory=list)

    @classmethod
    def within(cls, scope: Scope) -> Self | None:
        """The record of an ASGI scope; None before it entered."""
        record = scope.get(_SCOPE_KEY)
        assert record is None or isinstance(record, cls)
        return record

    @classmethod
    def of(cls, request: Request) -> Self:
        record = request.scope[_SCOPE_KEY]
        assert isinstance(record, cls)
        return record

    def enter(self, scope: Scope) -> None:
        """Ties the record to an ASGI scope."""
        scope[_SCOPE_KEY] = self

    def ignore(self, names: Iterable[str]) -> None:
        """Fields of the body that have no effect."""
        self.ignored_fields += [name for name in names if name not in self.ignored_fields]

    def leave_out(self, places: Iterable[str]) -> None:
        """Parts of schemas that masks do not enforce."""
        shown = [place[:_MAX_PLACE_LEN] for place in places]
        self.not_enforced = [*dict.fromkeys([*self.not_enforced, *shown])][:_MAX_PLACES]

    @property
    def is_routine(self) -> bool:
        """Whether its line is for debugging alone."""
        return self.error_type is None

    def request_fields(self, method: str, path: str) -> dict[str, object]:
        return {"method": method, "path": path}

    def answer_fields(self) -> dict[str, object]:
        total_ms = round(1000 * (time.monotonic() - self.started_s), 1)
        fields: dict[str, object] = {"total_ms": total_ms, "status": self.status}
        fields["request_id"] = self.request_id
        if self.error_type is not None:
            fields["error_type"] = self.error_type
        if self.ignored_fields:
            fields["ignored_fields"] = _in_ascii(self.ignored_fields)
        return fields

    def end(self, method: str, path: str) -> None:
        fields = self.answer_fields()
        # What is nothing, as a rule, and what matters to programs alone, people need not read.
        shown = {name: value for name, value in fields.items() if value and name not in _UNSHOWN}
        _logger.log(
            logging.DEBUG if self.is_routine else logging.INFO,
            MessageWithFields(f"{method} {path} {self.status or '-'}", shown),
            extra={**self.request_fields(method, path), **fields},
        )


class Access:
    """The outermost middleware. `new_record` takes a request's id and its start.

    `errors` learns how requests ended.
    """

    def __init__(
        self,
        app: ASGIApp,
        new_record: Callable[[str, float], AccessRecord] = AccessRecord,
        errors: InternalErrors | None = None,
    ) -> None:
        self._app = app
        self._new_record = new_record
        self._errors = errors or InternalErrors()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; a bug is logged here and goes no further."""
        record = self._new_record(_request_id(scope["headers"]), time.monotonic())
        record.enter(scope)
        serve = self._serve_http if scope["type"] == "http" else self._serve_socket
        try:
            await serve(record, scope, receive, send)
        except Exception:
            _logger.exception("request_id=%s failed by a bug", record.request_id)
            record.error_type = "internal_error"
            await _answer(internal_error(record.request_id), record, scope, receive, send)
        except asyncio.CancelledError:
            error = HttpError(503, "draining", "the server stops", retry_after_s=NEXT_SERVER_S)
            await _answer(error, record, scope, receive, send)
            raise
        except BaseException as error:
            stop_on_panic(error)
            record.error_type = "internal_error"
            raise
        finally:
            record.error_type = record.cut_by or record.error_type
            self._errors.ended(scope.get("method", "SOCKET"), record.error_type)
            # Still percent-encoded: no line break of a client's gets into the log.
            path = scope["raw_path"].decode("ascii", "backslashreplace")[:_MAX_PATH_LEN]
            record.end(scope.get("method", "SOCKET"), path)

    async def _serve_http(
        self, record: AccessRecord, scope: Scope, receive: Receive, send: Send
    ) -> None:
        is_complete = False

        async def send_marked(message: Message) -> None:
            nonlocal is_complete
            if message["type"] == "http.response.start":
                record.status = message["status"]
                record.is_stream = _is_stream(message.get("headers", ()))
                message = _with_id(message, record)
            elif not message.get("more_body", False):
                is_complete = True
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
        finally:
            if not is_complete and record.error_type is None:
                record.error_type = "cancelled"

    async def _serve_socket(
        self, record: AccessRecord, scope: Scope, receive: Receive, send: Send
    ) -> None:
        async def send_marked(message: Message) -> None:
            is_accepted = message["type"] == "websocket.accept"
            if is_accepted or message["type"] == "websocket.http.response.start":
                record.status = 101 if is_accepted else message["status"]
                message = _with_id(message, record)
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
        except OSError:
            record.error_type = "cancelled"  # the client left before it was let in


class Cors(CORSMiddleware):
    """Starlette's middleware with our lists of headers and methods, for WebSockets too.

    Any request header is allowed, since every client library sends its own; cookies are not asked
    for, and keys have to be known to be sent.
    """

    def __init__(self, app: ASGIApp, allowed_origins: Sequence[str] = ANY_ORIGIN) -> None:
        super().__init__(
            app,
            allow_origins=allowed_origins,
            allow_methods=_METHODS,
            allow_headers=("*",),
            expose_headers=_EXPOSED,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = next((value for name, value in scope["headers"] if name == b"origin"), None)
        if origin is None and self.allow_all_origins:
            # The answer differs by origin only where origins differ.
            await self.app(scope, receive, send)
        elif self._is_refused_socket(scope, origin):
            error = HttpError(403, "cors_refused", "pages of this origin may not ask here")
            await Problem.of(error, Dialect.TGI).response()(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def _is_refused_socket(self, scope: Scope, origin: bytes | None) -> bool:
        """Browsers send no preflight before a socket."""
        if scope["type"] == "http" or origin is None:
            return False
        return not self.is_allowed_origin(origin.decode("latin-1"))


async def refuse(error: HttpError, scope: Scope, receive: Receive, send: Send) -> None:
    """The answer of a layer that hands a request on no further, in the path's dialect."""
    record = AccessRecord.within(scope)
    assert record is not None, "the access log is around it"
    record.error_type = error.error_type
    problem = Problem.of(error, Dialect.of_path(scope["path"]), record.request_id)
    await problem.response()(scope, receive, send)


async def _answer(
    error: HttpError, record: AccessRecord, scope: Scope, receive: Receive, send: Send
) -> None:
    """The error in the path's dialect; nothing once an answer has begun."""
    if record.status is None:
        record.status = error.status
        problem = Problem.of(error, Dialect.of_path(scope["path"]), record.request_id)
        response = problem.response()
        response.headers["x-request-id"] = record.request_id
        await response(scope, receive, send)


def _with_id(message: Message, record: AccessRecord) -> Message:
    headers = [*message.get("headers", ()), (b"x-request-id", record.request_id.encode())]
    if record.ignored_fields:
        headers.append((b"x-ignored-fields", _in_ascii(record.ignored_fields).encode()))
    if record.not_enforced:
        headers.append((b"x-not-enforced", _in_ascii(record.not_enforced).encode()))
    return {**message, "headers": headers}


def _in_ascii(names: Iterable[str]) -> str:
    """Names of a client's choice, for a header and a log: commas stand between them alone."""
    return ",".join(re.sub(r"[^!-~]|,", "?", name) for name in names)


def _is_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in headers
    )


def _request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's own id if it is safe to repeat in a header and a log, else a new one."""
    sent = next((value for name, value in headers if name == b"x-request-id"), b"")
    return sent.decode() if _SANE_ID.fullmatch(sent) else uuid.uuid4().hex
