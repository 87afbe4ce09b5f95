"""The HTTP application: every route over one `Infer`, errors in the dialect of the path.

Access (ids, log line, metrics) -> Cors -> ApiKeyAuth (keys) -> Starlette (routing) -> the routes
                                                             -> Resumption -> Starlette
                                                             -> Migration -> Starlette
                                                             -> Sockets (LMTP)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from router.engine.adapters import Adapters
from router.engine.infer import Infer
from router.engine.validation import Limits, Validation
from router.http.adapters import AdapterRoutes
from router.http.answers import READS_ALL, ReadingRules
from router.http.anthropic import MessageRoutes
from router.http.batches.routes import BatchRoutes
from router.http.batches.runner import BatchRunner
from router.http.bodies import BodyReader, JsonBounds, ParserThread
from router.http.conversation import AnswerService
from router.http.errors import Dialect, HttpError, InternalErrors, internal_error, problem_of
from router.http.images import ImageReader
from router.http.lmtp.frames import Prompts
from router.http.lmtp.session import Sockets
from router.http.lmtp.streams import LmtpServices, SocketLimits
from router.http.logprobs import TokenNames
from router.http.migration import CONTINUE_HEADER, FRONT_HEADER, MAX_STATE_LEN, Migration
from router.http.openai.routes import ChatRoutes, CompletionRoutes
from router.http.operations import ConstraintRoutes, Judges, OperationsRoutes
from router.http.platforms import InvocationRoutes, VertexRoutes
from router.http.request_record import RequestRecord
from router.http.request_validator import RequestValidator
from router.http.responses.routes import ResponseRoutes
from router.http.responses.store import ResponseStore
from router.http.resumption import ID_HEADER, OPT_IN_HEADER, Resumption
from router.http.schema import SchemaReader
from router.http.served_models import ServedModels
from router.http.server.access import ANY_ORIGIN, Access, Cors
from router.http.server.auth import NO_KEYS, ApiKeyAuth, KeyRing
from router.http.server.docs import OPENAPI_PATH, ApiRoute, openapi_document
from router.http.server.page import page_routes
from router.http.server_info import ServerInfo
from router.http.tgi import TgiRoutes
from router.request.errors import RouterError
from router.telemetry.metrics import Metrics
from router.telemetry.tracing import NO_TRACES, Tracer
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer

NO_ALIASES: Mapping[str, str] = MappingProxyType({})
_RESUMPTION_HEADERS = frozenset({ID_HEADER.encode(), OPT_IN_HEADER.encode()})
_MIGRATION_HEADERS = frozenset({FRONT_HEADER.encode(), CONTINUE_HEADER.encode()})
_INFO = {
    "title": "Tandem",
    "description": (
        "A language-model server with five APIs: OpenAI's chats and completions, OpenAI's "
        "Responses, Anthropic's Messages, Text Generation Inference's routes, and LMTP, LMQL's "
        "protocol. LMTP is spoken over WebSockets, so this document has the other four."
    ),
    "license": {"name": "Apache 2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
}


@dataclass(frozen=True, slots=True)
class Services:
    """What the routes need. `images`: None where the model does not see."""

    infer: Infer
    validation: Validation
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    metrics: Metrics
    info: ServerInfo
    adapters: Adapters
    tracer: Tracer = NO_TRACES
    judges: Judges | None = None
    reading_rules: ReadingRules = READS_ALL
    images: ImageReader | None = None
    sockets: Sockets = field(default_factory=Sockets)
    errors: InternalErrors = field(default_factory=InternalErrors)


def create_app(
    services: Services,
    *,
    max_body_len: int = 2_000_000,
    body_timeout_s: float = 30.0,
    api_keys: KeyRing | None = None,
    protects_metrics: bool = False,
    allowed_origins: Sequence[str] = ANY_ORIGIN,
    aliases: Mapping[str, str] = NO_ALIASES,
    socket_limits: SocketLimits | None = None,
    resume_grace_s: float = 60.0,
    front_secret: str | None = None,
    strict_fields: bool = False,
    lora_folders: Sequence[Path] = (),
    admin_keys: KeyRing = NO_KEYS,
    batches: BatchRunner | None = None,
) -> ASGIApp:
    """The application for an ASGI server. `max_body_len` is in bytes; `api_keys` None: none needed.

    `aliases` map further paths to those of routes; a stream that may be resumed waits
    `resume_grace_s` for its client. A front that shows `front_secret` may move streams here. With
    `strict_fields` unknown fields of bodies are refused.
    Adapters below `lora_folders`, which are resolved, may be loaded with one of `admin_keys`.
    `batches`, which the caller runs, ask the routes below the keys; None: there are none.
    """
    cuts = services.metrics.connections_cut
    reader = BodyReader(max_body_len, body_timeout_s, cuts)
    limits = services.info.limits
    num_prompt_ids = limits.max_client_batch_size * limits.max_total_len
    parser = ParserThread(JsonBounds.of_model(limits.vocab_size, num_prompt_ids))
    parser.start()
    bodies = SchemaReader(reader, parser, strict_fields=strict_fields)
    loading = AdapterRoutes(services.adapters, bodies, lora_folders, admin_keys)
    routes = routing(services, bodies, loading, BatchRoutes(batches, bodies, reader))
    metrics = services.metrics
    new_record = partial(RequestRecord, metrics=metrics, model=services.info.model_id)
    if batches is not None:
        batches.connect(routes, new_record)
    app: ASGIApp = ByKind(
        routes,
        Resumption(routes, reader, resume_grace_s, services.metrics.stream_resumes),
        Migration(
            routes,
            BodyReader(max_body_len + MAX_STATE_LEN, body_timeout_s, cuts),
            parser,
            front_secret,
            _replica_fingerprint(services),
            services.adapters,
            limits.vocab_size,
        ),
        services.sockets.app(_lmtp(services, bodies, parser, socket_limits or SocketLimits())),
    )
    if api_keys is not None:
        app = ApiKeyAuth(
            app,
            api_keys,
            services.metrics.rejected,
            protects_metrics=protects_metrics,
            admins=admin_keys,
        )
    app = Cors(app, allowed_origins)
    if aliases:
        app = Aliases(app, aliases)
    return Access(app, new_record, services.errors)


def _replica_fingerprint(services: Services) -> str:
    """Of all that decides the bytes of an answer, where requests and names are the same."""
    info = services.info
    defaults = sorted(info.limits.sampling_defaults.items())
    rules = (info.setup, defaults, services.reading_rules, services.chat_template.digest)
    return f"{info.system_fingerprint}-{sha256(repr(rules).encode()).hexdigest()[:16]}"


class ByKind:
    """Parts WebSockets, requests whose streams may be resumed, those of a front, and all others."""

    def __init__(
        self, routes: ASGIApp, resumption: ASGIApp, migration: ASGIApp, sockets: ASGIApp
    ) -> None:
        self._routes = routes
        self._resumption = resumption
        self._migration = migration
        self._sockets = sockets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or socket."""
        if scope["type"] == "websocket":
            await self._sockets(scope, receive, send)
        elif any(name in _RESUMPTION_HEADERS for name, _ in scope["headers"]):
            await self._resumption(scope, receive, send)
        elif any(name in _MIGRATION_HEADERS for name, _ in scope["headers"]):
            await self._migration(scope, receive, send)
        else:
            await self._routes(scope, receive, send)


class Aliases:
    """The application sees the route's own path for each of a platform's, and so its dialect."""

    def __init__(self, app: ASGIApp, paths: Mapping[str, str]) -> None:
        self._app = app
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http" and scope["path"] in self._paths:
            scope = {**scope, "path": self._paths[scope["path"]]}
        await self._app(scope, receive, send)


def _answers(services: Services, bodies: SchemaReader) -> AnswerService:
    return AnswerService(
        services.infer,
        RequestValidator(services.validation, services.metrics, services.tracer, services.images),
        bodies,
        services.chat_template,
        services.tokenizer,
        services.info,
        ServedModels(services.info, services.adapters),
        services.reading_rules,
    )


def _lmtp(
    services: Services, bodies: SchemaReader, parser: ParserThread, limits: SocketLimits
) -> LmtpServices:
    answers = _answers(services, bodies)
    return LmtpServices(
        services.infer,
        answers,
        answers.validator,
        parser,
        Prompts(services.tokenizer, services.chat_template, services.info.limits),
        services.info,
        services.metrics,
        limits,
    )


def routing(
    services: Services, bodies: SchemaReader, loading: AdapterRoutes, batches: BatchRoutes
) -> Starlette:
    """The routes with their errors and their document, and nothing around them."""
    routes = _api_routes(services, bodies, loading, batches)

    @cache
    def document() -> dict[str, Any]:
        return openapi_document({**_INFO, "version": services.info.version}, routes)

    async def openapi(request: Request) -> Response:
        return JSONResponse(document())

    app = Starlette(
        routes=[*routes, ApiRoute("GET", OPENAPI_PATH, openapi), *page_routes()],
        exception_handlers=dict.fromkeys(
            (RouterError, HttpError, HTTPException, Exception), _answer_error
        ),
    )
    app.router.redirect_slashes = False
    return app


def _api_routes(
    services: Services, bodies: SchemaReader, loading: AdapterRoutes, batches: BatchRoutes
) -> list[ApiRoute]:
    infer = services.infer
    info = services.info
    tokenizer = services.tokenizer
    service = _answers(services, bodies)
    validator = service.validator
    template = services.chat_template
    names = TokenNames(tokenizer, by_id=False, shows_special=False)
    chat = ChatRoutes(service)
    completions = CompletionRoutes(service)
    tgi = TgiRoutes(infer, validator, tokenizer, bodies, info, chat)
    invoked = {"inputs": tgi.compat, "messages": chat.chat, "prompt": completions.completions}
    groups = (
        tgi,
        InvocationRoutes(validator, bodies, invoked),
        VertexRoutes(infer, validator, bodies, info, chat),
        chat,
        completions,
        ResponseRoutes(service, names, ResponseStore()),
        MessageRoutes(service),
        batches,
        ConstraintRoutes(services.judges, bodies, info.limits),
        OperationsRoutes(
            infer,
            services.metrics,
            info,
            service.models,
            template,
            services.errors,
            batches.store_name,
        ),
        loading,
    )
    return [route for group in groups for route in group.routes()]


def openapi_without_server(version: str) -> dict[str, Any]:
    """What /api-doc/openapi.json would answer, for `python -m router print-schema`."""
    # The routes are documented, and none is called: they need no model behind them.
    nothing: Any = None
    limits = Limits(max_input_len=1, max_total_len=2, vocab_size=1)
    info = ServerInfo(
        model_id="",
        aliases=(),
        limits=limits,
        version=version,
        created_s=0,
        max_concurrent_requests=1,
        validation_workers=1,
        compute_type="",
    )
    services = Services(
        infer=nothing,
        validation=Validation(limits, nothing),
        tokenizer=nothing,
        chat_template=ChatTemplate({}, None, None),
        metrics=Metrics(CollectorRegistry(), max_input_len=1, max_total_len=2),
        info=info,
        adapters=nothing,
    )
    loading = AdapterRoutes(nothing, nothing, (), NO_KEYS)
    routes = _api_routes(services, nothing, loading, BatchRoutes(None, nothing, nothing))
    return openapi_document({**_INFO, "version": version}, routes)


async def _answer_error(request: Request, error: Exception) -> Response:
    """Any error before the answer began, as JSON; Starlette's own are routes and methods."""
    record = RequestRecord.of(request)
    if isinstance(error, HTTPException):
        error = _routing_error(request, error)
    elif not isinstance(error, RouterError | HttpError):
        error = internal_error(record.request_id)
    problem = problem_of(error, Dialect.of_path(request.url.path), record.request_id)
    record.error_type = problem.error_type
    return problem.response()


def _routing_error(request: Request, error: HTTPException) -> HttpError:
    path = request.url.path[:200]
    if error.status_code == 405:
        allowed = _methods(request)
        message = f"{request.method} is not a method of {path}; {allowed} would be"
        return HttpError(405, "method_not_allowed", message, headers={"allow": allowed})
    if error.status_code == 404:
        return HttpError(404, "not_found", f"there is nothing at {path}")
    return HttpError(error.status_code, "http_error", str(error.detail), headers=error.headers)


def _methods(request: Request) -> str:
    """The methods of a path, which several routes may have."""
    return ", ".join(
        method
        for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL
            for route in request.app.routes
        )
    )
