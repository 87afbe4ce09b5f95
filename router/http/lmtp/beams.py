"""One BEAMS: the live beams of a search, from their fields to the last object.

holes -> GenerateRequests, checked once -> BeamRun -> BEAMS* DONE
"""

from dataclasses import replace

from router.engine.beam_search.run import BeamRun, BeamUsage
from router.engine.beam_search.texts import OutputTexts, num_kept_of_beams
from router.engine.beam_search.types import Beam, Dead, Group, Hole, Outcome, Place, Reason, Scoring
from router.http.body import parse_part
from router.http.lmtp import beam_objects
from router.http.lmtp.beam_holes import check_output, hole_at, placeable
from router.http.lmtp.beam_schema import BeamBody, BeamsBody
from router.http.lmtp.frames import Frame
from router.http.lmtp.requests import MAX_TOP_LOGPROBS
from router.http.lmtp.searching import Searching
from router.http.server_info import served_name
from router.request.errors import InvalidRequest

# Besides n tokens that go on, a step may bring so many that end: a model has that many at most.
_MAX_ENDS = 8


class Beaming(Searching[Group, Outcome]):
    """One group of beams."""

    # Of the group, once it is known.
    _num_considered = 0

    async def _start(self, frame: Frame) -> tuple[BeamRun[Group, Outcome], OutputTexts] | Outcome:
        body = parse_part(frame.text, frame.payload, (), BeamsBody)
        served_name(self._services.info, body.model)
        group = await self._group(body)
        self._num_considered = group.num_considered
        if not group.beams:
            return self._nothing(Reason.COMPLETE)
        texts = OutputTexts(self._services.prompts.tokenizer, num_kept_of_beams(group.width))
        return self._services.infer.search_beams(group, texts, body.report_s), texts

    def _nothing(self, reason: Reason) -> Outcome:
        return Outcome(reason=reason)

    def _report(self, run: BeamRun[Group, Outcome], texts: OutputTexts) -> str:
        holes = run.group.holes
        return beam_objects.report(
            self._stream_id,
            run.search.report(),
            lambda beam: texts.shown(holes[beam.hole], beam.output_ids),
        )

    def _last(self, outcome: Outcome, usage: BeamUsage) -> str:
        outcome = replace(outcome, dropped=[*self._dead, *outcome.dropped])
        return beam_objects.done(self._stream_id, outcome, self._num_considered, usage)

    # From fields to a group

    async def _group(self, body: BeamsBody) -> Group:
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
