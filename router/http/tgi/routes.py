"""All of TGI's routes, and what the OpenAPI document must know of them."""

from collections.abc import Sequence

from fastapi import APIRouter
from pydantic import BaseModel

from router.engine.infer import Infer
from router.http.body import BodyReader, Schema
from router.http.openai.chat import ChatRoutes
from router.http.openai.completions import CompletionRoutes
from router.http.openai.front import OpenAiFront
from router.http.openai.schema import ChatBody, CompletionBody
from router.http.operations.server_info import ServerInfo
from router.http.platforms.batches import Batches
from router.http.platforms.kserve import KServeRoutes
from router.http.platforms.sagemaker import Handler, InvocationRoutes
from router.http.platforms.tensors import InferenceBody
from router.http.platforms.vertex import VertexBody, VertexRoutes
from router.http.request_validator import RequestValidator
from router.http.tgi.answers import ANSWERS
from router.http.tgi.chat_tokenize import ChatTokenizeRoutes
from router.http.tgi.generate import NativeRoutes
from router.http.tgi.schema import CompatBody, GenerateBody, TokenizeBody
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
    validator: RequestValidator,
    tokenizer: Tokenizer,
    bodies: BodyReader,
    info: ServerInfo,
    front: OpenAiFront,
    chat: ChatRoutes,
    completions: CompletionRoutes,
) -> list[APIRouter]:
    """The routes; some of them speak for OpenAI's, which they are given."""
    native = NativeRoutes(infer, validator, tokenizer, bodies, info)
    batches = Batches(infer, validator, info)
    handlers: dict[str, tuple[Handler, type[Schema]]] = {
        "inputs": (native.compat, CompatBody),
        "messages": (chat.chat, ChatBody),
        "prompt": (completions.completions, CompletionBody),
    }
    routes = (
        native,
        ChatTokenizeRoutes(front, chat, tokenizer),
        InvocationRoutes(validator, bodies, handlers),
        VertexRoutes(validator, bodies, batches, front, chat),
        KServeRoutes(infer, validator, bodies, batches, info),
    )
    return [each.router() for each in routes]
