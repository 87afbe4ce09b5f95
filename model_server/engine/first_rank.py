"""Rank 0's part of a step: forward, masks, sampling. Others take the tokens that it chose.

A step may be launched behind one whose results nobody has read:

    device:  | forward n | sample n | forward n + 1        | sample n + 1 | forward n + 2 ...
    host:      launch forward n + 1 | read n, make masks, launch sample n + 1 | answer n ...

Its forward takes the tokens of the step before on the device. Its sampling is launched once that
step's results are read, so masks and penalties know what came before; they are made while the
device computes. What turns out to have ended was computed for nobody, and a constrained row whose
token was drawn again samples a step later. A step with drafts is not launched behind another one.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from model_server.engine.computation import Computed, choose_tokens, translated_errors
from model_server.engine.distributed import World
from model_server.engine.sequences import PlannedChunk, failed_scores, score_prompts
from model_server.engine.step import StepInputs
from model_server.engine.verification import sample_behind_drafts
from model_server.errors import RanksDiverged
from model_server.masking.guided_output import Advance
from model_server.masking.mask_scheduler import MaskScheduler, StepMasks
from model_server.model.paged_model import PagedModel
from model_server.sampling.sampled_rows import LaunchedSample, SampledRows
from model_server.sampling.sampler import Sampler
from model_server.staging import PinnedStaging
from proto.contract import SampledToken

_NO_ADVANCES: Mapping[int, Advance] = {}


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedForward:
    """A forward whose rows are not sampled yet. `logits`: [num_logits, vocab_size], on the device.

    Row rows[request_id] is the last one of that request; behind it are those of its drafts.
    """

    inputs: StepInputs
    logits: Tensor
    rows: Mapping[int, int]
    forward_ns: int


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedChunks:
    """Chunks that are computed. `sample` None: none of them samples; else it is of `sampling`."""

    chunks: Sequence[PlannedChunk]
    sampling: Sequence[int]
    sample: LaunchedSample | None
    masks: StepMasks | None
    late: frozenset[int]
    forward_ns: int
    sampling_since_ns: int
    mask_wait_ns: int

    @property
    def is_ready(self) -> bool:
        """Whether the results have come."""
        return self.sample is None or self.sample.is_ready


def can_launch(chunks: Sequence[PlannedChunk]) -> bool:
    """Whether a step of these chunks may be left unfinished: it scores no prompt."""
    return not any(
        chunk.sequence.logprobs.prompt or chunk.num_logits != chunk.samples for chunk in chunks
    )


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

    def run(
        self, inputs: StepInputs, chunks: Sequence[PlannedChunk], begun: Callable[[], None]
    ) -> Computed:
        """As `Computation`."""
        answering = [chunk for chunk in chunks if chunk.num_logits]
        with translated_errors(self._world, inputs):
            try:
                computed = self._compute(inputs, chunks, begun)
            except Exception as error:
                if answering:
                    self._abandon(len(answering), error)
                raise
            if not answering:
                return computed
            began_ns = time.perf_counter_ns()
            drawn = self._world.broadcast_drawn(choose_tokens(answering, computed), len(answering))
            sample_ns = computed.sample_ns + time.perf_counter_ns() - began_ns
            return replace(computed, drawn=drawn, sample_ns=sample_ns)

    def launch(
        self, inputs: StepInputs, chunks: Sequence[PlannedChunk], begun: Callable[[], None]
    ) -> LaunchedChunks:
        """Launch a step that stands behind none. Where this rank is alone. Raises OutOfMemory."""
        with translated_errors(self._world, inputs):
            self._begin_masks(chunks)
            begun()
            return self._sample(self._forward(inputs, chunks), chunks)

    def launch_forward(
        self, inputs: StepInputs, chunks: Sequence[PlannedChunk], before: LaunchedChunks
    ) -> LaunchedForward:
        """Launch a forward behind a step in flight; what awaits a token takes it from there.

        Where this rank is alone. Raises OutOfMemory.
        """
        with translated_errors(self._world, inputs):
            self._hand_over(inputs, chunks, before)
            return self._forward(inputs, chunks)

    def launch_sampling(
        self,
        forward: LaunchedForward,
        chunks: Sequence[PlannedChunk],
        redrawn: frozenset[int],
        begun: Callable[[], None],
    ) -> LaunchedChunks:
        """Launch the sampling of a forward once the step before it is read.

        chunks:  those of the forward that still count, as they are now
        redrawn: of the step before; those of `chunks` are late

        Raises OutOfMemory.
        """
        with translated_errors(self._world, forward.inputs):
            self._begin_masks(chunks)
            begun()
            return self._sample(forward, chunks, redrawn)

    def collect(self, launched: LaunchedChunks) -> Computed:
        """Wait for what was launched; once."""
        computed = self._collect(launched)
        answering = [chunk for chunk in launched.chunks if chunk.num_logits]
        return replace(computed, drawn=tuple(choose_tokens(answering, computed)))

    def _compute(
        self, inputs: StepInputs, chunks: Sequence[PlannedChunk], begun: Callable[[], None]
    ) -> Computed:
        """All but what the ranks agree on."""
        self._begin_masks(chunks)
        begun()
        forward = self._forward(inputs, chunks)
        scores = score_prompts(forward.logits, chunks)
        launched = self._sample(forward, chunks)
        computed = self._collect(launched)
        behind = self._behind_drafts(forward, launched, computed)
        return replace(
            computed,
            scores=scores,
            errors={**failed_scores(scores), **computed.errors},
            behind=behind,
            sample_ns=time.perf_counter_ns() - launched.sampling_since_ns,
        )

    def _behind_drafts(
        self, forward: LaunchedForward, launched: LaunchedChunks, computed: Computed
    ) -> dict[int, tuple[SampledToken, ...]]:
        """What was sampled behind accepted drafts, by request."""
        drafts = {
            chunk.sequence.request_id: chunk.drafts for chunk in launched.chunks if chunk.drafts
        }
        if not drafts or computed.rows is None:
            return {}
        first = {
            request_id: token_id
            for request_id, token_id in zip(launched.sampling, computed.rows.token_ids, strict=True)
            if request_id in drafts and request_id not in computed.errors
        }
        return sample_behind_drafts(self._sampler, drafts, first, partial(self._rows_of, forward))

    def _abandon(self, num_rows: int, cause: Exception) -> None:
        try:
            self._world.abandon(num_rows)
        except RanksDiverged as error:
            raise RanksDiverged(f"{error}, after {type(cause).__name__}: {cause}") from cause

    def _begin_masks(self, chunks: Sequence[PlannedChunk]) -> None:
        if self._guides is not None:
            self._guides.begin([chunk.sequence.request_id for chunk in chunks if chunk.samples])

    def _forward(self, inputs: StepInputs, chunks: Sequence[PlannedChunk]) -> LaunchedForward:
        started_ns = time.perf_counter_ns()
        logits = self._model.forward(inputs)
        forward_ns = time.perf_counter_ns() - started_ns
        rows, end = dict[int, int](), 0
        for chunk in chunks:
            end += chunk.num_logits
            rows[chunk.sequence.request_id] = end - 1 - len(chunk.drafts)
        return LaunchedForward(inputs, logits, rows, forward_ns)

    def _sample(
        self,
        forward: LaunchedForward,
        chunks: Sequence[PlannedChunk],
        redrawn: frozenset[int] = frozenset(),
    ) -> LaunchedChunks:
        since_ns, guides = time.perf_counter_ns(), self._guides
        sampling = [chunk.sequence.request_id for chunk in chunks if chunk.samples]
        late = redrawn.intersection(sampling)
        sampling = [each for each in sampling if each not in late] if late else sampling
        masks: StepMasks | None = None
        if guides is not None:
            late |= guides.wait(sampling)
            sampling = [each for each in sampling if each not in late] if late else sampling
            masks = guides.join(sampling)
        sample = None
        if sampling:
            logits = self._rows_of(forward, sampling)
            sample = self._sampler.launch(sampling, logits, masks)
        return LaunchedChunks(
            chunks=chunks,
            sampling=sampling,
            sample=sample,
            masks=masks,
            late=late,
            forward_ns=forward.forward_ns,
            sampling_since_ns=since_ns,
            mask_wait_ns=0 if guides is None else guides.waited_ns,
        )

    def _rows_of(
        self, forward: LaunchedForward, request_ids: Sequence[int], num_drafts: int = 0
    ) -> Tensor:
        """These requests' logits behind so many drafts; between them lie rows of other use."""
        logits = forward.logits
        if len(request_ids) == len(logits):
            return logits
        rows = np.array([forward.rows[request_id] + num_drafts for request_id in request_ids])
        return logits.index_select(0, self._staging.to_device(rows))

    def _collect(self, launched: LaunchedChunks) -> Computed:
        """All but `drawn` and scores."""
        sampling, masks = launched.sampling, launched.masks
        rows = None if launched.sample is None else launched.sample.collect()
        errors: dict[int, str] = {}
        advances, redrawn = _NO_ADVANCES, frozenset[int]()
        if rows is not None:
            errors = {sampling[row]: reason for row, reason in rows.errors.items()}
            redrawn = frozenset(sampling[row] for row in rows.redrawn)
            if self._guides is not None and masks is not None:
                advances = self._advance(self._guides, sampling, rows, masks)
                errors |= masks.errors()
        return Computed(
            rows=rows,
            masks=masks,
            advances=advances,
            errors=errors,
            late=launched.late,
            redrawn=redrawn,
            forward_ns=launched.forward_ns,
            sample_ns=time.perf_counter_ns() - launched.sampling_since_ns,
            mask_wait_ns=launched.mask_wait_ns,
        )

    def _advance(
        self,
        guides: MaskScheduler,
        sampling: Sequence[int],
        rows: SampledRows,
        masks: StepMasks,
    ) -> Mapping[int, Advance]:
        """Advance the guides by the sampled tokens, and the sampler by the forced ones."""
        drawn = {
            sampling[place]: rows.token_ids[place]
            for place in masks.places.tolist()
            if place not in rows.errors
        }
        advances = guides.advance(masks, drawn)
        for request_id, advance in advances.items():
            if advance.forced:
                self._sampler.extend(request_id, advance.forced)
        return advances

    @torch.inference_mode()
    def _hand_over(
        self, inputs: StepInputs, chunks: Sequence[PlannedChunk], before: LaunchedChunks
    ) -> None:
        """Write the tokens that the step before draws to the rows that await them."""
        awaiting = [index for index, chunk in enumerate(chunks) if chunk.awaits]
        if before.sample is None or not awaiting:
            return
        places = {request_id: place for place, request_id in enumerate(before.sampling)}
        ends = np.cumsum([chunk.chunk_len for chunk in chunks])
        sources = [places[chunks[index].sequence.request_id] for index in awaiting]
        rows, taken = self._staging.to_device_all(
            (ends[awaiting] - 1, np.array(sources, dtype=np.int64))
        )
        # A row that fails draws any number.
        tokens = before.sample.tokens.index_select(0, taken)
        inputs.token_ids.index_copy_(0, rows, tokens.clamp_(0, self._model.vocab_size - 1))
