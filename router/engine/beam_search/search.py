"""What the searches share: the tokens that may follow a beam, and how holes end.

A search computes nothing itself: it is a generator that yields what is to be computed and is sent
what was result of it, in the same order.
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
    JudgeText,
    NextTokens,
    Place,
    ProbeTokens,
    SearchEnd,
    SearchOutcome,
)
from router.request.errors import RouterError

T = TypeVar("T")
Search: TypeAlias = Generator[Sequence[Ask], Sequence[AskResult], T]
# A place, or why there is none.
Landed: TypeAlias = tuple[Place, DeadEnd | None]


class OutputReader(Protocol):
    """What outputs say."""

    def text(self, hole: Hole, output_ids: tuple[int, ...]) -> str:
        """The text of an output that ends there."""

    def is_ended(self, hole: Hole, output_ids: tuple[int, ...]) -> bool:
        """Whether the text itself ends it, by a stop string."""


class Alternative(NamedTuple):
    """A token that a live beam may take. `is_end`: it ends the hole by itself.

    `rank_by` is the log-probability of the trace that has it. A step of many beams has thousands of
    alternatives, few of which go on: only of these is a beam made. A tuple for the same reason.
    """

    before: Beam
    token_id: int
    logprob: float
    rank_by: float
    is_end: bool
    ends_hole: bool

    @property
    def beam(self) -> Beam:
        """The beam that has taken it."""
        return self.before.grown(self.token_id, self.logprob, is_end=self.is_end)


def alternatives(beam: Beam, hole: Hole, result: NextTokens) -> Iterator[Alternative]:
    """The tokens that may follow, the most probable first."""
    is_last = len(beam.output_ids) + 1 >= hole.max_len
    for token_id, logprob in result.tokens:
        is_end = token_id in result.end_ids
        rank_by = beam.logprob + logprob
        yield Alternative(beam, token_id, logprob, rank_by, is_end, is_end or is_last)


class Endings:
    """How holes end: what is written, and is it as it must be."""

    def __init__(self, holes: Sequence[Hole], texts: OutputReader) -> None:
        self._holes = holes
        self._texts = texts

    def _hole(self, beam: Beam) -> Hole:
        return self._holes[beam.hole]

    def by_token(self, beams: Sequence[Beam]) -> Search[Sequence[Landed]]:
        """Holes that end tokens ended: masks kept their constraints, as far as these can."""
        texts = [self._texts.text(self._hole(beam), beam.output_ids) for beam in beams]
        asks = [
            JudgeText(beam, text)
            for beam, text in zip(beams, texts, strict=True)
            if (constraint := self._hole(beam).request.constraint) and constraint.is_judged_at_end
        ]
        result = dict(zip(asks, (yield asks) if asks else (), strict=True))
        landed: list[Landed] = []
        for beam, text in zip(beams, texts, strict=True):
            closed = result.get(JudgeText(beam, text), EndedHole(text))
            assert isinstance(closed, EndedHole)
            landed.append((Place(beam, closed), None))
        return landed

    def by_length(self, beams: Sequence[Beam]) -> Search[Sequence[Landed]]:
        """Holes that end with their last tokens, be it by their number or by a stop string."""
        checked = [beam for beam in beams if self._hole(beam).request.constraint is not None]
        result = iter((yield [CheckHole(beam) for beam in checked]) if checked else ())
        landed: list[Landed] = []
        for beam in beams:
            if self._hole(beam).request.constraint is None:
                text = self._texts.text(self._hole(beam), beam.output_ids)
                landed.append((Place(beam, EndedHole(text)), None))
                continue
            answer = next(result)
            if isinstance(answer, EndedHole):
                landed.append((Place(beam, answer), None))
            else:
                assert isinstance(answer, DeadEnd)
                landed.append((Place(beam), answer))
        return landed


def is_kept(place: Place) -> bool:
    """The constraint of its hole, if that has ended."""
    return place.closed is None or place.closed.is_satisfied


class BeamSearch:
    """Owner of a group's live beams, and of the traces that ended among them."""

    def __init__(self, group: BeamGroup, texts: OutputReader) -> None:
        self._group = group
        self._texts = texts
        self._endings = Endings(group.holes, texts)
        self.live: Sequence[Beam] = group.beams
        # The best, and the places of those that ended here, in the order in which they did.
        self._scores = sorted(group.ended, reverse=True)[: group.width]
        self._ended: list[tuple[Place, float]] = []
        self._dropped: list[tuple[Place, RouterError | None]] = []
        # Early results of beams that stay live if something may follow them.
        self._ahead: dict[Beam, AskResult] = {}

    def run(self) -> Search[SearchOutcome]:
        """The whole search."""
        while True:
            stopped = yield from self._stopped()
            if stopped is not None:
                return self.outcome(SearchEnd.HOLE, beams=stopped)
            if self._is_over:
                return self.outcome(SearchEnd.COMPLETE)
            found = self._found((yield from self._probes()))
            selected = yield from self._selected(found)
            if selected is None:
                return (yield from self._undecided(found))
            self.live = selected

    def outcome(
        self,
        reason: SearchEnd,
        *,
        beams: Sequence[Place] | None = None,
        candidates: Sequence[Place] | None = None,
        has_more: bool = False,
    ) -> SearchOutcome:
        """What has come of the group by now."""
        worst = self._scores[-1] if self._scores else 0.0
        return SearchOutcome(
            reason=reason,
            beams=[Place(beam) for beam in self.live] if beams is None else beams,
            candidates=candidates,
            has_more=has_more,
            ended=[(place, score) for place, score in self._ended if score >= worst],
            dropped=self._dropped,
        )

    def report(self) -> SearchOutcome:
        """The live beams, and what has ended."""
        return self.outcome(SearchEnd.COMPLETE)

    def _hole(self, beam: Beam) -> Hole:
        return self._group.holes[beam.hole]

    @property
    def _is_over(self) -> bool:
        """Nothing is live, or nothing live can still be among the best."""
        if not self.live:
            return True
        if len(self._scores) < self._group.width:
            return False
        scoring = self._group.scoring
        if scoring.early_stopping is True:
            return True
        return all(scoring.possible(beam) <= self._scores[-1] for beam in self.live)

    def _keep(self, place: Place) -> None:
        """A trace that has ended, among the best of its step."""
        score = self._group.scoring.score(place.beam.logprob, place.beam.num_tokens)
        self._ended.append((place, score))
        self._scores = sorted([*self._scores, score], reverse=True)[: self._group.width]

    # A step

    def _probes(self) -> Search[Sequence[AskResult]]:
        """What may follow each of the live beams."""
        ahead, self._ahead = self._ahead, {}
        if not ahead:
            return (yield [ProbeTokens(beam) for beam in self.live])
        asked = [beam for beam in self.live if beam not in ahead]
        result = (yield [ProbeTokens(beam) for beam in asked]) if asked else ()
        ahead.update(zip(asked, result, strict=True))
        return [ahead[beam] for beam in self.live]

    def _found(self, probes: Sequence[AskResult]) -> list[Alternative]:
        """All that may follow, the most probable trace first. What nothing follows is not live."""
        found: list[Alternative] = []
        alive: list[Beam] = []
        for beam, result in zip(self.live, probes, strict=True):
            if isinstance(result, DeadEnd):
                self._dropped.append((Place(beam), result.error))
            elif isinstance(result, NextTokens):
                alive.append(beam)
                found += alternatives(beam, self._hole(beam), result)
        self.live = alive
        return sorted(found, key=lambda alternative: -alternative.rank_by)

    def _selected(self, found: Sequence[Alternative]) -> Search[Sequence[Beam] | None]:
        """The best that go on; None: what is behind a hole decides it."""
        width, num_considered = self._group.width, self._group.num_considered
        live: list[Beam] = []
        ended: list[Place] = []
        dropped: list[tuple[Place, RouterError | None]] = []
        rank = num_tried = 0
        while num_tried < len(found) and rank < num_considered and len(live) < width:
            tried = _within(found[num_tried:], width - len(live), num_considered - rank)
            if any(each.ends_hole and not self._hole(each.before).is_last for each in tried):
                return None
            num_tried += len(tried)
            for each, (place, dead) in zip(tried, (yield from self._landed(tried)), strict=True):
                if dead is not None or not is_kept(place):
                    dropped.append((place, None if dead is None else dead.error))
                    continue
                if not each.ends_hole:
                    live.append(place.beam)
                elif rank < width:
                    ended.append(place)
                rank += 1
        self._dropped += dropped
        for place in ended:
            self._keep(place)
        return live

    def _undecided(self, found: Sequence[Alternative]) -> Search[SearchOutcome]:
        """The step's candidates, for the client. DeadEnd ends are none, and count for nothing."""
        width = self._group.width
        num_left = self._group.num_candidates or self._group.num_considered
        candidates: list[Place] = []
        num_tried = num_going_on = 0
        while num_tried < len(found) and num_left and num_going_on < width:
            tried = _within(found[num_tried:], width - num_going_on, num_left)
            num_tried += len(tried)
            for each, (place, dead) in zip(tried, (yield from self._landed(tried)), strict=True):
                num_left -= each.ends_hole or dead is None
                if dead is None and is_kept(place):
                    candidates.append(place)
                    num_going_on += not each.ends_hole
                else:
                    self._dropped.append((place, None if dead is None else dead.error))
        has_more = num_tried < len(found) and num_going_on < width
        return self.outcome(SearchEnd.HOLE, candidates=candidates, has_more=has_more)

    def _stopped(self) -> Search[Sequence[Place] | None]:
        """Ends the beams whose texts have ended them; all places, if the client must go on."""
        holes = self._hole
        is_ended = [self._texts.is_ended(holes(beam), beam.output_ids) for beam in self.live]
        if not any(is_ended):
            return None
        ending = [beam for beam, ends in zip(self.live, is_ended, strict=True) if ends]
        closed = iter((yield from self._endings.by_length(ending)))
        left: list[Place] = []
        for beam, ends in zip(self.live, is_ended, strict=True):
            place, dead = next(closed) if ends else (Place(beam), None)
            if dead is not None or not is_kept(place):
                self._dropped.append((place, None if dead is None else dead.error))
            elif place.closed is not None and holes(place.beam).is_last:
                self._keep(place)
            else:
                left.append(place)
        self.live = [place.beam for place in left]
        return left if any(place.closed is not None for place in left) else None

    # Ends of holes

    def _landed(self, tried: Sequence[Alternative]) -> Search[Sequence[Landed]]:
        """Where alternatives lead to."""
        by_length = [each.beam for each in tried if each.ends_hole and not each.is_end]
        closed = iter((yield from self._endings.by_length(by_length)))
        by_token = [each.beam for each in tried if each.is_end]
        ended = iter((yield from self._endings.by_token(by_token)))
        open_beams = [each.beam for each in tried if not each.ends_hole]
        going_on = iter((yield from self._going_on(open_beams)))
        landed: list[Landed] = []
        for each in tried:
            if not each.ends_hole:
                landed.append(next(going_on))
            else:
                landed.append(next(ended if each.is_end else closed))
        return landed

    def _going_on(self, beams: Sequence[Beam]) -> Search[Sequence[Landed]]:
        """Beams in the middle of their holes. A dead end must not have the place of another one:
        where there may be some, what follows is asked before the places are given.
        """
        asked = [beam for beam in beams if self._may_be_dead(beam) and beam not in self._ahead]
        result = (yield [ProbeTokens(beam) for beam in asked]) if asked else ()
        self._ahead.update(zip(asked, result, strict=True))
        landed: list[Landed] = []
        for beam in beams:
            answer = self._ahead.get(beam) if self._ahead else None
            landed.append((Place(beam), answer if isinstance(answer, DeadEnd) else None))
        return landed

    def _may_be_dead(self, beam: Beam) -> bool:
        hole = self._hole(beam)
        return hole.has_dead_ends and not self._texts.is_ended(hole, beam.output_ids)


def _within(
    found: Sequence[Alternative], num_going_on: int, num_most: int
) -> Sequence[Alternative]:
    """The first ones, until so many of them go on or there are so many."""
    within: list[Alternative] = []
    for each in found[:num_most]:
        within.append(each)
        num_going_on -= not each.ends_hole
        if num_going_on == 0:
            break
    return within
