"""What the requests of one API key took, counted when they end."""

from dataclasses import dataclass

from router.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class KeyUse:
    """Sums over all sequences that have ended, good or bad.

    Tokens were cached, generated, forced (generated without an alternative under their constraint)
    or wasted: computed once more, after a preemption or behind a forced run that was cut.
    `shard_s` are seconds of steps, each by its tokens' share of the step; `block_s` KV blocks times
    the seconds of the steps in which they were held.
    """

    num_sequences: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_forced_tokens: int = 0
    num_wasted_tokens: int = 0
    shard_s: float = 0.0
    block_s: float = 0.0

    def plus(self, sequence: Sequence) -> "KeyUse":
        """With one that has ended."""
        num_generated = len(sequence.output_ids) - len(sequence.request.output_ids)
        known_len = sequence.prompt_len + len(sequence.request.output_ids)
        # The last token is sampled, and never computed.
        num_useful = known_len - sequence.cached_len + max(0, num_generated - 1)
        return KeyUse(
            self.num_sequences + 1,
            self.num_prompt_tokens + sequence.prompt_len,
            self.num_cached_tokens + sequence.cached_len,
            self.num_generated_tokens + num_generated,
            self.num_forced_tokens + sequence.num_forced,
            self.num_wasted_tokens + max(0, sequence.num_computed - num_useful),
            self.shard_s + sequence.shard_s,
            self.block_s + sequence.block_s,
        )
