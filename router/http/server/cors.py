"""Cross-origin requests: which origins may send them, and which headers their pages may read."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from router.http.server.errors import Dialect, HttpError, Problem

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
)


class Cors(CORSMiddleware):
    """Starlette's middleware with our lists of headers and methods, and refusals in JSON.

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
        """Serves one request."""
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
        # The answer differs by origin only where origins differ.
        elif self.allow_all_origins and not _has_origin(scope):
            await self.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Browsers send no preflight before a socket, so that it is refused here."""
        origin = Headers(scope=scope).get("origin")
        if origin is None or self.is_allowed_origin(origin):
            await self.app(scope, receive, send)
            return
        error = HttpError(403, "cors_refused", "pages of this origin may not ask here")
        await Problem.of(error, Dialect.TGI).response()(scope, receive, send)

    def preflight_response(self, request_headers: Headers) -> Response:
        """Starlette's answer, whose refusal becomes JSON."""
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        error = HttpError(400, "cors_refused", bytes(response.body).decode())
        refusal = Problem.of(error, Dialect.TGI).response()
        kept = [header for header in response.raw_headers if not header[0].startswith(b"content-")]
        refusal.raw_headers += kept
        return refusal


def _has_origin(scope: Scope) -> bool:
    return scope["type"] == "http" and any(name == b"origin" for name, _ in scope["headers"])
