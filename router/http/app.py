"""The HTTP application: every route over one `Infer`, errors in the dialect of the path.

Access (ids, log line, metrics) -> FastAPI (routing, OpenAPI document) -> the routes
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from router.errors import RouterError
from router.http.access import Access
from router.http.anthropic.messages import MessageRoutes
from router.http.anthropic.schema import CountBody, MessagesBody
from router.http.body import BodyReader, Schema
from router.http.conversation import Conversations
from router.http.errors import Dialect, HttpError, Problem
from router.http.exchange import Exchange
from router.http.intake import Intake
from router.http.openai.chat import ChatRoutes
from router.http.openai.completions import CompletionRoutes
from router.http.openai.front import OpenAiFront
from router.http.openai.responses.routes import ResponseRoutes
from router.http.openai.responses.schema import CountInputBody, ResponseBody
from router.http.openai.responses.store import ResponseStore
from router.http.openai.schema import ChatBody, CompletionBody
from router.http.openapi import document
from router.http.ops import OpsRoutes
from router.http.server_info import ServerInfo
from router.http.tgi.generate import NativeRoutes
from router.http.tgi.schema import CompatBody, GenerateBody
from router.infer import Infer
from router.metrics import Metrics
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer
from router.validation import Validation

_BODIES: list[type[Schema]] = [
    GenerateBody,
    CompatBody,
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


def create_app(services: Services, *, max_body_len: int = 2_000_000) -> ASGIApp:
    """The application for an ASGI server. `max_body_len` is in bytes."""
    app = FastAPI(
        title="Tandem",
        description="A two-tier language-model server with TGI's and OpenAI's HTTP interfaces.",
        version=services.info.version,
        license_info={"name": "Apache 2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        openapi_url="/api-doc/openapi.json",
        docs_url="/docs",
        redoc_url=None,
        redirect_slashes=False,
    )
    bodies = BodyReader(max_body_len)
    intake = Intake(services.validation, services.metrics)
    front = OpenAiFront(services.infer, intake, bodies, services.info)
    conversations = Conversations(
        services.infer,
        intake,
        bodies,
        services.chat_template,
        services.tokenizer,
        services.info,
    )
    for routes in (
        NativeRoutes(services.infer, intake, services.tokenizer, bodies, services.info),
        ChatRoutes(front, services.chat_template),
        CompletionRoutes(front),
        ResponseRoutes(conversations, ResponseStore()),
        MessageRoutes(conversations),
        OpsRoutes(services.infer, services.metrics, services.info),
    ):
        app.include_router(routes.router())
    app.openapi = partial(_document, app)  # type: ignore[method-assign]
    for kind in (RouterError, HttpError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer_error)
    return Access(app, services.metrics)


def _document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = document(app, _BODIES)
    return app.openapi_schema


async def _answer_error(request: Request, error: Exception) -> Response:
    """Any error before the answer began, as JSON; Starlette's own are routes and methods."""
    exchange = Exchange.of(request)
    if isinstance(error, HTTPException):
        error = _routing_error(request, error)
    elif not isinstance(error, RouterError | HttpError):
        message = f"a bug; the server's log has more under request_id {exchange.request_id}"
        error = HttpError(500, "internal_error", message)
    problem = Problem.of(error, Dialect.of_path(request.url.path), exchange.request_id)
    exchange.error_type = problem.error_type
    return problem.response()


def _routing_error(request: Request, error: HTTPException) -> HttpError:
    path = request.url.path[:200]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{request.method} is not a method of {path}; {allowed} is"
        return HttpError(405, "method_not_allowed", message, headers=error.headers)
    if error.status_code == 404:
        return HttpError(404, "not_found", f"there is nothing at {path}")
    return HttpError(error.status_code, "http_error", str(error.detail), headers=error.headers)
