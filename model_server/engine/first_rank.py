"""The device's half of a step: forward, masks and sampling on rank 0, the forward on the others.

A step is launched, then collected. Where there is one rank, it may be left in flight, and the next
one launched behind it before its results are read:

    device:  | forward n | sample n | forward n + 1        | sample n + 1 | forward n + 2 ...
    host:      launch forward n + 1 | read n, make masks, launch sample n + 1 | answer n ...

Its forward takes the tokens of the step before on the device. Its sampling is launched once that
step's results are read, so masks and penalties know what came before; they are made while the
device computes. What turns out to have ended was computed for nobody, and a constrained row whose
token was drawn again samples a step later.

Behind a row's last token draft tokens may be computed; they are sampled as long as they are what is
sampled in their places:

    chunk:    | last token | draft 1 | draft 2 | draft 3 |
    sampled:     = draft 1   = draft 2   another            three tokens, two drafts accepted

Each position is sampled with the sampler's own state after the tokens before it, so penalties,
least lengths and the draws of a seed are those of a step for each token; and so are masks, which
are made one after the other, each once the draft before it is accepted.

It reads the plans of a step and changes no sequence.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from traceback import walk_tb
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from model_server.engine import memory
from model_server.engine.distributed import FAILED, LATE, Drawn, World
from model_server.engine.sequences import (
    PlannedChunk,
    StepScores,
    failed_scores,
    score_prompts,
)
from model_server.errors import OutOfMemory, RanksDiverged, RanksLost
from model_server.executor.executor import PagedModel
from model_server.masking.guided_output import Advance
from model_server.masking.mask_scheduler import MaskScheduler, StepMasks
from model_server.sampling.sampler import SampledRows, SampleInFlight, Sampler
from model_server.staging import PinnedStaging
from model_server.step import StepInputs, StepOutput
from proto.contract import Generation, SampledToken

# Of a functional collective the last one is of torch's operators.
_LAST_FRAMES = 2
# Of a chunk that scored its prompt well and sampled nothing; nobody reads it.
_NO_TOKEN = Drawn((0,))
_NO_ADVANCE = Advance()


@dataclass(slots=True, eq=False)
class StepInFlight:
    """A step from its plan to its output; each stage adds its part.

    The runner's:
        chunks:    those that compute something; `inputs` has them in this order. None where the
                   step computes nothing.
        is_behind: its forward was launched before the step before it was read
        failed:    generations of requests that failed for want of memory
        output, error: what became of the step

    Of the forward, on the device; its kernels may run on while it returns, and are waited for by
    sampling: the sum of the two times holds.
        logits:     [num_logits, vocab_size]
        logit_rows: by request, the row that its token is sampled from; those of its drafts follow

    Of sampling, on rank 0 alone:
        sampling: the requests whose rows are sampled; sample: their draws, None: there are none
        late:     requests that were to sample, and sample in a later step
        mask_wait_ns: the time that sampling waited for masks

    Results, all but `drawn` on rank 0 alone:
        drawn:    one entry per chunk with logits. For a chunk that scored its prompt and sampled no
                  token, it matters only if it failed.
        sampled:  one row for each of `sampling`
        advances: the consequences for constraints, by request, of the last token sampled
        behind:   by request, the tokens after the first: those that a constraint forced, and those
                  sampled behind accepted drafts; num_forced of them were forced
        mask_ns, num_masked_rows: of all masks
        errors:   the reasons of failed requests, by request
        redrawn:  requests whose token is not the one that the step after this was launched with
    """

    chunks: list[PlannedChunk]
    inputs: StepInputs | None
    started_ns: int
    is_behind: bool = False
    failed: tuple[Generation, ...] = ()
    output: StepOutput | None = None
    error: Exception | None = None

    logits: Tensor | None = None
    logit_rows: Mapping[int, int] = field(default_factory=dict)
    forward_ns: int = 0

    sampling: Sequence[int] = ()
    sample: SampleInFlight | None = None
    masks: StepMasks | None = None
    late: frozenset[int] = frozenset()
    scores: StepScores = field(default_factory=dict)
    sampling_since_ns: int = 0
    sample_ns: int = 0
    mask_wait_ns: int = 0

    drawn: Sequence[Drawn] = ()
    sampled: SampledRows | None = None
    advances: dict[int, Advance] = field(default_factory=dict)
    behind: dict[int, list[SampledToken]] = field(default_factory=dict)
    num_forced: dict[int, int] = field(default_factory=dict)
    mask_ns: int = 0
    num_masked_rows: int = 0
    errors: Mapping[int, str] = field(default_factory=dict)
    redrawn: frozenset[int] = frozenset()

    @property
    def is_ready(self) -> bool:
        """Whether its results can be read without waiting for the device."""
        return self.sample is None or self.sample.is_ready

    @property
    def is_plain(self) -> bool:
        """Whether it gives a token at most for each chunk: no prompt's scores, and no drafts."""
        for chunk in self.chunks:
            if chunk.sequence.logprobs.prompt or chunk.num_logits != chunk.samples:
                return False
        return True

    def append(self, request_id: int, tokens: Sequence[SampledToken]) -> None:
        """Tokens that follow those which the request has of this step."""
        self.behind.setdefault(request_id, []).extend(tokens)

    def ids_behind(self, request_id: int) -> tuple[int, ...]:
        """The ids of a request's tokens after the first."""
        return tuple([token.token_id for token in self.behind.get(request_id, ())])

    @property
    def refused(self) -> frozenset[int]:
        """Of `errors` those that are the request's own: see `StepMasks.refused`."""
        return frozenset() if self.masks is None else self.masks.refused


class Rank(Protocol):
    """Launches a step (`forward`, then `sample`) and collects it; each is called once.

    Raises OutOfMemory when this rank is alone, and goes on. Where there are others, whatever goes
    wrong raises RanksDiverged: they wait in collectives that this rank will not enter.
    """

    def begin(self, step: StepInFlight) -> None:
        """The step is about to be launched: what runs beside its forward may begin."""

    def forward(self, step: StepInFlight) -> None:
        """Launch the forward."""

    def sample(self, step: StepInFlight) -> None:
        """Launch the sampling."""

    def collect(self, step: StepInFlight) -> None:
        """Wait for the results."""


class Follower:
    """A rank that computes its part of the forward, and takes the tokens that rank 0 chose."""

    def __init__(self, model: PagedModel, world: World) -> None:
        self._model = model
        self._world = world

    def begin(self, step: StepInFlight) -> None:
        """Nothing runs beside a forward here."""

    def forward(self, step: StepInFlight) -> None:
        """As `Rank`."""
        assert step.inputs is not None
        with _StepErrors(self._world, step):
            started_ns = time.perf_counter_ns()
            self._model.forward(step.inputs)
            step.forward_ns = time.perf_counter_ns() - started_ns

    def sample(self, step: StepInFlight) -> None:
        """Rank 0 does."""

    def collect(self, step: StepInFlight) -> None:
        """As `Rank`: the tokens, no scores and no reasons."""
        num_answers = sum([chunk.num_logits > 0 for chunk in step.chunks])
        with _StepErrors(self._world, step):
            started_ns = time.perf_counter_ns()
            if num_answers:
                step.drawn = self._world.broadcast_drawn(None, num_answers)
            step.sample_ns = time.perf_counter_ns() - started_ns


class FirstRank:
    """Rank 0: masks, samples, and broadcasts the tokens. Without `guides` no row has a mask."""

    def __init__(
        self, model: PagedModel, sampler: Sampler, guides: MaskScheduler | None, world: World
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._guides = guides
        self._world = world
        self._staging = PinnedStaging(model.device)

    def begin(self, step: StepInFlight) -> None:
        """As `Rank`: quick masks that nobody made between the steps are made now."""
        if self._guides is not None and step.chunks:
            self._guides.begin()

    def forward(self, step: StepInFlight, before: StepInFlight | None = None) -> None:
        """As `Rank`. `before`: a step in flight, which draws the tokens that this one awaits."""
        assert step.inputs is not None
        with _StepErrors(self._world, step, tells=True):
            if before is not None:
                self._hand_over(step.inputs, step.chunks, before)
            started_ns = time.perf_counter_ns()
            step.logits = self._model.forward(step.inputs)
            step.forward_ns = time.perf_counter_ns() - started_ns
            rows: dict[int, int] = {}
            end = 0
            for chunk in step.chunks:
                end += chunk.num_logits
                rows[chunk.sequence.request_id] = end - 1 - len(chunk.drafts)
            step.logit_rows = rows

    def sample(self, step: StepInFlight) -> None:
        """As `Rank`. Those of `step.late` are late already."""
        with _StepErrors(self._world, step, tells=True):
            assert step.logits is not None
            step.scores = {} if step.is_plain else score_prompts(step.logits, step.chunks)
            step.sampling_since_ns = time.perf_counter_ns()
            guides = self._guides
            sampling = [chunk.sequence.request_id for chunk in step.chunks if chunk.samples]
            late = step.late.intersection(sampling)
            sampling = [each for each in sampling if each not in late] if late else sampling
            step.masks = None
            if guides is not None:
                late |= guides.wait(sampling, _not_late(step.chunks))
                sampling = [each for each in sampling if each not in late] if late else sampling
                step.masks = guides.join(sampling)
                step.mask_wait_ns = guides.waited_ns
            step.late = late
            step.sampling = sampling
            step.sample = None
            if sampling:
                logits = self._rows_of(step, sampling)
                step.sample = self._sampler.launch(sampling, logits, step.masks)

    def collect(self, step: StepInFlight) -> None:
        """As `Rank`; the other ranks are told the tokens."""
        answering = [chunk for chunk in step.chunks if chunk.num_logits]
        with _StepErrors(self._world, step, tells=True):
            errors = failed_scores(step.scores) if step.scores else {}
            if step.sample is not None:
                sampled = step.sampled = self._sampler.collect(step.sample)
                step.sample = None
                step.redrawn = frozenset([step.sampling[row] for row in sampled.redrawn])
                for row, reason in sampled.errors.items():
                    errors[step.sampling[row]] = reason
                if step.masks is not None:
                    self._advance(step, step.sampling, sampled, step.masks, errors)
                self._sample_behind_drafts(step, sampled, errors)
            step.errors = errors
            step.logits = None
            drawn = choose_tokens(answering, step)
        with _StepErrors(self._world, step):
            step.drawn = self._world.broadcast_drawn(drawn, len(answering)) if drawn else ()
        step.sample_ns = time.perf_counter_ns() - step.sampling_since_ns

    def _rows_of(
        self, step: StepInFlight, request_ids: Sequence[int], num_drafts: Sequence[int] = ()
    ) -> Tensor:
        """These requests' logits, of each behind so many drafts; between them lie other rows."""
        logits = step.logits
        assert logits is not None
        if len(request_ids) == logits.shape[0]:
            return logits
        rows = np.array([step.logit_rows[request_id] for request_id in request_ids])
        if num_drafts:
            rows += np.array(num_drafts)
        return logits.index_select(0, self._staging.to_device(rows))

    def _advance(
        self,
        step: StepInFlight,
        request_ids: Sequence[int],
        sampled: SampledRows,
        masks: StepMasks,
        errors: dict[int, str],
    ) -> None:
        """Advance the guides by the sampled tokens, and the sampler by the forced ones."""
        assert self._guides is not None
        drawn = {
            request_ids[place]: sampled.token_ids[place]
            for place in masks.places.tolist()
            if place not in sampled.errors
        }
        for request_id, advance in self._guides.advance(masks, drawn).items():
            step.advances[request_id] = advance
            if advance.forced:
                self._sampler.extend(request_id, advance.forced)
                step.append(request_id, [SampledToken(each, 0.0) for each in advance.forced])
                step.num_forced[request_id] = step.num_forced.get(request_id, 0) + len(
                    advance.forced
                )
        errors |= masks.errors()
        step.mask_ns += masks.mask_ns
        step.num_masked_rows += len(masks.outputs)

    def _sample_behind_drafts(
        self, step: StepInFlight, sampled: SampledRows, errors: dict[int, str]
    ) -> None:
        """Sample behind each draft that is accepted, as long as there is one.

            drafts:  a b c d      sampled: a, forced: b, c    sampled behind c: d, then e

        A row that is no number has sampled nothing: its draft is not accepted, and a later step
        that computes the token again says why. Nor is one accepted whose next mask takes long.
        """
        drafts = {chunk.sequence.request_id: chunk.drafts for chunk in step.chunks if chunk.drafts}
        if not drafts:
            return
        first = {
            request_id: token_id
            for request_id, token_id in zip(step.sampling, sampled.token_ids, strict=True)
            if request_id in drafts
        }
        guides = self._guides
        going_on = list(first)
        while True:
            made = {each: (first[each], *step.ids_behind(each)) for each in going_on}
            going_on = [
                request_id
                for request_id, token_ids in made.items()
                if request_id not in errors
                and drafts[request_id][: len(token_ids)] == token_ids
                and step.advances.get(request_id, _NO_ADVANCE).is_satisfied is None
            ]
            masks = None
            if guides is not None and going_on:
                began_ns = time.perf_counter_ns()
                late = guides.wait_behind(going_on)
                step.mask_wait_ns += time.perf_counter_ns() - began_ns
                going_on = [each for each in going_on if each not in late]
                masks = guides.join(going_on)
            if not going_on:
                return
            logits = self._rows_of(step, going_on, [len(made[each]) for each in going_on])
            rows = self._sampler.sample(going_on, logits, masks)
            for row, request_id in enumerate(going_on):
                if row not in rows.errors:
                    step.append(request_id, [rows.token(row)])
            if masks is not None:
                self._advance(step, going_on, rows, masks, errors)
            going_on = [each for row, each in enumerate(going_on) if row not in rows.errors]

    @torch.inference_mode()
    def _hand_over(
        self, inputs: StepInputs, chunks: Sequence[PlannedChunk], before: StepInFlight
    ) -> None:
        """Write the tokens that the step before draws to the rows that await them."""
        awaiting = [index for index, chunk in enumerate(chunks) if chunk.awaits]
        if before.sample is None or not awaiting:
            return
        places = {request_id: place for place, request_id in enumerate(before.sampling)}
        ends = np.cumsum([chunk.num_repeated + chunk.chunk_len for chunk in chunks])
        sources = [places[chunks[index].sequence.request_id] for index in awaiting]
        rows, taken = self._staging.to_device_all(
            (ends[awaiting] - 1, np.array(sources, dtype=np.int64))
        )
        # A row that fails draws any number.
        tokens = before.sample.tokens.index_select(0, taken)
        inputs.token_ids.index_copy_(0, rows, tokens.clamp_(0, self._model.vocab_size - 1))


def _not_late(chunks: Sequence[PlannedChunk]) -> frozenset[int]:
    """The requests of which no last token can be computed again."""
    return frozenset(
        [chunk.sequence.request_id for chunk in chunks if chunk.samples and not chunk.can_repeat]
    )


class _StepErrors:
    """Around a part of a step: what goes wrong there is raised as `Rank` says.

    tells: the ranks that wait for this one's tokens are told before
    """

    __slots__ = ("_step", "_tells", "_world")

    def __init__(self, world: World, step: StepInFlight, *, tells: bool = False) -> None:
        self._world = world
        self._step = step
        self._tells = tells

    def __enter__(self) -> None:
        """Nothing: a step enters this some times, so that it is no generator."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, Exception):
            return
        if self._tells:
            self._tell(error)
        if isinstance(error, RanksDiverged):
            return
        world = self._world
        if world.world_size > 1:
            raise _kind_of(error)(
                f"rank {world.rank} failed in a step that the others are in:"
                f" {type(error).__name__}: {error}"
            ) from error
        inputs = self._step.inputs
        if memory.is_exhausted(error) and inputs is not None:
            raise OutOfMemory(
                f"a step of {inputs.num_tokens} tokens does not fit: {error}"
            ) from error

    def _tell(self, cause: Exception) -> None:
        num_answers = sum([chunk.num_logits > 0 for chunk in self._step.chunks])
        if num_answers:
            try:
                self._world.abandon(num_answers)
            except RanksDiverged as error:
                reason = f"{error}, after {type(cause).__name__}: {cause}"
                raise _kind_of(cause)(reason) from cause


def _kind_of(error: Exception) -> type[RanksDiverged]:
    """Whether a step failed for want of others: then a collective raised it, by its last frames."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
    is_collective = any(name.startswith("torch.distributed") for name in frames[-_LAST_FRAMES:])
    return RanksLost if is_collective and not memory.is_exhausted(error) else RanksDiverged


def choose_tokens(answering: Sequence[PlannedChunk], step: StepInFlight) -> list[Drawn]:
    """The result of each chunk with logits."""
    token_ids = iter(() if step.sampled is None else step.sampled.token_ids)
    errors = step.errors
    advances = step.advances
    if not (errors or advances or step.behind or step.late or step.scores):
        # Nearly every step.
        return [Drawn((next(token_ids),)) if c.samples else _NO_TOKEN for c in answering]
    chosen = []
    for chunk in answering:
        request_id = chunk.sequence.request_id
        if request_id in step.late:
            drawn = LATE
        elif chunk.samples:
            drawn = Drawn((next(token_ids),))
        else:
            drawn = _NO_TOKEN
        if request_id in errors:
            drawn = FAILED
        elif request_id in advances or request_id in step.behind:
            advance = advances.get(request_id, _NO_ADVANCE)
            drawn = Drawn(drawn.token_ids + step.ids_behind(request_id), advance.is_over)
        chosen.append(drawn)
    return chosen
