"""From which places and counts a text can be completed within how many more tokens, and by which.

    within(made_len, max_len) = the best of  accepting now  and of  the place behind each token
                                             within(made_len + 1, max_len - 1)

`made_len` matters only if the expression counts tokens, and no longer beyond the last bound. There
the slacks for growing `max_len` converge to those for any number of tokens: their layers.

Tokens are followed from some places only, those on the way to the first character of each label.
From others, which are inside of a character, single bytes are: so a token that ends there may be
said to need more tokens than it does, by three at most.
"""

import threading
from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from constraints.errors import TooComplex
from constraints.where.counter_grid import ALWAYS, NEVER, CounterGrid, Slacks, Ways, best_through
from constraints.where.machine import Counter
from constraints.where.token_transitions import ByteTable, TransitionCache

# The most bytes of layers that are stored whole.
_MAX_BYTES = 128_000_000
# The most bytes of slacks that are cached for pairs of lengths.
_MAX_KEPT_BYTES = 64_000_000
# The most ways times cells to compute.
_MAX_WORK = 150_000_000


class Distances:
    """Slacks by tokens made and tokens left; shared by threads.

    The slacks by tokens left, once no bound on tokens is ahead, are computed at once. Where a
    counter is weighed, they are stored whole. Otherwise slacks are ALWAYS or NEVER, and it is
    enough to store how many tokens each place and cell needs.
    """

    def __init__(
        self,
        counter_grid: CounterGrid,
        accepted: tuple[Slacks, ...],
        tokens: Counter | None,
        ways: Ways,
    ) -> None:
        """accepted: slacks of accepting now, [num_places, num_cells], for each segment of tokens.

        Raises TooComplex where there are too many ways.
        """
        self._counter_grid = counter_grid
        # The bound on tokens, where a single upper bound is all that the expression asks of them.
        self._limit: int | None = None
        if tokens is not None and len(accepted) == 2 and (accepted[1] == NEVER).all():
            self._limit = tokens.cap - 1
            accepted = accepted[:1]
            tokens = None
        self._accepted = accepted
        self._cap = tokens.cap if tokens else 0
        self._segments = tokens.segments().tolist() if tokens else [0]
        self._ways = ways
        self._check_work()
        self._lock = threading.RLock()
        self._kept: OrderedDict[tuple[int, int], tuple[Slacks, int]] = OrderedDict()
        self._kept_bytes = 0
        last = accepted[-1]
        self._is_weighed = counter_grid.slack is not None
        self._whole = [last]
        self._needed = np.where(last > NEVER, 0, np.iinfo(np.int32).max).astype(np.int32)
        self._num_layers = 1
        while (following := self._before(last, accepted[-1])) is not last:
            if self._is_weighed:
                self._whole.append(following)
                if len(self._whole) * last.nbytes > _MAX_BYTES:
                    raise TooComplex("completions of too many tokens to look at")
            else:
                self._needed[(following > NEVER) & (last == NEVER)] = self._num_layers
                self._whole = [following]
            last = following
            self._num_layers += 1

    def _check_work(self) -> None:
        """Estimate the work from the number of tokens that the highest bounds need."""
        counter_grid = self._counter_grid
        num_tokens = self._cap + 8
        bounds = list(zip(counter_grid.cells, self._ways.gains.T, strict=True))
        if counter_grid.slack is not None and counter_grid.weight < 0:
            bounds.append((counter_grid.slack, -self._ways.costs))
        for place, gained in bounds:
            num_tokens += counter_grid.counters[place].cap // max(int(gained.max(initial=0)), 1)
        first = self._accepted[0]
        work = num_tokens * len(self._ways.sources) * first.shape[1]
        is_whole = self._cap > 0 or counter_grid.slack is not None
        num_bytes = first.nbytes * (num_tokens if is_whole else 3)
        if work > _MAX_WORK or num_bytes > _MAX_BYTES:
            raise TooComplex("completions of too many tokens to look at")

    def at_hand(self, made_len: int, max_len: int | None) -> Slacks | None:
        """`within` if it is computed already, else None; does not wait for other threads."""
        if self._limit is not None or made_len < self._cap:
            return None
        if max_len is None or max_len >= self._num_layers - 1:
            return self._whole[-1]
        return self._whole[max_len] if self._is_weighed else None

    def within(self, made_len: int, max_len: int | None) -> Slacks:
        """Slacks of places from which at most `max_len` more tokens complete the text.

        None: any number of tokens.
        """
        if self._limit is not None:
            left = self._limit - made_len
            if left < 0:
                return np.full_like(self._accepted[0], NEVER)
            max_len = left if max_len is None else min(max_len, left)
        with self._lock:
            ahead = max(self._cap - made_len, 0)
            # Beyond the last bound and the last layer more tokens change nothing.
            most = ahead + self._num_layers
            return self._ahead_within(made_len, most if max_len is None else min(max_len, most))

    def _ahead_within(self, made_len: int, max_len: int) -> Slacks:
        """Compute the diagonal from known slacks down to the lengths asked for."""
        depth = 0
        while (found := self._known(made_len + depth, max_len - depth)) is None:
            depth += 1
        for back in range(depth - 1, -1, -1):
            at = made_len + back, max_len - back
            after = found
            found = self._before(found, self._accepted[self._segments[at[0]]])
            self._keep(at, found, 0 if found is after else found.nbytes)
        return found

    def _known(self, made_len: int, max_len: int) -> Slacks | None:
        if made_len >= self._cap:
            if self._is_weighed or max_len >= self._num_layers - 1:
                return self._whole[min(max_len, len(self._whole) - 1)]
            return np.where(self._needed <= max_len, ALWAYS, NEVER).astype(np.int32)
        if max_len == 0:
            return self._accepted[self._segments[made_len]]
        kept = self._kept.get((made_len, max_len))
        if kept is None:
            return None
        self._kept.move_to_end((made_len, max_len))
        return kept[0]

    def _keep(self, at: tuple[int, int], slacks: Slacks, num_bytes: int) -> None:
        self._kept[at] = slacks, num_bytes
        self._kept_bytes += num_bytes
        while self._kept_bytes > _MAX_KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1][1]

    def _before(self, after: Slacks, accepted: Slacks) -> Slacks:
        """Slacks one token earlier; returns `after` itself if they are equal."""
        slacks = accepted.copy()
        sources, best = best_through(self._counter_grid, self._ways, after[None], 0)
        slacks[sources] = np.maximum(slacks[sources], best)
        return after if (slacks == after).all() else slacks


# The most cells times ways. Beyond it completions are searched.
_MAX_TOKEN_STEPS = 40_000_000


def ways_of_tokens(
    counter_grid: CounterGrid,
    table: ByteTable,
    cache: TransitionCache,
    starts: npt.NDArray[np.int64],
    is_followed: npt.NDArray[np.bool_],
    is_alive: npt.NDArray[np.bool_],
) -> Ways:
    """The ways between all live places that tokens reach from `starts`.

    is_followed: [num_places] from which tokens are followed, from others single bytes
    Raises TooComplex.
    """
    seen = ~is_followed
    seen[starts] = True
    wave = starts.tolist()
    inside = table.utf8.num_places
    others = np.flatnonzero((is_alive & ~is_followed).reshape(-1, inside).any(axis=0))
    found = [table.steps_inside(others)] if len(others) else []
    num_ways = 0
    while wave:
        reached = []
        for place, transitions in cache.transitions_of(wave):
            kept = is_alive[transitions.targets]
            targets = transitions.targets[kept]
            found.append((np.full_like(targets, place), targets, transitions.gains[kept]))
            reached.append(targets)
            num_ways += len(targets)
            if num_ways > _MAX_TOKEN_STEPS // 8:
                raise TooComplex("too many ways of tokens to look at")
        fresh = np.unique(np.concatenate(reached))
        wave = fresh[~seen[fresh]].tolist()
        seen[wave] = True
    ways = Ways.of(counter_grid, *map(np.concatenate, zip(*found, strict=True)))
    if len(ways.sources) * counter_grid.num_cells > _MAX_TOKEN_STEPS:
        raise TooComplex("too many tokens and counts to look at")
    return ways
