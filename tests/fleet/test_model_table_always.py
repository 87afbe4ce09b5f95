"""What must always hold of the books of loaded models, whatever happens in whatever order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fleet.errors import LoadFailed
from fleet.model_entry import State
from fleet.model_table import Check, Load, ModelTable, RosterRules

NAMES = st.sampled_from("abcd")


class World(RuleBasedStateMachine):
    """Requests come, wait, run and leave; checks and loads succeed and fail; servers die; time
    passes."""

    def __init__(self) -> None:
        super().__init__()
        self.max_loaded = 2
        self.roster = ModelTable(RosterRules(self.max_loaded, 5.0, 8.0, 20.0))
        self.now_s = 0.0
        self.users: list[tuple[str, int]] = []
        self.to_check: set[str] = set()
        self.proven: set[str] = set()
        self.to_load: set[str] = set()
        self.to_unload: set[str] = set()
        self.alarm_s: float | None = None

    def settle(self) -> None:
        """What the keeper of the books does after every change."""
        for _ in range(20):
            step = self.roster.next_step(self.now_s)
            for berth in self.roster.berths():
                while berth.is_open and berth.num_waiting:
                    self.roster.unwait(berth.name)
                    self.users.append((berth.name, self.roster.enter(berth.name, self.now_s)))
            if step is None:
                break
            if isinstance(step, Load):
                assert len(self.to_load) == 0
                assert self.roster.berth(step.name).is_at_hand or step.name in self.proven
                self.proven.discard(step.name)
                self.to_load.add(step.name)
            elif isinstance(step, Check):
                self.to_check.add(step.name)
            else:
                assert self.takers() or self.is_overdue(step.name)
                assert all(name != step.name for name, _ in self.live_users())
                self.to_unload.add(step.name)
        else:
            raise AssertionError("the books never come to rest")
        self.alarm_s = self.roster.next_alarm_s(self.now_s)
        assert self.alarm_s is None or self.alarm_s > self.now_s

    def pass_check(self) -> None:
        name = self.to_check.pop()
        self.roster.passed(name, self.now_s)
        self.proven.add(name)

    def live_users(self) -> list[tuple[str, int]]:
        return [
            (name, generation)
            for name, generation in self.users
            if self.roster.berth(name).generation == generation
            and self.roster.berth(name).state is State.READY
        ]

    def takers(self) -> list[str]:
        """Models that may be loaded in place of another one: checked, or known from before."""
        berths = self.roster.berths()
        return [
            b.name for b in berths if b.num_waiting and (b.is_sound or b.name in self.to_unload)
        ]

    def is_overdue(self, name: str) -> bool:
        return self.now_s - self.roster.berth(name).used_s >= 20.0

    @rule(name=NAMES, is_at_hand=st.booleans())
    def request_comes(self, name: str, is_at_hand: bool) -> None:
        try:
            self.roster.check(name, self.now_s)
        except LoadFailed:
            return
        if self.roster.berth(name).is_open:
            self.users.append((name, self.roster.enter(name, self.now_s)))
        else:
            self.roster.wait(name, self.now_s, is_at_hand=is_at_hand)
        self.settle()

    @precondition(lambda self: self.users)
    @rule(data=st.data())
    def request_ends(self, data: st.DataObject) -> None:
        user = data.draw(st.sampled_from(self.users))
        self.users.remove(user)
        self.roster.leave(*user, self.now_s)
        self.settle()

    @rule(name=NAMES)
    def one_gives_up(self, name: str) -> None:
        if self.roster.berth(name).num_waiting:
            self.roster.unwait(name)
            self.settle()

    @precondition(lambda self: self.to_load)
    @rule(goes_well=st.booleans())
    def load_ends(self, goes_well: bool) -> None:
        name = self.to_load.pop()
        if goes_well:
            self.roster.loaded(name, self.now_s)
        else:
            self.roster.unwait(name, self.roster.berth(name).num_waiting)
            self.roster.failed(name, "bad luck", self.now_s)
        self.settle()

    @precondition(lambda self: self.to_check)
    @rule(goes_well=st.booleans())
    def check_ends(self, goes_well: bool) -> None:
        if goes_well:
            self.pass_check()
        else:
            name = self.to_check.pop()
            self.roster.unwait(name, self.roster.berth(name).num_waiting)
            self.roster.failed(name, "bad luck", self.now_s)
        self.settle()

    @precondition(lambda self: self.to_unload)
    @rule()
    def unload_ends(self) -> None:
        self.roster.gone(self.to_unload.pop(), self.now_s)
        self.settle()

    @rule(name=NAMES)
    def server_dies(self, name: str) -> None:
        if self.roster.berth(name).state is State.READY:
            self.roster.unload(name, self.now_s)
            self.to_unload.add(name)
            self.settle()

    @rule(seconds=st.floats(0.1, 30))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.settle()

    @invariant()
    def memory_is_never_overfull(self) -> None:
        assert self.roster.num_loaded <= self.max_loaded

    @invariant()
    def users_are_counted(self) -> None:
        live = self.live_users()
        for berth in self.roster.berths():
            if berth.state is State.READY:
                assert berth.num_users == sum(name == berth.name for name, _ in live)

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """With all users gone and all work done, whoever waits is being helped."""
        waiting = any(berth.num_waiting for berth in self.roster.berths())
        if waiting and not self.live_users():
            assert self.to_load or self.to_unload or self.to_check

    def teardown(self) -> None:
        """Whoever waits is served in the end, if everybody else leaves."""
        for _ in range(60):
            self.now_s += 3
            if self.users:
                self.roster.leave(*self.users.pop(), self.now_s)
            while self.to_unload:
                self.roster.gone(self.to_unload.pop(), self.now_s)
            while self.to_check:
                self.pass_check()
            while self.to_load:
                self.roster.loaded(self.to_load.pop(), self.now_s)
            self.settle()
        assert not any(berth.num_waiting for berth in self.roster.berths())


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
