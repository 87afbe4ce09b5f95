"""One BEAMS stream: a beam search, from the fields of its beams to the last object.

holes -> GenerateRequests, checked once -> BeamRun -> BEAMS* DONE
"""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from router.engine.beam_search.requests import OutputTexts, num_kept_of_beams
from router.engine.beam_search.run import BeamRun, BeamUsage
from router.engine.beam_search.types import (
    Beam,
    BeamGroup,
    BeamScoring,
    DeadEnd,
    Hole,
    Place,
    SearchEnd,
    SearchOutcome,
)
from router.http.body import parse_part
from router.http.lmtp import objects
from router.http.lmtp.frames import Frame
from router.http.lmtp.notices import Queued
from router.http.lmtp.objects import as_json, error_fields
from router.http.lmtp.prompts import Buffers
from router.http.lmtp.requests import MAX_TOP_LOGPROBS, raw_of
from router.http.lmtp.schema import BeamBody, BeamsBody, GenerateBody, HoleBody
from router.http.lmtp.services import LmtpServices
from router.http.lmtp.stream_encoder import Message
from router.http.lmtp.streams import Notify, SendMessages
from router.http.request_validator import RequestRecord
from router.http.server.errors import HttpError
from router.http.server_info import served_name
from router.request.errors import ConstraintRefused, InvalidRequest, RouterError
from router.request.parameters import Limits

# Besides n tokens that go on, a step may bring so many that end: a model has that many at most.
_MAX_ENDS = 8


class BeamStream:
    """One group. `notify` sends a system message about it.

    `_dead`: what is in holes that nothing can fill, and why; no search is needed to know it.
    """

    def __init__(
        self,
        services: LmtpServices,
        buffers: Buffers,
        record: RequestRecord,
        stream_id: int,
        notify: Notify,
    ) -> None:
        self._services = services
        self._holes = HoleReader(services, buffers, record)
        self._record = record
        self._stream_id = stream_id
        self._notify = notify
        self._run: BeamRun | None = None
        self._dead: list[tuple[Place, RouterError | None]] = []
        # Of the group, once it is known.
        self._num_considered = 0

    async def run(self, frame: Frame, send: SendMessages) -> list[Message]:
        """Answers the frame; its outcome is the end. Raises RouterError, HttpError for `fail`."""
        started = await self._start(frame)
        if not isinstance(started, tuple):
            return self._done(started)
        run, texts = started
        self._run = run
        queued = Queued(self._stream_id, lambda: run.place, self._notify)
        try:
            while (outcome := await run.next()) is None:
                queued.begun()
                await send([("BEAMS", self._report(run, texts))])
            queued.begun()
            return self._done(outcome)
        finally:
            queued.close()
            run.close()
            self._note(run)

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        """An error object."""
        return [("TOKEN", as_json({"stream_id": self._stream_id, **error_fields(error)}))]

    def cancelled(self) -> list[Message]:
        """Where the search stood; nowhere, if it had not begun."""
        if self._run is None:
            return self._done(self._nothing(SearchEnd.CANCELLED))
        return self._done(self._run.search.outcome(SearchEnd.CANCELLED))

    def _require_width(self, width: int) -> None:
        most = self._services.limits.max_beams
        if width > most:
            message = f"`width` must be at most {most} (--max-beams). Given: {width}"
            raise InvalidRequest(message, "width")

    def _done(self, outcome: SearchOutcome) -> list[Message]:
        usage = BeamUsage() if self._run is None else self._run.usage
        fields = self._last(outcome, usage)
        self._record.finish_reasons.append(outcome.reason.value)
        self._services.metrics.beam_groups.inc(outcome.reason.value)
        return [("DONE", fields)]

    def _note(self, run: BeamRun) -> None:
        self._record.num_cached_tokens = run.usage.num_cached_tokens
        self._record.num_generated_tokens = run.usage.num_output_tokens
        self._services.metrics.beam_steps.inc(amount=run.num_steps)

    async def _start(self, frame: Frame) -> tuple[BeamRun, OutputTexts] | SearchOutcome:
        body = parse_part(frame.text, frame.payload, (), BeamsBody)
        served_name(self._services.info, body.model)
        group = await self._group(body)
        self._num_considered = group.num_considered
        if not group.beams:
            return self._nothing(SearchEnd.COMPLETE)
        texts = OutputTexts(self._services.prompts.tokenizer, num_kept_of_beams(group.width))
        return self._services.infer.search_beams(group, texts, body.report_s), texts

    def _nothing(self, reason: SearchEnd) -> SearchOutcome:
        return SearchOutcome(reason=reason)

    def _report(self, run: BeamRun, texts: OutputTexts) -> str:
        holes = run.group.holes
        return objects.report(
            self._stream_id,
            run.search.report(),
            lambda beam: texts.shown(holes[beam.hole], beam.output_ids),
        )

    def _last(self, outcome: SearchOutcome, usage: BeamUsage) -> str:
        outcome = replace(outcome, dropped=[*self._dead, *outcome.dropped])
        return objects.done(self._stream_id, outcome, self._num_considered, usage)

    # From fields to a group

    async def _group(self, body: BeamsBody) -> BeamGroup:
        self._require_width(body.width)
        given = [BeamBody()] if body.beams is None else body.beams
        for field, parts in (("holes", body.holes), ("beams", given)):
            if len(parts) > body.width:
                raise InvalidRequest(
                    f"`{field}` must be at most as many as `width`, which is {body.width}. "
                    f"Given: {len(parts)}",
                    field,
                )
        num_tops = min(2 * body.width + _MAX_ENDS, MAX_TOP_LOGPROBS)
        found = await self._holes.read(body, num_tops)
        end_token_ids = frozenset(self._services.info.limits.eos_token_ids)
        beams: list[Beam] = []
        for index, each in enumerate(given):
            beam = self._beam(each, index, found)
            hole = found[beam.hole]
            if isinstance(hole, DeadEnd):
                self._dead.append((Place(beam), hole.error))
            else:
                beams.append(beam)
        return BeamGroup(
            width=body.width,
            holes=placeable(found),
            beams=tuple(beams),
            end_token_ids=end_token_ids,
            scoring=BeamScoring(
                length_penalty=body.length_penalty,
                early_stopping=body.early_stopping,
                max_len=body.max_len,
            ),
            ended=tuple(body.ended),
            num_candidates=body.num_candidates,
        )

    def _beam(
        self,
        given: BeamBody,
        index: int,
        holes: list[Hole | DeadEnd],
    ) -> Beam:
        place = f"beams[{index}]"
        hole = hole_at(holes, given.hole, place)
        if isinstance(hole, Hole):
            limits = self._services.info.limits
            check_output(given.output, hole.max_len - 1, limits, f"{place}.output")
        return Beam(
            hole=given.hole,
            output_ids=given.output,
            logprob=given.logprob,
            num_tokens=given.num_tokens,
            output_logprob=given.output_logprob,
        )


# Refusals by what a constraint means. By the others one beam is impossible, and no other.
_MEANINGLESS = ("malformed", "not_enforced")


class HoleReader:
    """Reads the holes of one frame."""

    def __init__(self, services: LmtpServices, buffers: Buffers, record: RequestRecord) -> None:
        self._services = services
        self._buffers = buffers
        self._record = record

    async def read(self, body: BeamsBody, num_tops: int) -> list[Hole | DeadEnd]:
        """DeadEnd are those that nothing can fill. Raises InvalidRequest: which one, and why.

        By one that fails the group the checks of the others end, too.
        """
        indices = range(len(body.holes))
        checks = [asyncio.ensure_future(self._hole(body, each, num_tops)) for each in indices]
        try:
            return await asyncio.gather(*checks)
        finally:
            for check in checks:
                check.cancel()
            await asyncio.gather(*checks, return_exceptions=True)

    async def _hole(self, body: BeamsBody, index: int, num_tops: int) -> Hole | DeadEnd:
        try:
            return await self._checked(body, body.holes[index], num_tops)
        except ConstraintRefused as error:
            if error.reason in _MEANINGLESS:
                raise _within(error, index) from error
            return DeadEnd(error)
        except InvalidRequest as error:
            raise _within(error, index) from error

    async def _checked(self, body: BeamsBody, hole: HoleBody, num_tops: int) -> Hole:
        services = self._services
        prompt = await services.prompts.read(hole, self._buffers)
        asked = GenerateBody.model_construct(
            max_tokens=hole.max_tokens,
            constraint=hole.constraint,
            stop=hole.stop,
            include_stop=hole.include_stop,
            top_logprobs=num_tops,
            num_steps=1,
            logit_bias=body.logit_bias,
            repetition_penalty=body.repetition_penalty,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            timeout_s=body.timeout_s,
        )
        raw = raw_of(asked, prompt, services.info.limits, version=2)
        request = await services.validator.check(
            self._record, prompt.content, raw, add_special_tokens=prompt.add_special_tokens
        )
        return Hole(request, hole.is_last)


def placeable(holes: Iterable[Hole | DeadEnd]) -> tuple[Hole, ...]:
    """The holes with their numbers, where some have no beams since nothing can fill them.

    Empty if that is so of all.
    """
    every = list(holes)
    spare = next((each for each in every if isinstance(each, Hole)), None)
    if spare is None:
        return ()
    return tuple(each if isinstance(each, Hole) else spare for each in every)


def hole_at(holes: list[Hole | DeadEnd], number: int, place: str) -> Hole | DeadEnd:
    """The hole of this number. Raises InvalidRequest at `place`, which names it."""
    if number >= len(holes):
        rule = f"must be less than {len(holes)}, the number of `holes`"
        raise InvalidRequest(f"`{place}.hole` {rule}. Given: {number}", f"{place}.hole")
    return holes[number]


def check_output(output: tuple[int, ...], max_len: int, limits: Limits, field: str) -> None:
    """Of at most `max_len` tokens, none of which ends it. Raises InvalidRequest."""
    if len(output) > max_len:
        rule = f"must have fewer tokens than the hole may have, which is {max_len + 1}"
        raise InvalidRequest(f"`{field}` {rule}. Given: {len(output)} tokens", field)
    last_id = limits.vocab_size - 1
    for token_id in output:
        if not 0 <= token_id <= last_id:
            rule = f"must be of token ids between 0 and {last_id}"
            raise InvalidRequest(f"`{field}` {rule}. Given: {token_id}", field)
        if token_id in limits.eos_token_ids:
            rule = "must be of an output that has not ended"
            raise InvalidRequest(f"`{field}` {rule}. Given: the end token {token_id}", field)


def _within(error: InvalidRequest, index: int) -> InvalidRequest:
    """The same, saying which hole it is about."""
    place = f"holes[{index}]"
    field = place if error.field is None else f"{place}.{error.field}"
    message = f"`{place}`: {error}"
    if isinstance(error, ConstraintRefused):
        return ConstraintRefused(message, error.reason, error.details, field)
    return InvalidRequest(message, field)
