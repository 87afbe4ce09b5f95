"""KServe's open inference protocol, version 2, over HTTP: /v2 and below.

https://github.com/kserve/open-inference-protocol. As with TGI the one model answers to any name of
one segment: the server does not know what its InferenceService is called.
"""

import re
from collections.abc import Sequence
from functools import partial

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from router.engine.infer import Infer
from router.http.body import parse
from router.http.platforms.batches import Batches, Draw, within
from router.http.platforms.kserve_schema import (
    BYTES,
    InferenceBody,
    InferenceOutput,
    LiveResponse,
    MetadataModelResponse,
    MetadataServerResponse,
    PromptTensor,
    ReadyResponse,
)
from router.http.request_validator import RequestValidator
from router.http.server.body import BodyReader, json_response
from router.http.server.docs import ApiRoute, RouteDocs
from router.http.server.errors import HttpError
from router.http.server_info import ServerInfo
from router.http.tgi.schema import GenerateBody

_MODEL = "/v2/models/{model_name:kserve_model}"
_NOT_READY = {503: "Not ready"}


class _ModelName(StringConvertor):
    """A model's name in a path: one segment, or a served name, whose slashes are its own."""

    def __init__(self, served_names: Sequence[str]) -> None:
        self._names = {name.lstrip("/"): name for name in served_names if "/" in name}
        names = [*map(re.escape, self._names), "[^/]+"]
        self.regex = "|".join(names)  # type: ignore[misc]  # its own in each application

    def convert(self, value: str) -> str:
        """The served name."""
        return self._names.get(value, value)

    def to_string(self, value: str) -> str:
        """The name as a path has it."""
        return value.lstrip("/")


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

    def routes(self) -> list[ApiRoute]:
        """The routes, documented."""
        register_url_convertor("kserve_model", _ModelName(self._info.model_names))
        docs = partial(RouteDocs, tag="KServe")
        ready = docs(answer=ReadyResponse, failures=_NOT_READY)
        metadata = docs(answer=MetadataModelResponse)
        infer = docs(body=InferenceBody, answer=InferenceOutput, generates=True)
        routes = [
            ApiRoute("GET", "/v2", self.server, docs(answer=MetadataServerResponse)),
            ApiRoute("GET", "/v2/health/live", self.live, docs(answer=LiveResponse)),
            ApiRoute("GET", "/v2/health/ready", self.ready, ready),
        ]
        for path in (_MODEL, _MODEL + "/versions/{model_version}"):
            routes += [
                ApiRoute("GET", path, self.model, metadata),
                ApiRoute("GET", f"{path}/ready", self.model_ready, ready),
                ApiRoute("POST", f"{path}/infer", self.infer, infer),
            ]
        return routes

    async def server(self, request: Request) -> Response:
        """KServe's description of the server."""
        extensions = ["health", "models", "metrics"]
        name = "text-generation-inference"
        return json_response(
            {"name": name, "version": self._info.version, "extensions": extensions}
        )

    async def live(self, request: Request) -> Response:
        """Whether the process answers, which it does."""
        return json_response({"live": True})

    async def ready(self, request: Request) -> Response:
        """Whether requests would be served now."""
        self._check_ready()
        return json_response({"live": True, "ready": True})

    async def model_ready(self, request: Request) -> Response:
        """Whether requests to the model would be served now."""
        self._check_ready()
        return json_response(
            {"name": request.path_params["model_name"], "live": True, "ready": True}
        )

    async def model(self, request: Request) -> Response:
        """KServe's description of a model: its inputs and outputs."""
        version = request.path_params.get("model_version")
        metadata = {
            "name": request.path_params["model_name"],
            "versions": [version or "1"],
            **({"version": version} if version else {}),
            "platform": "tandem",
            "extensions": ["infer", "ready"],
            "inputs": [{"name": "text_input", "datatype": BYTES, "shape": [-1]}],
            "outputs": [{"name": "text_output", "datatype": BYTES, "shape": [-1]}],
        }
        return json_response(metadata)

    async def infer(self, request: Request) -> Response:
        """Generate a text for each prompt of the tensors."""
        record = self._validator.begin(request)
        body = parse(await self._bodies.read(request), InferenceBody)
        tensors = [
            PromptTensor.of(tensor, f"inputs[{index}]") for index, tensor in enumerate(body.inputs)
        ]
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
            "model_name": request.path_params["model_name"],
            **({"model_version": version} if version else {}),
            **({"id": body.id} if body.id is not None else {}),
            "outputs": outputs,
        }
        return json_response(answer, headers)

    def _check_ready(self) -> None:
        if not self._infer.is_ready:
            raise HttpError(503, "healthcheck", "unhealthy")
