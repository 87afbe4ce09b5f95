"""When refused clients come back: one after the other, and with a slot to come back to."""

from hypothesis import given
from hypothesis import strategies as st

from router.engine.appointments import MAX_S, MIN_S, Appointments


def test_each_refused_client_is_told_a_later_time_than_the_one_before() -> None:
    book = Appointments(64)
    told = [book.refuse(0.0, key, 1, per_second=2.0) for key in range(4)]
    assert told == [1.0, 1.5, 2.0, 2.5]


def test_a_request_of_several_sequences_waits_for_as_many_slots() -> None:
    book = Appointments(64)
    assert book.refuse(0.0, 1, 4, per_second=2.0) == 1.0 + 3 * 0.5
    assert book.refuse(0.0, 2, 1, per_second=2.0) == 1.0 + 4 * 0.5


def test_nobody_is_told_to_wait_longer_than_a_minute() -> None:
    book = Appointments(64)
    told = [book.refuse(0.0, key, 1, per_second=0.1) for key in range(20)]
    assert told[-1] == MAX_S
    assert told == sorted(told)


def test_a_queue_that_was_too_long_has_forgotten_that_a_minute_later() -> None:
    book = Appointments(64)
    for key in range(100):
        book.refuse(0.0, key, 1, per_second=0.1)
    assert book.refuse(MAX_S, 1000, 1, per_second=10.0) <= MIN_S + 0.1


def test_equal_requests_have_a_time_each_up_to_four_for_each_slot() -> None:
    book = Appointments(1)
    told = [book.refuse(0.0, 7, 1, per_second=1.0) for _ in range(6)]
    assert told == [1.0, 2.0, 3.0, 4.0, 4.0, 4.0]


def test_an_equal_that_comes_early_takes_nobody_s_appointment() -> None:
    book = Appointments(16)
    for _ in range(3):
        book.refuse(0.0, 7, 1, per_second=1.0)
    book.admit(0.5, 7)
    assert len(book) == 3
    book.admit(1.0, 7)
    assert len(book) == 2


def test_at_its_time_a_client_may_have_any_free_slot_and_others_may_not() -> None:
    book = Appointments(64)
    for key in range(20):
        book.refuse(0.0, key, 1, per_second=1.0)
    assert book.num_kept(1.0, 0, per_second=1.0) == 0
    assert book.num_kept(1.0, 99, per_second=1.0) > 0


def test_no_more_than_a_sixteenth_of_the_slots_is_kept_or_an_eighth_for_late_clients() -> None:
    book = Appointments(64)
    for key in range(64):
        book.refuse(0.0, key, 1, per_second=1000.0)
    assert book.num_kept(2.0, 99, per_second=1000.0) == 4
    for key in range(32):
        book.refuse(2.0, key, 1, per_second=1000.0)
    assert book.num_kept(2.0, 99, per_second=1000.0) == 8


def test_a_server_of_three_slots_keeps_none() -> None:
    book = Appointments(3)
    book.refuse(0.0, 1, 1, per_second=1.0)
    assert book.num_kept(1.5, 2, per_second=1.0) == 0


def test_clients_that_never_come_back_cost_no_slot_in_the_long_run() -> None:
    book = Appointments(64)
    for key in range(200):
        book.refuse(0.1 * key, key, 1, per_second=10.0)
    for key in range(200, 240):
        book.refuse(24.0, key, 1, per_second=10.0)
    assert book.num_kept(25.0, 999, per_second=10.0) == 0


def test_who_finds_no_slot_at_its_time_is_told_again_and_its_slot_is_kept_next() -> None:
    book = Appointments(64)
    book.refuse(0.0, 1, 1, per_second=4.0)
    assert book.refuse(1.0, 1, 1, per_second=4.0) == MIN_S
    assert book.num_kept(1.5, 2, per_second=4.0) == 1
    assert book.num_kept(2.0, 1, per_second=4.0) == 0
    book.admit(2.0, 1)
    assert book.num_kept(2.0, 2, per_second=4.0) == 0
    assert len(book) == 0


def test_a_late_request_of_many_sequences_has_all_its_slots_kept() -> None:
    book = Appointments(64)
    book.refuse(0.0, 1, 30, per_second=100.0)
    book.refuse(1.3, 1, 30, per_second=100.0)
    book.refuse(1.3, 2, 1, per_second=100.0)
    assert book.num_kept(2.4, 3, per_second=100.0) == 30
    assert book.num_kept(2.4, 2, per_second=100.0) == 30
    assert book.num_kept(2.4, 1, per_second=100.0) == 0


def test_a_client_that_comes_early_and_finds_room_is_no_longer_expected() -> None:
    book = Appointments(64)
    book.refuse(0.0, 1, 1, per_second=1.0)
    book.admit(0.5, 1)
    assert len(book) == 0
    assert book.num_kept(1.0, 2, per_second=1.0) == 0


def test_the_slot_of_a_late_client_puts_off_those_who_are_told_later() -> None:
    punctual, late = Appointments(64), Appointments(64)
    for book in (punctual, late):
        for key in range(3):
            book.refuse(0.0, key, 1, per_second=2.0)
    late.refuse(1.0, 0, 1, per_second=2.0)
    assert late.refuse(1.0, 9, 1, per_second=2.0) == 0.5 + punctual.refuse(
        1.0, 9, 1, per_second=2.0
    )


moves = st.lists(
    st.tuples(
        st.floats(0.0, 3.0),
        st.integers(0, 5),
        st.integers(1, 5),
        st.floats(0.01, 100.0),
        st.booleans(),
    ),
    max_size=60,
)


@given(moves, st.integers(1, 80))
def test_whatever_happens_times_are_within_bounds_and_the_books_add_up(
    steps: list[tuple[float, int, int, float, bool]], num_slots: int
) -> None:
    book = Appointments(num_slots)
    now_s, num_refused = 0.0, 0
    for gap_s, key, num_wanted, rate, comes_in in steps:
        now_s += gap_s
        kept = book.num_kept(now_s, key, rate)
        assert 0 <= kept <= max(num_slots // 8, 1, 5)
        if comes_in:
            book.admit(now_s, key)
        else:
            num_refused += 1
            assert MIN_S <= book.refuse(now_s, key, num_wanted, rate) <= MAX_S
        assert 0 <= len(book) <= num_refused
    later_s = now_s + 2 * MAX_S + 10.0
    assert book.num_kept(later_s, 0, 1.0) == 0
    assert len(book) == 0
