"""Beam search over one group of beams: the search itself, and how it runs in the batcher.

    BeamGroup -> BeamSearch asks: ProbeTokens, CheckHole
                     ^                |
                     |                +-> requests -> streams in the group's slots -> all have ended
                     +-- NextTokens, EndedHole, DeadEnd <---------------------------------+
              -> SearchOutcome

A beam is a trace of a program in the middle of a hole. Only the client knows what follows the
hole, unless nothing does (`is_last`).

`BeamSearch` has no input or output: it is a generator, which yields what is to be computed and is
sent the results in the same order. `BeamRun` makes streams of what it asks for. The batcher calls
it between two steps, so that the beams miss no step while there are others; only reports and the
end wait for the task that reads `next`. Neither knows HTTP.
"""

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from proto.contract import FinishReason, LogprobParams, SamplingParams
from router.engine.batcher import Batcher, bug_error
from router.engine.stream import Stream, StreamGroup
from router.request.errors import ConstraintRefused, GenerationFailed, RouterError
from router.request.request import Failed, Finished, GenerateRequest, TokenGenerated
from router.text.output_text import OutputText
from router.text.tokenizer import Tokenizer

EarlyStopping: TypeAlias = bool | Literal["never"]


@dataclass(frozen=True, slots=True, eq=False)
class Hole:
    """A hole of beams; equal to itself alone. `request` asks for its output from the first token.

    `is_last`: the trace ends with this hole.
    """

    request: GenerateRequest
    is_last: bool = False

    @property
    def max_len(self) -> int:
        """The most tokens of its output."""
        return self.request.stop.max_new_tokens

    @property
    def has_dead_ends(self) -> bool:
        """Whether masks may allow tokens behind which the text cannot be completed in time.

        The check of a constraint covers stop strings, and bytes that no token spells, but not stop
        tokens.
        """
        constraint = self.request.constraint
        stop = self.request.stop
        return constraint is not None and (constraint.has_dead_ends or bool(stop.stop_token_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """A trace at the group's hole number `hole`, with its tokens there.

    `logprob` and `num_tokens` are those of the whole trace with its end tokens, `output_logprob`
    is that of the output alone.
    """

    hole: int
    output_ids: tuple[int, ...] = ()
    logprob: float = 0.0
    num_tokens: int = 0
    output_logprob: float = 0.0

    def grown(self, token_id: int, logprob: float, *, is_end: bool = False) -> "Beam":
        """The beam with one more token. An end token counts, but is no part of the output."""
        return replace(
            self,
            output_ids=self.output_ids if is_end else (*self.output_ids, token_id),
            logprob=self.logprob + logprob,
            num_tokens=self.num_tokens + 1,
            output_logprob=self.output_logprob + logprob,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamScoring:
    """The scores of ended traces, and when no live trace can be better than these.

    A score is log-probability / (tokens ** length_penalty). See the client's `beam`.
    """

    length_penalty: float = 0.0
    early_stopping: EarlyStopping = False
    max_len: int | None = None

    def score(self, logprob: float, num_tokens: int) -> float:
        """The score of an ended trace."""
        return logprob / math.pow(max(num_tokens, 1), self.length_penalty)

    def possible(self, beam: Beam) -> float:
        """The best score that a live trace may end with."""
        if self.early_stopping != "never" or self.length_penalty <= 0:
            return self.score(beam.logprob, beam.num_tokens)
        if self.max_len is None:
            return math.inf
        return self.score(beam.logprob, self.max_len)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamGroup:
    """The live beams of one search, of which `width` are kept after each step.

    `ended`: the scores of the best traces that ended before. `num_candidates`: the most candidates
    of a step that only the client can decide; None: as many as a step considers.
    """

    width: int
    holes: tuple[Hole, ...]
    beams: tuple[Beam, ...]
    end_token_ids: frozenset[int]
    scoring: BeamScoring = BeamScoring()
    ended: tuple[float, ...] = ()
    num_candidates: int | None = None

    @property
    def num_considered(self) -> int:
        """Alternatives that a step considers: `width` live ones, and `width` for each end token."""
        return (1 + max(1, len(self.end_token_ids))) * self.width


@dataclass(frozen=True, slots=True)
class ProbeTokens:
    """Asks for a beam's next tokens."""

    beam: Beam


@dataclass(frozen=True, slots=True)
class CheckHole:
    """Asks whether a hole that its last token ended satisfies its constraint."""

    beam: Beam


Ask: TypeAlias = ProbeTokens | CheckHole


@dataclass(frozen=True, slots=True)
class NextTokens:
    """Next tokens and their log-probabilities, the most probable first.

    `end_ids` are those that end the hole and are no part of it.
    """

    tokens: tuple[tuple[int, float], ...]
    end_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class EndedHole:
    """A hole that has ended, and whether its constraint is satisfied."""

    text: str
    is_satisfied: bool = True


@dataclass(frozen=True, slots=True)
class DeadEnd:
    """No token may follow: the beam is dropped, and the search goes on without it."""

    error: RouterError


AskResult: TypeAlias = NextTokens | EndedHole | DeadEnd


@dataclass(frozen=True, slots=True)
class Place:
    """A beam after a step. `closed`: its hole has ended; None: it goes on."""

    beam: Beam
    closed: EndedHole | None = None


class SearchEnd(Enum):
    """Why the search of one group ended."""

    # No live beam can be among the best.
    COMPLETE = "complete"
    # Beams are at the end of holes that the client's program follows.
    HOLE = "hole"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutcome:
    """The state of a group when its search ends, or when a report is due.

    `beams` are live. With `candidates` they are those before the step that the client decides: the
    candidates are its possible results, the most probable first; the client keeps `width` live
    ones of at most `num_considered` that are possible. `has_more`: others follow them. `ended` are
    traces that ended in this search, in the order of their ends, with their scores. `dropped` are
    dead ends, with their errors, and beams that violate a constraint.
    """

    reason: SearchEnd
    beams: Sequence[Place] = ()
    candidates: Sequence[Place] | None = None
    has_more: bool = False
    ended: Sequence[tuple[Place, float]] = ()
    dropped: Sequence[tuple[Place, RouterError | None]] = ()


T = TypeVar("T")
Search: TypeAlias = Generator[Sequence[Ask], Sequence[AskResult], T]


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

    def __init__(self, group: BeamGroup, texts: "OutputTexts") -> None:
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
        probed = self._probed
        self._probed = {}
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
        width = self._group.width
        num_considered = self._group.num_considered
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


# Texts that are remembered for each beam: those of a step, of the step before, and of its ends.
KEPT_TEXTS_PER_BEAM = 4
# A bias above all differences between a model's scores.
_FORCING_BIAS = 100.0
# Requests with alternatives get no runs of forced tokens. These are spelled in one way; a beam may
# have taken any.
_WITH_ALTERNATIVES = LogprobParams(num_top_tokens=1)
_BY_TOKEN = (FinishReason.EOS, FinishReason.STOP_TOKEN)


def _resumed(request: GenerateRequest, output_ids: tuple[int, ...]) -> GenerateRequest:
    """The request behind a part of its output. It belongs to no client, so it is not traced."""
    constraint = request.constraint
    if constraint is not None and output_ids:
        # The check's time is for the first step; later requests wait in no queue.
        constraint = replace(constraint, prepare_by_s=None)
    return replace(request, output_ids=output_ids, constraint=constraint, trace=None)


def output_before(ask: Ask) -> tuple[int, ...]:
    """The output behind which an ask's sequence starts."""
    output_ids = ask.beam.output_ids
    return output_ids if isinstance(ask, ProbeTokens) else output_ids[:-1]


def request_of(ask: Ask, hole: Hole) -> GenerateRequest:
    """The request of one ask."""
    request = _resumed(hole.request, output_before(ask))
    if isinstance(ask, ProbeTokens):
        return request
    sampling = SamplingParams(logit_bias={ask.beam.output_ids[-1]: _FORCING_BIAS})
    return replace(request, sampling=sampling, logprobs=_WITH_ALTERNATIVES)


def result_of(ask: Ask, stream: Stream, end_token_ids: frozenset[int]) -> AskResult:
    """The result of an ask from its stream, which has ended. Raises the error of a failure."""
    end = stream.end
    assert end is not None, "a group advances when its streams have ended"
    if isinstance(end, Failed):
        if isinstance(end.error, ConstraintRefused):
            return DeadEnd(end.error)
        raise end.error
    if isinstance(ask, CheckHole):
        return EndedHole(stream.text_before + end.text, end.constraint_satisfied is not False)
    for event in stream.taken():
        if isinstance(event, TokenGenerated):
            return _probed(event, end, end_token_ids)
    raise GenerationFailed(f"a step of a beam brought no token ({end.reason.value})")


def _probed(event: TokenGenerated, end: Finished, end_token_ids: frozenset[int]) -> NextTokens:
    own = event.token
    tokens = {each.token_id: each.logprob for each in event.top_tokens if each.logprob is not None}
    tokens.setdefault(own.token_id, own.logprob or 0.0)
    is_end = end.reason in _BY_TOKEN and own.hidden
    ranked = sorted(tokens.items(), key=lambda pair: -pair[1])
    return NextTokens(tuple(ranked), end_token_ids | ({own.token_id} if is_end else frozenset()))


class OutputTexts:
    """Reads outputs of a group's holes as texts, and remembers the last `num_kept` of them.

    A text that is not remembered is decoded from its first token.
    """

    def __init__(self, tokenizer: Tokenizer, num_kept: int) -> None:
        self._tokenizer = tokenizer
        self._num_kept = num_kept
        # By hole and output; least recently used first. No caller may change one of these.
        self._read: OrderedDict[tuple[Hole, tuple[int, ...]], OutputText] = OrderedDict()

    def shown(self, hole: Hole, output_ids: tuple[int, ...]) -> str:
        """The text of an output that goes on, without what is held back."""
        return self._at(hole, output_ids).text_before

    def text(self, hole: Hole, output_ids: tuple[int, ...]) -> str:
        """The whole text of an output that ends there."""
        return self._at(hole, output_ids).standing()

    def is_ended(self, hole: Hole, output_ids: tuple[int, ...]) -> bool:
        """Whether a stop string ends the output."""
        constraint = hole.request.constraint
        dropped_phrases = () if constraint is None else constraint.dropped_phrases
        if not (hole.request.stop.stop_strings or dropped_phrases):
            return False
        return self._at(hole, output_ids).matched is not None

    def behind(self, hole: Hole, output_ids: tuple[int, ...]) -> OutputText:
        """A copy of the text, for a sequence that goes on behind the output."""
        return self._at(hole, output_ids).fork()

    def _at(self, hole: Hole, output_ids: tuple[int, ...]) -> OutputText:
        key = (hole, output_ids)
        text = self._read.get(key)
        if text is not None:
            self._read.move_to_end(key)
            return text
        before = self._read.get((hole, output_ids[:-1])) if output_ids else None
        if before is None:
            text = OutputText(_resumed(hole.request, output_ids), self._tokenizer)
        else:
            text = before.grown(output_ids[-1])
        self._read[key] = text
        if len(self._read) > self._num_kept:
            self._read.popitem(last=False)
        return text


_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BeamUsage:
    """Tokens of a search: of the beams at its start, of these in the prefix cache, generated."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0


class BeamRun(StreamGroup):
    """Owner of a search's streams. The caller awaits `next` until the end, and closes the run.

    `report_s`: seconds between two reports; None: no reports.
    """

    def __init__(
        self, group: BeamGroup, texts: OutputTexts, batcher: Batcher, report_s: float | None
    ) -> None:
        asked = group.holes[0].request
        super().__init__(group.width, asked.key, asked.adapter_id)
        self.group = group
        self.search = BeamSearch(group, texts)
        self.num_steps = 0
        self.usage = BeamUsage()
        self._texts = texts
        self._batcher = batcher
        self._report_s = report_s
        self._search_steps: Search[SearchOutcome] = self.search.run()
        self._asks: Sequence[Ask] = ()
        self._results: list[AskResult] = []
        # The streams of the asks without a result.
        self._streams: list[Stream] = []
        self._reported_s = time.monotonic()
        self._has_started = False
        self._outcome: SearchOutcome | None = None
        self._failure: RouterError | None = None
        self._changed = asyncio.Event()
        # Last, since it may raise.
        batcher.open_group(self)

    @property
    def place(self) -> int | None:
        """The place in the queue of its first step, from 1; None once that has started."""
        if self.num_steps or not self._streams:
            return None
        return self._batcher.place(self._streams[0])

    async def next(self) -> SearchOutcome | None:
        """The outcome, or None when a report is due. Raises the RouterError of a failed search."""
        if not self._has_started:
            self._has_started = True
            self._guarded(self._start)
        await self._changed.wait()
        self._changed.clear()
        if self._failure is not None:
            raise self._failure
        return self._outcome

    def close(self) -> None:
        """Ends the search; its blocks are free after the current step. May be called again."""
        for stream in self._streams:
            self._batcher.cancel(stream)
        self._batcher.close_group(self, is_good=self._outcome is not None)

    # Between two steps

    def advance(self) -> None:
        """Takes the results, and submits what the search asks for next."""
        self._guarded(self._take_results)

    def _guarded(self, act: Callable[[], None]) -> None:
        """An exception ends this search and nothing else."""
        try:
            act()
        except RouterError as error:
            self._failure = error
        except Exception as error:
            trace_id = self.group.holes[0].request.trace_id
            _logger.error("request_id=%s failed by a bug", trace_id, exc_info=error)
            self._failure = bug_error(error)
        if self._failure is not None or self._outcome is not None:
            self.close()
            self._changed.set()

    def _start(self) -> None:
        self._resume(lambda: next(self._search_steps))

    def _go_on(self) -> None:
        results = self._results
        self._results = []
        self._resume(lambda: self._search_steps.send(results))

    def _resume(self, step: Callable[[], Sequence[Ask]]) -> None:
        try:
            self._asks = step()
        except StopIteration as stop:
            self._outcome = stop.value
            return
        self._request_report()
        self._submit()

    def _request_report(self) -> None:
        if self._report_s is None or self.num_steps == 0:
            return
        now_s = time.monotonic()
        if now_s - self._reported_s >= self._report_s:
            self._reported_s = now_s
            self._changed.set()

    def _submit(self) -> None:
        """Submits the next asks, as many as there are slots."""
        done = len(self._results)
        wave = self._asks[done : done + self.num_slots]
        requests = [request_of(ask, self.group.holes[ask.beam.hole]) for ask in wave]
        texts = [self._text_behind(ask) for ask in wave]
        self._streams = self._batcher.submit_in(self, requests, texts)

    def _text_behind(self, ask: Ask) -> OutputText:
        return self._texts.behind(self.group.holes[ask.beam.hole], output_before(ask))

    def _take_results(self) -> None:
        """The results of the asks whose streams have ended. Raises the RouterError of a failure."""
        ends = [stream.end for stream in self._streams]
        if any(isinstance(end, Finished) and end.reason is FinishReason.DEADLINE for end in ends):
            self._outcome = self.search.outcome(SearchEnd.DEADLINE)
            return
        asks = self._asks[len(self._results) :]
        for ask, stream in zip(asks, self._streams, strict=False):
            result = result_of(ask, stream, self.group.end_token_ids)
            self._results.append(result)
            self._count(ask, stream)
        if len(self._results) < len(self._asks):
            self._submit()
            return
        self.num_steps += any(isinstance(ask, ProbeTokens) for ask in self._asks)
        self._go_on()

    def _count(self, ask: Ask, stream: Stream) -> None:
        usage = self.usage
        if self.num_steps == 0:
            num_prompt_tokens = len(stream.request.prompt_ids) + len(stream.request.output_ids)
            usage = replace(
                usage,
                num_prompt_tokens=usage.num_prompt_tokens + num_prompt_tokens,
                num_cached_tokens=usage.num_cached_tokens + stream.cached_len,
            )
        if isinstance(ask, ProbeTokens):
            usage = replace(usage, num_output_tokens=usage.num_output_tokens + 1)
        self.usage = usage
