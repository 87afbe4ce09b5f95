"""Invariants of the model table under any events in any order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fleet.errors import LoadFailed
from fleet.model_table import LoadingRules, ModelState, ModelTable

NAMES = st.sampled_from("abcd")


class World(RuleBasedStateMachine):
    """Requests come, wait, run and leave; downloads and loads succeed and fail; servers die; time
    passes."""

    def __init__(self) -> None:
        super().__init__()
        self.max_loaded = 2
        self.table = ModelTable(LoadingRules(self.max_loaded, 5.0, 8.0, 20.0))
        self.now_s = 0.0
        self.users: list[tuple[str, int]] = []
        self.to_download: set[str] = set()
        self.to_load: set[str] = set()
        self.to_unload: set[str] = set()
        self.alarm_s: float | None = None

    def settle(self) -> None:
        """What the manager does after every change."""
        for _ in range(20):
            step = self.table.next_step(self.now_s)
            for entry in self.table.entries():
                while self.table.is_open(entry.name, self.now_s) and entry.num_waiting:
                    self.table.remove_waiting(entry.name)
                    self.users.append((entry.name, self.table.add_user(entry.name, self.now_s)))
            if step is None:
                break
            if step.state is ModelState.LOADING:
                assert len(self.to_load) == 0
                assert step.is_local
                self.to_load.add(step.name)
            elif step.state is ModelState.DOWNLOADING:
                self.to_download.add(step.name)
            else:
                assert self.takers(step.name) or self.is_overdue(step.name)
                assert all(name != step.name for name, _ in self.live_users())
                self.to_unload.add(step.name)
        else:
            raise AssertionError("the table always has a next step")
        self.alarm_s = self.table.next_alarm_s(self.now_s)
        assert self.alarm_s is None or self.alarm_s > self.now_s

    def finish_download(self) -> None:
        self.table.mark_downloaded(self.to_download.pop(), self.now_s)

    def live_users(self) -> list[tuple[str, int]]:
        return [
            (name, generation)
            for name, generation in self.users
            if self.table.entry(name).server_id == generation
            and self.table.entry(name).state is ModelState.READY
        ]

    def takers(self, victim: str) -> list[str]:
        """Models that may be loaded in place of the victim: nothing of them is to be downloaded."""
        absent = (ModelState.ABSENT, ModelState.FAILED, ModelState.DRAINING)
        return [
            entry.name
            for entry in self.table.entries()
            if entry.num_waiting and entry.is_local and entry.state in absent
            if entry.name != victim
        ]

    def is_overdue(self, name: str) -> bool:
        return self.now_s - self.table.entry(name).used_s >= 20.0

    @rule(name=NAMES, is_local=st.booleans())
    def request_comes(self, name: str, is_local: bool) -> None:
        try:
            self.table.check_failure(name, self.now_s)
        except LoadFailed:
            return
        if self.table.is_open(name, self.now_s):
            self.users.append((name, self.table.add_user(name, self.now_s)))
        else:
            self.table.add_waiting(name, self.now_s, is_local=is_local)
        self.settle()

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def request_ends(self, data: st.DataObject) -> None:
        user = data.draw(st.sampled_from(self.users))
        self.users.remove(user)
        self.table.remove_user(*user, self.now_s)
        self.settle()

    @rule(name=NAMES)
    def one_gives_up(self, name: str) -> None:
        if self.table.entry(name).num_waiting:
            self.table.remove_waiting(name)
            self.settle()

    @precondition(lambda self: self.to_load)
    @rule(goes_well=st.booleans())
    def load_ends(self, goes_well: bool) -> None:
        name = self.to_load.pop()
        if goes_well:
            self.table.mark_loaded(name, self.now_s)
        else:
            self.table.remove_waiting(name, self.table.entry(name).num_waiting)
            self.table.mark_failed(name, "bad luck", self.now_s)
        self.settle()

    @precondition(lambda self: self.to_download)
    @rule(goes_well=st.booleans())
    def download_ends(self, goes_well: bool) -> None:
        if goes_well:
            self.finish_download()
        else:
            name = self.to_download.pop()
            self.table.remove_waiting(name, self.table.entry(name).num_waiting)
            self.table.mark_failed(name, "bad luck", self.now_s)
        self.settle()

    @precondition(lambda self: self.to_unload)
    @rule()
    def unload_ends(self) -> None:
        self.table.mark_unloaded(self.to_unload.pop(), self.now_s)
        self.settle()

    @rule(name=NAMES)
    def server_dies(self, name: str) -> None:
        if self.table.entry(name).state is ModelState.READY:
            self.table.start_unload(name, self.now_s)
            self.to_unload.add(name)
            self.settle()

    @rule(seconds=st.floats(0.1, 30))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.settle()

    @invariant()
    def memory_is_never_overfull(self) -> None:
        assert self.table.num_loaded <= self.max_loaded

    @invariant()
    def users_are_counted(self) -> None:
        live = self.live_users()
        for entry in self.table.entries():
            if entry.state is ModelState.READY:
                assert entry.num_users == sum(name == entry.name for name, _ in live)

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """With all users gone and all work done, whoever waits is being helped."""
        waiting = any(entry.num_waiting for entry in self.table.entries())
        if waiting and not self.live_users():
            assert self.to_load or self.to_unload or self.to_download

    def teardown(self) -> None:
        """Whoever waits is served in the end, if everybody else leaves."""
        for _ in range(60):
            self.now_s += 3
            if self.users:
                self.table.remove_user(*self.users.pop(), self.now_s)
            while self.to_unload:
                self.table.mark_unloaded(self.to_unload.pop(), self.now_s)
            while self.to_download:
                self.finish_download()
            while self.to_load:
                self.table.mark_loaded(self.to_load.pop(), self.now_s)
            self.settle()
        assert not any(entry.num_waiting for entry in self.table.entries())


TestWorld = World.TestCase
TestWorld.settings = settings(stateful_step_count=40)
