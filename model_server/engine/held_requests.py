"""The requests that a shard holds: their batches, sampler rows and guides come and go together."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace

from model_server.engine.computation import Computed
from model_server.engine.distributed import Drawn
from model_server.engine.sequences import Batches, PlannedChunk, SequenceState, take_scores
from model_server.masking.mask_scheduler import MaskScheduler
from model_server.sampling.sampler import Sampler
from proto.contract import FinishReason, Generation, NewSequence

_log = logging.getLogger(__name__)


class HeldRequests:
    """Owner of `batches`; the runner is its only caller. Rank 0 has a sampler, and maybe guides."""

    def __init__(
        self,
        sampler: Sampler | None,
        guides: MaskScheduler | None,
        eos_token_ids: Collection[int],
    ) -> None:
        self.batches = Batches()
        self._sampler = sampler
        self._guides = guides
        self._eos_token_ids = eos_token_ids

    def enter(self, new: Sequence[NewSequence]) -> None:
        """Give each new sequence its sampler row and its guide: all of them, or none."""
        if self._sampler is None:
            return
        entered: list[int] = []
        try:
            for one in new:
                self._sampler.add(
                    one.request_id,
                    one.sampling,
                    # With a constraint, its guide ensures the minimum length: it may have to end.
                    one.stop if one.constraint is None else replace(one.stop, min_new_tokens=0),
                    one.logprobs,
                    one.token_ids,
                    one.prompt_len,
                )
                entered.append(one.request_id)
                if self._guides is not None:
                    self._guides.open(one)
        except BaseException:
            self._release(entered)
            raise

    def apply(
        self, batch_id: int, chunks: Sequence[PlannedChunk], computed: Computed
    ) -> tuple[Generation, ...]:
        """Apply what was computed to the sequences; returns generations on rank 0 alone."""
        for request_id, reason in computed.errors.items():
            if request_id in computed.refused:
                continue
            fields = {"shard_request_id": request_id}
            _log.error("shard_request_id=%d failed alone: %s", request_id, reason, extra=fields)
        generations: list[Generation] = []
        ended: list[int] = []
        drawn = iter(computed.drawn)
        row = 0
        for chunk in chunks:
            sequence, samples = chunk.sequence, chunk.samples
            scores = take_scores(chunk, computed.scores) if sequence.logprobs.prompt else ()
            sequence.computed_len += chunk.chunk_len
            finish_reason = None
            if chunk.num_logits:
                answer = next(drawn)
                if answer.is_late:
                    sequence.retry_sample(scores)
                else:
                    finish_reason = self._finish_reason(sequence, samples, answer)
                    if chunk.drafts and answer.token_ids:
                        sequence.take_drafts(len(chunk.drafts), len(answer.token_ids) - 1)
                if finish_reason is not None:
                    sequence.has_ended = True
                    ended.append(sequence.request_id)
            if self._sampler is not None and (samples or scores or finish_reason is not None):
                has_row = samples and sequence.request_id not in computed.late
                generation = computed.generation(
                    sequence, row if has_row else None, finish_reason, scores
                )
                if chunk.drafts and generation.tokens:
                    num_accepted = len(generation.tokens) - 1
                    generation = generation._replace(
                        num_drafts=len(chunk.drafts), num_accepted=num_accepted
                    )
                generations.append(generation)
                row += has_row
        self.remove(batch_id, ended)
        return tuple(generations)

    def _finish_reason(
        self, sequence: SequenceState, samples: bool, drawn: Drawn
    ) -> FinishReason | None:
        """Append the tokens, if there are any; returns the finish reason, None if it goes on."""
        if not drawn.token_ids:
            return FinishReason.ERROR
        if not samples:
            return None
        sequence.token_ids += drawn.token_ids
        sequence.is_decoding = True
        return sequence.finish_reason(self._eos_token_ids, is_over=drawn.is_over)

    def drop(self, batch_ids: Sequence[int], dropped: frozenset[int]) -> None:
        """Remove these requests from whichever of the batches holds them."""
        for batch_id in batch_ids:
            held = self.batches.request_ids(batch_id)
            self.remove(batch_id, [each for each in held if each in dropped])

    def remove(self, batch_id: int, request_ids: Sequence[int]) -> None:
        """Remove requests from a batch."""
        if request_ids:
            self._release(request_ids)
            self.batches.remove(batch_id, request_ids)

    def _release(self, request_ids: Sequence[int]) -> None:
        """Remove the sampler rows and the guides of these."""
        if self._sampler is not None:
            for request_id in request_ids:
                self._sampler.remove(request_id)
        if self._guides is not None:
            for request_id in request_ids:
                self._guides.close(request_id)

    def fail(self, batch_id: int, sequence: SequenceState, reason: str) -> tuple[Generation, ...]:
        """Remove one request; returns its answer, on rank 0 alone."""
        request_id = sequence.request_id
        sequence.has_ended = True
        _log.error(
            "shard_request_id=%d failed alone: %s",
            *(request_id, reason),
            extra={"shard_request_id": request_id},
        )
        self.remove(batch_id, (request_id,))
        if self._sampler is None:
            return ()
        computed = Computed(errors={request_id: reason})
        return (computed.generation(sequence, None, FinishReason.ERROR, ()),)

    def clear(self, batch_id: int | None) -> None:
        """Remove one batch, or all. Raises UnknownBatch."""
        if batch_id is not None:
            self.batches.of(batch_id)
        for each_id in self.batches.batch_ids() if batch_id is None else (batch_id,):
            self.remove(each_id, self.batches.request_ids(each_id))
