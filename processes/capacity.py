"""What a model takes of the memory and how much it holds at once, in one sentence."""

from dataclasses import dataclass

_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k"))


@dataclass(frozen=True, slots=True)
class Pool:
    """The KV pool of one rank, with the slots of a model with states. All ranks' are as large."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    num_states: int = 0
    state_bytes: int = 0

    def num_requests(self, total_len: int) -> int:
        """How many requests of that length it holds at once."""
        num_requests = self.num_blocks // -(-total_len // self.block_size)
        # Each works in two.
        return min(num_requests, self.num_states // 2) if self.state_bytes else num_requests

    def too_long(self, max_input_len: int | None, max_total_len: int | None) -> str | None:
        """Why requests may not be so long; None: they may. A prompt has an answer of a token."""
        held_len = self.num_blocks * self.block_size
        for flag, asked_len, answer_len in (
            ("--max-total-tokens", max_total_len, 0),
            ("--max-input-tokens", max_input_len, 1),
        ):
            if asked_len is not None and asked_len + answer_len > held_len:
                most = held_len - answer_len
                return f"{flag} {asked_len}: must be at most {most}, for {self} is all that fits"
        return None

    def __str__(self) -> str:
        num_bytes = _size(self.num_blocks * self.bytes_per_block)
        pool = f"a KV pool of {num_bytes} ({self.num_blocks} blocks of {self.block_size} tokens)"
        if not self.state_bytes:
            return pool
        return f"{pool}, {self.num_states} states of {_size(self.state_bytes)}"


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of a model that is served, or that would be.

    max_total_len: the longest prompt and answer together
    weights_bytes: of one rank; None: unknown, for they are quantized
    pool:          None: its size is known once the weights are loaded
    """

    num_parameters: int
    dtype: str
    executor: str
    num_shards: int
    max_total_len: int
    weights_bytes: int | None
    pool: Pool | None

    def __str__(self) -> str:
        weights = "" if self.weights_bytes is None else f"{_size(self.weights_bytes)} of "
        each = "" if self.num_shards == 1 else f"on each of {self.num_shards} shards "
        pool = "a KV pool as large as then fits" if self.pool is None else str(self.pool)
        parts = [
            f"{_count(self.num_parameters)} parameters in {self.dtype} by {self.executor}",
            f"{each}{weights}weights and {pool}",
        ]
        num_requests = 0 if self.pool is None else self.pool.num_requests(self.max_total_len)
        at_once = f", {num_requests} at once" if num_requests else ""
        parts.append(f"requests of up to {self.max_total_len} tokens{at_once}")
        return "; ".join(parts)


def _count(number: int) -> str:
    for unit, name in _UNITS:
        if number >= unit:
            return f"{number / unit:.3g} {name}"
    return str(number)


def _size(num_bytes: int) -> str:
    if num_bytes >= 2**30:
        return f"{num_bytes / 2**30:.2f} GiB"
    if num_bytes >= 2**20:
        return f"{num_bytes / 2**20:.1f} MiB"
    return f"{num_bytes / 2**10:.1f} KiB"
