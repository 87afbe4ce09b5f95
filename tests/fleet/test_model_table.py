"""The model table: transitions, room, turns."""

import pytest

from fleet.errors import LoadFailed
from fleet.model_entry import TRANSITIONS, ModelState, Transition, WaitReason
from fleet.model_table import Check, Load, LoadingRules, ModelTable, Unload

RULES = LoadingRules(max_loaded=1, turn_s=10.0, retry_after_s=30.0)


def serve(table: ModelTable, name: str, now_s: float) -> int:
    """`name` is asked for and loaded; answers the generation of its one user."""
    table.add_waiting(name, now_s)
    assert table.next_step(now_s) == Load(name, table.num_loaded - 1)
    table.mark_loaded(name, now_s)
    table.remove_waiting(name)
    return table.add_user(name, now_s)


def prove(table: ModelTable, name: str, now_s: float) -> None:
    """Nothing speaks against `name`, for which there is no room."""
    assert table.next_step(now_s) == Check(name)
    table.mark_checked(name, now_s)


def test_a_model_is_loaded_when_somebody_waits_for_it() -> None:
    table = ModelTable(RULES)
    assert table.next_step(0) is None
    table.add_waiting("a", 0)
    assert table.next_step(0) == Load("a", 0)
    assert table.entry("a").state is ModelState.LOADING
    assert table.next_step(0) is None


def test_an_idle_model_leaves_for_one_that_waits() -> None:
    table = ModelTable(RULES)
    generation = serve(table, "a", 0)
    table.remove_user("a", generation, 1)
    table.add_waiting("b", 2)
    prove(table, "b", 2)
    assert table.next_step(2) == Unload("a")
    assert table.next_step(2) is None
    table.mark_unloaded("a", 3)
    assert table.next_step(3) == Load("b", 0, instead_of=("a",))


def test_no_model_leaves_for_one_that_is_not_checked_or_not_sound() -> None:
    table = ModelTable(RULES)
    table.remove_user("a", serve(table, "a", 0), 1)
    table.add_waiting("b", 2)
    assert table.next_step(2) == Check("b")
    assert table.next_step(2) is None
    assert table.entry("b").state is ModelState.CHECKING
    table.remove_waiting("b")
    table.mark_failed("b", "no weights", 3)
    assert table.next_step(3) is None
    assert table.entry("a").is_open
    with pytest.raises(LoadFailed, match="no weights"):
        table.check_failure("b", 4)


def test_where_there_is_room_nothing_is_checked() -> None:
    table = ModelTable(LoadingRules(max_loaded=2))
    table.remove_user("a", serve(table, "a", 0), 1)
    table.add_waiting("b", 2)
    assert table.next_step(2) == Load("b", 1)


def test_a_model_that_has_to_be_fetched_takes_no_place_meanwhile() -> None:
    table = ModelTable(RULES)
    table.add_waiting("far", 0, is_local=False)
    assert table.next_step(0) == Check("far")
    assert table.next_step(0) is None
    assert table.wait_reason("far") is WaitReason.CHECK
    generation = serve(table, "near", 1)
    table.mark_checked("far", 2)
    assert table.next_step(2) is None
    table.remove_user("near", generation, 3)
    assert table.next_step(3) == Unload("near")
    table.mark_unloaded("near", 4)
    assert table.next_step(4) == Load("far", 0, instead_of=("near",))


def test_many_that_are_fetched_keep_nobody_waiting_who_is_at_hand() -> None:
    table = ModelTable(RULES)
    table.remove_user("a", serve(table, "a", 0), 0)
    for number in range(6):
        table.add_waiting(f"far-{number}", 1, is_local=False)
    for number in range(4):
        assert table.next_step(1) == Check(f"far-{number}")
    assert table.next_step(1) is None
    assert table.wait_reason("far-5") is WaitReason.CHECK_QUEUE
    table.add_waiting("near", 2)
    prove(table, "near", 2)
    assert table.next_step(2) == Unload("a")
    table.remove_waiting("far-1")
    table.mark_failed("far-1", "no such weights", 3)
    assert table.next_step(3) == Check("far-4")


def test_many_that_are_checked_keep_nobody_from_being_fetched() -> None:
    table = ModelTable(RULES)
    serve(table, "a", 0)
    for number in range(5):
        table.add_waiting(f"near-{number}", 1)
    assert [table.next_step(1) for _ in range(5)][3:] == [Check("near-3"), None]
    table.add_waiting("far", 2, is_local=False)
    assert table.next_step(2) == Check("far")
    assert table.wait_reason("near-4") is WaitReason.CHECK_QUEUE
    table.mark_checked("near-0", 3)
    assert table.wait_reason("near-0") is WaitReason.ROOM


def test_a_model_that_left_the_memory_is_checked_before_another_leaves_for_it() -> None:
    table = ModelTable(RULES)
    for name, now_s in (("a", 0.0), ("b", 10.0)):
        table.add_waiting(name, now_s)
        if now_s:
            prove(table, name, now_s)
            assert table.next_step(now_s) == Unload("a")
            table.mark_unloaded("a", now_s)
        table.next_step(now_s)
        table.mark_loaded(name, now_s)
        table.remove_waiting(name)
    table.add_waiting("a", 20)
    assert table.next_step(20) == Check("a")


def test_what_left_for_a_model_that_nobody_waits_for_any_more_left_for_no_other() -> None:
    table = ModelTable(RULES)
    table.remove_user("a", serve(table, "a", 0), 1)
    table.add_waiting("b", 2)
    prove(table, "b", 2)
    assert table.next_step(2) == Unload("a")
    table.remove_waiting("b")
    assert table.next_step(2) is None
    table.mark_unloaded("a", 3)
    table.add_waiting("c", 4)
    assert table.next_step(4) == Load("c", 0)


def test_the_least_recently_used_leaves_first() -> None:
    table = ModelTable(LoadingRules(max_loaded=2))
    for name, now_s in (("a", 0), ("b", 1)):
        table.remove_user(name, serve(table, name, now_s), now_s)
    table.remove_user("a", table.add_user("a", 5), 6)
    table.add_waiting("c", 7)
    prove(table, "c", 7)
    assert table.next_step(7) == Unload("b")


def test_a_busy_model_stays_and_closes_after_its_turn() -> None:
    table = ModelTable(RULES)
    generation = serve(table, "a", 0)
    table.add_waiting("b", 5)
    prove(table, "b", 5)
    assert table.next_step(14.9) is None
    assert table.entry("a").is_open
    assert table.next_alarm_s(14.9) == 15.0
    assert table.next_step(15) is None
    assert not table.entry("a").is_open
    assert table.entry("a").state is ModelState.READY
    table.remove_user("a", generation, 20)
    assert table.next_step(20) == Unload("a")


def test_a_model_opens_again_when_nobody_waits_for_its_room() -> None:
    table = ModelTable(RULES)
    serve(table, "a", 0)
    table.add_waiting("b", 0)
    prove(table, "b", 0)
    table.next_step(10)
    assert not table.entry("a").is_open
    table.remove_waiting("b")
    table.next_step(11)
    assert table.entry("a").is_open


def test_a_turn_begins_with_the_model_and_not_with_the_wait() -> None:
    table = ModelTable(RULES)
    first = serve(table, "a", 0)
    table.add_waiting("b", 0)
    table.add_waiting("a", 1)
    table.remove_user("a", first, 50)
    # The manager, which lets waiting requests into an open model, is missing here.
    table.remove_waiting("a")
    prove(table, "b", 50)
    assert table.next_step(50) == Unload("a")
    table.mark_unloaded("a", 51)
    table.add_waiting("a", 51)
    assert table.next_step(51) == Load("b", 0, instead_of=("a",))
    prove(table, "a", 51)
    table.mark_loaded("b", 90)
    table.remove_waiting("b")
    table.add_user("b", 90)
    assert table.next_step(90) is None
    assert table.entry("b").is_open
    assert table.next_alarm_s(90) == 100.0


def test_models_are_loaded_one_at_a_time() -> None:
    table = ModelTable(LoadingRules(max_loaded=2))
    table.add_waiting("a", 0)
    table.add_waiting("b", 1)
    assert table.next_step(1) == Load("a", 0)
    assert table.next_step(1) is None
    table.mark_loaded("a", 2)
    assert table.next_step(2) == Load("b", 1)


def test_a_failure_is_remembered_for_a_while() -> None:
    table = ModelTable(RULES)
    table.add_waiting("a", 0)
    table.next_step(0)
    table.remove_waiting("a")
    table.mark_failed("a", "no weights", 5)
    with pytest.raises(LoadFailed, match="no weights") as caught:
        table.check_failure("a", 15)
    assert caught.value.retry_after_s == 20
    table.check_failure("a", 35)
    table.add_waiting("a", 35)
    assert table.next_step(35) == Load("a", 0)


def test_an_idle_model_leaves_when_its_time_is_over() -> None:
    table = ModelTable(LoadingRules(idle_timeout_s=60))
    table.remove_user("a", serve(table, "a", 0), 10)
    assert table.next_step(69) is None
    assert table.next_alarm_s(69) == 70
    assert table.next_step(70) == Unload("a")


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
    assert (ModelState.ABSENT, Transition.UNLOAD) not in TRANSITIONS
    table = ModelTable(RULES)
    serve(table, "a", 0)
    with pytest.raises(KeyError):
        table.mark_loaded("a", 1)
    assert table.entry("a").state is ModelState.READY
