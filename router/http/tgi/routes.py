"""All of TGI's routes, and what the OpenAPI document must know of them."""

from collections.abc import Sequence

from fastapi import APIRouter
from pydantic import BaseModel

from router.http.body import BodyReader, Schema
from router.http.intake import Intake
from router.http.openai.chat import ChatRoutes
from router.http.openai.completions import CompletionRoutes
from router.http.openai.front import OpenAiFront
from router.http.openai.schema import ChatBody, CompletionBody
from router.http.server_info import ServerInfo
from router.http.tgi.answers import ANSWERS
from router.http.tgi.batches import Batches
from router.http.tgi.chat_tokenize import ChatTokenizeRoutes
from router.http.tgi.generate import NativeRoutes
from router.http.tgi.invocations import Handler, InvocationRoutes
from router.http.tgi.kserve import KServeRoutes
from router.http.tgi.schema import CompatBody, GenerateBody, TokenizeBody
from router.http.tgi.tensors import InferenceBody
from router.http.tgi.vertex import VertexBody, VertexRoutes
from router.infer import Infer
from router.text.tokenizer import Tokenizer

TGI_MODELS: Sequence[type[BaseModel]] = (
    GenerateBody,
    CompatBody,
    TokenizeBody,
    VertexBody,
    InferenceBody,
    *ANSWERS,
)


def tgi_routers(
    infer: Infer,
    intake: Intake,
    tokenizer: Tokenizer,
    bodies: BodyReader,
    info: ServerInfo,
    front: OpenAiFront,
    chat: ChatRoutes,
    completions: CompletionRoutes,
) -> list[APIRouter]:
    """The routes; some of them speak for OpenAI's, which they are given."""
    native = NativeRoutes(infer, intake, tokenizer, bodies, info)
    batches = Batches(infer, intake, info)
    handlers: dict[str, tuple[Handler, type[Schema]]] = {
        "inputs": (native.compat, CompatBody),
        "messages": (chat.chat, ChatBody),
        "prompt": (completions.completions, CompletionBody),
    }
    routes = (
        native,
        ChatTokenizeRoutes(front, chat, tokenizer),
        InvocationRoutes(intake, bodies, handlers),
        VertexRoutes(intake, bodies, batches, front, chat),
        KServeRoutes(infer, intake, bodies, batches, info),
    )
    return [each.router() for each in routes]
