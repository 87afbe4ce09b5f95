"""The model table: transitions, room, turns, and its invariants under any events in any order."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fleet.errors import LoadFailed
from fleet.model_table import LEGAL_MOVES, LoadingRules, ModelState, ModelTable

RULES = LoadingRules(max_loaded=1, turn_s=10.0, retry_after_s=30.0)
Step = tuple[str, ModelState] | None


def step(table: ModelTable, now_s: float) -> Step:
    """The model of the table's next step, and its new state."""
    entry = table.next_step(now_s)
    return None if entry is None else (entry.name, entry.state)


def load(name: str) -> Step:
    return name, ModelState.LOADING


def download(name: str) -> Step:
    return name, ModelState.DOWNLOADING


def unload(name: str) -> Step:
    return name, ModelState.DRAINING


def serve(table: ModelTable, name: str, now_s: float) -> int:
    """`name` is asked for and loaded; answers the generation of its one user."""
    table.add_waiting(name, now_s)
    assert step(table, now_s) == load(name)
    table.mark_loaded(name, now_s)
    table.remove_waiting(name)
    return table.add_user(name, now_s)


def test_a_model_is_loaded_when_somebody_waits_for_it() -> None:
    table = ModelTable(RULES)
    assert step(table, 0) is None
    table.add_waiting("a", 0)
    assert step(table, 0) == load("a")
    assert table.entry("a").state is ModelState.LOADING
    assert step(table, 0) is None


def test_an_idle_model_leaves_for_one_that_waits() -> None:
    table = ModelTable(RULES)
    generation = serve(table, "a", 0)
    table.remove_user("a", generation, 1)
    table.add_waiting("b", 2)
    assert step(table, 2) == unload("a")
    assert step(table, 2) is None
    table.mark_unloaded("a", 3)
    assert step(table, 3) == load("b")


def test_no_model_leaves_for_one_that_is_not_downloaded() -> None:
    table = ModelTable(RULES)
    table.remove_user("a", serve(table, "a", 0), 1)
    table.add_waiting("b", 2, is_local=False)
    assert step(table, 2) == download("b")
    assert step(table, 2) is None
    assert table.entry("b").state is ModelState.DOWNLOADING
    table.remove_waiting("b")
    table.mark_failed("b", "no weights", 3)
    assert step(table, 3) is None
    assert table.is_open("a", 3)
    with pytest.raises(LoadFailed, match="no weights"):
        table.check_failure("b", 4)


def test_a_model_that_has_to_be_fetched_takes_no_place_meanwhile() -> None:
    table = ModelTable(RULES)
    table.add_waiting("far", 0, is_local=False)
    assert step(table, 0) == download("far")
    assert step(table, 0) is None
    assert table.entry("far").state is ModelState.DOWNLOADING
    generation = serve(table, "near", 1)
    table.mark_downloaded("far", 2)
    assert step(table, 2) is None
    table.remove_user("near", generation, 3)
    assert step(table, 3) == unload("near")
    table.mark_unloaded("near", 4)
    assert step(table, 4) == load("far")


def test_many_that_are_fetched_keep_nobody_waiting_who_is_at_hand() -> None:
    table = ModelTable(RULES)
    table.remove_user("a", serve(table, "a", 0), 0)
    for number in range(6):
        table.add_waiting(f"far-{number}", 1, is_local=False)
    for number in range(4):
        assert step(table, 1) == download(f"far-{number}")
    assert step(table, 1) is None
    assert table.entry("far-5").state is ModelState.ABSENT
    table.add_waiting("near", 2)
    assert step(table, 2) == unload("a")
    table.remove_waiting("far-1")
    table.mark_failed("far-1", "no such weights", 3)
    assert step(table, 3) == download("far-4")


def test_the_least_recently_used_leaves_first() -> None:
    table = ModelTable(LoadingRules(max_loaded=2))
    for name, now_s in (("a", 0), ("b", 1)):
        table.remove_user(name, serve(table, name, now_s), now_s)
    table.remove_user("a", table.add_user("a", 5), 6)
    table.add_waiting("c", 7)
    assert step(table, 7) == unload("b")


def test_a_busy_model_stays_and_closes_after_its_turn() -> None:
    table = ModelTable(RULES)
    generation = serve(table, "a", 0)
    table.add_waiting("b", 5)
    assert step(table, 14.9) is None
    assert table.is_open("a", 14.9)
    assert table.next_alarm_s(14.9) == 15.0
    assert step(table, 15) is None
    assert not table.is_open("a", 15)
    assert table.entry("a").state is ModelState.READY
    table.remove_user("a", generation, 20)
    assert step(table, 20) == unload("a")


def test_a_model_opens_again_when_nobody_waits_for_its_room() -> None:
    table = ModelTable(RULES)
    serve(table, "a", 0)
    table.add_waiting("b", 0)
    step(table, 10)
    assert not table.is_open("a", 10)
    table.remove_waiting("b")
    step(table, 11)
    assert table.is_open("a", 11)


def test_a_turn_begins_with_the_model_and_not_with_the_wait() -> None:
    table = ModelTable(RULES)
    first = serve(table, "a", 0)
    table.add_waiting("b", 0)
    table.add_waiting("a", 1)
    table.remove_user("a", first, 50)
    # The manager, which lets waiting requests into an open model, is missing here.
    table.remove_waiting("a")
    assert step(table, 50) == unload("a")
    table.mark_unloaded("a", 51)
    table.add_waiting("a", 51)
    assert step(table, 51) == load("b")
    table.mark_loaded("b", 90)
    table.remove_waiting("b")
    table.add_user("b", 90)
    assert step(table, 90) is None
    assert table.is_open("b", 90)
    assert table.next_alarm_s(90) == 100.0


def test_models_are_loaded_one_at_a_time() -> None:
    table = ModelTable(LoadingRules(max_loaded=2))
    table.add_waiting("a", 0)
    table.add_waiting("b", 1)
    assert step(table, 1) == load("a")
    assert step(table, 1) is None
    table.mark_loaded("a", 2)
    assert step(table, 2) == load("b")


def test_a_failure_is_remembered_for_a_while() -> None:
    table = ModelTable(RULES)
    table.add_waiting("a", 0)
    step(table, 0)
    table.remove_waiting("a")
    table.mark_failed("a", "no weights", 5)
    with pytest.raises(LoadFailed, match="no weights") as caught:
        table.check_failure("a", 15)
    assert caught.value.retry_after_s == 20
    table.check_failure("a", 35)
    table.add_waiting("a", 35)
    assert step(table, 35) == load("a")


def test_an_idle_model_leaves_when_its_time_is_over() -> None:
    table = ModelTable(LoadingRules(idle_timeout_s=60))
    table.remove_user("a", serve(table, "a", 0), 10)
    assert step(table, 69) is None
    assert table.next_alarm_s(69) == 70
    assert step(table, 70) == unload("a")


def test_users_of_a_server_that_died_are_no_users_of_the_next_one() -> None:
    table = ModelTable(RULES)
    old = serve(table, "a", 0)
    table.start_unload("a", 0)
    table.mark_unloaded("a", 1)
    new = serve(table, "a", 2)
    table.remove_user("a", old, 3)
    assert table.entry("a").num_users == 1
    table.remove_user("a", new, 4)
    assert table.entry("a").num_users == 0


def test_the_table_has_no_move_out_of_what_is_not_there() -> None:
    assert (ModelState.ABSENT, ModelState.DRAINING) not in LEGAL_MOVES
    table = ModelTable(RULES)
    serve(table, "a", 0)
    with pytest.raises(AssertionError, match="ready -> ready"):
        table.mark_loaded("a", 1)
    assert table.entry("a").state is ModelState.READY


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
