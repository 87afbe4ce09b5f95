"""When refused clients are to come back, so that they come one after the other and do get in.

A refused request is given the time at which a slot will be free for it once all that were refused
before it have theirs: a queue whose members wait outside.

    refused: ahead ----its time----> due ----refused again: no slot was free----> late
               |                      |                                             |
               +--- admitted, at its time or before; or gone when it never came ----+

Nothing but its content tells that a request was here before, so that is what `key` stands for:
who obeys sends the same again. Equal requests of several clients have an appointment each (a few
for each slot, so that one client that asks on and on does not fill the queue), and the first to
come at a time that was told takes that appointment.

A slot that is free when a client was told to come is worth little if whoever comes along takes it
first; a slot that is kept for a client that never comes is lost. So slots are kept, but few:

    for late clients  what they need, at most 1/8 of all slots, for they have shown that they obey;
                      or all that the first of them needs, for a request of many sequences would
                      otherwise never fit
    for due ones, and for those due before the kept slots would be free
                      their number times the share of appointments that were kept lately, as long
                      as that makes at most 1/16 of all slots (1 of at least 4; none of fewer)

All other free slots go to whoever comes, appointment or not. Pure: no clock but the one passed in.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum

# A client's whole range: `openai` ignores what is above 60 s.
MIN_S, MAX_S = 1.0, 60.0
# Whole seconds are rounded up, and the way here takes time.
_GRACE_S = 2.0
_FEWEST_SLOTS, _KEPT_PART, _LATE_PART = 4, 16, 8
_MAX_APPOINTMENTS = 65_536
_EQUALS_PER_SLOT = 4
# The share of kept appointments is that of about so many lately.
_SHARE_WINDOW = 16


class _State(Enum):
    AHEAD = "ahead"
    DUE = "due"
    LATE = "late"
    GONE = "gone"


@dataclass(slots=True, eq=False)
class _Appointment:
    key: int
    num_slots: int
    due_s: float
    state: _State = _State.AHEAD


class Appointments:
    """The times that were told and have not passed. `num_slots` are those of the server."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._most_kept = max(1, num_slots // _KEPT_PART) if num_slots >= _FEWEST_SLOTS else 0
        self._ahead: deque[_Appointment] = deque()
        # Both in the order of their lapse, which for late ones may be off by what they were told.
        self._due: deque[_Appointment] = deque()
        self._late: deque[_Appointment] = deque()
        self._num_slots_of = dict.fromkeys(_State, 0)
        self._by_key: dict[int, deque[_Appointment]] = {}
        self._num_open = 0
        self._next_s = 0.0
        self._kept_share = 0.5

    def __len__(self) -> int:
        return self._num_open

    def num_kept(self, now_s: float, key: int, per_second: float) -> int:
        """Slots that the request must leave to others."""
        self._advance(now_s)
        if self._most_kept == 0:
            return 0
        own = self._expected(key, now_s)
        if own is not None and own.state is _State.LATE:
            return 0
        late, most, first = self._num_slots_of[_State.LATE], self._most_kept, 0
        if late:
            self._skip_gone(self._late)
            first = self._late[0].num_slots
            most = max(most, first, min(late, self._num_slots // _LATE_PART))
        if own is not None:
            return first if first > 1 else 0
        expected = self._num_slots_of[_State.DUE]
        until_s = now_s + self._most_kept / per_second
        for appointment in self._ahead:
            if appointment.due_s > until_s or expected >= 2 * most:
                break
            if appointment.state is _State.AHEAD:
                expected += appointment.num_slots
        return min(most, late + round(self._kept_share * expected))

    def refuse(self, now_s: float, key: int, num_slots: int, per_second: float) -> float:
        """There is no room now: seconds after which to come back, MIN_S to MAX_S.

        `num_slots` is what the request needs; `per_second` slots come free.
        """
        self._advance(now_s)
        own = self._expected(key, now_s)
        if own is not None:
            return self._postpone(own, now_s, per_second)
        same = self._by_key.get(key)
        if same is not None and len(same) >= _EQUALS_PER_SLOT * self._num_slots:
            return _bounded(same[-1].due_s - now_s)
        if len(self._ahead) >= _MAX_APPOINTMENTS:
            return MAX_S
        first_s = max(self._next_s, now_s + MIN_S)
        due_s = min(first_s + (num_slots - 1) / per_second, now_s + MAX_S)
        self._next_s = min(due_s + 1.0 / per_second, now_s + MAX_S)
        appointment = _Appointment(key, num_slots, due_s)
        self._ahead.append(appointment)
        self._by_key.setdefault(key, deque()).append(appointment)
        self._num_slots_of[_State.AHEAD] += num_slots
        self._num_open += 1
        return _bounded(due_s - now_s)

    def admit(self, now_s: float, key: int) -> None:
        """The request came in; if it had an appointment, that is over.

        One that comes early and has equals may be any of them: their appointments stay.
        """
        self._advance(now_s)
        own = self._expected(key, now_s)
        if own is not None:
            self._learn(was_kept=True)
        elif len(self._by_key.get(key, ())) == 1:
            own = self._by_key[key][0]
        if own is not None:
            self._close(own)

    def _postpone(self, own: _Appointment, now_s: float, per_second: float) -> float:
        """It came at its time in vain: it queues up with others of its kind.

        The slot that it will have is one less for those who are still to be told a time.
        """
        if own.state is _State.DUE:
            self._next_s = min(self._next_s + own.num_slots / per_second, now_s + MAX_S)
        self._move(own, _State.LATE)
        told_s = _bounded(self._num_slots_of[_State.LATE] / per_second)
        own.due_s = now_s + told_s
        if own in self._late:
            self._late.remove(own)
        self._late.append(own)
        return told_s

    def _expected(self, key: int, now_s: float) -> _Appointment | None:
        """The first appointment of the request whose time has come."""
        for appointment in self._by_key.get(key, ()):
            if appointment.due_s <= now_s:
                return appointment
        return None

    def _advance(self, now_s: float) -> None:
        ahead, due = self._ahead, self._due
        while ahead and (ahead[0].state is _State.GONE or ahead[0].due_s <= now_s):
            appointment = ahead.popleft()
            if appointment.state is _State.AHEAD:
                self._move(appointment, _State.DUE)
                due.append(appointment)
        for queue, state in ((due, _State.DUE), (self._late, _State.LATE)):
            while queue:
                appointment = queue[0]
                if appointment.state is state:
                    if appointment.due_s + _GRACE_S > now_s:
                        break
                    self._learn(was_kept=False)
                    self._close(appointment)
                queue.popleft()

    def _learn(self, *, was_kept: bool) -> None:
        self._kept_share += (was_kept - self._kept_share) / _SHARE_WINDOW

    def _move(self, appointment: _Appointment, state: _State) -> None:
        self._num_slots_of[appointment.state] -= appointment.num_slots
        appointment.state = state
        if state is not _State.GONE:
            self._num_slots_of[state] += appointment.num_slots

    def _close(self, appointment: _Appointment) -> None:
        """Its place in the queues is skipped when it comes up."""
        self._move(appointment, _State.GONE)
        self._num_open -= 1
        same = self._by_key[appointment.key]
        same.remove(appointment)
        if not same:
            del self._by_key[appointment.key]

    def _skip_gone(self, queue: deque[_Appointment]) -> None:
        while queue and queue[0].state is _State.GONE:
            queue.popleft()


def _bounded(seconds: float) -> float:
    return min(max(seconds, MIN_S), MAX_S)
