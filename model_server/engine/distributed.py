"""The ranks of one model, and the broadcast of what rank 0 sampled.

A World is handed down, never looked up. It knows no model, request or RPC; the collectives inside
a forward pass are the model's own and run over the same process group.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import NamedTuple

import torch
import torch.distributed as dist

from model_server.engine.meeting import Meeting
from model_server.errors import RanksDiverged, RanksLost

# Loading a large checkpoint takes some ranks minutes longer than others; a step does not.
LOAD_TIMEOUT_S = 1800.0
STEP_TIMEOUT_S = 120.0
ABANDON_TIMEOUT_S = 2.0

# On the wire between ranks only: a row without a token, one whose token comes later, and a step
# that rank 0 gave up.
_FAILED_ROW = -1
_LATE_ROW = -2
_ABANDONED = -1


class Drawn(NamedTuple):
    """A row's sampled tokens. A tuple, because every step makes dozens.

    token_ids: none: the row failed, or is late. All but the first were not drawn: they are forced
    is_over:   nothing may follow, whatever the tokens are
    is_late:   nothing could be drawn in time: the row's last token is to be computed again
    """

    token_ids: tuple[int, ...]
    is_over: bool = False
    is_late: bool = False


FAILED = Drawn(())
LATE = Drawn((), is_late=True)


@dataclass(frozen=True, slots=True, eq=False)
class World:
    """This process among the ranks. `group` None: there is one rank, and nothing communicates.

    `group` carries messages between ranks on the host, outside of any forward pass. `addresses`:
    where the router reaches each of them.
    """

    rank: int = 0
    world_size: int = 1
    group: dist.ProcessGroup | None = None
    addresses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank {self.rank} is not in 0..{self.world_size - 1}")
        if (self.group is None) != (self.world_size == 1):
            raise ValueError(f"a world of {self.world_size} and its group contradict each other")

    @classmethod
    def connect(
        cls,
        *,
        rank: int,
        world_size: int,
        master_addr: str,
        master_port: int,
        device: torch.device,
        address: str = "",
        setup: Mapping[str, str] | None = None,
        on_lost: Callable[[RanksLost], None] | None = None,
        load_timeout_s: float = LOAD_TIMEOUT_S,
        step_timeout_s: float = STEP_TIMEOUT_S,
    ) -> "World":
        """Join the other ranks at `master_addr`:`master_port`; rank 0 listens at no other address.

        Tensors of a forward travel by NCCL on CUDA; by gloo on a CPU, as does what the ranks say on
        the host. `address`: where the router reaches this rank. `setup`: what all must have alike.
        `on_lost` is called, from a thread, once others are gone; without, nobody watches them.

        Raises RanksDiverged when a rank does not come within `load_timeout_s` or has another setup,
        or the address cannot be had.
        """
        if world_size == 1:
            return cls(addresses=(address,))
        backend = "nccl" if device.type == "cuda" else "gloo"
        meeting = Meeting(rank, world_size, master_addr, master_port, setup or {})
        try:
            load_timeout = timedelta(seconds=load_timeout_s)
            store = meeting.join(load_timeout)
            if on_lost is not None:
                meeting.watch(on_lost)
            store.set(f"address/{rank}", address)
            addresses = [store.get(f"address/{each}").decode() for each in range(world_size)]
            dist.init_process_group(
                backend,
                store=store,
                rank=rank,
                world_size=world_size,
                timeout=load_timeout,
                device_id=device if device.type == "cuda" else None,
            )
            group = dist.new_group(backend="gloo", timeout=timedelta(seconds=step_timeout_s))
        except (RuntimeError, ValueError, OSError) as error:
            raise RanksDiverged(
                f"rank {rank} of {world_size} could not meet the others at tcp://{master_addr}:{master_port}:"
                f" {error}"
            ) from error
        return cls(rank, world_size, group, tuple(addresses))

    @property
    def is_first(self) -> bool:
        """Whether this rank samples and returns generations."""
        return self.rank == 0

    def broadcast_drawn(self, drawn: Sequence[Drawn] | None, num_rows: int) -> tuple[Drawn, ...]:
        """The tokens that rank 0 sampled for each of `num_rows` rows.

        Rank 0 hands it in, the others None. Rank 0 calls `abandon` instead when it has nothing,
        which raises RanksDiverged here on the other ranks.

            first:  | num_more | a token for each row ............... |
            second: | row, is_over, num_forced, forced ... | row, ... |   only when num_more > 0
        """
        if self.group is None:
            return tuple(drawn or ())
        first = torch.empty(num_rows + 1, dtype=torch.int64)
        more: list[int] = []
        if drawn is not None:
            more = list(chain.from_iterable(_more(row, one) for row, one in enumerate(drawn)))
            tokens = [_first(one) for one in drawn]
            first = torch.tensor([len(more), *tokens], dtype=torch.int64)
        self._broadcast(first)
        num_more, *tokens = first.tolist()
        if num_more == _ABANDONED:
            raise RanksLost(f"rank 0 abandoned the step that rank {self.rank} is in")
        if num_more == 0:
            return tuple(map(_drawn, tokens))
        second = torch.tensor(more, dtype=torch.int64) if more else first.new_empty(num_more)
        self._broadcast(second)
        return _joined(tokens, second.tolist())

    def abandon(self, num_rows: int) -> None:
        """Rank 0: release the others from `broadcast_drawn` of a step that failed here.

        Those that are not there within ABANDON_TIMEOUT_S hang in the forward pass that this rank
        left; only the end of its process releases them. Raises RanksDiverged.
        """
        if self.group is not None:
            rows = torch.full((num_rows + 1,), _ABANDONED, dtype=torch.int64)
            self._broadcast_soon(rows)

    def smallest(self, number: int) -> int:
        """The smallest of the ranks' numbers."""
        if self.group is None:
            return number
        numbers = torch.tensor([number], dtype=torch.int64)
        try:
            dist.all_reduce(numbers, dist.ReduceOp.MIN, group=self.group)
        except RuntimeError as error:
            raise RanksLost(f"rank {self.rank} lost the others: {error}") from error
        return int(numbers.item())

    def _broadcast_soon(self, rows: torch.Tensor) -> None:
        # Polled: gloo's own wait uses the group's time limit, whatever its argument is.
        try:
            work = dist.broadcast(rows, src=0, group=self.group, async_op=True)
            deadline_s = time.monotonic() + ABANDON_TIMEOUT_S
            while not work.is_completed():
                if time.monotonic() > deadline_s:
                    raise RanksDiverged(
                        f"rank {self.rank} abandoned a step and the others did not come to hear it"
                        f" within {ABANDON_TIMEOUT_S} s"
                    )
                time.sleep(0.01)
            work.wait()
        except RuntimeError as error:
            raise RanksLost(f"rank {self.rank} lost the others: {error}") from error

    def _broadcast(self, rows: torch.Tensor) -> None:
        try:
            dist.broadcast(rows, src=0, group=self.group)
        except RuntimeError as error:
            raise RanksLost(f"rank {self.rank} lost the others: {error}") from error


def _first(drawn: Drawn) -> int:
    """A row's entry among the first tokens."""
    if drawn.token_ids:
        return drawn.token_ids[0]
    return _LATE_ROW if drawn.is_late else _FAILED_ROW


def _drawn(first: int) -> Drawn:
    """A row of one token at most."""
    if first == _LATE_ROW:
        return LATE
    return FAILED if first == _FAILED_ROW else Drawn((first,))


def _more(row: int, drawn: Drawn) -> tuple[int, ...]:
    """A row's tokens after the first, and whether it is over."""
    if not drawn.is_over and len(drawn.token_ids) <= 1:
        return ()
    forced = drawn.token_ids[1:]
    return (row, drawn.is_over, len(forced), *forced)


def _joined(tokens: Sequence[int], more: Sequence[int]) -> tuple[Drawn, ...]:
    drawn = [_drawn(token) for token in tokens]
    start = 0
    while start < len(more):
        row, is_over, num_forced = more[start : start + 3]
        forced = more[start + 3 : start + 3 + num_forced]
        drawn[row] = Drawn((tokens[row], *forced), bool(is_over))
        start += 3 + num_forced
    return tuple(drawn)
