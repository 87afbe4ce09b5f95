"""One request and its answer, as the log line and the metrics tell of it.

Born in the outermost middleware, filled in by the routes as they learn, told once at the end.
"""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import Scope

from router.events import Finished
from router.request import GenerateRequest

_SCOPE_KEY = "tandem.exchange"


@dataclass(slots=True)
class Exchange:
    """Counts are sums over the exchange's sequences; times those of the first to end.

    `started_s` is of time.monotonic, which is finer than uvloop's clock. `error_type` is the
    client's word for what went wrong, inside a stream too, where `status` stays 200.
    """

    request_id: str
    started_s: float
    is_generation: bool = False
    status: int | None = None
    error_type: str | None = None
    validation_s: float = 0.0
    queue_s: float | None = None
    time_to_first_token_s: float | None = None
    inference_s: float | None = None
    num_prompt_characters: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0

    @classmethod
    def of(cls, request: Request) -> "Exchange":
        """The exchange that a request belongs to."""
        exchange = request.scope[_SCOPE_KEY]
        assert isinstance(exchange, cls)
        return exchange

    def enter(self, scope: Scope) -> None:
        """Ties the exchange to an ASGI scope."""
        scope[_SCOPE_KEY] = self

    def accepted(self, request: GenerateRequest, validation_s: float) -> None:
        """A sequence passed validation, which took so long."""
        self.num_prompt_characters += len(request.prompt_text)
        self.num_prompt_tokens += len(request.prompt_ids)
        self.validation_s += validation_s

    def finished(self, end: Finished) -> None:
        """A sequence came to its good end."""
        self.num_cached_tokens += end.num_cached_tokens
        self.num_generated_tokens += end.num_generated_tokens
        if end.timings is not None and self.queue_s is None:
            self.queue_s = end.timings.queue_s
            self.time_to_first_token_s = end.timings.time_to_first_token_s
            self.inference_s = end.timings.inference_s

    def told(self) -> dict[str, object]:
        """What is known, in the words of the log."""
        told: dict[str, object] = {"status": self.status, "request_id": self.request_id}
        if self.error_type is not None:
            told["error_type"] = self.error_type
        if self.is_generation:
            told["num_prompt_tokens"] = self.num_prompt_tokens
            told["num_cached_tokens"] = self.num_cached_tokens
            told["num_generated_tokens"] = self.num_generated_tokens
            told["validation_ms"] = _ms(self.validation_s)
        if self.queue_s is not None:
            told["queue_ms"] = _ms(self.queue_s)
        if self.time_to_first_token_s is not None:
            told["time_to_first_token_ms"] = _ms(self.time_to_first_token_s)
        if self.inference_s is not None:
            told["inference_ms"] = _ms(self.inference_s)
        return told


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
