"""Three questions to a server: is it there, would it serve a request, does it get on?

    /health/live       the process answers
    /health/ready      a request would be served now; also /health, /ping and GET /, as with TGI
    /health/progress   steps get done, or there is nothing to do

200 with an empty body, or 503 with TGI's. No probe sends a request, or asks a shard and waits for
it: what is told is what the batcher knows from its own calls, so that a probe neither hangs with a
shard nor costs it a step.
"""

from starlette.requests import Request
from starlette.responses import Response

from router.engine.infer import Infer
from router.http.errors import HttpError
from router.http.server.docs import ApiRoute, RouteDocs


class HealthRoutes:
    """The handlers, over what they tell of."""

    def __init__(self, infer: Infer) -> None:
        self._infer = infer

    def routes(self) -> list[ApiRoute]:
        """The routes, documented."""
        live = RouteDocs(tag="Health")
        ready = RouteDocs(tag="Health", failures={503: "Not ready"})
        progress = RouteDocs(tag="Health", failures={503: "Nothing gets on"})
        return [
            ApiRoute("GET", "/health", self.ready, ready, "health"),
            ApiRoute("GET", "/health/live", self.live, live, "health_live"),
            ApiRoute("GET", "/health/ready", self.ready, ready, "health_ready"),
            ApiRoute("GET", "/health/progress", self.progress, progress, "health_progress"),
            ApiRoute("GET", "/ping", self.ready, ready, "ping"),
            ApiRoute("GET", "/", self.ready, ready, "root_health"),
        ]

    async def live(self, request: Request) -> Response:
        """Whether the process answers: 200 with an empty body."""
        return Response()

    async def ready(self, request: Request) -> Response:
        """Whether requests would be served now: 200 with an empty body, or 503."""
        if not self._infer.is_ready:
            raise _unhealthy("unhealthy")
        return Response()

    async def progress(self, request: Request) -> Response:
        """Whether steps get done, or there is nothing to do: 200 with an empty body, or 503."""
        trouble = self._infer.trouble
        if trouble is not None:
            raise _unhealthy(trouble)
        return Response()


def _unhealthy(message: str) -> HttpError:
    return HttpError(503, "healthcheck", message)
