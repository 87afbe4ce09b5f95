"""What each sequence of a step computes, decided from a call's plain ints and the books."""

from collections.abc import Collection, Sequence

from model_server.engine.drafter import DraftRules
from model_server.engine.sequences import Batches, PlannedChunk, SequenceState
from model_server.engine.step import StepInputs
from model_server.errors import InvalidStep
from model_server.model.paged_model import PagedModel
from proto.contract import NewSequence, RunningUpdate


class StepPlanner:
    """Reads the batches and changes nothing.

    `max_total_len`, of a sequence: None before warm-up. `ended_batch_id`: a batch whose last
    sequence ended in the last step, which a step that was sent before may still name.
    """

    def __init__(self, model: PagedModel, batches: Batches, *, takes_constraints: bool) -> None:
        self._model = model
        self._batches = batches
        self._takes_constraints = takes_constraints
        self.max_total_len: int | None = None
        self.ended_batch_id: int | None = None

    def running(self, batch_ids: Sequence[int], dropped_ids: Sequence[int]) -> list[SequenceState]:
        """The sequences of these batches that stay in them. Raises UnknownBatch."""
        dropped = frozenset(dropped_ids)
        return [
            sequence
            for batch_id in batch_ids
            if batch_id != self.ended_batch_id
            for sequence in self._batches.of(batch_id).values()
            if sequence.request_id not in dropped
        ]

    def chunks(
        self, running: Collection[SequenceState], updates: Sequence[RunningUpdate]
    ) -> list[PlannedChunk]:
        """The chunks of running sequences. Raises InvalidStep."""
        changes = {change.request_id: change for change in updates}
        if len(changes) != len(updates):
            raise InvalidStep("updates name a request twice")
        block_size = self._model.block_size
        rules = DraftRules.of_rows(len(running), self._model.eos_token_ids)
        return [
            PlannedChunk.of(sequence, changes.get(sequence.request_id), block_size, rules)
            for sequence in running
        ]

    def first_chunks(self, new: Sequence[NewSequence]) -> list[PlannedChunk]:
        """The chunks of new sequences. Raises InvalidStep for those that cannot be served."""
        self._require_servable(new)
        block_size = self._model.block_size
        return [
            PlannedChunk.first(SequenceState.of(one), one.chunk_len, (), block_size) for one in new
        ]

    def chunks_after(
        self,
        batch_id: int,
        in_flight: Sequence[PlannedChunk],
        late: Collection[int],
        updates: Sequence[RunningUpdate],
        dropped_ids: Sequence[int],
    ) -> list[PlannedChunk]:
        """The chunks after those in flight, if nothing ends that need not; none: ask again later.

        late: requests in flight that sample nothing, for want of a mask

        A call that breaks the contract is refused when the books are known.
        """
        changes = {change.request_id: change for change in updates}
        if len(changes) != len(updates):
            return []
        last_chunks = {chunk.sequence.request_id: chunk for chunk in in_flight}
        block_size, chunks = self._model.block_size, list[PlannedChunk]()
        try:
            for sequence in self.running((batch_id,), dropped_ids):
                request_id = sequence.request_id
                last, update = last_chunks.get(request_id), changes.get(request_id)
                is_late = request_id in late
                if last is None:
                    chunks.append(PlannedChunk.of(sequence, update, block_size))
                elif is_late or not last.is_last:
                    chunks.append(last.next(update, block_size, is_late=is_late))
        except InvalidStep:
            return []
        return [chunk for chunk in chunks if chunk.chunk_len]

    def inputs(self, chunks: Sequence[PlannedChunk]) -> StepInputs:
        """The tensors of a step. Raises InvalidStep."""
        model = self._model
        return StepInputs.build(
            [chunk.step() for chunk in chunks],
            block_size=model.block_size,
            scratch_block_id=model.scratch_block_id,
            device=model.device,
            min_tokens=model.min_step_tokens,
        )

    def _require_servable(self, new: Sequence[NewSequence]) -> None:
        if self.max_total_len is None:
            raise InvalidStep("there is no KV pool yet: Warmup comes first")
        vocab_size = self._model.vocab_size
        for one in new:
            if one.constraint is not None and not self._takes_constraints:
                raise InvalidStep(f"request {one.request_id}: constraints are not served here")
            total_len = one.prompt_len + one.stop.max_new_tokens
            if total_len > self.max_total_len:
                raise InvalidStep(
                    f"request {one.request_id}: prompt_len {one.prompt_len} + max_new_tokens"
                    f" {one.stop.max_new_tokens} exceeds {self.max_total_len}"
                )
            if not 0 <= min(one.token_ids) <= max(one.token_ids) < vocab_size:
                raise InvalidStep(
                    f"request {one.request_id}: a token id is not in 0..{vocab_size - 1}"
                )
