"""The validation of requests of every API, timed and counted, with each request's deadline."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from starlette.requests import Request

from router.engine.validation import RawParams, Validation
from router.http.images import ImageReader, ImageSource, markdown_images
from router.http.request_record import RequestRecord
from router.request.errors import InvalidRequest
from router.request.request import GenerateRequest
from router.telemetry.metrics import Metrics
from router.telemetry.tracing import NO_TRACES, Tracer

TIMEOUT_HEADER = "x-request-timeout"
_SECONDS = re.compile(r"\d{1,9}(\.\d{0,9})?|\.\d{1,9}", re.ASCII)


class RequestValidator:
    """Counts requests and validates them."""

    def __init__(
        self,
        validation: Validation,
        metrics: Metrics,
        tracer: Tracer = NO_TRACES,
        images: ImageReader | None = None,
    ) -> None:
        """`images`: None where the model does not see, so that no request has any."""
        self._validation = validation
        self._metrics = metrics
        self._tracer = tracer
        self._images = images

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

    async def check_inputs(
        self, record: RequestRecord, inputs: str, raw: RawParams
    ) -> GenerateRequest:
        """As `check`, of a prompt of TGI's, whose `![](URL)` are images where the model sees."""
        if self._images is None:
            return await self.check(record, inputs, raw)
        text, images = markdown_images(inputs, self._images.marker)
        return await self.check(record, text, raw, images=images)

    async def count_images(self, record: RequestRecord, images: Sequence[ImageSource]) -> int:
        """The tokens that images add to a text with their markers. Raises as `check`."""
        if not images or self._images is None:
            return 0
        return sum(len(one.span_ids) - 1 for one in await self._images.read(record, images))

    async def check(
        self,
        record: RequestRecord,
        prompt: str | Sequence[int],
        raw: RawParams,
        *,
        add_special_tokens: bool = True,
        images: Sequence[ImageSource] = (),
    ) -> GenerateRequest:
        """The request, valid, with its deadline, the earliest of those that the server, the
        request's header and its body set. `prompt` is text or token ids; `images` are for its
        markers.

        Raises InvalidRequest, and Refused where images are asked for that none may be fetched for.
        """
        durations_s = (self._validation.limits.max_duration_s, record.timeout_s, raw.max_time)
        given_s = [duration_s for duration_s in durations_s if duration_s is not None]
        deadline_s = record.started_s + min(given_s) if given_s else None
        drawn = None if record.draws is None else record.draws.getrandbits(64)
        raw = replace(raw, key=record.key, deadline_s=deadline_s, drawn_seed=drawn)
        clock = time.monotonic
        begun_s = clock()
        try:
            if images and self._images is not None:
                self._validation.check(raw, is_empty=not prompt)
                raw = replace(raw, images=await self._images.read(record, images))
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
        record.images.clear()
        validation_s = clock() - begun_s
        record.accepted(checked, validation_s)
        record.span.validated(validation_s)
        checked = replace(checked, trace=record.span.context, on_end=record.sequence_ended)
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
