"""The table of models: which are in memory, who uses or awaits them, what is to be done next.

Pure: no processes, and no clock (times are arguments, in monotonic seconds). `next_step` decides on
one step and records it; the caller carries it out and reports by `mark_checked`, `mark_loaded`,
`mark_failed` or `mark_unloaded`.

* At most `max_loaded` models are in memory, those being loaded or unloaded included.
* Models are loaded one at a time: each measures the memory that the others have left.
* A model without users is unloaded for one that is awaited, the least recently used first. One
  with users stays; but when it was ready for `turn_s` while another was awaited, it takes no
  further users and is unloaded after its last one. So a busy model delays another, and never
  starves it.
* Before a model is unloaded for another, that one is checked as far as possible without loading.
* A model that is not local is downloaded, which may take hours, before it takes a place in memory
  or in the queue of the local ones.
* A model that could not be loaded is not tried again before `retry_after_s`.
"""

from dataclasses import dataclass

from fleet.errors import LoadFailed
from fleet.model_entry import TRANSITIONS, ModelEntry, ModelState, Transition, WaitReason

# Of local models, and as many of others: downloads do not hold up short checks.
_MAX_CHECKS = 4
_IN_MEMORY = frozenset({ModelState.LOADING, ModelState.READY, ModelState.DRAINING})


@dataclass(frozen=True, slots=True)
class LoadingRules:
    """Limits of the table, see the module. Without `idle_timeout_s` idle models stay loaded."""

    max_loaded: int = 1
    turn_s: float = 10.0
    retry_after_s: float = 30.0
    idle_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Check this model without loading it."""

    name: str


@dataclass(frozen=True, slots=True)
class Load:
    """Load this model beside `num_others`. Those named in `instead_of` were unloaded for it."""

    name: str
    num_others: int
    instead_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unload:
    """Unload this model."""

    name: str


class ModelTable:
    """Owner of every model's state."""

    def __init__(self, rules: LoadingRules) -> None:
        self._rules = rules
        self._entries: dict[str, ModelEntry] = {}
        self._num_servers = 0
        # Models that were unloaded for others since the last load.
        self._evicted: list[str] = []

    def entry(self, name: str) -> ModelEntry:
        """The entry of one model; for reading."""
        return self._entries.get(name) or ModelEntry(name)

    def entries(self) -> tuple[ModelEntry, ...]:
        """The entries of all models that are not simply absent; for reading."""
        return tuple(self._entries.values())

    @property
    def num_loaded(self) -> int:
        """Models that take a place in memory."""
        return sum(entry.state in _IN_MEMORY for entry in self._entries.values())

    @property
    def num_waiting(self) -> int:
        """Requests that wait, for any model."""
        return sum(entry.num_waiting for entry in self._entries.values())

    def last_used(self) -> str | None:
        """The ready model that was used most recently."""
        ready = [entry for entry in self._entries.values() if entry.state is ModelState.READY]
        return max(ready, key=lambda entry: entry.used_s).name if ready else None

    def check_failure(self, name: str, now_s: float) -> None:
        """Raise LoadFailed if the model failed less than `retry_after_s` ago."""
        entry = self.entry(name)
        left_s = entry.since_s + self._rules.retry_after_s - now_s
        if entry.state is ModelState.FAILED and left_s > 0:
            raise LoadFailed(
                f"the model {name!r} could not be loaded: {entry.failure}", max(left_s, 1.0)
            )

    def add_user(self, name: str, now_s: float) -> int:
        """Record another user of an open model. Returns the server's id, for `remove_user`."""
        entry = self._entries[name]
        assert entry.is_open, f"{name} is not open"
        entry.num_users += 1
        entry.used_s = now_s
        return entry.server_id

    def remove_user(self, name: str, server_id: int, now_s: float) -> None:
        """Record that a user is done. A user of a server that is gone changes nothing."""
        entry = self._entries.get(name)
        if entry is not None and entry.server_id == server_id and entry.num_users:
            entry.num_users -= 1
            entry.used_s = now_s

    def add_waiting(self, name: str, now_s: float, *, is_local: bool = True) -> None:
        """Record another request that waits for the model."""
        entry = self._entries.setdefault(name, ModelEntry(name))
        if entry.state is not ModelState.CHECKING:
            entry.is_local = is_local
        if not entry.num_waiting:
            entry.waiting_since_s = now_s
        entry.num_waiting += 1

    def remove_waiting(self, name: str, count: int = 1) -> None:
        """Record that `count` requests no longer wait, served or not."""
        entry = self._entries[name]
        assert entry.num_waiting >= count, f"no request waits for {name}"
        entry.num_waiting -= count

    def wait_reason(self, name: str) -> WaitReason:
        """What the requests for the model wait for."""
        entry = self.entry(name)
        if entry.state is ModelState.LOADING:
            return WaitReason.LOAD
        if entry.state is ModelState.CHECKING:
            return WaitReason.CHECK
        is_queued = not entry.is_checked and self._are_checks_full(entry)
        return WaitReason.CHECK_QUEUE if is_queued else WaitReason.ROOM

    def next_step(self, now_s: float) -> Check | Load | Unload | None:
        """The next step, recorded as started. Call it until it returns None."""
        missing = self._missing()
        self._remove_stale(now_s)
        if not missing:
            self._evicted.clear()
        num_free = self._rules.max_loaded - self.num_loaded
        loadable = [entry for entry in missing if entry.state is not ModelState.DRAINING]
        local = [entry for entry in loadable if entry.is_local or entry.is_checked]
        if local and num_free > 0 and not self._count(ModelState.LOADING):
            return self._load(local[0], now_s)
        num_coming = num_free + self._count(ModelState.DRAINING)
        is_short = len(missing) > num_coming
        for entry in loadable:
            needs_check = not entry.is_checked and (is_short or not entry.is_local)
            if needs_check and not self._are_checks_full(entry):
                self._apply(entry, Transition.CHECK, now_s)
                return Check(entry.name)
        return self._make_room(num_coming, now_s)

    def _load(self, entry: ModelEntry, now_s: float) -> Load:
        load = Load(entry.name, self.num_loaded, tuple(self._evicted))
        self._evicted.clear()
        # The check may be outdated when the model is loaded again.
        entry.is_checked = False
        self._apply(entry, Transition.LOAD, now_s)
        return load

    def _make_room(self, num_coming: int, now_s: float) -> Unload | None:
        demand = self._demand()
        victim = None
        if len(demand) > num_coming:
            victim = self._idle_victim()
            if victim is None:
                self._close(demand, now_s)
            else:
                self._evicted.append(victim.name)
        else:
            self._reopen()
        victim = victim or self._overdue(now_s)
        if victim is None:
            return None
        self._apply(victim, Transition.UNLOAD, now_s)
        return Unload(victim.name)

    def next_alarm_s(self, now_s: float) -> float | None:
        """When time alone may make a step due; None: never."""
        ready = [entry for entry in self._entries.values() if entry.state is ModelState.READY]
        times = []
        if self._rules.idle_timeout_s is not None:
            idle = (entry for entry in ready if not entry.num_users and not entry.num_waiting)
            times += [entry.used_s + self._rules.idle_timeout_s for entry in idle]
        if pair := self._next_to_close(self._demand()):
            times.append(self._turn_end(*pair))
        return min(times, default=None)

    def mark_checked(self, name: str, now_s: float) -> None:
        """The check passed."""
        entry = self._entries[name]
        self._apply(entry, Transition.PASSED, now_s)
        entry.is_checked = True

    def mark_loaded(self, name: str, now_s: float) -> None:
        """The load succeeded: the model is ready."""
        entry = self._entries[name]
        self._apply(entry, Transition.LOADED, now_s)
        self._num_servers += 1
        entry.server_id = self._num_servers
        entry.used_s = now_s

    def mark_failed(self, name: str, reason: str, now_s: float) -> None:
        """The check or the load failed."""
        entry = self._entries[name]
        self._apply(entry, Transition.REFUSED, now_s)
        entry.failure = reason

    def start_unload(self, name: str, now_s: float) -> None:
        """Unload a ready model whoever uses it: its server died, or all servers stop."""
        self._apply(self._entries[name], Transition.UNLOAD, now_s)

    def mark_unloaded(self, name: str, now_s: float) -> None:
        """The model's server has ended."""
        entry = self._entries[name]
        self._apply(entry, Transition.GONE, now_s)
        entry.num_users = 0
        entry.is_closing = False

    def _apply(self, entry: ModelEntry, event: Transition, now_s: float) -> None:
        entry.state = TRANSITIONS[entry.state, event]
        entry.since_s = now_s

    def _count(self, state: ModelState) -> int:
        return sum(entry.state is state for entry in self._entries.values())

    def _are_checks_full(self, entry: ModelEntry) -> bool:
        """Whether as many models of its kind (local or not) are being checked as allowed."""
        checking = [each for each in self._entries.values() if each.state is ModelState.CHECKING]
        return sum(each.is_local == entry.is_local for each in checking) >= _MAX_CHECKS

    def _missing(self) -> list[ModelEntry]:
        """Awaited models that are to be loaded, the longest wait first."""
        absent = (ModelState.ABSENT, ModelState.FAILED, ModelState.DRAINING)
        missing = [b for b in self._entries.values() if b.num_waiting and b.state in absent]
        return sorted(missing, key=lambda b: b.waiting_since_s)

    def _demand(self) -> list[ModelEntry]:
        """Missing models for which others may be unloaded."""
        return [b for b in self._missing() if b.is_checked or b.state is ModelState.DRAINING]

    def _idle_victim(self) -> ModelEntry | None:
        idle = [
            entry
            for entry in self._entries.values()
            if entry.state is ModelState.READY
            and not entry.num_users
            and (entry.is_closing or not entry.num_waiting)
        ]
        return min(idle, key=lambda entry: entry.used_s, default=None)

    def _close(self, missing: list[ModelEntry], now_s: float) -> None:
        """Close the models that are ready longest, if for `turn_s`, to further users."""
        while pair := self._next_to_close(missing):
            if self._turn_end(*pair) > now_s:
                return
            pair[0].is_closing = True

    def _next_to_close(self, missing: list[ModelEntry]) -> tuple[ModelEntry, ModelEntry] | None:
        """The open model that is ready longest, and the model that waits for its place."""
        ready = [entry for entry in self._entries.values() if entry.state is ModelState.READY]
        open_ones = [entry for entry in ready if not entry.is_closing]
        num_closing = len(ready) - len(open_ones)
        num_coming = self._rules.max_loaded - self.num_loaded + self._count(ModelState.DRAINING)
        starved = missing[num_closing + num_coming :]
        if not starved or not open_ones:
            return None
        return min(open_ones, key=lambda entry: entry.since_s), starved[0]

    def _turn_end(self, entry: ModelEntry, waiting: ModelEntry) -> float:
        return max(entry.since_s, waiting.waiting_since_s) + self._rules.turn_s

    def _reopen(self) -> None:
        for entry in self._entries.values():
            entry.is_closing = False

    def _overdue(self, now_s: float) -> ModelEntry | None:
        timeout_s = self._rules.idle_timeout_s
        victim = self._idle_victim()
        if timeout_s is None or victim is None or now_s - victim.used_s < timeout_s:
            return None
        return victim

    def _remove_stale(self, now_s: float) -> None:
        """Drop entries of models that are absent and not awaited; failures stay for a while."""
        for name, entry in list(self._entries.items()):
            is_stale = now_s - entry.since_s >= self._rules.retry_after_s
            is_over = entry.state is ModelState.ABSENT or (
                entry.state is ModelState.FAILED and is_stale
            )
            if is_over and not entry.num_waiting:
                del self._entries[name]
