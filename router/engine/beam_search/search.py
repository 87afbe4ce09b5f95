"""Beam search over one group of beams, without any input or output.

A search is a generator: it yields what is to be computed, and is sent the results in the same
order.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from router.engine.beam_search.types import (
    Ask,
    AskResult,
    Beam,
    BeamGroup,
    CheckHole,
    DeadEnd,
    EndedHole,
    Hole,
    NextTokens,
    Place,
    ProbeTokens,
    SearchEnd,
    SearchOutcome,
)
from router.request.errors import RouterError

T = TypeVar("T")
Search: TypeAlias = Generator[Sequence[Ask], Sequence[AskResult], T]


class OutputReader(Protocol):
    """Reads outputs as text."""

    def text(self, hole: Hole, output_ids: tuple[int, ...]) -> str:
        """The whole text of an output that ends there."""

    def is_ended(self, hole: Hole, output_ids: tuple[int, ...]) -> bool:
        """Whether a stop string ends the output."""


class Alternative(NamedTuple):
    """A token that may follow a live beam. `is_end`: it is an end token.

    `total_logprob` is that of the trace with this token. A step of many beams has thousands of
    alternatives, few of which are kept: a Beam is made of these only, and this is a tuple.
    """

    before: Beam
    token_id: int
    logprob: float
    total_logprob: float
    is_end: bool
    ends_hole: bool

    @property
    def beam(self) -> Beam:
        """The beam with this token."""
        return self.before.grown(self.token_id, self.logprob, is_end=self.is_end)


class Landed(NamedTuple):
    """The place of a beam after a step; `dead_end`: nothing may follow it."""

    place: Place
    dead_end: DeadEnd | None = None

    @property
    def is_possible(self) -> bool:
        """No dead end, and the constraint of an ended hole is satisfied."""
        closed = self.place.closed
        return self.dead_end is None and (closed is None or closed.is_satisfied)

    @property
    def dropped(self) -> tuple[Place, RouterError | None]:
        """The place, and the error of a dead end."""
        return self.place, None if self.dead_end is None else self.dead_end.error


class BeamSearch:
    """Owner of a group's live beams, and of the traces of it that have ended."""

    def __init__(self, group: BeamGroup, texts: OutputReader) -> None:
        self._group = group
        self._texts = texts
        self.live: Sequence[Beam] = group.beams
        # The best scores, and the traces that ended in this search, in the order of their ends.
        self._scores = sorted(group.ended, reverse=True)[: group.width]
        self._ended: list[tuple[Place, float]] = []
        self._dropped: list[tuple[Place, RouterError | None]] = []
        # Next tokens of beams that were probed a step early, to find dead ends.
        self._probed: dict[Beam, AskResult] = {}

    def run(self) -> Search[SearchOutcome]:
        """The whole search."""
        while True:
            stopped = yield from self._end_stopped()
            if stopped is not None:
                return self.outcome(SearchEnd.HOLE, beams=stopped)
            if self._is_over:
                return self.outcome(SearchEnd.COMPLETE)
            found = self._alternatives((yield from self._probe()))
            selected = yield from self._select(found)
            if selected is None:
                return (yield from self._candidates(found))
            self.live = selected

    def outcome(
        self,
        reason: SearchEnd,
        *,
        beams: Sequence[Place] | None = None,
        candidates: Sequence[Place] | None = None,
        has_more: bool = False,
    ) -> SearchOutcome:
        """The state of the search as its outcome."""
        worst = self._scores[-1] if self._scores else 0.0
        return SearchOutcome(
            reason=reason,
            beams=[Place(beam) for beam in self.live] if beams is None else beams,
            candidates=candidates,
            has_more=has_more,
            ended=[(place, score) for place, score in self._ended if score >= worst],
            dropped=self._dropped,
        )

    def _hole(self, beam: Beam) -> Hole:
        return self._group.holes[beam.hole]

    @property
    def _is_over(self) -> bool:
        """No beam is live, or no live beam can still be among the best."""
        if not self.live:
            return True
        if len(self._scores) < self._group.width:
            return False
        scoring = self._group.scoring
        if scoring.early_stopping is True:
            return True
        return all(scoring.possible(beam) <= self._scores[-1] for beam in self.live)

    def _keep_ended(self, place: Place) -> None:
        score = self._group.scoring.score(place.beam.logprob, place.beam.num_tokens)
        self._ended.append((place, score))
        self._scores = sorted([*self._scores, score], reverse=True)[: self._group.width]

    # A step

    def _probe(self) -> Search[Sequence[AskResult]]:
        """The next tokens of each live beam."""
        probed, self._probed = self._probed, {}
        if not probed:
            return (yield [ProbeTokens(beam) for beam in self.live])
        missing = [beam for beam in self.live if beam not in probed]
        results = (yield [ProbeTokens(beam) for beam in missing]) if missing else ()
        probed.update(zip(missing, results, strict=True))
        return [probed[beam] for beam in self.live]

    def _alternatives(self, probes: Sequence[AskResult]) -> list[Alternative]:
        """All alternatives, the most probable trace first. Beams at dead ends are dropped."""
        found: list[Alternative] = []
        alive: list[Beam] = []
        for beam, result in zip(self.live, probes, strict=True):
            if isinstance(result, DeadEnd):
                self._dropped.append((Place(beam), result.error))
            elif isinstance(result, NextTokens):
                alive.append(beam)
                found += _alternatives_of(beam, self._hole(beam), result)
        self.live = alive
        return sorted(found, key=lambda alternative: -alternative.total_logprob)

    def _select(self, found: Sequence[Alternative]) -> Search[Sequence[Beam] | None]:
        """The next live beams; None: a hole ends behind which the client's program goes on."""
        width, num_considered = self._group.width, self._group.num_considered
        live: list[Beam] = []
        ended: list[Place] = []
        dropped: list[tuple[Place, RouterError | None]] = []
        rank = num_tried = 0
        while num_tried < len(found) and rank < num_considered and len(live) < width:
            tried = _next_alternatives(found[num_tried:], width - len(live), num_considered - rank)
            if any(each.ends_hole and not self._hole(each.before).is_last for each in tried):
                return None
            num_tried += len(tried)
            for each, landed in zip(tried, (yield from self._land(tried)), strict=True):
                if not landed.is_possible:
                    dropped.append(landed.dropped)
                    continue
                if not each.ends_hole:
                    live.append(landed.place.beam)
                elif rank < width:
                    ended.append(landed.place)
                rank += 1
        self._dropped += dropped
        for place in ended:
            self._keep_ended(place)
        return live

    def _candidates(self, found: Sequence[Alternative]) -> Search[SearchOutcome]:
        """The step's possible results, for the client. Dead ends are not counted among them."""
        width = self._group.width
        num_left = self._group.num_candidates or self._group.num_considered
        candidates: list[Place] = []
        num_tried = num_live = 0
        while num_tried < len(found) and num_left and num_live < width:
            tried = _next_alternatives(found[num_tried:], width - num_live, num_left)
            num_tried += len(tried)
            for each, landed in zip(tried, (yield from self._land(tried)), strict=True):
                num_left -= each.ends_hole or landed.dead_end is None
                if landed.is_possible:
                    candidates.append(landed.place)
                    num_live += not each.ends_hole
                else:
                    self._dropped.append(landed.dropped)
        has_more = num_tried < len(found) and num_live < width
        return self.outcome(SearchEnd.HOLE, candidates=candidates, has_more=has_more)

    # Ends of holes

    def _end_stopped(self) -> Search[Sequence[Place] | None]:
        """Ends the beams with a stop string; all places, if the client has to go on from there."""
        are_ended = [self._texts.is_ended(self._hole(beam), beam.output_ids) for beam in self.live]
        if not any(are_ended):
            return None
        ending = [beam for beam, is_ended in zip(self.live, are_ended, strict=True) if is_ended]
        closed = iter((yield from self._end_by_text(ending)))
        left: list[Place] = []
        for beam, is_ended in zip(self.live, are_ended, strict=True):
            landed = next(closed) if is_ended else Landed(Place(beam))
            if not landed.is_possible:
                self._dropped.append(landed.dropped)
            elif is_ended and self._hole(beam).is_last:
                self._keep_ended(landed.place)
            else:
                left.append(landed.place)
        self.live = [place.beam for place in left]
        return left if any(place.closed is not None for place in left) else None

    def _land(self, tried: Sequence[Alternative]) -> Search[Sequence[Landed]]:
        """The places after each of the alternatives."""
        by_text = [each.beam for each in tried if each.ends_hole and not each.is_end]
        ended_by_text = iter((yield from self._end_by_text(by_text)))
        live = iter((yield from self._go_on([each.beam for each in tried if not each.ends_hole])))
        return [
            self._end_by_token(each.beam)
            if each.is_end
            else next(ended_by_text if each.ends_hole else live)
            for each in tried
        ]

    def _end_by_token(self, beam: Beam) -> Landed:
        """A hole that ends by an end token: the masks enforced its constraint."""
        return Landed(Place(beam, EndedHole(self._texts.text(self._hole(beam), beam.output_ids))))

    def _end_by_text(self, beams: Sequence[Beam]) -> Search[Sequence[Landed]]:
        """Holes that end by their length or by a stop string."""
        checked = [beam for beam in beams if self._hole(beam).request.constraint is not None]
        results = iter((yield [CheckHole(beam) for beam in checked]) if checked else ())
        landed: list[Landed] = []
        for beam in beams:
            hole = self._hole(beam)
            if hole.request.constraint is None:
                text = self._texts.text(hole, beam.output_ids)
                landed.append(Landed(Place(beam, EndedHole(text))))
                continue
            result = next(results)
            if isinstance(result, EndedHole):
                landed.append(Landed(Place(beam, result)))
            else:
                assert isinstance(result, DeadEnd)
                landed.append(Landed(Place(beam), result))
        return landed

    def _go_on(self, beams: Sequence[Beam]) -> Search[Sequence[Landed]]:
        """Beams in the middle of their holes.

        A dead end must not take the place of a beam that can go on. So beams that may be dead ends
        are probed before the places are assigned.
        """
        unsure = [beam for beam in beams if self._may_be_dead(beam) and beam not in self._probed]
        results = (yield [ProbeTokens(beam) for beam in unsure]) if unsure else ()
        self._probed.update(zip(unsure, results, strict=True))
        landed: list[Landed] = []
        for beam in beams:
            result = self._probed.get(beam) if self._probed else None
            landed.append(Landed(Place(beam), result if isinstance(result, DeadEnd) else None))
        return landed

    def _may_be_dead(self, beam: Beam) -> bool:
        hole = self._hole(beam)
        return hole.has_dead_ends and not self._texts.is_ended(hole, beam.output_ids)


def _alternatives_of(beam: Beam, hole: Hole, result: NextTokens) -> Iterator[Alternative]:
    """The tokens that may follow, the most probable first."""
    is_last = len(beam.output_ids) + 1 >= hole.max_len
    for token_id, logprob in result.tokens:
        is_end = token_id in result.end_ids
        total_logprob = beam.logprob + logprob
        yield Alternative(beam, token_id, logprob, total_logprob, is_end, is_end or is_last)


def _next_alternatives(
    found: Sequence[Alternative], num_live: int, max_len: int
) -> Sequence[Alternative]:
    """The first alternatives, until `num_live` of them end no hole; at most `max_len`."""
    taken: list[Alternative] = []
    for each in found[:max_len]:
        taken.append(each)
        num_live -= not each.ends_hole
        if num_live == 0:
            break
    return taken
