"""The books of loaded models: the transition table, room, turns."""

import pytest

from fleet.errors import LoadFailed
from fleet.model_entry import TRANSITIONS, State, Transition, Wait
from fleet.model_table import Check, Load, ModelTable, RosterRules, Unload

RULES = RosterRules(max_loaded=1, turn_s=10.0, retry_after_s=30.0)


def serve(roster: ModelTable, name: str, now_s: float) -> int:
    """`name` is asked for and loaded; answers the generation of its one user."""
    roster.wait(name, now_s)
    assert roster.next_step(now_s) == Load(name, roster.num_loaded - 1)
    roster.loaded(name, now_s)
    roster.unwait(name)
    return roster.enter(name, now_s)


def prove(roster: ModelTable, name: str, now_s: float) -> None:
    """Nothing speaks against `name`, for which there is no room."""
    assert roster.next_step(now_s) == Check(name)
    roster.passed(name, now_s)


def test_a_model_is_loaded_when_somebody_waits_for_it() -> None:
    roster = ModelTable(RULES)
    assert roster.next_step(0) is None
    roster.wait("a", 0)
    assert roster.next_step(0) == Load("a", 0)
    assert roster.berth("a").state is State.LOADING
    assert roster.next_step(0) is None


def test_an_idle_model_leaves_for_one_that_waits() -> None:
    roster = ModelTable(RULES)
    generation = serve(roster, "a", 0)
    roster.leave("a", generation, 1)
    roster.wait("b", 2)
    prove(roster, "b", 2)
    assert roster.next_step(2) == Unload("a")
    assert roster.next_step(2) is None
    roster.gone("a", 3)
    assert roster.next_step(3) == Load("b", 0, instead_of=("a",))


def test_no_model_leaves_for_one_that_is_not_checked_or_not_sound() -> None:
    roster = ModelTable(RULES)
    roster.leave("a", serve(roster, "a", 0), 1)
    roster.wait("b", 2)
    assert roster.next_step(2) == Check("b")
    assert roster.next_step(2) is None
    assert roster.berth("b").state is State.CHECKING
    roster.unwait("b")
    roster.failed("b", "no weights", 3)
    assert roster.next_step(3) is None
    assert roster.berth("a").is_open
    with pytest.raises(LoadFailed, match="no weights"):
        roster.check("b", 4)


def test_where_there_is_room_nothing_is_checked() -> None:
    roster = ModelTable(RosterRules(max_loaded=2))
    roster.leave("a", serve(roster, "a", 0), 1)
    roster.wait("b", 2)
    assert roster.next_step(2) == Load("b", 1)


def test_a_model_that_has_to_be_fetched_takes_no_place_meanwhile() -> None:
    roster = ModelTable(RULES)
    roster.wait("far", 0, is_at_hand=False)
    assert roster.next_step(0) == Check("far")
    assert roster.next_step(0) is None
    assert roster.waits_for("far") is Wait.CHECK
    generation = serve(roster, "near", 1)
    roster.passed("far", 2)
    assert roster.next_step(2) is None
    roster.leave("near", generation, 3)
    assert roster.next_step(3) == Unload("near")
    roster.gone("near", 4)
    assert roster.next_step(4) == Load("far", 0, instead_of=("near",))


def test_many_that_are_fetched_keep_nobody_waiting_who_is_at_hand() -> None:
    roster = ModelTable(RULES)
    roster.leave("a", serve(roster, "a", 0), 0)
    for number in range(6):
        roster.wait(f"far-{number}", 1, is_at_hand=False)
    for number in range(4):
        assert roster.next_step(1) == Check(f"far-{number}")
    assert roster.next_step(1) is None
    assert roster.waits_for("far-5") is Wait.LINE
    roster.wait("near", 2)
    prove(roster, "near", 2)
    assert roster.next_step(2) == Unload("a")
    roster.unwait("far-1")
    roster.failed("far-1", "no such weights", 3)
    assert roster.next_step(3) == Check("far-4")


def test_many_that_are_checked_keep_nobody_from_being_fetched() -> None:
    roster = ModelTable(RULES)
    serve(roster, "a", 0)
    for number in range(5):
        roster.wait(f"near-{number}", 1)
    assert [roster.next_step(1) for _ in range(5)][3:] == [Check("near-3"), None]
    roster.wait("far", 2, is_at_hand=False)
    assert roster.next_step(2) == Check("far")
    assert roster.waits_for("near-4") is Wait.LINE
    roster.passed("near-0", 3)
    assert roster.waits_for("near-0") is Wait.ROOM


def test_a_model_that_left_the_memory_is_checked_before_another_leaves_for_it() -> None:
    roster = ModelTable(RULES)
    for name, now_s in (("a", 0.0), ("b", 10.0)):
        roster.wait(name, now_s)
        if now_s:
            prove(roster, name, now_s)
            assert roster.next_step(now_s) == Unload("a")
            roster.gone("a", now_s)
        roster.next_step(now_s)
        roster.loaded(name, now_s)
        roster.unwait(name)
    roster.wait("a", 20)
    assert roster.next_step(20) == Check("a")


def test_what_left_for_a_model_that_nobody_waits_for_any_more_left_for_no_other() -> None:
    roster = ModelTable(RULES)
    roster.leave("a", serve(roster, "a", 0), 1)
    roster.wait("b", 2)
    prove(roster, "b", 2)
    assert roster.next_step(2) == Unload("a")
    roster.unwait("b")
    assert roster.next_step(2) is None
    roster.gone("a", 3)
    roster.wait("c", 4)
    assert roster.next_step(4) == Load("c", 0)


def test_the_least_recently_used_leaves_first() -> None:
    roster = ModelTable(RosterRules(max_loaded=2))
    for name, now_s in (("a", 0), ("b", 1)):
        roster.leave(name, serve(roster, name, now_s), now_s)
    roster.leave("a", roster.enter("a", 5), 6)
    roster.wait("c", 7)
    prove(roster, "c", 7)
    assert roster.next_step(7) == Unload("b")


def test_a_busy_model_stays_and_closes_after_its_turn() -> None:
    roster = ModelTable(RULES)
    generation = serve(roster, "a", 0)
    roster.wait("b", 5)
    prove(roster, "b", 5)
    assert roster.next_step(14.9) is None
    assert roster.berth("a").is_open
    assert roster.next_alarm_s(14.9) == 15.0
    assert roster.next_step(15) is None
    assert not roster.berth("a").is_open
    assert roster.berth("a").state is State.READY
    roster.leave("a", generation, 20)
    assert roster.next_step(20) == Unload("a")


def test_a_model_opens_again_when_nobody_waits_for_its_room() -> None:
    roster = ModelTable(RULES)
    serve(roster, "a", 0)
    roster.wait("b", 0)
    prove(roster, "b", 0)
    roster.next_step(10)
    assert not roster.berth("a").is_open
    roster.unwait("b")
    roster.next_step(11)
    assert roster.berth("a").is_open


def test_a_turn_begins_with_the_model_and_not_with_the_wait() -> None:
    roster = ModelTable(RULES)
    first = serve(roster, "a", 0)
    roster.wait("b", 0)
    roster.wait("a", 1)
    roster.leave("a", first, 50)
    # Those who wait for an open model are let in by whoever keeps these books; nobody did.
    roster.unwait("a")
    prove(roster, "b", 50)
    assert roster.next_step(50) == Unload("a")
    roster.gone("a", 51)
    roster.wait("a", 51)
    assert roster.next_step(51) == Load("b", 0, instead_of=("a",))
    prove(roster, "a", 51)
    roster.loaded("b", 90)
    roster.unwait("b")
    roster.enter("b", 90)
    assert roster.next_step(90) is None
    assert roster.berth("b").is_open
    assert roster.next_alarm_s(90) == 100.0


def test_models_are_loaded_one_at_a_time() -> None:
    roster = ModelTable(RosterRules(max_loaded=2))
    roster.wait("a", 0)
    roster.wait("b", 1)
    assert roster.next_step(1) == Load("a", 0)
    assert roster.next_step(1) is None
    roster.loaded("a", 2)
    assert roster.next_step(2) == Load("b", 1)


def test_a_failure_is_remembered_for_a_while() -> None:
    roster = ModelTable(RULES)
    roster.wait("a", 0)
    roster.next_step(0)
    roster.unwait("a")
    roster.failed("a", "no weights", 5)
    with pytest.raises(LoadFailed, match="no weights") as caught:
        roster.check("a", 15)
    assert caught.value.retry_after_s == 20
    roster.check("a", 35)
    roster.wait("a", 35)
    assert roster.next_step(35) == Load("a", 0)


def test_an_idle_model_leaves_when_its_time_is_over() -> None:
    roster = ModelTable(RosterRules(idle_timeout_s=60))
    roster.leave("a", serve(roster, "a", 0), 10)
    assert roster.next_step(69) is None
    assert roster.next_alarm_s(69) == 70
    assert roster.next_step(70) == Unload("a")


def test_users_of_a_server_that_died_are_no_users_of_the_next_one() -> None:
    roster = ModelTable(RULES)
    old = serve(roster, "a", 0)
    roster.unload("a", 0)
    roster.gone("a", 1)
    new = serve(roster, "a", 2)
    roster.leave("a", old, 3)
    assert roster.berth("a").num_users == 1
    roster.leave("a", new, 4)
    assert roster.berth("a").num_users == 0


def test_the_table_has_no_move_out_of_what_is_not_there() -> None:
    assert (State.ABSENT, Transition.UNLOAD) not in TRANSITIONS
    roster = ModelTable(RULES)
    serve(roster, "a", 0)
    with pytest.raises(KeyError):
        roster.loaded("a", 1)
    assert roster.berth("a").state is State.READY
