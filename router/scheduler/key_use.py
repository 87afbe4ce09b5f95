"""What the requests of one API key took, counted when they end."""

from dataclasses import dataclass

from router.request.work import NO_WORK, Work
from router.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class KeyUse:
    """Sums over all sequences that have ended, good or bad."""

    num_sequences: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    work: Work = NO_WORK

    def plus(self, sequence: Sequence) -> "KeyUse":
        """With one that has ended."""
        return KeyUse(
            self.num_sequences + 1,
            self.num_prompt_tokens + sequence.prompt_len,
            self.num_cached_tokens + sequence.cached_len,
            self.num_generated_tokens + sequence.num_generated,
            self.work.plus(sequence.work()),
        )
