"""A step in flight: the next one may be launched before its tokens are read.

    device:  | forward n | sample n | forward n + 1 | sample n + 1 |
    host:    launch n | launch n + 1 | read n, answer | launch n + 2 | read n + 1 ...

Tokens stay on the device for the next step's inputs. On one rank, and where nothing of the next
step depends on more than the last tokens.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model_server.engine.computation import Computed, choose_tokens, translated_errors
from model_server.engine.distributed import World
from model_server.engine.sequences import PlannedChunk
from model_server.engine.step import StepInputs, StepOutput
from model_server.model.model import PagedModel
from model_server.sampling.sampled_rows import LaunchedSample
from model_server.sampling.sampler import Sampler
from model_server.staging import PinnedStaging


class LaunchedStep:
    """A step in flight, or one that has ended: `finish` says what it gave, as often as asked."""

    def __init__(
        self, finish: Callable[[], StepOutput], is_ready: Callable[[], bool] = lambda: True
    ) -> None:
        self._finish = finish
        self._is_ready = is_ready
        self._output: StepOutput | None = None
        self._error: Exception | None = None

    @property
    def is_ready(self) -> bool:
        """Whether `finish` does not wait for the device."""
        return self._output is not None or self._error is not None or self._is_ready()

    def finish(self) -> StepOutput:
        """Wait for the step. Raises what went wrong in it."""
        if self._output is None and self._error is None:
            try:
                self._output = self._finish()
            except Exception as error:
                self._error = error
                raise
        if self._output is None:
            assert self._error is not None
            raise self._error
        return self._output


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedForward:
    """A forward and its sampling. `sample` None: no chunk samples."""

    chunks: Sequence[PlannedChunk]
    sample: LaunchedSample | None
    forward_ns: int
    launched_ns: int

    @property
    def tokens(self) -> Tensor | None:
        """What the chunks that sample draw, on the device; None: the next step has to wait."""
        return None if self.sample is None else self.sample.tokens

    @property
    def is_ready(self) -> bool:
        """Whether the results have come."""
        return self.sample is None or self.sample.is_ready

    def computed(self) -> Computed:
        """Wait for the results; once."""
        if self.sample is None:
            return Computed(forward_ns=self.forward_ns)
        rows = self.sample.collect()
        sampling = [chunk for chunk in self.chunks if chunk.samples]
        errors = {sampling[row].sequence.request_id: reason for row, reason in rows.errors.items()}
        computed = Computed(rows=rows, errors=errors)
        return Computed(
            drawn=tuple(choose_tokens(sampling, computed)),
            rows=rows,
            errors=errors,
            forward_ns=self.forward_ns,
            sample_ns=time.perf_counter_ns() - self.launched_ns,
        )


def can_launch(chunks: Sequence[PlannedChunk]) -> bool:
    """Whether a step of these chunks may be left unfinished: no constraints, no prompt scores."""
    return not any(
        chunk.sequence.is_constrained
        or chunk.sequence.logprobs.prompt
        or chunk.num_logits != chunk.samples
        for chunk in chunks
    )


class Launcher:
    """Launches steps of one rank that is alone."""

    def __init__(self, model: PagedModel, sampler: Sampler, world: World) -> None:
        self._model = model
        self._sampler = sampler
        self._world = world
        self._staging = PinnedStaging(model.device)

    def launch(
        self, inputs: StepInputs, chunks: Sequence[PlannedChunk], before: LaunchedForward | None
    ) -> LaunchedForward:
        """Launch a step; chunks that await a token take it from the step before.

        Raises OutOfMemory.
        """
        started_ns = time.perf_counter_ns()
        sampling = [chunk.sequence.request_id for chunk in chunks if chunk.samples]
        with translated_errors(self._world, inputs):
            if before is not None:
                self._hand_over(inputs, chunks, before)
            logits = self._model.forward(inputs)
            forward_ns = time.perf_counter_ns() - started_ns
            sample = self._sampler.launch(sampling, logits) if sampling else None
        return LaunchedForward(chunks, sample, forward_ns, time.perf_counter_ns())

    @torch.inference_mode()
    def _hand_over(
        self, inputs: StepInputs, chunks: Sequence[PlannedChunk], before: LaunchedForward
    ) -> None:
        """Write the tokens that the step before draws to the rows that await them."""
        tokens = before.tokens
        drawn = [chunk.sequence.request_id for chunk in before.chunks if chunk.samples]
        places = {request_id: place for place, request_id in enumerate(drawn)}
        ends = np.cumsum([chunk.chunk_len for chunk in chunks])
        awaiting = [index for index, chunk in enumerate(chunks) if chunk.awaits]
        if tokens is None or not awaiting:
            return
        sources = [places[chunks[index].sequence.request_id] for index in awaiting]
        rows, taken = self._staging.to_device_all(
            (ends[awaiting] - 1, np.array(sources, dtype=np.int64))
        )
        # A row that fails draws any number.
        taken_tokens = tokens.index_select(0, taken).clamp_(0, self._model.vocab_size - 1)
        inputs.token_ids.index_copy_(0, rows, taken_tokens)
