"""HTTP/1.1 as uvicorn speaks it, but for what it says to bytes that are no HTTP.

Such bytes never become a request, so the application cannot answer them; this answers as it would.
"""

import logging
import uuid

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from router.http.errors import Dialect, HttpError, Problem

_logger = logging.getLogger(__name__)


class Protocol(HttpToolsProtocol):
    """One connection."""

    def send_400_response(self, msg: str) -> None:
        """Answers JSON with a request id, and hangs up."""
        request_id = uuid.uuid4().hex
        _logger.info("request_id=%s status=400: %s", request_id, msg)
        body = Problem.of(HttpError(400, "bad_request", msg), Dialect.TGI).body
        head = (
            f"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {request_id}\r\n"
            "connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
