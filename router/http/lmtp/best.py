"""One BEST: the nodes of a best-first search, from their fields to the last object.

holes -> GenerateRequests, checked once -> BeamRun -> BEAMS* DONE
"""

import math
from dataclasses import replace

from router.beam_search.best_words import BestGroup, BestOutcome, Ending, Node, Open
from router.beam_search.run import BeamRun, BeamUsage
from router.beam_search.texts import OutputTexts
from router.beam_search.words import Beam, Dead, Hole, Place, Reason
from router.errors import InvalidRequest, RouterError
from router.http.body import parse_part
from router.http.errors import HttpError
from router.http.exchange import Exchange
from router.http.lmtp import beam_objects
from router.http.lmtp.beam_holes import HoleReader, check_output, hole_at, placeable
from router.http.lmtp.best_schema import MAX_NODES, BestBody, NodeBody
from router.http.lmtp.buffers import Buffers
from router.http.lmtp.failures import error_fields
from router.http.lmtp.frames import Frame
from router.http.lmtp.notices import Queued
from router.http.lmtp.objects import as_json
from router.http.lmtp.services import LmtpServices
from router.http.lmtp.words import Said
from router.http.lmtp.work import Notify, Say
from router.http.model_name import served_name

# Nodes that are asked at once: more are asked in vain more often, fewer leave a step half empty.
_WIDTH = 8
# Outputs of which the search remembers how they read, for each that is asked at once: it comes
# back to them later.
_TEXTS_PER_BEAM = 16


class BestFirst:
    """One group of nodes. `notify` takes what is to be said of it as a system message."""

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
        self._run: BeamRun[BestGroup, BestOutcome] | None = None
        self._dead: list[tuple[Place, RouterError | None]] = []

    async def run(self, frame: Frame, say: Say) -> None:
        """Answers the frame. Raises RouterError, HttpError for `fail`."""
        body = parse_part(frame.text, frame.payload, (), BestBody)
        served_name(self._services.info, body.model)
        group = await self._group(body)
        if not group.nodes:
            await say(self._done(BestOutcome(reason=Reason.COMPLETE)))
            return
        texts = OutputTexts(self._services.prompts.tokenizer, _TEXTS_PER_BEAM * group.width)
        run = self._services.infer.search_best(group, texts, body.report_s)
        self._run = run
        queued = Queued(self._stream_id, lambda: run.place, self._notify)
        try:
            while (outcome := await run.next()) is None:
                queued.begun()
                await say(self._report(run, texts))
            queued.begun()
            await say(self._done(outcome))
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
        return self._done(self._run.search.outcome(Reason.CANCELLED))

    def _report(self, run: BeamRun[BestGroup, BestOutcome], texts: OutputTexts) -> list[Said]:
        holes = run.group.holes
        told = beam_objects.best_report(
            self._stream_id,
            run.search.report(),
            lambda beam: texts.shown(holes[beam.hole], beam.output_ids),
        )
        return [("BEAMS", told)]

    def _done(self, outcome: BestOutcome) -> list[Said]:
        outcome = replace(outcome, dropped=[*self._dead, *outcome.dropped])
        usage = BeamUsage() if self._run is None else self._run.usage
        self._exchange.finish_reasons.append(outcome.reason.value)
        self._services.metrics.beam_groups.inc(outcome.reason.value)
        return [("DONE", beam_objects.best_done(self._stream_id, outcome, usage))]

    def _note(self, run: BeamRun[BestGroup, BestOutcome]) -> None:
        self._exchange.num_cached_tokens = run.usage.num_cached_tokens
        self._exchange.num_generated_tokens = run.usage.num_output_tokens
        self._services.metrics.beam_steps.inc(amount=run.num_steps)

    # From fields to a group

    async def _group(self, body: BestBody) -> BestGroup:
        most = self._services.limits.max_beams
        width = self._own_width if body.width is None else body.width
        if width > most:
            raise InvalidRequest(
                f"`width` must be at most {most} (--max-beams). Given: {width}", "width"
            )
        given = [NodeBody()] if body.beams is None else body.beams
        bounds = (
            ("beams", given, MAX_NODES, "at most"),
            ("holes", body.holes, len(given), "at most as many as `beams`, which are"),
        )
        for field, parts, num_most, rule in bounds:
            if len(parts) > num_most:
                message = f"`{field}` must be {rule} {num_most}. Given: {len(parts)}"
                raise InvalidRequest(message, field)
        holes = await self._holes.read(body, body.num_alternatives)
        nodes: list[Node] = []
        for index, each in enumerate(given):
            node = self._node(each, f"beams[{index}]", holes)
            hole = holes[node.beam.hole]
            if isinstance(hole, Dead):
                self._dead.append((Place(node.beam), hole.error))
            else:
                nodes.append(node)
        return BestGroup(
            k=body.k,
            width=width,
            num_tops=body.num_alternatives,
            budget=body.budget,
            holes=placeable(holes),
            nodes=tuple(nodes),
            end_token_ids=frozenset(self._services.info.limits.eos_token_ids),
            ended=tuple(sorted(body.ended, reverse=True)[: body.k]),
            bound=-math.inf if body.bound is None else body.bound,
        )

    @property
    def _own_width(self) -> int:
        most = max(1, self._services.info.max_concurrent_requests // 2)
        return min(_WIDTH, self._services.limits.max_beams, most)

    def _node(self, given: NodeBody, place: str, holes: list[Hole | Dead]) -> Node:
        hole = hole_at(holes, given.hole, place)
        if isinstance(hole, Hole):
            self._check_output(given, hole, f"{place}.output")
        beam = Beam(
            hole=given.hole,
            output_ids=given.output,
            logprob=given.logprob,
            num_tokens=given.num_tokens,
            output_logprob=given.output_logprob,
        )
        if given.ended_by is not None:
            return Ending(beam, by_token=given.ended_by == "token")
        return Open(beam, given.num_known, math.inf if given.most is None else given.most)

    def _check_output(self, given: NodeBody, hole: Hole, field: str) -> None:
        ends_by_length = given.ended_by == "length"
        if ends_by_length and not given.output:
            raise InvalidRequest(f"`{field}` must have the token that ended it. Given: []", field)
        max_len = hole.max_len - (0 if ends_by_length else 1)
        check_output(given.output, max_len, self._services.info.limits, field)
