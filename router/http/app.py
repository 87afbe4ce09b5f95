"""The HTTP application: every route over one `Infer`, errors in the dialect of the path.

Access (ids, log line, metrics) -> Cors -> Guard (keys) -> FastAPI (routing, OpenAPI document)
-> the routes
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp

from router.engine.infer import Infer
from router.http.aliases import NO_ALIASES, Aliases
from router.http.anthropic.routes import MessageRoutes
from router.http.anthropic.schema import CountBody, MessagesBody
from router.http.body import BodyReader, Schema
from router.http.conversation import Conversations
from router.http.docs_page import add_docs
from router.http.errors import Dialect, HttpError, Problem
from router.http.lmtp.prompts import Prompts
from router.http.lmtp.routes import Sockets
from router.http.lmtp.services import LmtpServices, SocketLimits
from router.http.openai.answers import OPENAI_ANSWERS
from router.http.openai.chat import ChatRoutes
from router.http.openai.completions import CompletionRoutes
from router.http.openai.front import OpenAiFront
from router.http.openai.logprobs import TokenNames
from router.http.openai.schema import ChatBody, CompletionBody
from router.http.openapi import document
from router.http.operations.constraints_check import CONSTRAINT_MODELS, ConstraintRoutes, Judges
from router.http.operations.health import HealthRoutes
from router.http.operations.routes import OpsRoutes
from router.http.operations.server_info import ServerInfo
from router.http.request_validator import RequestValidator
from router.http.responses.routes import ResponseRoutes
from router.http.responses.schema import CountInputBody, ResponseBody
from router.http.responses.store import ResponseStore
from router.http.server.access import Access
from router.http.server.auth import Guard
from router.http.server.cors import ANY_ORIGIN, Cors
from router.http.server.request_record import RequestRecord
from router.http.tgi.routes import TGI_MODELS, tgi_routers
from router.request.errors import RouterError
from router.request.validation import Validation
from router.telemetry.metrics import Metrics
from router.telemetry.tracing import NO_TRACES, Tracer
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer

_BODIES: list[type[Schema]] = [
    ChatBody,
    CompletionBody,
    ResponseBody,
    CountInputBody,
    MessagesBody,
    CountBody,
]


@dataclass(frozen=True, slots=True)
class Services:
    """What the routes are made over."""

    infer: Infer
    validation: Validation
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    metrics: Metrics
    info: ServerInfo
    tracer: Tracer = NO_TRACES
    judges: Judges | None = None
    sockets: Sockets = field(default_factory=Sockets)


def create_app(
    services: Services,
    *,
    max_body_len: int = 2_000_000,
    api_keys: Sequence[str] = (),
    protects_metrics: bool = False,
    allowed_origins: Sequence[str] = ANY_ORIGIN,
    aliases: Mapping[str, str] = NO_ALIASES,
    socket_limits: SocketLimits | None = None,
) -> ASGIApp:
    """The application for an ASGI server. `max_body_len` is in bytes; without keys all may ask.

    `aliases` are further paths, with those that they stand for.
    """
    app: ASGIApp = routing(services, max_body_len)
    app = services.sockets.around(app, _lmtp(services, socket_limits or SocketLimits()))
    if api_keys:
        app = Guard(
            app,
            api_keys,
            services.metrics.rejected,
            protects_metrics=protects_metrics,
            max_body_len=max_body_len,
        )
    app = Aliases(Cors(app, allowed_origins), aliases)
    return Access(app, services.metrics, services.info.model_id)


def _lmtp(services: Services, limits: SocketLimits) -> LmtpServices:
    return LmtpServices(
        services.infer,
        RequestValidator(services.validation, services.metrics, services.tracer),
        Prompts(services.tokenizer, services.chat_template, services.info.limits.max_total_len),
        services.info,
        services.metrics,
        limits,
    )


def routing(services: Services, max_body_len: int) -> FastAPI:
    """The routes with their errors and their document, and nothing around them."""
    app = FastAPI(
        title="Tandem",
        description="A two-tier language-model server with TGI's and OpenAI's HTTP interfaces.",
        version=services.info.version,
        license_info={"name": "Apache 2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        openapi_url="/api-doc/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    bodies = BodyReader(max_body_len)
    validator = RequestValidator(services.validation, services.metrics, services.tracer)
    front = OpenAiFront(services.infer, validator, bodies, services.info, services.tokenizer)
    conversations = Conversations(
        services.infer,
        validator,
        bodies,
        services.chat_template,
        services.tokenizer,
        services.info,
    )
    names = TokenNames(services.tokenizer, by_id=False, shows_special=False)
    chat, completions = ChatRoutes(front, services.chat_template), CompletionRoutes(front)
    for router in tgi_routers(
        services.infer,
        validator,
        services.tokenizer,
        bodies,
        services.info,
        front,
        chat,
        completions,
    ):
        app.include_router(router)
    for routes in (
        chat,
        completions,
        ResponseRoutes(conversations, names, ResponseStore()),
        MessageRoutes(conversations),
        ConstraintRoutes(services.judges, bodies, services.info.limits),
        HealthRoutes(services.infer),
        OpsRoutes(services.metrics, services.info),
    ):
        app.include_router(routes.router())
    app.openapi = partial(_document, app)  # type: ignore[method-assign]
    add_docs(app)
    for kind in (RouterError, HttpError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer_error)
    return app


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = document(
            app, [*TGI_MODELS, *OPENAI_ANSWERS, *CONSTRAINT_MODELS, *_BODIES]
        )
    return app.openapi_schema


async def _answer_error(request: Request, error: Exception) -> Response:
    """Any error before the answer began, as JSON; Starlette's own are routes and methods."""
    record = RequestRecord.of(request)
    if isinstance(error, HTTPException):
        error = _routing_error(request, error)
    elif not isinstance(error, RouterError | HttpError):
        message = f"a bug; the server's log has more under request_id {record.request_id}"
        error = HttpError(500, "internal_error", message)
    problem = Problem.of(error, Dialect.of_path(request.url.path), record.request_id)
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
    """What the path can be asked by; one route's own word would be half of it."""
    return ", ".join(
        method
        for method in ("DELETE", "GET", "HEAD", "PATCH", "POST", "PUT")
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL
            for route in request.app.routes
        )
    )
