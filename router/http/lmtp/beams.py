"""One BEAMS: the live beams of a search, from their fields to the last object.

holes -> GenerateRequests, checked once -> BeamRun -> BEAMS* DONE
"""

from dataclasses import replace

from router.beam_search.run import BeamRun, BeamUsage
from router.beam_search.texts import OutputTexts
from router.beam_search.words import Beam, Dead, Group, Hole, Outcome, Place, Reason, Scoring
from router.errors import InvalidRequest, RouterError
from router.http.body import parse_part
from router.http.errors import HttpError
from router.http.exchange import Exchange
from router.http.lmtp import beam_objects
from router.http.lmtp.beam_holes import HoleReader, check_output, hole_at, placeable
from router.http.lmtp.beam_schema import BeamBody, BeamsBody
from router.http.lmtp.buffers import Buffers
from router.http.lmtp.failures import error_fields
from router.http.lmtp.frames import Frame
from router.http.lmtp.notices import Queued
from router.http.lmtp.objects import as_json
from router.http.lmtp.requests import MAX_TOP_LOGPROBS
from router.http.lmtp.services import LmtpServices
from router.http.lmtp.words import Said
from router.http.lmtp.work import Notify, Say
from router.http.model_name import served_name

# Besides n tokens that go on, a step may bring so many that end: a model has that many at most.
_MAX_ENDS = 8


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
        self._holes = HoleReader(services, buffers, exchange)
        self._exchange = exchange
        self._stream_id = stream_id
        self._notify = notify
        self._run: BeamRun[Group, Outcome] | None = None
        self._dead: list[tuple[Place, RouterError | None]] = []

    async def run(self, frame: Frame, say: Say) -> None:
        """Answers the frame. Raises RouterError, HttpError for `fail`."""
        body = parse_part(frame.text, frame.payload, (), BeamsBody)
        served_name(self._services.info, body.model)
        group = await self._group(body)
        if not group.beams:
            await say(self._done(Outcome(reason=Reason.COMPLETE), group))
            return
        texts = OutputTexts(self._services.prompts.tokenizer, group.width)
        run = self._services.infer.search_beams(group, texts, body.report_s)
        self._run = run
        queued = Queued(self._stream_id, lambda: run.place, self._notify)
        try:
            while (outcome := await run.next()) is None:
                queued.begun()
                await say(self._report(run, texts))
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

    def _report(self, run: BeamRun[Group, Outcome], texts: OutputTexts) -> list[Said]:
        outcome = run.search.report()
        holes = run.group.holes
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

    def _note(self, run: BeamRun[Group, Outcome]) -> None:
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
        num_tops = min(2 * body.width + _MAX_ENDS, MAX_TOP_LOGPROBS)
        found = await self._holes.read(body, num_tops)
        end_token_ids = frozenset(self._services.info.limits.eos_token_ids)
        beams: list[Beam] = []
        for index, each in enumerate(given):
            beam = self._beam(each, index, found)
            hole = found[beam.hole]
            if isinstance(hole, Dead):
                self._dead.append((Place(beam), hole.error))
            else:
                beams.append(beam)
        return Group(
            width=body.width,
            holes=placeable(found),
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

    def _beam(
        self,
        given: BeamBody,
        index: int,
        holes: list[Hole | Dead],
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
