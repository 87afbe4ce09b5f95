"""Random wrong messages, drawn from a seed."""

import json
import random
from typing import Any

from tests.byte_tokenizer import byte_ids

_TYPES = (
    "GENERATE",
    "SCORE",
    "MODEL_INFO",
    "HELLO",
    "CANCEL",
    "SYS",
    "TOKEN",
    "",
)
_FIELDS = (
    "stream_id", "model", "prompt", "text", "messages", "max_tokens", "scored",
    "temperature", "top_logprobs", "logit_bias", "top_p", "top_k", "min_p", "typical_p", "seed",
    "repetition_penalty", "constraint", "stop", "include_stop", "stop_token_ids", "ignore_eos",
    "min_tokens", "output", "timeout_s", "version", "data", "nothing",
)  # fmt: skip
_CONSTRAINTS = ("json", "regex", "choice", "lark", "where", "sql")


class Nonsense:
    """An endless source; the same seed says the same."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def message(self) -> str | bytes | list[str]:
        """A text message, a binary one, or one in pieces."""
        chance = self._chance
        kind = chance.random()
        text = self._frame()
        if kind < 0.75:
            return text
        if kind < 0.85:
            return self._damaged(text)
        if kind < 0.9:
            return [text[:3], text[3:7], text[7:]]
        if kind < 0.95:
            return chance.randbytes(chance.randrange(60))
        return "".join(chr(chance.choice((32, 34, 65, 123, 233, 0x1F600))) for _ in range(9))

    def _frame(self) -> str:
        chance = self._chance
        command = chance.choice(_TYPES[:3] * 3 + _TYPES)
        fields = self._sensible(command) if chance.random() < 0.8 else {}
        for _ in range(chance.randrange(4)):
            fields[chance.choice(_FIELDS)] = self._value(3)
        if chance.random() < 0.2 and fields:
            del fields[chance.choice(list(fields))]
        return f"{command} {json.dumps(fields)}"

    def _sensible(self, command: str) -> dict[str, Any]:
        chance = self._chance
        fields: dict[str, Any] = {"stream_id": chance.randrange(8), "prompt": byte_ids("Once")}
        if command == "SCORE":
            fields["scored"] = chance.choice((byte_ids("ab"), ["ab", "c"], [byte_ids("a")]))
        if command == "HELLO":
            fields["version"] = chance.randrange(4)
        if command == "GENERATE":
            fields["max_tokens"] = chance.randrange(6)
        return fields

    def _value(self, depth: int) -> Any:
        chance = self._chance
        leaves: tuple[Any, ...] = (
            None, True, False, 0, 1, -1, 3, 2**31, 2**63, 2**64, 2**70, -(2**63), 0.5, -0.5, 1e308,
            "", "a", "b", "Once", "x" * 200, "\x00", "é", "\U0001f600", "1", "-1", [], {},
            [257], [258], [-1], [3] * 130, byte_ids("Twice"), {"5": 1}, {"258": 1}, {"x": 1},
            {"5": 1e9}, {"5": None}, [{"role": "user", "content": "hi"}],
            [{"role": "", "content": 1}],
        )  # fmt: skip
        kind = chance.random()
        if kind < 0.7 or depth == 0:
            return chance.choice(leaves)
        if kind < 0.8:
            return {"type": chance.choice(_CONSTRAINTS), "value": self._value(depth - 1)}
        if kind < 0.9:
            return [self._value(depth - 1) for _ in range(chance.randrange(4))]
        keys = (chance.choice(("a", "type", "5", "content")) for _ in range(chance.randrange(4)))
        return {key: self._value(depth - 1) for key in keys}

    def _damaged(self, text: str) -> str:
        chance = self._chance
        at = chance.randrange(len(text) + 1)
        more = chance.choice('{}[],:" ')
        return chance.choice((text[:at], text[at:], text[:at] + more + text[at:]))
