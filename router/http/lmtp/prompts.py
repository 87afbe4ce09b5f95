"""Prompts as LMTP's clients send them: ids, text or turns, behind a buffer of the socket."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from router.http.lmtp.schema import PromptFields
from router.request.errors import InvalidRequest, wrong
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer, check_fits, check_unicode, continuation_ids

_MAX_NAME_LEN = 128
# Fields of which at most one is present.
_FIELDS = ("prompt", "text", "messages")


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """Limits of one socket's buffers: their number, their tokens together, their time to live."""

    max_buffers: int = 256
    max_tokens: int = 1 << 20
    default_ttl_s: float = 600.0
    max_ttl_s: float = 86_400.0


@dataclass(slots=True)
class _Buffer:
    token_ids: tuple[int, ...]
    ttl_s: float
    expires_s: float


def buffer_fields(name: str, num_tokens: int, ttl_s: float) -> dict[str, object]:
    """The fields of a buffer in replies."""
    return {"name": name, "num_tokens": num_tokens, "ttl_s": ttl_s}


class Buffers:
    """The buffers of one socket. Each is kept for `ttl_s` seconds after its last use."""

    def __init__(self, limits: BufferLimits, clock: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._buffers: dict[str, _Buffer] = {}
        self._num_tokens = 0

    def get(self, name: str) -> tuple[int, ...]:
        """The tokens of a buffer. Raises InvalidRequest for an unknown or expired name."""
        now_s = self._clock()
        self._expire(now_s)
        buffer = self._buffers.get(name)
        if buffer is None:
            raise InvalidRequest(
                f"`buffer` must be the name of a buffer of this socket. Given: {name[:60]!r}",
                "buffer",
            )
        buffer.expires_s = now_s + buffer.ttl_s
        return buffer.token_ids

    def check(self, name: str, num_tokens: int, field: str, ttl_s: float | None = None) -> float:
        """The time to live, in seconds, of a buffer that is about to be stored.

        Raises InvalidRequest, which names `field`, where there is no room for it.
        """
        limits = self._limits
        if not 1 <= len(name) <= _MAX_NAME_LEN:
            raise InvalidRequest(
                f"`{field}` must have 1 to {_MAX_NAME_LEN} characters. Given: {len(name)}", field
            )
        if ttl_s is not None and not 0 < ttl_s <= limits.max_ttl_s:
            raise InvalidRequest(
                f"`ttl_s` must be above 0 and at most {limits.max_ttl_s:g}. Given: {ttl_s}", "ttl_s"
            )
        self._expire(self._clock())
        before = self._buffers.get(name)
        if before is None and len(self._buffers) >= limits.max_buffers:
            raise InvalidRequest(
                f"`{field}`: a socket has at most {limits.max_buffers} buffers; drop one", field
            )
        num_tokens += self._num_tokens - (0 if before is None else len(before.token_ids))
        if num_tokens > limits.max_tokens:
            raise InvalidRequest(
                f"`{field}`: the buffers of a socket hold at most {limits.max_tokens} tokens. "
                f"With this one: {num_tokens}",
                field,
            )
        return limits.default_ttl_s if ttl_s is None else ttl_s

    def put(
        self, name: str, token_ids: tuple[int, ...], field: str, ttl_s: float | None = None
    ) -> float:
        """Stores tokens under a name, which may be in use; its time to live in seconds.

        Raises InvalidRequest.
        """
        ttl_s = self.check(name, len(token_ids), field, ttl_s)
        self.drop(name)
        self._buffers[name] = _Buffer(token_ids, ttl_s, self._clock() + ttl_s)
        self._num_tokens += len(token_ids)
        return ttl_s

    def drop(self, name: str) -> bool:
        """Deletes a buffer; False if there was none."""
        self._expire(self._clock())
        buffer = self._buffers.pop(name, None)
        if buffer is not None:
            self._num_tokens -= len(buffer.token_ids)
        return buffer is not None

    def _expire(self, now_s: float) -> None:
        expired = [name for name, each in self._buffers.items() if each.expires_s <= now_s]
        for name in expired:
            self._num_tokens -= len(self._buffers.pop(name).token_ids)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text to be tokenized, or token ids. `field` is the field that it came from."""

    content: str | tuple[int, ...]
    field: str
    add_special_tokens: bool = False


class Prompts:
    """Reads prompts with the model's tokenizer and chat template.

    `max_len`: the most tokens of a sequence.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, max_len: int) -> None:
        self.tokenizer = tokenizer
        self._max_len = max_len
        self._template = template
        self._bos_ids = _bos_ids(tokenizer)

    async def read(self, body: PromptFields, buffers: Buffers) -> Prompt:
        """The prompt of a frame, its buffer in front. Raises InvalidRequest."""
        field = _field_of(body)
        buffer_ids = None if body.buffer is None else buffers.get(body.buffer)
        if field is None:
            if buffer_ids is None:
                raise InvalidRequest(
                    "`prompt` is required: token ids, or `text`, or `messages`, or a `buffer`",
                    "prompt",
                )
            return Prompt(buffer_ids, "buffer")
        prompt = await self._without_buffer(body, field)
        if buffer_ids is None:
            return self._or_bos(prompt)
        if isinstance(prompt.content, str):
            prompt = Prompt(await self.continuation_ids(prompt.content, field), field)
        assert not isinstance(prompt.content, str)
        return Prompt(buffer_ids + prompt.content, field)

    async def ids(self, body: PromptFields, buffers: Buffers, vocab_size: int) -> tuple[int, ...]:
        """The same as token ids, each of the model's vocabulary. Raises InvalidRequest."""
        prompt = await self.read(body, buffers)
        content = prompt.content
        if isinstance(content, str):
            await self._check(content, prompt.field)
            content = tuple(
                await self.tokenizer.encode_async(
                    content, add_special_tokens=prompt.add_special_tokens
                )
            )
        self._check_ids(content, prompt.field, vocab_size)
        return content

    async def continuation_ids(self, text: str, field: str) -> tuple[int, ...]:
        """The tokens of a text behind another one. Raises InvalidRequest."""
        await self._check(text, field)
        return tuple(await continuation_ids(self.tokenizer, text))

    async def _check(self, text: str, field: str) -> None:
        check_unicode(text, field)
        await check_fits(self.tokenizer, text, self._max_len, field)

    def _check_ids(self, token_ids: tuple[int, ...], field: str, vocab_size: int) -> None:
        if not token_ids:
            raise InvalidRequest(f"`{field}` must not be empty: its text has no tokens", field)
        # Checked first: there may be millions of them.
        if len(token_ids) > self._max_len:
            raise InvalidRequest(
                f"`{field}` must have at most {self._max_len} tokens. Given: {len(token_ids)}",
                field,
            )
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < vocab_size:
                rule = f"must be made of token ids between 0 and {vocab_size - 1}"
                raise wrong(field, rule, token_id)

    async def _without_buffer(self, body: PromptFields, field: str) -> Prompt:
        if field == "prompt":
            return Prompt(tuple(body.prompt or ()), field)
        if field == "text":
            return Prompt(body.text or "", field, add_special_tokens=True)
        turns = [{"role": each.role, "content": each.content} for each in body.messages or ()]
        continues = turns[-1]["role"] == "assistant"
        # In a thread: a template is a program, and a conversation may be long.
        text = await asyncio.to_thread(
            self._template.render,
            turns,
            add_generation_prompt=not continues,
            continue_final_message=continues,
        )
        return Prompt(text, field)

    def _or_bos(self, prompt: Prompt) -> Prompt:
        """An empty prompt becomes the model's first token of a sequence, if it has one."""
        if prompt.content:
            return prompt
        if not self._bos_ids:
            raise InvalidRequest(
                f"`{prompt.field}` must not be empty: this model has no token that begins a "
                "sequence",
                prompt.field,
            )
        return Prompt(self._bos_ids, prompt.field)


def _field_of(body: PromptFields) -> str | None:
    present = [field for field in _FIELDS if getattr(body, field) is not None]
    if len(present) > 1:
        raise InvalidRequest(f"`{present[0]}` and `{present[1]}` exclude each other", present[1])
    return present[0] if present else None


def _bos_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    if tokenizer.bos_token is None:
        return ()
    ids = tokenizer.encode(tokenizer.bos_token, add_special_tokens=False)
    return tuple(ids) if len(ids) == 1 else ()
