"""One request and its answer, as the log line and the metrics tell of it.

Born in the outermost middleware, filled in by the routes as they learn, told once at the end.
"""

from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.types import Scope

from router.request.events import Finished
from router.request.request import GenerateRequest
from router.telemetry.tracing import RequestSpan

_SCOPE_KEY = "tandem.record"


@dataclass(slots=True)
class RequestRecord:
    """Counts are sums over the record's sequences, failed and cancelled ones too; times those of
    the first to come to a good end.

    `started_s` is of time.monotonic, which is finer than uvloop's clock. `error_type` is the
    client's word for what went wrong, inside a stream too, where `status` stays 200. `cut_by` is
    why the server hung up, which is stronger than what the routes take for the client's leaving.
    `seed` is that of the first sequence to end, if it was drawn; `span` that of a generation.
    `socket` is what a socket has to tell of itself.
    """

    request_id: str
    started_s: float
    is_generation: bool = False
    timeout_s: float | None = None
    is_stream: bool = False
    route: str | None = None
    span: RequestSpan = field(default_factory=RequestSpan)
    status: int | None = None
    error_type: str | None = None
    cut_by: str | None = None
    validation_s: float = 0.0
    queue_s: float | None = None
    time_to_first_token_s: float | None = None
    inference_s: float | None = None
    num_prompt_characters: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    seed: int | None = None
    socket: dict[str, object] = field(default_factory=dict)

    @classmethod
    def within(cls, scope: Scope) -> "RequestRecord | None":
        """The record of an ASGI scope; None before it entered."""
        record = scope.get(_SCOPE_KEY)
        assert record is None or isinstance(record, cls)
        return record

    @classmethod
    def of(cls, request: Request) -> "RequestRecord":
        """The record that a request belongs to."""
        record = request.scope[_SCOPE_KEY]
        assert isinstance(record, cls)
        return record

    def enter(self, scope: Scope) -> None:
        """Ties the record to an ASGI scope."""
        scope[_SCOPE_KEY] = self

    def cut(self, error_type: str, status: int | None = None) -> None:
        """The server hung up on the client, after an answer of `status` if it could give one."""
        self.cut_by = error_type
        self.status = status or self.status

    def accepted(self, request: GenerateRequest, validation_s: float) -> None:
        """A sequence passed validation, which took so long."""
        self.num_prompt_characters += len(request.prompt_text)
        self.num_prompt_tokens += len(request.prompt_ids)
        self.validation_s += validation_s

    def took(self, num_cached_tokens: int, num_generated_tokens: int) -> None:
        """A sequence ended, good or bad, whether or not the client heard of all its tokens."""
        self.num_cached_tokens += num_cached_tokens
        self.num_generated_tokens += num_generated_tokens

    def finished(self, end: Finished) -> None:
        """The client is told of a sequence's good end."""
        self.finish_reasons.append(end.reason.value)
        if end.timings is not None and self.queue_s is None:
            self.seed = end.seed
            self.queue_s = end.timings.queue_s
            self.time_to_first_token_s = end.timings.time_to_first_token_s
            self.inference_s = end.timings.inference_s

    def told(self) -> dict[str, object]:
        """What is known, in the words of the log."""
        told: dict[str, object] = {"status": self.status, "request_id": self.request_id}
        if self.span.trace_id is not None:
            told["trace_id"] = self.span.trace_id
        if self.error_type is not None:
            told["error_type"] = self.error_type
        if self.is_generation:
            told["stream"] = self.is_stream
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
        if self.finish_reasons:
            told["finish_reasons"] = ",".join(self.finish_reasons)
        if self.seed is not None:
            told["seed"] = self.seed
        return told | self.socket


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
