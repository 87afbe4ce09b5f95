"""The router's errors, and clients' values in their texts; status codes are in `http/errors.py`.

RouterError
 +-- InvalidRequest            the request can never be served; names field, value and rule
 |    +-- ContextExceeded      more tokens than the model's context has room for
 |    +-- TemplateFailed       the chat template is missing, or refused the messages
 |    +-- Unsupported             in order, but not something that this server does
 |    +-- ToolsRefused         tools that cannot be used as asked
 |    +-- ConstraintRefused    a constraint that cannot be kept; says why
 |    +-- NoAdapter            no LoRA adapter has the name, or has it any more
 |    +-- AdapterRefused       a LoRA adapter that cannot be loaded; says why
 +-- Refused                   a good request at a bad moment
 |    +-- Overloaded           the queue is full
 |    +-- RateLimited          the client's key has had what it may have
 |    +-- Unhealthy            the shards do not answer, or a process that reads images
 |    +-- Draining             the server is shutting down
 +-- GenerationFailed          an accepted request came to a bad end
 |    +-- RowFailed            its own row failed (NaN logits, a bad mask); others go on
 |    +-- ShardFailed          a shard answered with an error, not in time, or not at all
 |    |    +-- ShardUnfit      it does not answer in time, or is another one: start it anew
 |    |    +-- Displaced       another router has begun an epoch there; this one is over
 |    +-- FailedAlone          the shards failed again and again with it, at last with it alone
 |    +-- AdapterLost          its LoRA adapter could not be loaded again after a recovery
 |    +-- Cancelled            the client left
 |    +-- ServerStopped        the drain's time was over
 +-- StartupFailed             the router cannot begin: a port in use, no tokenizer, no shard
"""

from collections.abc import Mapping
from typing import Any

import orjson

CONSTRAINT_REFUSALS = (
    "malformed",
    "not_enforced",
    "contradiction",
    "does_not_fit",
    "too_complex",
    "broken",
)
_MAX_VALUE_LEN = 60


class RouterError(Exception):
    """Root of everything that the router raises on purpose."""


class InvalidRequest(RouterError):
    """A request that breaks a rule.

    `field` is the parameter's name as the client spelt it ("parameters.top_p", "messages"), or
    None when the body as a whole is at fault.
    """

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ContextExceeded(InvalidRequest):
    """A prompt that is too long, or too long for the new tokens that are asked for.

    Lengths are in tokens; of a text that is far too long, `num_prompt_tokens` are those that were
    counted. `num_new_tokens` and `max_total_len` are None where the prompt alone is looked at.
    """

    def __init__(
        self,
        message: str,
        field: str,
        *,
        num_prompt_tokens: int,
        max_prompt_len: int,
        num_new_tokens: int | None = None,
        max_total_len: int | None = None,
    ) -> None:
        super().__init__(message, field)
        self.num_prompt_tokens = num_prompt_tokens
        self.max_prompt_len = max_prompt_len
        self.num_new_tokens = num_new_tokens
        self.max_total_len = max_total_len


class TemplateFailed(InvalidRequest):
    """The chat template is missing, or it refused the messages."""


class Unsupported(InvalidRequest):
    """In order as the API has it, but not something that this server does, or not yet."""


class ToolsRefused(InvalidRequest):
    """Tools that cannot be used as asked."""


class ConstraintRefused(InvalidRequest):
    """A constraint that cannot be kept, found out before any token is made.

    Or one that the output made before has broken already, as its first step finds out; or one that
    takes too long to follow, which any step may find out.
    `reason` is one of CONSTRAINT_REFUSALS; `details` are numbers and places for programs:
    `position` (characters into the text), `pointer` (JSON Pointer of what is not enforced),
    `parts` (what excludes each other), `needed_len` and `max_len` (tokens).
    """

    def __init__(
        self,
        message: str,
        reason: str,
        details: Mapping[str, object] | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(message, field)
        self.reason = reason
        self.details = dict(details or {})


class NoAdapter(InvalidRequest):
    """No LoRA adapter has the name, or has it any more."""


class AdapterRefused(InvalidRequest):
    """A LoRA adapter that cannot be loaded; the message is for the operator."""


class Refused(RouterError):
    """A good request at a bad moment; `retry_after_s` seconds later may be a better one."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Overloaded(Refused):
    """More requests than the queue holds."""


class RateLimited(Refused):
    """The client's API key has had as much as it may have for now."""


class Unhealthy(Refused):
    """The shards do not answer, or a process beside them; no token was made for this request."""


class Draining(Refused):
    """The server is shutting down and takes nothing new."""


class GenerationFailed(RouterError):
    """An accepted request came to a bad end."""


class RowFailed(GenerationFailed):
    """This sequence's own row failed in the shard; its batch mates go on."""


class ShardFailed(GenerationFailed):
    """A shard answered with an error, not in time, or not at all."""


class ShardUnfit(ShardFailed):
    """A shard that only a new process can replace: it hangs, or came back with other limits."""


class Displaced(ShardFailed):
    """Another router has begun an epoch on the shards, which serve one: this one is over."""


class FailedAlone(GenerationFailed):
    """The shards failed each time that they computed this request, the last time with no other."""


class AdapterLost(GenerationFailed):
    """The shards began anew, and refuse the request's LoRA adapter, which they had before."""


class Cancelled(GenerationFailed):
    """The client left before the end."""


class ServerStopped(GenerationFailed):
    """The time to drain was over before the request was."""


class StartupFailed(RouterError):
    """The router cannot begin."""


class WrongPart(ValueError):
    """A part of a field breaks the field's rule; `value` is that part."""

    def __init__(self, rule: str, value: Any) -> None:
        super().__init__(rule)
        self.value = value


def wrong(field: str, rule: str, value: Any) -> InvalidRequest:
    """The error for a field that breaks its rule ("must be ...")."""
    return InvalidRequest(f"`{field}` {rule}. Given: {quoted(value)}", field)


def check_unicode(text: str, field: str) -> None:
    """Raise InvalidRequest when `text` holds half of a surrogate pair, which no encoding has."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"`{field}` must be valid Unicode. Given: a lone surrogate "
            f"U+{ord(text[error.start]):04X} at character {error.start}",
            field,
        ) from error


def quoted(value: Any) -> str:
    """A client's value as JSON, cut to what one line of an error holds."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int):
        # Also what is beyond the writer's 64 bits.
        return cut(str(value).lower())
    return cut(orjson.dumps(cut(value) if isinstance(value, str) else value).decode())


def cut(text: str) -> str:
    """The text, or its beginning, as long as one line of an error holds."""
    return text if len(text) <= _MAX_VALUE_LEN else text[:_MAX_VALUE_LEN] + "..."
