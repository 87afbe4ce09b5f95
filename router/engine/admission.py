"""Who may enter, and what those are told who may not: the bounded queue's door.

It counts slots, one for each sequence that waits or runs, and knows no scheduler and no HTTP.
"""

from collections.abc import Sequence

from router.engine.appointments import MIN_S, Appointments
from router.engine.drain_rate import DrainRate
from router.request.errors import Draining, InvalidRequest, Overloaded, Unhealthy
from router.request.request import GenerateRequest


class Admission:
    """Owner of the drain rate and of the appointments of refused clients.

    Failed shards are asked anew every `retry_s`.
    """

    def __init__(self, num_slots: int, retry_s: float) -> None:
        self._num_slots = num_slots
        self._retry_s = retry_s
        self.is_closed = False
        self._rate = DrainRate(num_slots)
        self._appointments = Appointments(num_slots)

    def close(self) -> None:
        """Nobody enters any more."""
        self.is_closed = True

    def enter(
        self,
        now_s: float,
        num_taken: int,
        requests: Sequence[GenerateRequest],
        broken_s: float | None = None,
    ) -> None:
        """Lets all sequences of a client's request in together.

        Raises Draining, Unhealthy when the shards have been broken (for `broken_s`) for longer
        than an attempt to begin anew takes to come, Overloaded with the time to come back, and
        InvalidRequest for more sequences than there are slots.
        """
        if self.is_closed:
            raise Draining("the server is shutting down")
        if broken_s is not None and broken_s > self._retry_s:
            raise self.unhealthy(f"the shards have not answered for {broken_s:.1f} s")
        num_wanted = len(requests)
        if num_wanted > self._num_slots:
            raise InvalidRequest(
                f"the request needs {num_wanted} sequences at once; this server has "
                f"{self._num_slots}"
            )
        self._rate.observe(now_s, num_taken)
        key = _key(requests)
        rate = self._rate.per_second(now_s)
        num_free = self._num_slots - num_taken
        num_kept = self._appointments.num_kept(now_s, key, rate)
        if num_wanted > num_free - num_kept:
            told_s = self._appointments.refuse(now_s, key, num_wanted, rate)
            raise Overloaded(_reason(num_taken, self._num_slots, num_wanted, num_kept), told_s)
        self._appointments.admit(now_s, key)
        self._rate.observe(now_s, num_taken + num_wanted)

    def unhealthy(self, reason: str) -> Unhealthy:
        """The refusal of who waited, or would have to wait, for broken shards."""
        return Unhealthy(reason, max(MIN_S, self._retry_s))

    def left(self, now_s: float, num_taken: int, num_finished: int) -> None:
        """Slots came free, `num_finished` of them by good ends; `num_taken` are left.

        Those of what failed or was cancelled are free as well, but say nothing of how fast the next
        will be: shards that broke end many at once.
        """
        self._rate.observe(now_s, num_taken, num_ended=num_finished)

    def drain_rate(self, now_s: float) -> float:
        """Sequences that end per second, as measured while the server was busy."""
        return self._rate.per_second(now_s)


def _key(requests: Sequence[GenerateRequest]) -> int:
    """The same when a client sends the same again; its seed may be one that was drawn for it."""
    return hash(tuple((each.prompt_ids, each.stop.max_new_tokens) for each in requests))


def _reason(num_taken: int, num_slots: int, num_wanted: int, num_kept: int) -> str:
    reason = f"{num_taken} requests are waiting or running; at most {num_slots} may"
    if num_kept:
        reason += f", and {num_kept} slots are kept for clients that come back as they were told"
    if num_wanted > 1:
        reason += f"; this one needs {num_wanted}"
    return reason
