"""The chunks of a chat's choice that is text. Those of one that may call are in `calling.py`."""

import orjson

from router.http.openai.logprobs import ChatLogprobs
from router.http.openai.reply import FINISH_REASONS, Envelope
from router.http.server_info import constraint_fields
from router.request.events import Finished, PromptScored, TokenGenerated


class ChatChoiceFrames:
    """The chunks of one choice: the role, deltas of text, the finish reason.

    With `prompt_ids` they go out with the role, and each token's id with the token. `echoed` is
    text that goes before the answer's.
    """

    def __init__(
        self,
        envelope: Envelope,
        index: int,
        logprobs: ChatLogprobs | None,
        *,
        echoed: str,
        prompt_ids: tuple[int, ...] | None,
        has_usage: bool,
    ) -> None:
        head = envelope.chunk_head() + b'{"index":%d,"delta":' % index
        end = b',"usage":null}\n\n' if has_usage else b"}\n\n"
        tail = b"]" + end
        plain = b',"logprobs":null,"finish_reason":null}'
        told = b"" if prompt_ids is None else b',"prompt_token_ids":' + orjson.dumps(prompt_ids)
        self._open = head + b'{"content":'
        self._plain = b"}" + plain + tail
        self._null_reason = b',"finish_reason":null'
        self._end = head + b'{},"logprobs":null,'
        self._tail = b"}" + tail
        self._logprobs = logprobs
        self._tells_ids = prompt_ids is not None
        # Sent with the first token, so that a client's first chunk means a first token.
        role = b'{"role":"assistant","content":"","refusal":null}'
        self._role = head + role + plain + b"]" + told + end + self._text(echoed)

    def scored(self, event: PromptScored) -> bytes:
        """Nothing: streamed chats do not tell of their prompt."""
        return b""

    def token(self, event: TokenGenerated) -> bytes:
        """The text that may be shown now; nothing while it is held back."""
        if self._logprobs is None and not self._tells_ids:
            return self._begin() + self._text(event.text)
        logprobs = b"null"
        if self._logprobs is not None:
            logprobs = orjson.dumps(self._logprobs.of([event]))
        ids = b',"token_ids":[%d]' % event.token.token_id if self._tells_ids else b""
        text = orjson.dumps(event.text)
        chunk = self._open + text + b'},"logprobs":' + logprobs + self._null_reason + ids
        return self._begin() + chunk + self._tail

    def finished(self, event: Finished) -> bytes:
        """What was held back, then an empty delta with the reason."""
        reason = {"finish_reason": FINISH_REASONS[event.reason], **constraint_fields(event)}
        end = self._end + orjson.dumps(reason)[1:-1] + self._tail
        return self._begin() + self._text(event.tail) + end

    def _begin(self) -> bytes:
        role, self._role = self._role, b""
        return role

    def _text(self, text: str) -> bytes:
        return self._open + orjson.dumps(text) + self._plain if text else b""
