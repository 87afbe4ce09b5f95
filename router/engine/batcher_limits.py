"""How many requests the batcher takes, and how patient it is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatcherLimits:
    """`max_concurrent_requests` wait and run together; the rest is in seconds.

    An idle router asks its shards every `health_s` how they are, and doubts them when they have
    not answered after `patience_s`; failed shards are tried again every `retry_s`, and requests
    are refused once they have been failed for longer; a step that takes longer than `progress_s`
    counts as stuck, which changes nothing but what /health/progress says; `tick_s` is how late a
    deadline may be noticed while a step takes long.
    """

    max_concurrent_requests: int = 128
    health_s: float = 2.0
    patience_s: float = 2.0
    retry_s: float = 1.0
    progress_s: float = 4.0
    tick_s: float = 0.25
