"""The record of one request of any API: for its line in the log, its metrics and its span."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random, SystemRandom
from types import MappingProxyType

from router.http.moving import MovingStream
from router.http.server.access import AccessRecord
from router.request.images import PreparedImage
from router.request.request import Finished, GenerateRequest
from router.telemetry.metrics import Metrics
from router.telemetry.tracing import RequestSpan

# TGI's words for the label `err` where they differ from the error_type.
_FAILURES: Mapping[str, str] = MappingProxyType(
    {"template_error": "template", "incomplete_generation": "incomplete", "cancelled": "dropped"}
)


@dataclass(slots=True)
class RequestRecord(AccessRecord):
    """Counts are sums over the request's sequences, failed and cancelled ones too; times those of
    the first to finish.

    `seed` is that of the first sequence to end, if it was drawn; `span` that of a generation.
    `socket` are the fields of a socket's line. Seeds and ids that are drawn come from `draws`,
    where a request must have the same ones whenever it is computed. `asked_s` is in Unix time.
    `moving` is its stream, where a front may move it. `images` are files by their URLs, until it is
    validated.
    """

    metrics: Metrics | None = None
    model: str = ""
    is_generation: bool = False
    timeout_s: float | None = None
    route: str | None = None
    span: RequestSpan = field(default_factory=RequestSpan)
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
    draws: Random | None = None
    asked_s: float = field(default_factory=time.time)
    moving: MovingStream | None = None
    images: dict[str, PreparedImage] = field(default_factory=dict)

    def move(self, root: str, asked_s: float, moving: MovingStream) -> None:
        """Its ids and seeds are drawn from `root`, and it is as old as at its first replica."""
        self.draws = Random(root)
        self.started_s -= max(0.0, self.asked_s - asked_s)
        self.asked_s = asked_s
        self.moving = moving

    @property
    def ids(self) -> Random:
        """What the reply's ids are drawn from."""
        return SystemRandom() if self.draws is None else self.draws

    def ids_of_choice(self) -> Random:
        """What one choice's ids are drawn from, since choices come in any order."""
        return self.ids if self.draws is None else Random(self.draws.getrandbits(128))

    def accepted(self, request: GenerateRequest, validation_s: float) -> None:
        """A sequence passed validation, which took so long."""
        self.num_prompt_characters += len(request.prompt_text)
        self.num_prompt_tokens += len(request.prompt_ids)
        self.validation_s += validation_s
        if request.constraint is not None:
            self.leave_out(request.constraint.not_enforced)

    def sequence_ended(self, num_cached_tokens: int, num_generated_tokens: int) -> None:
        """A sequence ended, good or bad, whether or not the client got all its tokens."""
        self.num_cached_tokens += num_cached_tokens
        self.num_generated_tokens += num_generated_tokens

    def finished(self, end: Finished) -> None:
        """The client got a sequence's good end."""
        self.finish_reasons.append(end.reason.value)
        if end.timings is not None and self.queue_s is None:
            self.seed = end.seed
            self.queue_s = end.timings.queue_s
            self.time_to_first_token_s = end.timings.time_to_first_token_s
            self.inference_s = end.timings.inference_s

    @property
    def is_routine(self) -> bool:
        return not self.is_generation and self.error_type is None

    def request_fields(self, method: str, path: str) -> dict[str, object]:
        fields: dict[str, object] = {"method": method, "path": path}
        if self.is_generation:
            fields |= {"route": self.route, "model": self.model}
        return fields

    def answer_fields(self) -> dict[str, object]:
        fields = AccessRecord.answer_fields(self)
        if self.span.trace_id is not None:
            fields["trace_id"] = self.span.trace_id
        if self.is_generation:
            fields["stream"] = self.is_stream
            fields["num_prompt_tokens"] = self.num_prompt_tokens
            fields["num_cached_tokens"] = self.num_cached_tokens
            fields["num_generated_tokens"] = self.num_generated_tokens
            fields["validation_ms"] = _ms(self.validation_s)
        for name, seconds in (
            ("queue_ms", self.queue_s),
            ("time_to_first_token_ms", self.time_to_first_token_s),
            ("inference_ms", self.inference_s),
        ):
            if seconds is not None:
                fields[name] = _ms(seconds)
        if self.finish_reasons:
            fields["finish_reasons"] = ",".join(self.finish_reasons)
        if self.seed is not None:
            fields["seed"] = self.seed
        return fields | self.socket

    def end(self, method: str, path: str) -> None:
        """Counts a generation, ends its span, writes the line."""
        if self.is_generation and self.metrics is not None:
            if self.error_type is None:
                self.metrics.request_success.inc()
                self.metrics.request_duration.observe(time.monotonic() - self.started_s)
            else:
                cause = _FAILURES.get(self.error_type, self.error_type)
                self.metrics.request_failure.inc(cause)
        self.span.end({**self.request_fields(method, path), **self.answer_fields()})
        AccessRecord.end(self, method, path)


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 1)
