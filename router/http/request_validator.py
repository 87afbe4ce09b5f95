"""One request: its record for log line, metrics and span; its validation, timed and counted."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from starlette.requests import Request

from router.engine.validation import Limits, RawParams, Validation
from router.http.server.access import AccessRecord
from router.request.errors import InvalidRequest
from router.request.parameters import WARPERS, check_parameters
from router.request.request import NUM_SEEDS, Finished, GenerateRequest
from router.telemetry.metrics import Metrics
from router.telemetry.tracing import NO_TRACES, RequestSpan, Tracer

# TGI's words for the label `err` where they differ from the error_type.
_FAILURES: Mapping[str, str] = MappingProxyType(
    {"template_error": "template", "incomplete_generation": "incomplete", "cancelled": "dropped"}
)


@dataclass(slots=True)
class RequestRecord(AccessRecord):
    """Counts are sums over the request's sequences, failed and cancelled ones too; times those of
    the first to finish.

    `seed` is that of the first sequence to end, if it was drawn; `span` that of a generation.
    `socket` are the fields of a socket's line.
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

    def accepted(self, request: GenerateRequest, validation_s: float) -> None:
        """A sequence passed validation, which took so long."""
        self.num_prompt_characters += len(request.prompt_text)
        self.num_prompt_tokens += len(request.prompt_ids)
        self.validation_s += validation_s

    def took(self, num_cached_tokens: int, num_generated_tokens: int) -> None:
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
        """Whether its line is for debugging alone."""
        return not self.is_generation and self.error_type is None

    def request_fields(self, method: str, path: str) -> dict[str, object]:
        """The fields of the request."""
        fields: dict[str, object] = {"method": method, "path": path}
        if self.is_generation:
            fields |= {"route": self.route, "model": self.model}
        return fields

    def answer_fields(self) -> dict[str, object]:
        """The fields of the answer."""
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


TIMEOUT_HEADER = "x-request-timeout"
# OpenAI's seeds have a sign.
_MIN_SEED = -(NUM_SEEDS // 2)
# Keeps the most probable token alone, as 0 does.
_SMALLEST_TOP_P = 1e-6
_SECONDS = re.compile(r"\d{1,9}(\.\d{0,9})?|\.\d{1,9}", re.ASCII)


class RequestValidator:
    """Validates requests of every API."""

    def __init__(
        self, validation: Validation, metrics: Metrics, tracer: Tracer = NO_TRACES
    ) -> None:
        self._validation = validation
        self._metrics = metrics
        self._tracer = tracer

    def begin(self, request: Request) -> RequestRecord:
        """Counts a request to generate, once, before it is read.

        Raises InvalidRequest for a timeout header that is no number of seconds.
        """
        record = RequestRecord.of(request)
        if not record.is_generation:
            # The route's template, not the path: the names of spans are bounded.
            route = getattr(request.scope.get("route"), "path", None)
            self.open(record, request.method, route or request.url.path, request.headers.raw)
            record.route = route
            record.timeout_s = _timeout_s(request)
        return record

    def open(
        self,
        record: RequestRecord,
        method: str,
        route: str,
        headers: Iterable[tuple[bytes, bytes]],
    ) -> None:
        """As `begin`, for a request that has no HTTP request of its own; `route` names its span."""
        self._metrics.request_count.inc()
        record.is_generation = True
        record.route = route
        record.span = self._tracer.start_request(method, route, headers, record.started_s)

    async def check(
        self,
        record: RequestRecord,
        prompt: str | Sequence[int],
        raw: RawParams,
        *,
        add_special_tokens: bool = True,
    ) -> GenerateRequest:
        """The request, valid, with its deadline, the earliest of those that the server, the
        request's header and its body set. `prompt` is text or token ids.

        Raises InvalidRequest.
        """
        durations_s = (self._validation.limits.max_duration_s, record.timeout_s, raw.max_time)
        given_s = [duration_s for duration_s in durations_s if duration_s is not None]
        deadline_s = record.started_s + min(given_s) if given_s else None
        raw = replace(raw, key=record.key, deadline_s=deadline_s)
        clock = time.monotonic
        begun_s = clock()
        try:
            if isinstance(prompt, str):
                checked = await self._validation.validate(
                    prompt, raw, add_special_tokens=add_special_tokens, trace_id=record.request_id
                )
            else:
                checked = await self._validation.validate_ids(
                    prompt, raw, trace_id=record.request_id
                )
        except InvalidRequest as error:
            record.span.validated(clock() - begun_s, error)
            raise
        validation_s = clock() - begun_s
        record.accepted(checked, validation_s)
        record.span.validated(validation_s)
        checked = replace(checked, trace=record.span.context, account=record.took)
        self._metrics.validation_duration.observe(validation_s)
        self._metrics.input_length.observe(len(checked.prompt_ids))
        self._metrics.max_new_tokens.observe(checked.stop.max_new_tokens)
        return checked


def _timeout_s(request: Request) -> float | None:
    """The client's own limit, in seconds from the request's arrival."""
    values = request.headers.getlist(TIMEOUT_HEADER)
    for value in values:
        if not _SECONDS.fullmatch(value) or float(value) == 0.0:
            raise InvalidRequest(
                f"the header `{TIMEOUT_HEADER}` must be a number of seconds in digits, "
                f"above 0 and below 1000000000, like 30 or 2.5. Given: {value[:40]!r}",
                TIMEOUT_HEADER,
            )
    return min(map(float, values), default=None)


def normalize(raw: RawParams, limits: Limits) -> RawParams:
    """`raw` with temperature, top_p, top_k and seed in the engine's values, not in OpenAI's, vLLM's
    and Anthropic's, whose clients sample unless the temperature is 0.

    Raises InvalidRequest for a value that breaks a rule though it has no effect.
    """
    _check_ranges(raw)
    is_greedy = raw.temperature == 0
    meant = replace(
        raw,
        do_sample=not is_greedy,
        temperature=None if is_greedy else raw.temperature,
        top_p=_SMALLEST_TOP_P if raw.top_p == 0 else None if raw.top_p == 1 else raw.top_p,
        top_k=None if raw.top_k in (0, -1) else raw.top_k,
        seed=_unsigned(raw),
    )
    if not is_greedy:
        return meant
    # With temperature 0 the other ways to narrow the choice mean nothing, but must be in order.
    check_parameters(meant, limits)
    unset: dict[str, Any] = dict.fromkeys(WARPERS)
    return replace(meant, **unset)


def _check_ranges(raw: RawParams) -> None:
    """Those that are wider here than the engine's, which has no value for what is neutral."""
    for word, rule, is_inside in (
        ("temperature", "at least 0", (raw.temperature or 0) >= 0),
        ("top_p", "between 0 and 1", 0 <= (raw.top_p or 0) <= 1),
        ("top_k", "at least -1 (all, as is 0)", (raw.top_k or 0) >= -1),
    ):
        if not is_inside:
            raise raw.refuse(word, rule, getattr(raw, word))


def _unsigned(raw: RawParams) -> int | None:
    """A negative seed is one of the upper half of the engine's."""
    if raw.seed is None or raw.seed >= 0:
        return raw.seed
    if raw.seed < _MIN_SEED:
        raise raw.refuse("seed", f"between {_MIN_SEED} and {NUM_SEEDS - 1}", raw.seed)
    return raw.seed % NUM_SEEDS
