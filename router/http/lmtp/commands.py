"""Frames that are answered at once: HELLO, MODEL_INFO, BUFFER, DROP, and unknown types."""

from collections.abc import Awaitable, Callable, Mapping

from router.http.body import parse_part
from router.http.lmtp.frames import Frame
from router.http.lmtp.generate import MAX_STOPS, MAX_TOP_LOGPROBS
from router.http.lmtp.prompts import Buffers, buffer_fields
from router.http.lmtp.schema import BufferFields, DropFields, HelloFields, ModelInfoFields
from router.http.lmtp.streams import LmtpServices
from router.http.server.errors import HttpError
from router.http.server_info import served_name
from router.request.errors import wrong

VERSION = 2
FEATURES = (
    "text", "messages", "constraint", "stop", "output", "num_steps", "buffers", "cancel", "scores",
    "system_messages", "errors", "beams",
)  # fmt: skip

Reply = Mapping[str, object]


class Commands:
    """Answers the frames of one socket. Owner of its version of the protocol."""

    def __init__(self, services: LmtpServices, buffers: Buffers) -> None:
        self._services = services
        self._buffers = buffers
        self.version = 1
        self._answers: dict[str, Callable[[Frame], Awaitable[Reply]]] = {
            "HELLO": self._hello,
            "MODEL_INFO": self._model_info,
            "BUFFER": self._buffer,
            "DROP": self._drop,
        }

    async def answer(self, frame: Frame) -> Reply:
        """The fields of the reply. Raises RouterError, HttpError."""
        answer = self._answers.get(frame.command)
        if answer is None:
            message = f"Unknown command: {frame.command}"
            raise HttpError(404, "unknown_command", message)
        return await answer(frame)

    async def _hello(self, frame: Frame) -> Reply:
        version = parse_part(frame.text, frame.payload, (), HelloFields).version
        if version is not None and version < 1:
            raise wrong("version", "must be at least 1", version)
        self.version = VERSION if version is None else min(version, VERSION)
        info, limits = self._services.info, self._services.limits
        hello = {
            "version": self.version,
            "server": f"tandem {info.version}",
            "models": [info.model_names[0]],
            "eos_token_ids": list(info.limits.eos_token_ids),
            "vocab_size": info.limits.vocab_size,
            "max_input_len": info.limits.max_input_len,
            "max_total_len": info.limits.max_total_len,
            "max_message_len": limits.max_message_len,
            "max_streams": limits.max_streams,
            "max_top_logprobs": MAX_TOP_LOGPROBS,
            "max_stops": MAX_STOPS,
            "max_beams": limits.max_beams,
            "features": list(FEATURES),
        }
        return {"hello": hello}

    async def _model_info(self, frame: Frame) -> Reply:
        model = parse_part(frame.text, frame.payload, (), ModelInfoFields).model
        info, tokenizer = self._services.info, self._services.prompts.tokenizer
        fields = {
            "model": served_name(info, model),
            "server": "tandem",
            "version": info.version,
            "dtype": info.model_dtype,
            "vocab_size": info.limits.vocab_size,
            "tokenizer_size": tokenizer.vocab_size,
            "bos_token": tokenizer.bos_token,
            "eos_token": tokenizer.eos_token,
            "eos_token_ids": list(info.limits.eos_token_ids),
            "max_total_len": info.limits.max_total_len,
        }
        return {"model_info": fields}

    async def _buffer(self, frame: Frame) -> Reply:
        body = parse_part(frame.text, frame.payload, (), BufferFields)
        served_name(self._services.info, body.model)
        vocab_size = self._services.info.limits.vocab_size
        token_ids = await self._services.prompts.ids(body, self._buffers, vocab_size)
        ttl_s = self._buffers.put(body.name, token_ids, "name", body.ttl_s)
        return {"buffer": buffer_fields(body.name, len(token_ids), ttl_s)}

    async def _drop(self, frame: Frame) -> Reply:
        body = parse_part(frame.text, frame.payload, (), DropFields)
        return {"dropped": self._buffers.drop(body.name)}
