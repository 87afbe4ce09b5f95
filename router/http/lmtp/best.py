"""One BEST: the nodes of a best-first search, from their fields to the last object.

holes -> GenerateRequests, checked once -> BeamRun -> BEAMS* DONE
"""

import math
from dataclasses import replace

from router.engine.beam_search.best_words import BestGroup, BestOutcome, Ending, Node, Open
from router.engine.beam_search.run import BeamRun, BeamUsage
from router.engine.beam_search.texts import OutputTexts, num_kept_best_first
from router.engine.beam_search.types import Beam, Dead, Hole, Place, Reason
from router.http.body import parse_part
from router.http.lmtp import beam_objects
from router.http.lmtp.beam_holes import check_output, hole_at, placeable
from router.http.lmtp.best_schema import MAX_NODES, BestBody, NodeBody
from router.http.lmtp.frames import Frame
from router.http.lmtp.searching import Searching
from router.http.server_info import served_name
from router.request.errors import InvalidRequest

# Nodes that are asked at once: more are asked in vain more often, fewer leave a step half empty.
_WIDTH = 8


class BestFirst(Searching[BestGroup, BestOutcome]):
    """One group of nodes."""

    async def _start(
        self, frame: Frame
    ) -> tuple[BeamRun[BestGroup, BestOutcome], OutputTexts] | BestOutcome:
        body = parse_part(frame.text, frame.payload, (), BestBody)
        served_name(self._services.info, body.model)
        group = await self._group(body)
        if not group.nodes:
            return self._nothing(Reason.COMPLETE)
        num_kept = num_kept_best_first(group.width, group.budget)
        texts = OutputTexts(self._services.prompts.tokenizer, num_kept)
        return self._services.infer.search_best(group, texts, body.report_s), texts

    def _nothing(self, reason: Reason) -> BestOutcome:
        return BestOutcome(reason=reason)

    def _report(self, run: BeamRun[BestGroup, BestOutcome], texts: OutputTexts) -> str:
        holes = run.group.holes
        return beam_objects.best_report(
            self._stream_id,
            run.search.report(),
            lambda beam: texts.shown(holes[beam.hole], beam.output_ids),
        )

    def _last(self, outcome: BestOutcome, usage: BeamUsage) -> str:
        outcome = replace(outcome, dropped=[*self._dead, *outcome.dropped])
        return beam_objects.best_done(self._stream_id, outcome, usage)

    # From fields to a group

    async def _group(self, body: BestBody) -> BestGroup:
        width = self._own_width if body.width is None else body.width
        self._require_width(width)
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
        return Open(beam, given.known, math.inf if given.most is None else given.most)

    def _check_output(self, given: NodeBody, hole: Hole, field: str) -> None:
        ends_by_length = given.ended_by == "length"
        if ends_by_length and not given.output:
            raise InvalidRequest(f"`{field}` must have the token that ended it. Given: []", field)
        max_len = hole.max_len - (0 if ends_by_length else 1)
        check_output(given.output, max_len, self._services.info.limits, field)
