"""Validation of every API's requests: raw parameters to a request, timed, counted, traced."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import Request

from router.http.request_record import RequestRecord
from router.request.errors import InvalidRequest
from router.request.parameters import WARPERS, check_parameters
from router.request.request import NUM_SEEDS, GenerateRequest
from router.request.validation import Limits, RawParams, Validation
from router.telemetry.metrics import Metrics
from router.telemetry.tracing import NO_TRACES, Tracer

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
        if given_s:
            raw = replace(raw, deadline_s=record.started_s + min(given_s))
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
