"""KServe's open inference protocol, version 2, over HTTP: /v2 and below.

https://github.com/kserve/open-inference-protocol. As with TGI the one model answers to any name of
one segment: what its InferenceService is called, nobody tells the server.
"""

from collections.abc import Awaitable, Callable

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from router.engine.infer import Infer
from router.http.body import BodyReader
from router.http.errors import HttpError
from router.http.openapi import describe, tell
from router.http.operations.server_info import ServerInfo
from router.http.platforms.batches import Batches, Draw, within
from router.http.platforms.tensors import BYTES, InferenceBody, Texts
from router.http.request_validator import RequestValidator
from router.http.tgi.answers import (
    InferenceOutput,
    LiveResponse,
    MetadataModelResponse,
    MetadataServerResponse,
    ReadyResponse,
)
from router.http.tgi.schema import GenerateBody

_MODELS = "/v2/models/"
_ANY_MODEL = _MODELS + "{model_name}"
_VERSION = "/versions/{model_version}"
_NOT_READY = {503: "Not ready"}


class KServeRoutes:
    """The handlers, over what they need."""

    def __init__(
        self,
        infer: Infer,
        validator: RequestValidator,
        bodies: BodyReader,
        batches: Batches,
        info: ServerInfo,
    ) -> None:
        self._infer = infer
        self._validator = validator
        self._bodies = bodies
        self._batches = batches
        self._info = info

    def router(self) -> APIRouter:
        """The routes, documented; a served name with slashes has routes of its own."""
        router = APIRouter(tags=["KServe"])
        for path, handler, told in (
            ("/v2", self.server, tell(MetadataServerResponse)),
            ("/v2/health/live", self.live, tell(LiveResponse)),
            ("/v2/health/ready", self.ready, tell(ReadyResponse, failures=_NOT_READY)),
        ):
            router.add_api_route(path, handler, methods=["GET"], **told)
        for name in self._info.model_names:
            if "/" in name:
                self._add_model(router, _MODELS + name.lstrip("/"), name)
        self._add_model(router, _ANY_MODEL, None)
        return router

    def _add_model(self, router: APIRouter, prefix: str, name: str | None) -> None:
        """The routes of one model, or of those whose name the path says."""
        for path in (prefix, prefix + _VERSION):
            for suffix, handler, told in (
                ("", self.model, tell(MetadataModelResponse)),
                ("/ready", self.model_ready, tell(ReadyResponse, failures=_NOT_READY)),
                ("/infer", self.infer, describe(InferenceBody, answer=InferenceOutput)),
            ):
                router.add_api_route(
                    path + suffix,
                    _named(handler, name),
                    methods=["POST" if handler == self.infer else "GET"],
                    description=handler.__doc__,
                    include_in_schema=name is None,
                    **told,
                )

    async def server(self) -> Response:
        """What this server is, in KServe's words."""
        extensions = ["health", "models", "metrics"]
        name = "text-generation-inference"
        return _json({"name": name, "version": self._info.version, "extensions": extensions})

    async def live(self) -> Response:
        """Whether the process answers, which it does."""
        return _json({"live": True})

    async def ready(self) -> Response:
        """Whether requests would be served now."""
        self._check_ready()
        return _json({"live": True, "ready": True})

    async def model_ready(self, request: Request, name: str) -> Response:
        """Whether requests to the model would be served now."""
        self._check_ready()
        return _json({"name": name, "live": True, "ready": True})

    async def model(self, request: Request, name: str) -> Response:
        """What the model takes and gives."""
        version = request.path_params.get("model_version")
        told = {
            "name": name,
            "versions": [version or "1"],
            **({"version": version} if version else {}),
            "platform": "tandem",
            "extensions": ["infer", "ready"],
            "inputs": [{"name": "text_input", "datatype": BYTES, "shape": [-1]}],
            "outputs": [{"name": "text_output", "datatype": BYTES, "shape": [-1]}],
        }
        return _json(told)

    async def infer(self, request: Request, model_name: str) -> Response:
        """Generate a text for each prompt of the tensors."""
        record = self._validator.begin(request)
        body = await self._bodies.read(request, InferenceBody)
        tensors = [Texts.of(tensor, f"inputs[{index}]") for index, tensor in enumerate(body.inputs)]
        names = body.output_names()
        self._batches.check_size("inputs", sum(len(tensor.prompts) for tensor in tensors))
        draws: list[Draw] = []
        for index, tensor in enumerate(tensors):
            for prompt in tensor.prompts:
                with within(f"inputs[{index}]"):
                    generate = GenerateBody(inputs=prompt, parameters=body.parameters)
                    draws.append(await self._batches.prepare(record, generate))
        texts, headers = await self._batches.texts(request, draws)
        outputs = []
        for name, tensor in zip(names, tensors, strict=True):
            num_texts = len(tensor.prompts)
            outputs.append(tensor.answer(name, texts[:num_texts]))
            texts = texts[num_texts:]
        version = request.path_params.get("model_version")
        answer = {
            "model_name": model_name,
            **({"model_version": version} if version else {}),
            **({"id": body.id} if body.id is not None else {}),
            "outputs": outputs,
        }
        return _json(answer, headers)

    def _check_ready(self) -> None:
        if not self._infer.is_ready:
            raise HttpError(503, "healthcheck", "unhealthy")


def _named(
    handler: Callable[[Request, str], Awaitable[Response]], name: str | None
) -> Callable[[Request], Awaitable[Response]]:
    """The handler of a model's route, with the model's name: as given, or as the path has it."""

    async def handle(request: Request) -> Response:
        return await handler(request, name or request.path_params["model_name"])

    return handle


def _json(answer: object, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(answer), headers=headers, media_type="application/json")
