"""What a request had the shards do."""

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Work:
    """Beside the tokens that were generated: how, and for how long.

    Of them `num_forced` had no alternative under their constraint. `num_wasted` tokens were
    computed once more, after a preemption or behind a forced run that was cut, or were drafts that
    were not accepted. `shard_s` are
    seconds of steps, each by its tokens' share of the step; `block_s` KV blocks times the seconds
    of the steps in which they were held.
    """

    num_forced: int = 0
    num_wasted: int = 0
    shard_s: float = 0.0
    block_s: float = 0.0

    def fields(self) -> dict[str, float]:
        """As replies have it in `usage.work_details`."""
        return {
            "forced_tokens": self.num_forced,
            "wasted_tokens": self.num_wasted,
            "shard_seconds": round(self.shard_s, 6),
            "kv_block_seconds": round(self.block_s, 6),
        }

    def plus(self, other: Self) -> "Work":
        """Of both together."""
        return Work(
            self.num_forced + other.num_forced,
            self.num_wasted + other.num_wasted,
            self.shard_s + other.shard_s,
            self.block_s + other.block_s,
        )


NO_WORK = Work()
