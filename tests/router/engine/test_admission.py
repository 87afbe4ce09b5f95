"""The bounded queue's door: who enters, what the others are told, and a rush of those who obey."""

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from math import ceil

import pytest

from router.engine.admission import Admission
from router.request.errors import Draining, InvalidRequest, Overloaded, Unhealthy
from tests.router.rig import asking


def test_as_many_enter_as_there_are_slots() -> None:
    admission = Admission(2, retry_s=1.0)
    admission.enter(0.0, 0, [asking("a")])
    admission.enter(0.0, 1, [asking("b")])
    with pytest.raises(Overloaded, match="2 requests are waiting or running; at most 2 may") as no:
        admission.enter(0.0, 2, [asking("c")])
    assert 1.0 <= no.value.retry_after_s <= 60.0


def test_several_sequences_enter_together_or_not_at_all() -> None:
    admission = Admission(4, retry_s=1.0)
    with pytest.raises(Overloaded, match="this one needs 3"):
        admission.enter(0.0, 2, [asking("a")] * 3)
    admission.enter(0.0, 1, [asking("b")] * 3)


def test_more_sequences_than_slots_can_never_enter() -> None:
    with pytest.raises(InvalidRequest, match="5 sequences at once; this server has 4"):
        Admission(4, retry_s=1.0).enter(0.0, 0, [asking("a")] * 5)


def test_a_closed_door_says_so() -> None:
    admission = Admission(4, retry_s=1.0)
    admission.close()
    with pytest.raises(Draining):
        admission.enter(0.0, 0, [asking()])


def test_broken_shards_refuse_once_a_first_attempt_to_begin_anew_had_its_time() -> None:
    admission = Admission(4, retry_s=3.0)
    admission.enter(0.0, 0, [asking("a")], broken_s=3.0)
    with pytest.raises(Unhealthy, match=r"have not answered for 3\.1 s") as no:
        admission.enter(0.0, 0, [asking("b")], broken_s=3.1)
    assert no.value.retry_after_s == 3.0


def test_sequences_that_fail_at_once_are_no_sign_of_a_fast_server() -> None:
    fast, broken = Admission(8, retry_s=1.0), Admission(8, retry_s=1.0)
    for admission, num_finished in ((fast, 1), (broken, 0)):
        admission.enter(0.0, 0, [asking() for _ in range(8)])
        for num_left in reversed(range(4, 8)):
            admission.left(0.1, num_left, num_finished)
    assert fast.drain_rate(0.1) > 6
    assert broken.drain_rate(0.1) < 4


def test_a_client_that_comes_back_as_told_has_a_slot_that_others_do_not_get() -> None:
    admission = Admission(4, retry_s=1.0)
    with pytest.raises(Overloaded) as no:
        admission.enter(0.0, 4, [asking("first")])
    back_s = no.value.retry_after_s
    with pytest.raises(Overloaded):
        admission.enter(0.0, 4, [asking("second")])
    admission.left(back_s, 3, num_finished=1)
    with pytest.raises(Overloaded, match="1 slots are kept for clients that come back"):
        admission.enter(back_s, 3, [asking("stranger")])
    admission.enter(back_s, 3, [asking("first")])


def test_the_same_request_is_known_again_although_its_drawn_seed_differs() -> None:
    admission = Admission(4, retry_s=1.0)
    drawn = asking("first").draw(1)
    with pytest.raises(Overloaded) as no:
        admission.enter(0.0, 4, [asking("first")])
    for _ in range(2):
        with pytest.raises(Overloaded):
            admission.enter(0.0, 4, [asking("second")])
    admission.enter(no.value.retry_after_s, 3, [drawn])


@dataclass
class Rush:
    """A closed loop: clients that ask again as soon as they are answered, on simulated time.

    `obey_share` of the refusals are obeyed, in whole seconds or exactly; after the others
    a client gives its request up and asks something else a second later.
    """

    num_slots: int = 128
    num_clients: int = 384
    duration_s: float = 2.5
    spread: float = 0.5
    obey_share: float = 1.0
    in_whole_seconds: bool = False
    asks_the_same: bool = False
    end_s: float = 120.0
    num_tries: Counter[int] = field(default_factory=Counter)
    num_answered: int = 0
    num_returns: int = 0
    num_served_returns: int = 0

    def run(self) -> "Rush":
        chance = random.Random(5)
        admission = Admission(self.num_slots, retry_s=1.0)
        order, prompts, num_taken = count(), count(), 0
        todo: list[tuple[float, int, int, int]] = []

        def later(at_s: float, prompt: int, tries: int) -> None:
            heapq.heappush(todo, (at_s, next(order), prompt, tries))

        for _ in range(self.num_clients):
            later(0.1 * chance.random(), next(prompts), 1)
        while todo and todo[0][0] < self.end_s:
            now_s, _, prompt, tries = heapq.heappop(todo)
            if tries == 0:
                num_taken -= 1
                admission.left(now_s, num_taken, num_finished=1)
                self.num_answered += 1
                later(now_s + 0.002, next(prompts), 1)
                continue
            self.num_returns += tries > 1
            try:
                asked = asking("the same" if self.asks_the_same else str(prompt))
                admission.enter(now_s, num_taken, [asked])
            except Overloaded as error:
                wait_s = error.retry_after_s
                if chance.random() >= self.obey_share:
                    later(now_s + 1.0, next(prompts), 1)
                else:
                    wait_s = float(ceil(wait_s)) if self.in_whole_seconds else wait_s
                    later(now_s + wait_s + 0.005, prompt, tries + 1)
                continue
            num_taken += 1
            self.num_tries[tries] += 1
            self.num_served_returns += tries > 1
            duration_s = self.duration_s * chance.uniform(1 - self.spread, 1 + self.spread)
            later(now_s + duration_s, prompt, 0)
        return self

    @property
    def goodput(self) -> float:
        """Of what the slots could do, from the beginning to the end."""
        could = self.num_slots * (self.end_s - self.duration_s) / self.duration_s
        return self.num_answered / could

    def share_within(self, num_tries: int) -> float:
        """Of the requests that were served: those that needed at most so many tries."""
        served = sum(self.num_tries.values())
        return sum(self.num_tries[tries] for tries in range(1, num_tries + 1)) / served


def test_three_times_the_capacity_costs_little_and_who_obeys_gets_in() -> None:
    rush = Rush().run()
    assert rush.goodput > 0.95
    assert rush.num_served_returns / rush.num_returns > 0.85
    # What `openai` does by itself: two retries.
    assert rush.share_within(3) > 0.95


def test_clients_that_know_whole_seconds_only_do_less_well_but_well() -> None:
    rush = Rush(in_whole_seconds=True).run()
    assert rush.goodput > 0.95
    assert rush.share_within(3) > 0.8


def test_clients_that_never_come_back_leave_no_slot_empty() -> None:
    assert Rush(obey_share=0.0).run().goodput > 0.98


def test_with_half_of_the_clients_obeying_those_do_get_in() -> None:
    rush = Rush(obey_share=0.5).run()
    assert rush.goodput > 0.9
    assert rush.num_served_returns / rush.num_returns > 0.9


def test_sequences_of_equal_length_end_together_and_still_let_those_in_who_waited() -> None:
    rush = Rush(num_slots=32, num_clients=96, duration_s=1.6, spread=0.0).run()
    assert rush.goodput > 0.94
    assert rush.share_within(3) > 0.9


def test_clients_that_all_ask_the_same_get_in_too() -> None:
    rush = Rush(asks_the_same=True).run()
    assert rush.goodput > 0.95
    assert rush.share_within(3) > 0.9


def test_long_sequences_in_few_slots_are_served_too() -> None:
    rush = Rush(num_slots=16, num_clients=48, duration_s=10.0, end_s=600.0).run()
    assert rush.goodput > 0.9
    assert rush.share_within(5) > 0.8
