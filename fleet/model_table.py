"""Which models are in memory, who uses them, who waits, and what has to happen for it.

Pure books: no process, no clock but the times it is told (seconds, monotonic). `next_step` decides
one thing and notes it; whoever asked carries it out and tells `loaded`, `failed` or `gone`.

* At most `max_loaded` models are in memory; one that is being loaded or unloaded takes its place.
* Models are loaded one at a time: each measures the memory that the others have left.
* A model without users leaves for one that waits, the least recently used first. One with users
  stays; but once it had its turn of `turn_s` while another waited, it takes no further users, and
  leaves behind the last of those it has. So a busy model delays another one, and never starves it.
* Before a model leaves for another one, that one is checked as far as can be without loading it.
* A model that is not at hand is fetched before it takes anybody's place, in memory or in the line
  of those at hand: that may take hours.
* A model that could not be loaded is not tried again before `retry_after_s`.
"""

from dataclasses import dataclass

from fleet.errors import LoadFailed
from fleet.model_entry import TRANSITIONS, ModelEntry, State, Transition, Wait

# Of those at hand, and of the others, so that what is fetched keeps nobody waiting who passes soon.
_MAX_CHECKS = 4
_IN_MEMORY = frozenset({State.LOADING, State.READY, State.DRAINING})


@dataclass(frozen=True, slots=True)
class RosterRules:
    """See the module's docstring; without `idle_timeout_s` no model leaves for being idle."""

    max_loaded: int = 1
    turn_s: float = 10.0
    retry_after_s: float = 30.0
    idle_timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Find out what may be wrong with this model, without its memory."""

    name: str


@dataclass(frozen=True, slots=True)
class Load:
    """Load this model. `num_others`: so many are in memory. `instead_of`: these left for it."""

    name: str
    num_others: int
    instead_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unload:
    """Unload this model."""

    name: str


class ModelTable:
    """Owner of every model's state."""

    def __init__(self, rules: RosterRules) -> None:
        self._rules = rules
        self._berths: dict[str, ModelEntry] = {}
        self._num_generations = 0
        # Models that left for others, for none that was loaded since.
        self._left: list[str] = []

    def berth(self, name: str) -> ModelEntry:
        """The books of one model, for reading."""
        return self._berths.get(name) or ModelEntry(name)

    def berths(self) -> tuple[ModelEntry, ...]:
        """Those of every model that was asked for and is not forgotten, for reading."""
        return tuple(self._berths.values())

    @property
    def num_loaded(self) -> int:
        """Models that take up memory."""
        return sum(berth.state in _IN_MEMORY for berth in self._berths.values())

    @property
    def num_waiting(self) -> int:
        """Requests that wait for any model."""
        return sum(berth.num_waiting for berth in self._berths.values())

    def last_used(self) -> str | None:
        """The ready model that was used last."""
        ready = [berth for berth in self._berths.values() if berth.state is State.READY]
        return max(ready, key=lambda berth: berth.used_s).name if ready else None

    def check(self, name: str, now_s: float) -> None:
        """Raises LoadFailed when the model could not be loaded a short while ago."""
        berth = self.berth(name)
        left_s = berth.since_s + self._rules.retry_after_s - now_s
        if berth.state is State.FAILED and left_s > 0:
            raise LoadFailed(
                f"the model {name!r} could not be loaded: {berth.failure}", max(left_s, 1.0)
            )

    def enter(self, name: str, now_s: float) -> int:
        """Another user of an open model. Answers the generation, for `leave`."""
        berth = self._berths[name]
        assert berth.is_open, f"{name} is not open"
        berth.num_users += 1
        berth.used_s = now_s
        return berth.generation

    def leave(self, name: str, generation: int, now_s: float) -> None:
        """A user is done. One of a server that is gone changes nothing."""
        berth = self._berths.get(name)
        if berth is not None and berth.generation == generation and berth.num_users:
            berth.num_users -= 1
            berth.used_s = now_s

    def wait(self, name: str, now_s: float, *, is_at_hand: bool = True) -> None:
        """Another request waits for the model."""
        berth = self._berths.setdefault(name, ModelEntry(name))
        if berth.state is not State.CHECKING:
            berth.is_at_hand = is_at_hand
        if not berth.num_waiting:
            berth.waiting_since_s = now_s
        berth.num_waiting += 1

    def unwait(self, name: str, count: int = 1) -> None:
        """So many wait no more, whatever came of it."""
        berth = self._berths[name]
        assert berth.num_waiting >= count, f"nobody waits for {name}"
        berth.num_waiting -= count

    def waits_for(self, name: str) -> Wait:
        """What those who wait for the model wait for."""
        berth = self.berth(name)
        if berth.state is State.LOADING:
            return Wait.LOAD
        if berth.state is State.CHECKING:
            return Wait.CHECK
        is_in_line = not berth.is_sound and self._is_line_full(berth)
        return Wait.LINE if is_in_line else Wait.ROOM

    def next_step(self, now_s: float) -> Check | Load | Unload | None:
        """What is to be done now, noted as begun. To be asked again until it is None."""
        missing = self._missing()
        self._forget(now_s)
        if not missing:
            self._left.clear()
        num_free = self._rules.max_loaded - self.num_loaded
        loadable = [berth for berth in missing if berth.state is not State.DRAINING]
        near = [berth for berth in loadable if berth.is_at_hand or berth.is_sound]
        if near and num_free > 0 and not self._count(State.LOADING):
            return self._load(near[0], now_s)
        num_coming = num_free + self._count(State.DRAINING)
        is_short = len(missing) > num_coming
        for berth in loadable:
            is_to_be_checked = not berth.is_sound and (is_short or not berth.is_at_hand)
            if is_to_be_checked and not self._is_line_full(berth):
                self._move(berth, Transition.CHECK, now_s)
                return Check(berth.name)
        return self._make_room(num_coming, now_s)

    def _load(self, berth: ModelEntry, now_s: float) -> Load:
        load = Load(berth.name, self.num_loaded, tuple(self._left))
        self._left.clear()
        # What was found may be so no more when it is to be loaded again.
        berth.is_sound = False
        self._move(berth, Transition.LOAD, now_s)
        return load

    def _make_room(self, num_coming: int, now_s: float) -> Unload | None:
        demand = self._demand()
        victim = None
        if len(demand) > num_coming:
            victim = self._idle_victim()
            if victim is None:
                self._close(demand, now_s)
            else:
                self._left.append(victim.name)
        else:
            self._reopen()
        victim = victim or self._overdue(now_s)
        if victim is None:
            return None
        self._move(victim, Transition.UNLOAD, now_s)
        return Unload(victim.name)

    def next_alarm_s(self, now_s: float) -> float | None:
        """When `next_step` may have something to say through time alone; None: never."""
        ready = [berth for berth in self._berths.values() if berth.state is State.READY]
        times = []
        if self._rules.idle_timeout_s is not None:
            idle = (berth for berth in ready if not berth.num_users and not berth.num_waiting)
            times += [berth.used_s + self._rules.idle_timeout_s for berth in idle]
        if pair := self._next_to_close(self._demand()):
            times.append(self._turn_end(*pair))
        return min(times, default=None)

    def passed(self, name: str, now_s: float) -> None:
        """The check found nothing against the model."""
        berth = self._berths[name]
        self._move(berth, Transition.PASSED, now_s)
        berth.is_sound = True

    def loaded(self, name: str, now_s: float) -> None:
        """The load went well: the model is ready."""
        berth = self._berths[name]
        self._move(berth, Transition.LOADED, now_s)
        self._num_generations += 1
        berth.generation = self._num_generations
        berth.used_s = now_s

    def failed(self, name: str, reason: str, now_s: float) -> None:
        """The check, or the load, went wrong."""
        berth = self._berths[name]
        self._move(berth, Transition.REFUSED, now_s)
        berth.failure = reason

    def unload(self, name: str, now_s: float) -> None:
        """A ready model has to go, whoever uses it: its server died, or all servers end."""
        self._move(self._berths[name], Transition.UNLOAD, now_s)

    def gone(self, name: str, now_s: float) -> None:
        """The model is in memory no more."""
        berth = self._berths[name]
        self._move(berth, Transition.GONE, now_s)
        berth.num_users = 0
        berth.is_closing = False

    def _move(self, berth: ModelEntry, move: Transition, now_s: float) -> None:
        berth.state = TRANSITIONS[berth.state, move]
        berth.since_s = now_s

    def _count(self, state: State) -> int:
        return sum(berth.state is state for berth in self._berths.values())

    def _is_line_full(self, berth: ModelEntry) -> bool:
        """Whether as many models of its kind are checked as may be."""
        checking = [each for each in self._berths.values() if each.state is State.CHECKING]
        return sum(each.is_at_hand == berth.is_at_hand for each in checking) >= _MAX_CHECKS

    def _missing(self) -> list[ModelEntry]:
        """Models that somebody waits for and that are to be loaded, the longest wait first."""
        absent = (State.ABSENT, State.FAILED, State.DRAINING)
        missing = [b for b in self._berths.values() if b.num_waiting and b.state in absent]
        return sorted(missing, key=lambda b: b.waiting_since_s)

    def _demand(self) -> list[ModelEntry]:
        """Those of them that others may have to leave for."""
        return [b for b in self._missing() if b.is_sound or b.state is State.DRAINING]

    def _idle_victim(self) -> ModelEntry | None:
        idle = [
            berth
            for berth in self._berths.values()
            if berth.state is State.READY
            and not berth.num_users
            and (berth.is_closing or not berth.num_waiting)
        ]
        return min(idle, key=lambda berth: berth.used_s, default=None)

    def _close(self, missing: list[ModelEntry], now_s: float) -> None:
        """Lets no further user into the models that had the longest turns, if long enough."""
        while pair := self._next_to_close(missing):
            if self._turn_end(*pair) > now_s:
                return
            pair[0].is_closing = True

    def _next_to_close(self, missing: list[ModelEntry]) -> tuple[ModelEntry, ModelEntry] | None:
        """The open model that is ready longest, and who waits for it; None when nobody does."""
        ready = [berth for berth in self._berths.values() if berth.state is State.READY]
        open_ones = [berth for berth in ready if not berth.is_closing]
        num_closing = len(ready) - len(open_ones)
        num_coming = self._rules.max_loaded - self.num_loaded + self._count(State.DRAINING)
        starved = missing[num_closing + num_coming :]
        if not starved or not open_ones:
            return None
        return min(open_ones, key=lambda berth: berth.since_s), starved[0]

    def _turn_end(self, berth: ModelEntry, waiting: ModelEntry) -> float:
        return max(berth.since_s, waiting.waiting_since_s) + self._rules.turn_s

    def _reopen(self) -> None:
        for berth in self._berths.values():
            berth.is_closing = False

    def _overdue(self, now_s: float) -> ModelEntry | None:
        timeout_s = self._rules.idle_timeout_s
        victim = self._idle_victim()
        if timeout_s is None or victim is None or now_s - victim.used_s < timeout_s:
            return None
        return victim

    def _forget(self, now_s: float) -> None:
        """What is not in memory, and nobody waits for, leaves nothing behind but its failure."""
        for name, berth in list(self._berths.items()):
            is_stale = now_s - berth.since_s >= self._rules.retry_after_s
            is_over = berth.state is State.ABSENT or (berth.state is State.FAILED and is_stale)
            if is_over and not berth.num_waiting:
                del self._berths[name]
