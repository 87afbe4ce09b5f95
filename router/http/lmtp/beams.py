"""One BEAMS: the live beams of a search, from their fields to the last object.

holes -> GenerateRequests, checked once -> BeamRun -> BEAMS* DONE
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from router.beam_search.run import BeamRun, BeamUsage
from router.beam_search.texts import OutputTexts
from router.beam_search.words import Beam, Dead, Group, Hole, Outcome, Place, Reason, Scoring
from router.errors import ConstraintRefused, InvalidRequest, RouterError
from router.http.body import parse_part
from router.http.errors import HttpError
from router.http.exchange import Exchange
from router.http.lmtp import beam_objects
from router.http.lmtp.beam_schema import BeamBody, BeamsBody, HoleBody
from router.http.lmtp.buffers import Buffers
from router.http.lmtp.failures import error_fields
from router.http.lmtp.frames import Frame
from router.http.lmtp.notices import Queued
from router.http.lmtp.objects import as_json
from router.http.lmtp.requests import MAX_TOP_LOGPROBS, raw_of
from router.http.lmtp.schema import GenerateBody
from router.http.lmtp.services import LmtpServices
from router.http.lmtp.words import Said
from router.http.lmtp.work import Notify, Say
from router.http.model_name import served_name

# Besides n tokens that go on, a step may bring so many that end: a model has that many at most.
_MAX_ENDS = 8
# Refusals by what a constraint means. By the others one beam is impossible, and no other.
_MEANINGLESS = ("malformed", "not_enforced")


class Beaming:
    """One group of beams. `notify` takes what is to be said of it as a system message."""

    def __init__(
        self,
        services: LmtpServices,
        buffers: Buffers,
        exchange: Exchange,
        stream_id: int,
        notify: Notify,
    ) -> None:
        self._services = services
        self._buffers = buffers
        self._exchange = exchange
        self._stream_id = stream_id
        self._notify = notify
        self._texts = OutputTexts(services.prompts.tokenizer)
        self._run: BeamRun | None = None
        self._dead: list[tuple[Place, RouterError | None]] = []

    async def run(self, frame: Frame, say: Say) -> None:
        """Answers the frame. Raises RouterError, HttpError for `fail`."""
        body = parse_part(frame.text, frame.payload, (), BeamsBody)
        served_name(self._services.info, body.model)
        group = await self._group(body)
        if not group.beams:
            await say(self._done(Outcome(reason=Reason.COMPLETE), group))
            return
        run = self._services.infer.search_beams(group, self._texts, body.report_s)
        self._run = run
        queued = Queued(self._stream_id, lambda: run.place, self._notify)
        try:
            while (outcome := await run.next()) is None:
                queued.begun()
                await say(self._report())
            queued.begun()
            await say(self._done(outcome, group))
        finally:
            queued.close()
            run.close()
            self._note(run)

    def fail(self, error: RouterError | HttpError) -> list[Said]:
        """An error object."""
        return [("TOKEN", as_json({"stream_id": self._stream_id, **error_fields(error)}))]

    def cancelled(self) -> list[Said]:
        """Where the search stood."""
        if self._run is None:
            return self.fail(HttpError(499, "cancelled", "the stream was cancelled"))
        outcome = self._run.search.outcome(Reason.CANCELLED)
        return self._done(outcome, self._run.group)

    def _report(self) -> list[Said]:
        run = self._run
        assert run is not None, "a search reports that has begun"
        outcome = run.search.outcome(Reason.COMPLETE)
        holes, texts = run.group.holes, self._texts
        told = beam_objects.report(
            self._stream_id,
            outcome,
            lambda beam: texts.shown(holes[beam.hole], beam.output_ids),
        )
        return [("BEAMS", told)]

    def _done(self, outcome: Outcome, group: Group) -> list[Said]:
        outcome = replace(outcome, dropped=[*self._dead, *outcome.dropped])
        usage = BeamUsage() if self._run is None else self._run.usage
        told = beam_objects.done(self._stream_id, outcome, group.num_considered, usage)
        self._exchange.finish_reasons.append(outcome.reason.value)
        self._services.metrics.beam_groups.inc(outcome.reason.value)
        return [("DONE", told)]

    def _note(self, run: BeamRun) -> None:
        self._exchange.num_cached_tokens = run.usage.num_cached_tokens
        self._exchange.num_generated_tokens = run.usage.num_output_tokens
        self._services.metrics.beam_steps.inc(amount=run.num_steps)

    # From fields to a group

    async def _group(self, body: BeamsBody) -> Group:
        most = self._services.limits.max_beams
        if body.width > most:
            raise InvalidRequest(
                f"`width` must be at most {most} (--max-beams). Given: {body.width}", "width"
            )
        given = [BeamBody()] if body.beams is None else body.beams
        for field, parts in (("holes", body.holes), ("beams", given)):
            if len(parts) > body.width:
                raise InvalidRequest(
                    f"`{field}` must be at most as many as `width`, which is {body.width}. "
                    f"Given: {len(parts)}",
                    field,
                )
        found = await asyncio.gather(*(self._hole(body, index) for index in range(len(body.holes))))
        end_token_ids = frozenset(self._services.info.limits.eos_token_ids)
        # A hole that nothing can fill has no beams; the others keep their numbers.
        spare = next((each for each in found if isinstance(each, Hole)), None)
        beams: list[Beam] = []
        for index, each in enumerate(given):
            beam = self._beam(each, index, found, end_token_ids)
            hole = found[beam.hole]
            if isinstance(hole, Dead):
                self._dead.append((Place(beam), hole.error))
            else:
                beams.append(beam)
        return Group(
            width=body.width,
            holes=tuple(each if isinstance(each, Hole) else spare for each in found)
            if spare
            else (),
            beams=tuple(beams),
            end_token_ids=end_token_ids,
            scoring=Scoring(
                length_penalty=body.length_penalty,
                early_stopping=body.early_stopping,
                max_len=body.max_len,
            ),
            ended=tuple(body.ended),
            num_candidates=body.num_candidates,
        )

    async def _hole(self, body: BeamsBody, index: int) -> Hole | Dead:
        try:
            return await self._checked(body, body.holes[index])
        except ConstraintRefused as error:
            if error.reason in _MEANINGLESS:
                raise _within(error, index) from error
            return Dead(error)
        except InvalidRequest as error:
            raise _within(error, index) from error

    async def _checked(self, body: BeamsBody, hole: HoleBody) -> Hole:
        services = self._services
        prompt = await services.prompts.read(hole, self._buffers)
        num_tops = min(2 * body.width + _MAX_ENDS, MAX_TOP_LOGPROBS)
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
        request = await services.intake.check(
            self._exchange, prompt.content, raw, add_special_tokens=prompt.add_special_tokens
        )
        return Hole(request, hole.is_last)

    def _beam(
        self,
        given: BeamBody,
        index: int,
        holes: Sequence[Hole | Dead],
        end_token_ids: frozenset[int],
    ) -> Beam:
        place = f"beams[{index}]"
        if given.hole >= len(holes):
            rule = f"must be less than {len(holes)}, the number of `holes`"
            raise InvalidRequest(f"`{place}.hole` {rule}. Given: {given.hole}", f"{place}.hole")
        hole = holes[given.hole]
        if isinstance(hole, Hole):
            self._check_output(given.output, hole, end_token_ids, f"{place}.output")
        return Beam(
            hole=given.hole,
            output_ids=given.output,
            logprob=given.logprob,
            num_tokens=given.num_tokens,
            output_logprob=given.output_logprob,
        )

    def _check_output(
        self, output: tuple[int, ...], hole: Hole, end_token_ids: frozenset[int], field: str
    ) -> None:
        if len(output) >= hole.max_len:
            rule = f"must have fewer tokens than the hole may have, which is {hole.max_len}"
            raise InvalidRequest(f"`{field}` {rule}. Given: {len(output)} tokens", field)
        last_id = self._services.info.limits.vocab_size - 1
        for token_id in output:
            if not 0 <= token_id <= last_id:
                rule = f"must be of token ids between 0 and {last_id}"
                raise InvalidRequest(f"`{field}` {rule}. Given: {token_id}", field)
            if token_id in end_token_ids:
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
