"""A step that was handed out and not answered yet, and whether an answer can be its answer.

It knows what the books expect of a shard, not how a shard is reached.
"""

from dataclasses import dataclass

from proto.contract import Generation
from router.request.errors import ShardFailed
from router.scheduler.sequence import Row
from router.shards.batch import StepResult


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """What a step was to do, by request."""

    step_id: int
    rows: dict[int, Row]

    def read(self, result: StepResult) -> dict[int, Generation]:
        """The answer's generations by request id.

        Raises ShardFailed when the answer contradicts the books: then shard and router no longer
        agree on what the shard holds, and nothing that it says can be used.
        """
        if result.step_id != self.step_id:
            raise ShardFailed(f"step {self.step_id} was answered as step {result.step_id}")
        generations = {generation.request_id: generation for generation in result.generations}
        if len(generations) != len(result.generations):
            raise ShardFailed(f"step {self.step_id}: two generations for one request")
        strangers = generations.keys() - self.rows.keys()
        if strangers:
            raise ShardFailed(
                f"step {self.step_id}: generations for {sorted(strangers)}, which took no part"
            )
        remaining_ids = set(result.remaining_ids)
        for request_id, row in self.rows.items():
            # A request that ended meanwhile may have run on, or not: its rows count no more.
            if not row.entry.is_live:
                continue
            generation = generations.get(request_id)
            fault = _fault(row, generation, request_id in remaining_ids)
            if fault is not None:
                raise ShardFailed(f"step {self.step_id}, request {request_id}: {fault}")
        return generations


def has_ended(generation: Generation | None) -> bool:
    """True when the shard no longer holds the request."""
    return generation is not None and (
        generation.finish_reason is not None or generation.error is not None
    )


def _fault(row: Row, generation: Generation | None, remains: bool) -> str | None:
    """What is wrong with the answer for a live entry, in words; None: nothing."""
    entry = row.entry
    num_tokens = len(generation.tokens) if generation is not None else 0
    num_left = entry.max_new_tokens - len(entry.output_ids)
    most = (num_left if entry.draws_runs else 1) if row.samples else 0
    if num_tokens > most:
        return f"{num_tokens} tokens came where {most} were to be made at most"
    if has_ended(generation):
        return None
    if not remains:
        return "the shard lost it without saying why"
    if generation is not None and generation.is_late:
        if num_tokens or not (row.samples and entry.draws_runs):
            return "it cannot be late"
    elif row.samples and num_tokens == 0:
        return "a token was to be drawn and none came"
    elif row.samples and len(entry.output_ids) + num_tokens >= entry.last_len:
        return f"it goes on after its last token, number {entry.last_len}"
    if entry.request.logprobs.prompt:
        num_logprobs = len(generation.prompt_logprobs) if generation is not None else 0
        first_scored = entry.request.logprobs.first_scored
        num_expected = min(row.stop_len, entry.prompt_len) - max(row.start_len, first_scored)
        if num_logprobs < num_expected:
            return f"{num_logprobs} prompt log-probabilities came instead of {num_expected}"
    return None
