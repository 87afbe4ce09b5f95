"""/chat_tokenize: what the model would read of a chat."""

import orjson
from starlette.requests import Request
from starlette.responses import Response

from router.http.openai.chat import ChatRoutes
from router.http.openai.front import OpenAiFront
from router.http.openai.schema import ChatBody
from router.http.server.docs import NO_MODEL, ApiRoute, RouteDocs
from router.http.tgi.answers import ChatTokenizeResponse
from router.http.tgi.frames import spans_shown
from router.text.tokenizer import Tokenizer


class ChatTokenizeRoutes:
    """The handler, over what it needs."""

    def __init__(self, front: OpenAiFront, chat: ChatRoutes, tokenizer: Tokenizer) -> None:
        self._front = front
        self._chat = chat
        self._tokenizer = tokenizer

    def routes(self) -> list[ApiRoute]:
        """The route, documented."""
        docs = RouteDocs(
            tag="Text Generation Inference",
            body=ChatBody,
            answer=ChatTokenizeResponse,
            failures=NO_MODEL,
        )
        return [ApiRoute("POST", "/chat_tokenize", self.chat_tokenize, docs, "get_chat_tokenize")]

    async def chat_tokenize(self, request: Request) -> Response:
        """Template and tokenize a chat; `start` and `stop` are byte offsets."""
        body = await self._front.read(request, ChatBody)
        text = await self._chat.render(body)
        # The template has put the special tokens where they belong.
        spans = await self._tokenizer.spans(text, add_special_tokens=False)
        told = await spans_shown(spans)
        answer = b'{"tokenize_response":%b,"templated_text":%b}' % (told, orjson.dumps(text))
        return Response(answer, media_type="application/json")
