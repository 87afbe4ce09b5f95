"""Other paths for routes: what a platform calls them, it says when it starts the server.

Whoever comes behind sees the route's own path, and so its dialect and its rules.
"""

from collections.abc import Mapping
from types import MappingProxyType

from starlette.types import ASGIApp, Receive, Scope, Send

NO_ALIASES: Mapping[str, str] = MappingProxyType({})


class Aliases:
    """Wraps the application; `paths` maps a platform's path to ours."""

    def __init__(self, app: ASGIApp, paths: Mapping[str, str]) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands one request on, under the route's own path."""
        path = self._paths.get(scope["path"]) if scope["type"] == "http" else None
        if path is not None:
            scope = {**scope, "path": path}
        await self._app(scope, receive, send)
