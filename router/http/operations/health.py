"""Three questions to a server: is it there, would it serve a request, does it get on?

    /health/live       the process answers
    /health/ready      a request would be served now; also /health, /ping and GET /, as with TGI
    /health/progress   steps get done, or there is nothing to do

200 with an empty body, or 503 with TGI's. No probe sends a request, or asks a shard and waits for
it: what is told is what the batcher knows from its own calls, so that a probe neither hangs with a
shard nor costs it a step.
"""

from fastapi import APIRouter
from starlette.responses import Response

from router.engine.infer import Infer
from router.http.errors import HttpError
from router.http.openapi import tell


class HealthRoutes:
    """The handlers, over what they tell of."""

    def __init__(self, infer: Infer) -> None:
        self._infer = infer

    def router(self) -> APIRouter:
        """The routes, documented; every HEAD is not."""
        router = APIRouter(tags=["Health"])
        for path, probe, name, failures in (
            ("/health", self.ready, "health", {503: "Not ready"}),
            ("/health/live", self.live, "health_live", {}),
            ("/health/ready", self.ready, "health_ready", {503: "Not ready"}),
            ("/health/progress", self.progress, "health_progress", {503: "Nothing gets on"}),
            ("/ping", self.ready, "ping", {503: "Not ready"}),
            ("/", self.ready, "root_health", {503: "Not ready"}),
        ):
            router.add_api_route(
                path,
                probe,
                methods=["GET"],
                operation_id=name,
                **tell(failures=failures),
            )
            router.add_api_route(path, probe, methods=["HEAD"], include_in_schema=False)
        return router

    async def live(self) -> Response:
        """Whether the process answers: 200 with an empty body."""
        return Response()

    async def ready(self) -> Response:
        """Whether requests would be served now: 200 with an empty body, or 503."""
        if not self._infer.is_ready:
            raise _unhealthy("unhealthy")
        return Response()

    async def progress(self) -> Response:
        """Whether steps get done, or there is nothing to do: 200 with an empty body, or 503."""
        trouble = self._infer.trouble
        if trouble is not None:
            raise _unhealthy(trouble)
        return Response()


def _unhealthy(message: str) -> HttpError:
    return HttpError(503, "healthcheck", message)
