"""What the searches share: the tokens that may follow a beam, and how holes end.

A search computes nothing itself: it is a generator that yields what is to be computed and is sent
what was told of it, in the same order.
"""

from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from router.engine.beam_search.types import (
    Ask,
    Beam,
    Close,
    Closed,
    Dead,
    Hole,
    Judge,
    Place,
    Probed,
    Reason,
    Told,
)

T = TypeVar("T")
OutcomeT = TypeVar("OutcomeT", covariant=True)
Asking: TypeAlias = Generator[Sequence[Ask], Sequence[Told], T]
# A place, or why there is none.
Landed: TypeAlias = tuple[Place, Dead | None]


class Search(Protocol[OutcomeT]):
    """A search of one group, whichever way it takes."""

    def run(self) -> Asking[OutcomeT]:
        """The whole search."""

    def outcome(self, reason: Reason) -> OutcomeT:
        """What has come of the group by now."""

    def report(self) -> OutcomeT:
        """What is told of it while it goes on."""


class Texts(Protocol):
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


def alternatives(beam: Beam, hole: Hole, told: Probed) -> Iterator[Alternative]:
    """The tokens that may follow, the most probable first."""
    is_last = len(beam.output_ids) + 1 >= hole.max_len
    for token_id, logprob in told.tokens:
        is_end = token_id in told.end_ids
        rank_by = beam.logprob + logprob
        yield Alternative(beam, token_id, logprob, rank_by, is_end, is_end or is_last)


class Endings:
    """How holes end: what is written, and is it as it must be."""

    def __init__(self, holes: Sequence[Hole], texts: Texts) -> None:
        self._holes = holes
        self._texts = texts

    def _hole(self, beam: Beam) -> Hole:
        return self._holes[beam.hole]

    def by_token(self, beams: Sequence[Beam]) -> Asking[Sequence[Landed]]:
        """Holes that end tokens ended: masks kept their constraints, as far as these can."""
        texts = [self._texts.text(self._hole(beam), beam.output_ids) for beam in beams]
        asks = [
            Judge(beam, text)
            for beam, text in zip(beams, texts, strict=True)
            if (constraint := self._hole(beam).request.constraint) and constraint.is_judged_at_end
        ]
        told = dict(zip(asks, (yield asks) if asks else (), strict=True))
        landed: list[Landed] = []
        for beam, text in zip(beams, texts, strict=True):
            closed = told.get(Judge(beam, text), Closed(text))
            assert isinstance(closed, Closed)
            landed.append((Place(beam, closed), None))
        return landed

    def by_length(self, beams: Sequence[Beam]) -> Asking[Sequence[Landed]]:
        """Holes that end with their last tokens, be it by their number or by a stop string."""
        checked = [beam for beam in beams if self._hole(beam).request.constraint is not None]
        told = iter((yield [Close(beam) for beam in checked]) if checked else ())
        landed: list[Landed] = []
        for beam in beams:
            if self._hole(beam).request.constraint is None:
                text = self._texts.text(self._hole(beam), beam.output_ids)
                landed.append((Place(beam, Closed(text)), None))
                continue
            answer = next(told)
            if isinstance(answer, Closed):
                landed.append((Place(beam, answer), None))
            else:
                assert isinstance(answer, Dead)
                landed.append((Place(beam), answer))
        return landed


def is_kept(place: Place) -> bool:
    """The constraint of its hole, if that has ended."""
    return place.closed is None or place.closed.is_satisfied
