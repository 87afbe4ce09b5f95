"""The model table: transitions, room, turns."""

import pytest

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
