"""Rows of tokens through a model as it is served."""

from collections.abc import Sequence

from torch import Tensor

from model_server.executor.executor import PagedModel
from model_server.step import SequenceStep, StateStep, StepInputs


class Rows:
    """Rows of one length, side by side in a model's pool, which nobody else uses meanwhile."""

    def __init__(self, model: PagedModel, num_rows: int, row_len: int) -> None:
        self._model = model
        self._num_blocks = -(-row_len // model.block_size)
        self._num_steps = 0
        self._cached_len = 0
        model.allocate(num_rows * self._num_blocks, 2 * num_rows if model.state_bytes else 0)

    def step(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        """Logits behind the next tokens of each row, as many of each: [all of them, vocab_size]."""
        steps = [
            SequenceStep(
                ids,
                self._cached_len,
                range(row * self._num_blocks, (row + 1) * self._num_blocks),
                len(ids),
                self._state(row),
            )
            for row, ids in enumerate(tokens)
        ]
        self._num_steps += 1
        self._cached_len += len(tokens[0])
        inputs = StepInputs.build(
            steps,
            block_size=self._model.block_size,
            scratch_block_id=self._model.scratch_block_id,
            device=self._model.device,
            min_tokens=self._model.min_step_tokens,
        )
        return self._model.forward(inputs)

    def _state(self, row: int) -> StateStep | None:
        """A row has two slots: one is read while the other is written."""
        if not self._model.state_bytes:
            return None
        read = 2 * row + self._num_steps % 2
        written = 2 * row + (self._num_steps + 1) % 2
        return StateStep(read if self._num_steps else None, written)
