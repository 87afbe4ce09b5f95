"""Prompts as LMTP's clients send them: token ids, text or the turns of a chat."""

from collections.abc import Sequence
from dataclasses import dataclass

from router.http.lmtp.schema import ChatTurn, PromptFields
from router.request.errors import InvalidRequest, wrong
from router.request.parameters import Limits
from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer, check_fits, check_unicode, continuation_ids

# Fields of which exactly one is present.
_FIELDS = ("prompt", "text", "messages")


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text to be tokenized, or token ids. `field` is the field that it came from."""

    content: str | tuple[int, ...]
    field: str
    add_special_tokens: bool = False


class Prompts:
    """Reads prompts with the model's tokenizer and chat template."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, limits: Limits) -> None:
        self.tokenizer = tokenizer
        self._limits = limits
        self._template = template
        self._bos_ids = _bos_ids(tokenizer)

    @property
    def takes_messages(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self._template.names)

    async def read(self, body: PromptFields) -> Prompt:
        """The prompt of a frame. Raises InvalidRequest."""
        field = _field_of(body)
        content: str | tuple[int, ...] = body.text or tuple(body.prompt or ())
        if body.messages is not None:
            content = await self._render(body.messages)
        if not content:
            content = self._first_ids(field)
        return Prompt(content, field, add_special_tokens=field == "text")

    async def ids(self, body: PromptFields) -> tuple[int, ...]:
        """The same as token ids, each of the model's vocabulary. Raises InvalidRequest."""
        prompt = await self.read(body)
        content = prompt.content
        if isinstance(content, str):
            await self._check(content, prompt.field)
            adds = prompt.add_special_tokens
            content = tuple(await self.tokenizer.encode_async(content, add_special_tokens=adds))
        self._check_ids(content, prompt.field)
        return content

    async def continuation_ids(self, text: str, field: str) -> tuple[int, ...]:
        """The tokens of a text behind another one. Raises InvalidRequest."""
        await self._check(text, field)
        return tuple(await continuation_ids(self.tokenizer, text))

    async def _check(self, text: str, field: str) -> None:
        check_unicode(text, field)
        await check_fits(self.tokenizer, text, self._limits.max_total_len, field)

    def _check_ids(self, token_ids: tuple[int, ...], field: str) -> None:
        if not token_ids:
            raise InvalidRequest(f"`{field}` must not be empty: its text has no tokens", field)
        # Checked first: there may be millions of them.
        max_len = self._limits.max_total_len
        if len(token_ids) > max_len:
            rule = f"must have at most {max_len} tokens"
            raise InvalidRequest(f"`{field}` {rule}. Given: {len(token_ids)}", field)
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < self._limits.vocab_size:
                rule = f"must be made of token ids between 0 and {self._limits.vocab_size - 1}"
                raise wrong(field, rule, token_id)

    async def _render(self, messages: Sequence[ChatTurn]) -> str:
        turns = [{"role": each.role, "content": each.content} for each in messages]
        continues = turns[-1]["role"] == "assistant"
        return await self._template.in_worker(
            lambda: self._template.render(
                turns, add_generation_prompt=not continues, continue_final_message=continues
            )
        )

    def _first_ids(self, field: str) -> tuple[int, ...]:
        """What stands for an empty prompt: the model's first token of a sequence, or where it has
        none the one that ends them, behind which the next text of its training began."""
        first_ids = self._bos_ids or self._limits.eos_token_ids[:1]
        if not first_ids:
            raise InvalidRequest(
                f"`{field}` must not be empty: this model has no token that begins a sequence",
                field,
            )
        return tuple(first_ids)


def _field_of(body: PromptFields) -> str:
    present = [field for field in _FIELDS if getattr(body, field) is not None]
    if not present:
        message = "`prompt` is required: token ids, or `text`, or `messages`"
        raise InvalidRequest(message, "prompt")
    if len(present) > 1:
        raise InvalidRequest(f"`{present[0]}` and `{present[1]}` exclude each other", present[1])
    return present[0]


def _bos_ids(tokenizer: Tokenizer) -> tuple[int, ...]:
    if tokenizer.bos_token is None:
        return ()
    ids = tokenizer.encode(tokenizer.bos_token, add_special_tokens=False)
    return tuple(ids) if len(ids) == 1 else ()
