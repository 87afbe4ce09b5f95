"""Which requests enter, which are refused, and when those may come again.

    a request -> closed? -> broken too long? -> its key's limits -> a slot for each sequence
                                                                      none left: Retry-After

It knows no clock but the one passed in, and no sequence: a slot is a number and a key.
"""

import heapq
from collections import Counter
from math import exp, floor

from router.request.errors import (
    Draining,
    InvalidRequest,
    Overloaded,
    RateLimited,
    Unhealthy,
)
from router.request.request import NO_KEY, ApiKey

_MINUTE_S = 60.0
_SOON_S = 1.0
# A client's whole range: `openai` ignores what is above 60 s.
MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0
# For each slot. So nobody waits longer than four times the time to drain.
_MAX_RETURNING = 3

MEMORY_S = 20.0
# What the guess says of a sequence, and how many seconds it weighs.
_GUESSED_DURATION_S = 2.0
_GUESS_S = 1.0
# A server that hangs is not infinitely slow, only slower than anybody waits.
_SLOWEST_PER_S = 1e-6


class Allowance:
    """So much per minute, saved up for a minute; it may be overdrawn, and then is paid back."""

    def __init__(self, per_minute: float, now_s: float) -> None:
        self._per_minute = per_minute
        self._left = per_minute
        self._seen_s = now_s

    def spend(self, amount: float, now_s: float) -> None:
        """Spends it, whatever is left."""
        self._refill(now_s)
        self._left -= amount

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until so much is left, or all that there may be."""
        self._refill(now_s)
        missing = min(amount, self._per_minute) - self._left
        return max(0.0, missing / self._per_minute * _MINUTE_S)

    def _refill(self, now_s: float) -> None:
        earned = (now_s - self._seen_s) / _MINUTE_S * self._per_minute
        self._left = min(self._left + max(earned, 0.0), self._per_minute)
        self._seen_s = now_s


class KeyLimits:
    """Owner of what is left of each key's allowances."""

    def __init__(self) -> None:
        # By name and kind; a limit that was changed has a new one.
        self._allowances: dict[tuple[str, str], tuple[float, Allowance]] = {}

    def check(self, key: ApiKey, num_taken: int, num_wanted: int, now_s: float) -> None:
        """Raises RateLimited where a limit does not admit a further request of so many sequences.

        And InvalidRequest for one that it never will.
        """
        most = key.max_concurrent_requests
        if most is not None:
            if num_wanted > most:
                raise InvalidRequest(
                    f"the request needs {num_wanted} sequences at once; its key may have {most}"
                )
            if num_taken + num_wanted > most:
                raise RateLimited(
                    f"{num_taken} requests of this key are waiting or running; at most {most} may",
                    _SOON_S,
                )
        for kind, per_minute in (
            # How many tokens a request takes is known at its end: it may overdraw.
            ("requests", key.requests_per_minute),
            ("tokens", key.tokens_per_minute),
        ):
            self._check_rate(key, kind, per_minute, now_s)

    def check_constraint(self, key: ApiKey, now_s: float) -> None:
        """Raises RateLimited where the key has had its time to compile constraints."""
        self._check_rate(key, "seconds of constraints", key.constraint_seconds_per_minute, now_s)

    def spend(
        self,
        key: ApiKey,
        now_s: float,
        *,
        requests: int = 0,
        tokens: int = 0,
        constraint_s: float = 0,
    ) -> None:
        """So much was admitted, computed or compiled for the key."""
        for kind, per_minute, spent in (
            ("requests", key.requests_per_minute, requests),
            ("tokens", key.tokens_per_minute, tokens),
            ("seconds of constraints", key.constraint_seconds_per_minute, constraint_s),
        ):
            if per_minute is not None and spent:
                self._allowance(key, kind, per_minute, now_s).spend(spent, now_s)

    def _check_rate(self, key: ApiKey, kind: str, per_minute: int | None, now_s: float) -> None:
        if per_minute is None:
            return
        wait_s = self._allowance(key, kind, per_minute, now_s).wait_s(1.0, now_s)
        if wait_s > 0.0:
            raise RateLimited(f"this key has had its {per_minute} {kind} per minute", wait_s)

    def _allowance(self, key: ApiKey, kind: str, per_minute: float, now_s: float) -> Allowance:
        known = self._allowances.get((key.name, kind))
        if known is None or known[0] != per_minute:
            known = per_minute, Allowance(per_minute, now_s)
            self._allowances[key.name, kind] = known
        return known[1]


class DrainRate:
    """Sequences that end well per second, measured while the server is busy.

    Only time in which at least half of the slots are taken counts, and only what ends in it: a
    server with little to do ends few sequences because few come. So what one rush has taught is
    still known when the next one begins. Ends are good ends: those that failed or were cancelled
    do not show how fast the server is. Both sums fade with that time,

        ends' = ends * exp(-t / memory_s) + new ends      seconds' likewise, with those watched

    and their quotient is the rate. They start with a guess on the high side, every slot once in two
    seconds: a client that returns too early asks once more, one that returns too late leaves a slot
    empty.
    """

    def __init__(self, num_slots: int, memory_s: float = MEMORY_S) -> None:
        self.num_slots = num_slots
        self._memory_s = memory_s
        self._num_ended = num_slots * _GUESS_S / _GUESSED_DURATION_S
        self._watched_s = _GUESS_S
        self._seen_s: float | None = None
        self._is_busy = False

    def observe(self, now_s: float, num_taken: int, num_ended: int = 0) -> None:
        """Now `num_ended` sequences ended, which leaves `num_taken`; nothing changed before."""
        self._num_ended, self._watched_s = self._aged(now_s)
        if self._is_busy:
            self._num_ended += num_ended
        self._is_busy = 2 * num_taken >= self.num_slots
        self._seen_s = now_s

    def per_second(self, now_s: float) -> float:
        """The rate, above 0."""
        num_ended, watched_s = self._aged(now_s)
        return max(num_ended / watched_s, _SLOWEST_PER_S)

    def _aged(self, now_s: float) -> tuple[float, float]:
        """Both sums as of now."""
        if not self._is_busy or self._seen_s is None:
            return self._num_ended, self._watched_s
        kept = exp(-max(0.0, now_s - self._seen_s) / self._memory_s)
        return self._num_ended * kept, self._watched_s * kept + self._memory_s * (1.0 - kept)


class Returning:
    """Refused clients who were asked to come back, and whose time has not come yet; at most so
    many: some never come back, and the time of those who do should not grow without bounds.
    """

    def __init__(self, max_clients: int) -> None:
        self._max_clients = max_clients
        self._due_s: list[float] = []

    def count(self, now_s: float) -> int:
        """How many there are now."""
        while self._due_s and self._due_s[0] <= now_s:
            heapq.heappop(self._due_s)
        return len(self._due_s)

    def add(self, due_s: float) -> None:
        """A client was asked to return then."""
        if len(self._due_s) < self._max_clients:
            heapq.heappush(self._due_s, due_s)


class Admission:
    """Owner of the server's slots, one for each sequence that waits or runs, and of the drain rate.

    When all slots are taken, a key that has less than its share of them is admitted all the same:
    so one key cannot keep the others out, and there are never more than twice as many. Failed
    shards have `restart_s` to begin anew.
    """

    def __init__(self, num_slots: int, restart_s: float, keys: KeyLimits | None = None) -> None:
        self.num_slots = num_slots
        self.is_closed = False
        self.keys = keys or KeyLimits()
        self._restart_s = restart_s
        self._taken: Counter[ApiKey] = Counter()
        self.num_taken = 0
        self._rate = DrainRate(num_slots)
        self._returning = Returning(_MAX_RETURNING * num_slots)

    def close(self) -> None:
        """Admits nothing from now on."""
        self.is_closed = True

    def take(
        self, num_wanted: int, now_s: float, key: ApiKey = NO_KEY, broken_s: float | None = None
    ) -> None:
        """Takes slots for all sequences of a client's request together, or none.

        Raises as `check`.
        """
        self.check(num_wanted, now_s, key, broken_s)
        self._taken[key] += num_wanted
        self.num_taken += num_wanted
        self._rate.observe(now_s, self.num_taken)
        self.keys.spend(key, now_s, requests=1)

    def check(
        self, num_wanted: int, now_s: float, key: ApiKey = NO_KEY, broken_s: float | None = None
    ) -> None:
        """Whether as many slots could be taken now.

        Raises Draining, Unhealthy when the shards have been broken (for `broken_s`) for longer than
        they may take to begin anew, RateLimited by its key's limits, Overloaded with the time to
        return, and InvalidRequest for more sequences than there are slots.
        """
        if self.is_closed:
            raise Draining("the server is shutting down")
        if broken_s is not None and broken_s > self._restart_s:
            raise unhealthy(f"the shards have not answered for {broken_s:.1f} s")
        if num_wanted > self.num_slots:
            raise InvalidRequest(
                f"the request needs {num_wanted} sequences at once; this server has "
                f"{self.num_slots}"
            )
        num_of_key = self.num_taken_by(key)
        self.keys.check(key, num_of_key, num_wanted, now_s)
        self._rate.observe(now_s, self.num_taken)
        is_within_share = num_of_key + num_wanted <= self.fair_share(key)
        if self.num_taken + num_wanted > self.num_slots and not is_within_share:
            reason = (
                f"{self.num_taken} requests are waiting or running; at most {self.num_slots} may"
            )
            if num_wanted > 1:
                reason += f"; this one needs {num_wanted}"
            raise Overloaded(reason, self._retry_after_s(now_s))

    def free(
        self, num_slots: int, now_s: float, key: ApiKey = NO_KEY, *, is_good: bool = False
    ) -> None:
        """Frees slots of a key, by good ends of their sequences or others.

        Those of failed or cancelled sequences do not count for the drain rate: shards that break
        end many at once.
        """
        self._taken[key] -= num_slots
        if not self._taken[key]:
            del self._taken[key]
        self.num_taken -= num_slots
        self._rate.observe(now_s, self.num_taken, num_ended=num_slots if is_good else 0)

    def num_taken_by(self, key: ApiKey) -> int:
        """The slots of all that has the key's name: it may have been read anew meanwhile."""
        return sum(num for each, num in self._taken.items() if each.name == key.name)

    def fair_share(self, key: ApiKey) -> int:
        """The key's part of all slots, by its weight among those that have some; 1 at least."""
        weights = {key.name: key.weight}
        for each in self._taken:
            weights.setdefault(each.name, each.weight)
        return max(1, floor(self.num_slots * key.weight / sum(weights.values())))

    def drain_rate(self, now_s: float) -> float:
        """Sequences that end per second, as measured while the server was busy."""
        return self._rate.per_second(now_s)

    def _retry_after_s(self, now_s: float) -> float:
        """When all before it will have ended: those that are here, and those that will return."""
        num_before = self.num_taken + self._returning.count(now_s)
        wait_s = num_before / self._rate.per_second(now_s)
        wait_s = min(max(wait_s, MIN_RETRY_S), MAX_RETRY_S)
        self._returning.add(now_s + wait_s)
        return wait_s


def unhealthy(reason: str) -> Unhealthy:
    """The refusal of a request that would have to wait for broken shards."""
    return Unhealthy(reason, MIN_RETRY_S)
