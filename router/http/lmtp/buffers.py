"""Buffers: token prefixes that a client named, kept for one socket and for a while.

They are token ids alone. What was computed of them is in the prefix cache, as of any prompt.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from router.request.errors import InvalidRequest

_MAX_NAME_LEN = 128


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """How many buffers a socket may have, with how many tokens in all, and how long they stay."""

    max_buffers: int = 256
    max_tokens: int = 1 << 20
    default_ttl_s: float = 600.0
    max_ttl_s: float = 86_400.0


@dataclass(slots=True)
class _Buffer:
    token_ids: tuple[int, ...]
    ttl_s: float
    expires_s: float


def buffer_told(name: str, num_tokens: int, ttl_s: float) -> dict[str, object]:
    """A buffer as clients are told of it."""
    return {"name": name, "num_tokens": num_tokens, "ttl_s": ttl_s}


class Buffers:
    """Those of one socket. Each stays `ttl_s` seconds from when it was last used."""

    def __init__(self, limits: BufferLimits, clock: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._buffers: dict[str, _Buffer] = {}
        self._num_tokens = 0

    def get(self, name: str, field: str = "buffer") -> tuple[int, ...]:
        """The tokens of a buffer. Raises InvalidRequest where there is none (any more)."""
        now_s = self._clock()
        self._expire(now_s)
        buffer = self._buffers.get(name)
        if buffer is None:
            raise InvalidRequest(
                f"`{field}` must be the name of a buffer of this socket. Given: {name[:60]!r}",
                field,
            )
        buffer.expires_s = now_s + buffer.ttl_s
        return buffer.token_ids

    def check(self, name: str, num_tokens: int, field: str, ttl_s: float | None = None) -> float:
        """What a buffer of that name and so many tokens would live, in seconds.

        Raises InvalidRequest where there is no room for it.
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
        """Keeps tokens under a name, in place of what it had; answers its seconds.

        Raises InvalidRequest.
        """
        ttl_s = self.check(name, len(token_ids), field, ttl_s)
        self.drop(name)
        self._buffers[name] = _Buffer(token_ids, ttl_s, self._clock() + ttl_s)
        self._num_tokens += len(token_ids)
        return ttl_s

    def drop(self, name: str) -> bool:
        """Forgets a buffer; False if there was none."""
        self._expire(self._clock())
        buffer = self._buffers.pop(name, None)
        if buffer is not None:
            self._num_tokens -= len(buffer.token_ids)
        return buffer is not None

    def _expire(self, now_s: float) -> None:
        expired = [name for name, each in self._buffers.items() if each.expires_s <= now_s]
        for name in expired:
            self._num_tokens -= len(self._buffers.pop(name).token_ids)
