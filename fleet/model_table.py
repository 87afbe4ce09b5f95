"""The table of models: which are in memory, who uses or awaits them, what is to be done next.

    absent, failed --> downloading --> absent, failed
    absent, failed --> loading --> ready --> draining --> absent
                          `--> failed

Pure: no processes, and no clock (times are arguments, in monotonic seconds). `next_step` decides on
one step and records it; the caller carries it out and reports by `mark_downloaded`,
`mark_loaded`, `mark_failed` or `mark_unloaded`.

* At most `max_loaded` models are in memory, those being loaded or unloaded included.
* Models are loaded one at a time: each measures the memory that the others have left.
* A model without users is unloaded for one that is awaited, the least recently used first. One
  with users stays; but when it was ready for `turn_s` while another was awaited, it takes no
  further users and is unloaded after its last one. So a busy model delays another, and never
  starves it.
* A model that is not local is downloaded, which may take hours, before it takes a place in memory
  or in the queue of the local ones.
* A model that could not be loaded is not tried again before `retry_after_s`.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

from fleet.errors import LoadFailed

_MAX_DOWNLOADS = 4


class ModelState(StrEnum):
    """The state of a model, as `/v1/models` shows it."""

    ABSENT = "absent"
    DOWNLOADING = "downloading"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


_IN_MEMORY = frozenset({ModelState.LOADING, ModelState.READY, ModelState.DRAINING})
LEGAL_MOVES = frozenset(
    {
        (ModelState.ABSENT, ModelState.DOWNLOADING),
        (ModelState.FAILED, ModelState.DOWNLOADING),
        (ModelState.DOWNLOADING, ModelState.ABSENT),
        (ModelState.DOWNLOADING, ModelState.FAILED),
        (ModelState.ABSENT, ModelState.LOADING),
        (ModelState.FAILED, ModelState.LOADING),
        (ModelState.LOADING, ModelState.READY),
        (ModelState.LOADING, ModelState.FAILED),
        (ModelState.READY, ModelState.DRAINING),
        (ModelState.DRAINING, ModelState.ABSENT),
    }
)


@dataclass(frozen=True, slots=True)
class LoadingRules:
    """Limits of the table, see the module. Without `idle_timeout_s` idle models stay loaded."""

    max_loaded: int = 1
    turn_s: float = 10.0
    retry_after_s: float = 30.0
    idle_timeout_s: float | None = None


@dataclass(slots=True)
class ModelEntry:
    """One model's entry. Only the model table writes to it.

    `server_id` numbers the servers that were started, and `since_s` is the time of the last state
    change. `is_local`: nothing of it has to be downloaded, so other models may be unloaded for it.
    """

    name: str
    state: ModelState = ModelState.ABSENT
    since_s: float = 0.0
    used_s: float = 0.0
    server_id: int = 0
    num_users: int = 0
    num_waiting: int = 0
    waiting_since_s: float = 0.0
    is_local: bool = False
    failure: str = ""


class ModelTable:
    """Owner of every model's state."""

    def __init__(self, rules: LoadingRules) -> None:
        self._rules = rules
        self._entries: dict[str, ModelEntry] = {}
        self._num_servers = 0

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

    def is_open(self, name: str, now_s: float) -> bool:
        """Whether a request for the model may start now."""
        is_ready = self.entry(name).state is ModelState.READY
        return is_ready and self._turn_ends().get(name, math.inf) > now_s

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
        assert entry.state is ModelState.READY, f"{name} is not ready"
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
        if entry.state is not ModelState.DOWNLOADING:
            entry.is_local = is_local or entry.is_local
        if not entry.num_waiting:
            entry.waiting_since_s = now_s
        entry.num_waiting += 1

    def remove_waiting(self, name: str, count: int = 1) -> None:
        """Record that `count` requests no longer wait, served or not."""
        entry = self._entries[name]
        assert entry.num_waiting >= count, f"no request waits for {name}"
        entry.num_waiting -= count

    def next_step(self, now_s: float) -> ModelEntry | None:
        """A model that is to be downloaded, loaded or unloaded, as its new state says.

        Call it until it returns None.
        """
        missing = self._missing()
        self._remove_stale(now_s)
        num_free = self._rules.max_loaded - self.num_loaded
        loadable = [entry for entry in missing if entry.state is not ModelState.DRAINING]
        local = [entry for entry in loadable if entry.is_local]
        if local and num_free > 0 and not self._count(ModelState.LOADING):
            return self._move(local[0], ModelState.LOADING, now_s)
        remote = [entry for entry in loadable if not entry.is_local]
        if remote and self._count(ModelState.DOWNLOADING) < _MAX_DOWNLOADS:
            return self._move(remote[0], ModelState.DOWNLOADING, now_s)
        victim = self._victim(now_s)
        return self._move(victim, ModelState.DRAINING, now_s) if victim else None

    def next_alarm_s(self, now_s: float) -> float | None:
        """When time alone may make a step due; None: never."""
        ready = [entry for entry in self._entries.values() if entry.state is ModelState.READY]
        times = []
        if self._rules.idle_timeout_s is not None:
            idle = (entry for entry in ready if not entry.num_users and not entry.num_waiting)
            times += [entry.used_s + self._rules.idle_timeout_s for entry in idle]
        times += [end_s for end_s in self._turn_ends().values() if end_s > now_s]
        return min(times, default=None)

    def mark_downloaded(self, name: str, now_s: float) -> None:
        """The download succeeded."""
        entry = self._entries[name]
        self._move(entry, ModelState.ABSENT, now_s)
        entry.is_local = True

    def mark_loaded(self, name: str, now_s: float) -> None:
        """The load succeeded: the model is ready."""
        entry = self._entries[name]
        self._move(entry, ModelState.READY, now_s)
        self._num_servers += 1
        entry.server_id = self._num_servers
        entry.used_s = now_s

    def mark_failed(self, name: str, reason: str, now_s: float) -> None:
        """The download or the load failed."""
        entry = self._entries[name]
        self._move(entry, ModelState.FAILED, now_s)
        entry.failure = reason

    def start_unload(self, name: str, now_s: float) -> None:
        """Unload a ready model whoever uses it: its server died, or all servers stop."""
        self._move(self._entries[name], ModelState.DRAINING, now_s)

    def mark_unloaded(self, name: str, now_s: float) -> None:
        """The model's server has ended."""
        entry = self._entries[name]
        self._move(entry, ModelState.ABSENT, now_s)
        entry.num_users = 0

    def _move(self, entry: ModelEntry, state: ModelState, now_s: float) -> ModelEntry:
        assert (entry.state, state) in LEGAL_MOVES, f"{entry.name}: {entry.state} -> {state}"
        entry.state = state
        entry.since_s = now_s
        return entry

    def _count(self, state: ModelState) -> int:
        return sum(entry.state is state for entry in self._entries.values())

    def _missing(self) -> list[ModelEntry]:
        """Awaited models that are to be loaded, the longest wait first."""
        absent = (ModelState.ABSENT, ModelState.FAILED, ModelState.DRAINING)
        missing = [b for b in self._entries.values() if b.num_waiting and b.state in absent]
        return sorted(missing, key=lambda b: b.waiting_since_s)

    def _demand(self) -> list[ModelEntry]:
        """Missing models for which others may be unloaded."""
        return [entry for entry in self._missing() if entry.is_local]

    def _num_coming(self) -> int:
        """Places in memory that are free, or will be without a further unload."""
        num_free = self._rules.max_loaded - self.num_loaded
        return num_free + self._count(ModelState.DRAINING)

    def _victim(self, now_s: float) -> ModelEntry | None:
        """The model to unload: the least recently used idle one, if it is due or in the way."""
        idle = [
            entry
            for entry in self._entries.values()
            if entry.state is ModelState.READY
            and not entry.num_users
            and not (entry.num_waiting and self.is_open(entry.name, now_s))
        ]
        victim = min(idle, key=lambda entry: entry.used_s, default=None)
        if victim is None or len(self._demand()) > self._num_coming():
            return victim
        timeout_s = self._rules.idle_timeout_s
        is_due = timeout_s is not None and now_s - victim.used_s >= timeout_s
        return victim if is_due else None

    def _turn_ends(self) -> dict[str, float]:
        """When ready models stop to accept users since others wait for their places.

        The model that is ready longest makes room for the one that waits longest.
        """
        ready = [entry for entry in self._entries.values() if entry.state is ModelState.READY]
        ready.sort(key=lambda entry: entry.since_s)
        pairs = zip(ready, self._demand()[self._num_coming() :], strict=False)
        return {
            entry.name: max(entry.since_s, waiting.waiting_since_s) + self._rules.turn_s
            for entry, waiting in pairs
        }

    def _remove_stale(self, now_s: float) -> None:
        """Drop entries of models that are absent and not awaited; failures stay for a while."""
        for name, entry in list(self._entries.items()):
            is_stale = now_s - entry.since_s >= self._rules.retry_after_s
            is_over = entry.state is ModelState.ABSENT or (
                entry.state is ModelState.FAILED and is_stale
            )
            if is_over and not entry.num_waiting:
                del self._entries[name]
