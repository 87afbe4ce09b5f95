"""All of TGI's routes."""

from router.engine.infer import Infer
from router.http.openai.chat import ChatRoutes
from router.http.openai.completions import CompletionRoutes
from router.http.openai.front import OpenAiFront
from router.http.platforms.batches import Batches
from router.http.platforms.kserve import KServeRoutes
from router.http.platforms.sagemaker import InvocationRoutes
from router.http.platforms.vertex import VertexRoutes
from router.http.request_validator import RequestValidator
from router.http.server.body import BodyReader
from router.http.server.docs import ApiRoute
from router.http.server_info import ServerInfo
from router.http.tgi.chat_tokenize import ChatTokenizeRoutes
from router.http.tgi.generate import NativeRoutes
from router.text.tokenizer import Tokenizer


def tgi_routes(
    infer: Infer,
    validator: RequestValidator,
    tokenizer: Tokenizer,
    bodies: BodyReader,
    info: ServerInfo,
    front: OpenAiFront,
    chat: ChatRoutes,
    completions: CompletionRoutes,
) -> list[ApiRoute]:
    """The routes; some of them speak for OpenAI's, which they are given."""
    native = NativeRoutes(infer, validator, tokenizer, bodies, info)
    batches = Batches(infer, validator, info)
    handlers = {"inputs": native.compat, "messages": chat.chat, "prompt": completions.completions}
    groups = (
        native,
        ChatTokenizeRoutes(front, chat, tokenizer),
        InvocationRoutes(validator, bodies, handlers),
        VertexRoutes(validator, bodies, batches, front, chat),
        KServeRoutes(infer, validator, bodies, batches, info),
    )
    return [route for group in groups for route in group.routes()]
