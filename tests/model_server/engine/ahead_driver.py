"""A router that sends each step before the one before it is answered, as the real one does."""

from itertools import count

from model_server.engine.first_rank import StepInFlight
from proto.contract import NewSequence, RunningUpdate
from tests.model_server.engine.driver import Driver, Request


class AheadDriver(Driver):
    """Holds one step in flight, and plans the next one as if nothing in it ended that need not."""

    num_ahead = 0  # steps that were launched behind one in flight
    num_redrawn = 0  # tokens that were not those that the step behind was launched with
    _in_flight: StepInFlight | None = None
    _chunk_lens: dict[int, int] = {}  # noqa: RUF012 -- replaced, never changed

    def drop(self, request_id: int) -> None:
        """Take a request off with the next step; what it still answers is ignored."""
        self.requests[request_id].is_dropped = True

    def run(self, step_tokens: int = 1 << 30, max_steps: int = 10_000) -> None:
        """Step until every request has ended or is dropped."""
        for _ in count():
            if not self._begin(step_tokens):
                if self._in_flight is None:
                    return
                self._end(self._in_flight, self._chunk_lens)
                self._in_flight = None
                self._chunk_lens = {}

    def _begin(self, step_tokens: int) -> bool:
        """Begin a step, and end the one before; False: there is nothing to compute yet."""
        dropped = tuple(r.request_id for r in self.requests.values() if r.is_dropped and r.is_held)
        chunk_lens: dict[int, int] = {}
        updates: list[RunningUpdate] = []
        new: list[NewSequence] = []
        for request in self._live():
            chunk_len = min(self._num_left(request), step_tokens)
            step_tokens -= chunk_len
            if not chunk_len:
                if request.is_held:
                    updates.append(RunningUpdate(request.request_id, (), 0))
                continue
            chunk_lens[request.request_id] = chunk_len
            if request.is_held:
                blocks = self._blocks_until(request, self._start(request) + chunk_len)
                updates.append(RunningUpdate(request.request_id, blocks, chunk_len))
            else:
                new.append(self._new(request, chunk_len))
        if not chunk_lens:
            return False
        step = self.runner.begin(new, updates, dropped)
        self.runner.launch(step)
        self.num_ahead += step.is_behind
        for request_id in dropped:
            self._forget(self.requests[request_id])
        if self._in_flight is not None:
            self._end(self._in_flight, self._chunk_lens)
        self._in_flight = step
        self._chunk_lens = chunk_lens
        return True

    def _live(self) -> list[Request]:
        live = [r for r in self.requests.values() if not r.finish_reason and not r.is_dropped]
        return sorted(live, key=lambda request: (not request.is_held, request.request_id))

    def _start(self, request: Request) -> int:
        return request.computed_len + self._chunk_lens.get(request.request_id, 0)

    def _num_left(self, request: Request) -> int:
        """Tokens that the next step may compute, one that is being drawn included."""
        left = len(request.token_ids) - self._start(request)
        if left or request.request_id not in self._chunk_lens:
            return left
        return int(len(request.output) + 1 < request.stop.max_new_tokens)

    def _blocks_until(self, request: Request, end: int) -> tuple[int, ...]:
        new = tuple(
            self.free.pop() for _ in range(-(-end // self.block_size) - len(request.block_ids))
        )
        request.block_ids += new
        return new

    def _end(self, step: StepInFlight, chunk_lens: dict[int, int]) -> None:
        output = self.runner.finish(step)
        self.num_redrawn += len(step.redrawn)
        for request_id, chunk_len in chunk_lens.items():
            self.requests[request_id].computed_len += chunk_len
        for generation in output.generations:
            request = self.requests[generation.request_id]
            if request.is_dropped:
                continue
            assert request.finish_reason is None
            request.generations.append(generation)
            request.token_ids += [token.token_id for token in generation.tokens]
            request.computed_len -= generation.is_late
            request.finish_reason = generation.finish_reason
            if generation.finish_reason is not None:
                self._forget(request)

    def _forget(self, request: Request) -> None:
        self.free += request.block_ids
        request.block_ids = []
        request.is_held = False
