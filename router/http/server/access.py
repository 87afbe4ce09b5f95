"""The outermost layer: a request id for every answer; its log line, its metrics, its span's end.

Plain ASGI. It knows no route; the routes write what a request was about to its `RequestRecord`. A
socket has a line of its own when it closes; each request over it is logged by `tell` too.
"""

import logging
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.http.server.request_record import RequestRecord
from router.telemetry.metrics import Metrics

_logger = logging.getLogger(__name__)
_SANE_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}", re.ASCII)
_MAX_PATH_LEN = 200
# TGI's words for the label `err` where they differ from the error_type.
_FAILURES: Mapping[str, str] = MappingProxyType(
    {"template_error": "template", "incomplete_generation": "incomplete", "cancelled": "dropped"}
)


class Access:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, metrics: Metrics, model: str) -> None:
        self._app = app
        self._metrics = metrics
        self._model = model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request; a bug is logged here and goes no further."""
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(_request_id(scope["headers"]), time.monotonic())
        record.enter(scope)
        is_complete = False

        async def send_marked(message: Message) -> None:
            nonlocal is_complete
            if message["type"] == "http.response.start":
                if record.cut_by is None:
                    record.status = message["status"]
                record.is_stream = _is_stream(message.get("headers", ()))
                id_header = (b"x-request-id", record.request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), id_header]}
            elif not message.get("more_body", False):
                is_complete = True
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
        except Exception:
            _logger.exception("request_id=%s failed by a bug", record.request_id)
            record.error_type = "internal_error"
        finally:
            if record.cut_by is not None:
                record.error_type = record.cut_by
            elif not is_complete and record.error_type is None:
                record.error_type = "cancelled"
            self._tell(scope, record, scope["method"])

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = RequestRecord(_request_id(scope["headers"]), time.monotonic())
        record.enter(scope)

        async def send_marked(message: Message) -> None:
            is_accepted = message["type"] == "websocket.accept"
            if is_accepted or message["type"] == "websocket.http.response.start":
                record.status = 101 if is_accepted else message["status"]
                id_header = (b"x-request-id", record.request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), id_header]}
            await send(message)

        try:
            await self._app(scope, receive, send_marked)
        except OSError:
            record.error_type = "cancelled"  # it left before it was let in
        except Exception:
            _logger.exception("request_id=%s failed by a bug", record.request_id)
            record.error_type = "internal_error"
        finally:
            record.error_type = record.cut_by or record.error_type
            self._tell(scope, record, "SOCKET")

    def _tell(self, scope: Scope, record: RequestRecord, method: str) -> None:
        # Still percent-encoded: no line break of a client's gets into the log.
        path = scope["raw_path"].decode("ascii", "backslashreplace")[:_MAX_PATH_LEN]
        tell(record, self._metrics, method, path, self._model)


def tell(record: RequestRecord, metrics: Metrics, method: str, path: str, model: str) -> None:
    """The end of an record: its metrics, the end of its span, its line in the log."""
    duration_s = time.monotonic() - record.started_s
    if record.is_generation:
        _count(record, metrics, duration_s)
    told = {"total_ms": round(1000 * duration_s, 1), **record.told()}
    request: dict[str, object] = {"method": method, "path": path}
    if record.is_generation:
        request |= {"route": record.route, "model": model}
    record.span.end({**request, **told})
    is_routine = not record.is_generation and record.error_type is None
    _logger.log(
        logging.DEBUG if is_routine else logging.INFO,
        "%s %s %s",
        method,
        path,
        " ".join(f"{word}={value}" for word, value in told.items()),
        extra={**request, **told},
    )


def _count(record: RequestRecord, metrics: Metrics, duration_s: float) -> None:
    if record.error_type is None:
        metrics.request_success.inc()
        metrics.request_duration.observe(duration_s)
    else:
        cause = _FAILURES.get(record.error_type, record.error_type)
        metrics.request_failure.inc(cause)


def _is_stream(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in headers
    )


def _request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The client's own id if it is safe to repeat in a header and a log, else a new one."""
    given = next((value for name, value in headers if name == b"x-request-id"), b"")
    return given.decode() if _SANE_ID.fullmatch(given) else uuid.uuid4().hex
