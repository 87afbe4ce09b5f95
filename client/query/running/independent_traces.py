"""argmax and sample: independent traces."""

from collections.abc import Sequence
from dataclasses import dataclass

from client.query.running.backtracking import decode_trace
from client.query.running.concurrently import gather_or_cancel
from client.query.running.decoding import Asker, Start, TraceEnd

# The most concurrent traces; more than servers run at once.
_MAX_CONCURRENT = 1024


@dataclass(frozen=True, slots=True)
class IndependentTraces:
    """`num_traces` concurrent traces with one request for each hole; the server batches them.

    The requests' temperature decides between sampling and greedy decoding.
    """

    num_traces: int = 1
    tries: int = 10

    async def decode(self, start: Start, asker: Asker) -> Sequence[TraceEnd]:
        """All traces, in the order of their seeds."""
        left = iter(range(self.num_traces))
        made: dict[int, TraceEnd] = {}

        async def decode_remaining() -> None:
            for index in left:
                made[index] = await decode_trace(start, index, asker, self.tries)

        await gather_or_cancel(
            decode_remaining() for _ in range(min(self.num_traces, _MAX_CONCURRENT))
        )
        return [made[index] for index in range(self.num_traces)]
