"""Whether the limits of an API key admit a further request, and the key's part of the slots.

It knows no clock but the one passed in.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor
from typing import Self

from router.request.errors import InvalidRequest, RateLimited
from router.request.request import ApiKey

_MINUTE_S = 60.0
_SOON_S = 1.0


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


@dataclass(frozen=True, slots=True)
class KeySlots:
    """The slots that a key has, and its part of all slots by its weight among those that have some.

    `taken` are the keys of all taken slots, one for each.
    """

    num_taken: int
    num_fair: int

    @classmethod
    def of(cls, key: ApiKey, taken: Iterable[ApiKey], num_slots: int) -> Self:
        """As they are now; the part is 1 at least."""
        num_taken, weights = 0, {key.name: key.weight}
        for each in taken:
            num_taken += each.name == key.name
            weights.setdefault(each.name, each.weight)
        num_fair = floor(num_slots * key.weight / sum(weights.values()))
        return cls(num_taken, max(1, num_fair))


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
