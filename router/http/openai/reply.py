"""Words that every reply and chunk of OpenAI's routes is made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from proto.contract import FinishReason
from router.request.events import Finished

FINISH_REASONS: Mapping[FinishReason, str] = MappingProxyType(
    {
        FinishReason.LENGTH: "length",
        FinishReason.EOS: "stop",
        FinishReason.STOP_TOKEN: "stop",
        FinishReason.STOP_STRING: "stop",
        FinishReason.CONSTRAINT_COMPLETE: "stop",
        FinishReason.DEADLINE: "deadline",
        # Nobody can ask for a pause here; it would be a limit on tokens.
        FinishReason.PAUSED: "length",
    }
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every reply or chunk of one record repeats. `created_s` is in Unix time.

    `service_tier` is the one that served, shown to clients that chose one.
    """

    reply_id: str
    kind: str
    created_s: int
    model: str
    system_fingerprint: str
    service_tier: str | None = None

    def fields(self) -> dict[str, Any]:
        """The envelope's own fields, in OpenAI's order."""
        tier = {} if self.service_tier is None else {"service_tier": self.service_tier}
        return {
            "id": self.reply_id,
            "object": self.kind,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
            **tier,
        }

    def chunk_head(self) -> bytes:
        """The beginning of a chunk's frame, up to where its choices go."""
        return b"data: " + orjson.dumps(self.fields())[:-1] + b',"choices":['


class Usage:
    """Counts tokens over the draws of one call: a prompt once, whatever is drawn from it.

    Without `counts_generated` what was drawn is thrown away, and so is nobody's usage.
    """

    def __init__(self, num_draws: int, *, counts_generated: bool = True) -> None:
        self._num_draws = num_draws
        self._counts_generated = counts_generated
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_generated_tokens = 0

    @property
    def num_generated_tokens(self) -> int:
        """What was drawn, and counts."""
        return self._num_generated_tokens

    def add(self, index: int, end: Finished) -> None:
        """A draw's end; draws are numbered prompt by prompt."""
        if index % self._num_draws == 0:
            self._num_prompt_tokens += end.num_prompt_tokens
            self._num_cached_tokens += end.num_cached_tokens
        if self._counts_generated:
            self._num_generated_tokens += end.num_generated_tokens

    def fields(self) -> dict[str, Any]:
        """As OpenAI tells it. Nothing is heard, foretold or thought in secret."""
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": self._num_generated_tokens,
            "total_tokens": self._num_prompt_tokens + self._num_generated_tokens,
            "prompt_tokens_details": {"cached_tokens": self._num_cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }


class RunningUsage:
    """Counts tokens while they are streamed, over all choices, for chunks that tell of it."""

    def __init__(self, num_prompt_tokens: int, *, counts_generated: bool = True) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._counts_generated = counts_generated
        self._num_generated_tokens = 0

    def add_token(self) -> None:
        """One more token was generated."""
        self._num_generated_tokens += self._counts_generated

    def fields(self) -> dict[str, Any]:
        """As vLLM tells it."""
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": self._num_generated_tokens,
            "total_tokens": self._num_prompt_tokens + self._num_generated_tokens,
        }
