"""One BEAMS stream: a beam search, from the fields of its frame to its last object.

fields -> BeamGroup -> BeamRun -> BEAMS* DONE
"""

from collections.abc import Sequence

from router.engine.beam_search.requests import KEPT_TEXTS_PER_BEAM, OutputTexts
from router.engine.beam_search.run import BeamRun, BeamUsage
from router.engine.beam_search.types import Beam, Place, SearchEnd, SearchOutcome
from router.http.body import parse_part
from router.http.lmtp.beam_group import DroppedBeam, GroupReader
from router.http.lmtp.frames import Frame, Message, as_json, error_fields
from router.http.lmtp.schema import BeamsFields
from router.http.lmtp.stream_encoder import usage_fields
from router.http.lmtp.streams import QueueNotices, SendMessages, StreamContext
from router.http.server.errors import HttpError
from router.http.server_info import served_name
from router.request.errors import RouterError


class BeamStream:
    """One beam search.

    `_refused`: beams whose holes nothing can fill, dropped before the search.
    """

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._services = context.services
        self._run: BeamRun | None = None
        self._refused: Sequence[DroppedBeam] = ()
        self._num_considered = 0

    async def run(self, frame: Frame, send: SendMessages) -> list[Message]:
        """Searches; the outcome is the end. Raises RouterError, HttpError for `fail`."""
        body = parse_part(frame.text, frame.payload, (), BeamsFields)
        served_name(self._services.info, body.model)
        group, self._refused = await GroupReader(self._context).read(body)
        self._num_considered = group.num_considered
        if not group.beams:
            return self._done(SearchOutcome(reason=SearchEnd.COMPLETE))
        num_kept = KEPT_TEXTS_PER_BEAM * group.width
        texts = OutputTexts(self._services.prompts.tokenizer, num_kept)
        run = self._run = self._services.infer.search_beams(group, texts, body.report_s)
        notices = QueueNotices(self._context, lambda: run.place)
        try:
            while (outcome := await run.next()) is None:
                notices.started()
                await send([("BEAMS", self._report(run, texts))])
            notices.started()
            return self._done(outcome)
        finally:
            notices.close()
            run.close()
            self._record_usage(run)

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        """An error object."""
        return self._context.error(error)

    def cancelled(self) -> list[Message]:
        """The state of the search, empty if it has not started."""
        if self._run is None:
            return self._done(SearchOutcome(reason=SearchEnd.CANCELLED))
        return self._done(self._run.search.outcome(SearchEnd.CANCELLED))

    def _record_usage(self, run: BeamRun) -> None:
        self._context.record.num_cached_tokens = run.usage.num_cached_tokens
        self._context.record.num_generated_tokens = run.usage.num_output_tokens
        self._services.metrics.beam_steps.inc(amount=run.num_steps)

    def _report(self, run: BeamRun, texts: OutputTexts) -> str:
        outcome, holes = run.search.outcome(SearchEnd.COMPLETE), run.group.holes
        beams = [
            {
                **_beam_fields(place.beam),
                "text": texts.shown(holes[place.beam.hole], place.beam.output_ids),
            }
            for place in outcome.beams
        ]
        fields = {"stream_id": self._context.stream_id, "beams": beams}
        return as_json(fields | {"ended": _ended_fields(outcome)})

    def _done(self, outcome: SearchOutcome) -> list[Message]:
        self._context.record.finish_reasons.append(outcome.reason.value)
        self._services.metrics.beam_groups.inc(outcome.reason.value)
        dropped = [*self._refused, *outcome.dropped]
        fields: dict[str, object] = {
            "stream_id": self._context.stream_id,
            "finish_reason": outcome.reason.value,
            "beams": [_place_fields(place) for place in outcome.beams],
            "ended": _ended_fields(outcome),
            "dropped": [_dropped_fields(place, error) for place, error in dropped],
        }
        if outcome.candidates is not None:
            fields["candidates"] = [_place_fields(place) for place in outcome.candidates]
            fields["has_more"] = outcome.has_more
            fields["num_considered"] = self._num_considered
        usage = BeamUsage() if self._run is None else self._run.usage
        fields["usage"] = usage_fields(
            usage.num_prompt_tokens, usage.num_cached_tokens, usage.num_output_tokens
        )
        return [("DONE", as_json(fields))]


def _beam_fields(beam: Beam) -> dict[str, object]:
    return {
        "hole": beam.hole,
        "output": beam.output_ids,
        "logprob": beam.logprob,
        "num_tokens": beam.num_tokens,
        "output_logprob": beam.output_logprob,
    }


def _place_fields(place: Place) -> dict[str, object]:
    fields = _beam_fields(place.beam)
    if place.closed is not None:
        fields |= {"is_ended": True, "text": place.closed.text}
    return fields


def _ended_fields(outcome: SearchOutcome) -> list[dict[str, object]]:
    return [{**_place_fields(place), "score": score} for place, score in outcome.ended]


def _dropped_fields(place: Place, error: RouterError | None) -> dict[str, object]:
    fields = _place_fields(place)
    if error is not None:
        fields |= error_fields(error)
    elif place.closed is not None:
        fields["constraint_satisfied"] = False
    return fields
