"""The objects of the server's frames, as JSON texts. It knows no order in which they come."""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from router.request.events import TokenGenerated

# What cannot come at all. Clients of version 1 read Python's JSON, others may not.
_IMPOSSIBLE = "-Infinity"
_LEAST = repr(-sys.float_info.max)


def number(value: float, *, strictly: bool) -> str:
    """A log-probability; `strictly` in numbers that any reader of JSON knows."""
    if math.isfinite(value):
        return repr(value)
    return _LEAST if strictly else _IMPOSSIBLE


def as_json(value: Mapping[str, object]) -> str:
    """Any other object."""
    return orjson.dumps(value).decode()


@dataclass(frozen=True, slots=True)
class TokenObject:
    """A token that waits for its finish reason: what is written before and behind it."""

    head: str
    rest: str

    @classmethod
    def of(
        cls, stream_id: int, event: TokenGenerated, *, version: int, has_tops: bool, is_end: bool
    ) -> "TokenObject":
        """A generated token, with its alternatives and, in version 2, what it shows."""
        token, strictly = event.token, version > 1
        logprob = token.logprob if token.logprob is not None else 0.0
        head = (
            f'{{"token":{token.token_id},"stream_id":{stream_id},'
            f'"logprob":{number(logprob, strictly=strictly)},"finish_reason":'
        )
        rest = ""
        if has_tops:
            tops = {
                each.token_id: each.logprob for each in event.top_tokens if each.logprob is not None
            }
            tops.setdefault(token.token_id, logprob)
            entries = [f'"{key}":{number(tops[key], strictly=strictly)}' for key in tops]
            rest = f',"top_logprobs":{{{",".join(entries)}}}'
        if version > 1:
            shown = orjson.dumps(event.text).decode()
            rest += f',"text":{shown},"is_end":{"true" if is_end else "false"}'
        return cls(head, rest + "}")

    @classmethod
    def certain(cls, stream_id: int, token_id: int) -> "TokenObject":
        """A token that nothing else could have been."""
        return cls(
            f'{{"token":{token_id},"stream_id":{stream_id},"logprob":0.0,"finish_reason":',
            f',"top_logprobs":{{"{token_id}":0.0}}}}',
        )

    def ending(self, reason: str | None) -> str:
        """The object; `reason` None: the stream goes on."""
        return self.head + ("null" if reason is None else f'"{reason}"') + self.rest


def scored_token(stream_id: int, token_id: int, logprob: float, *, is_last: bool) -> str:
    """A token of a score, in the words of version 1."""
    reason = '"stop"' if is_last else "null"
    return (
        f'{{"token":{token_id},"stream_id":{stream_id},'
        f'"logprob":{number(logprob, strictly=False)},"finish_reason":{reason}}}'
    )
