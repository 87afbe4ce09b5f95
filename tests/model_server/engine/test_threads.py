"""How many threads compute a step: a machine of made-up speeds, with and without a neighbour."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from model_server.engine.threads import ThreadCount, waited_for_cores_s

ALONE = {2: 0.020, 1: 0.033}
BESIDE_A_NEIGHBOUR = {2: 0.060, 1: 0.034}


class Machine:
    """Takes the seconds of `step_s` for a step by so many threads; counts what is computed how."""

    def __init__(self, step_s: Mapping[int, float], *, waited: float) -> None:
        self.step_s = step_s
        self.waited = waited
        self.now_s = 0.0
        self.waited_s = 0.0
        self.used: list[int] = []
        self.num_uses = 0
        self.num_asked = 0
        self._count = max(step_s)
        self.threads = ThreadCount(sorted(step_s, reverse=True), self._use, self._ask)

    def _ask(self) -> float:
        self.num_asked += 1
        return self.waited_s

    def _use(self, count: int) -> None:
        self._count = count
        self.num_uses += 1

    def step(self, num_steps: int, num_rows: int = 8) -> list[int]:
        """By how many threads each of so many steps was computed."""
        used = []
        for _ in range(num_steps):
            assert self.threads.count == self._count
            used.append(self._count)
            duration_s = self.step_s[self._count]
            self.waited_s += self.waited * duration_s
            self.threads.stepped(num_rows, duration_s)
        self.used += used
        return used


def test_alone_all_threads_compute_every_step() -> None:
    machine = Machine(ALONE, waited=0.01)
    assert set(machine.step(1000)) == {2}
    assert machine.num_uses == 0


def test_beside_a_neighbour_fewer_threads_compute_where_they_are_quicker() -> None:
    machine = Machine(BESIDE_A_NEIGHBOUR, waited=0.4)
    assert 2 in machine.step(20)
    assert machine.step(1000).count(1) > 970


def test_when_the_neighbour_leaves_all_threads_compute_again() -> None:
    machine = Machine(BESIDE_A_NEIGHBOUR, waited=0.4)
    machine.step(1000)
    machine.step_s, machine.waited = ALONE, 0.0
    machine.step(500)
    assert set(machine.step(1000)) == {2}


def test_what_is_not_quicker_is_tried_less_and_less() -> None:
    machine = Machine({2: 0.020, 1: 0.020}, waited=0.4)
    tried = machine.step(4000).count(1)
    assert 0 < tried < 80
    assert machine.threads.count == 2


def test_steps_of_other_sizes_are_not_compared() -> None:
    machine = Machine({2: 0.020, 1: 0.020}, waited=0.4)
    for _ in range(100):
        machine.step(11, num_rows=8)
        machine.step_s = {2: 0.010, 1: 0.010}
        machine.step(11, num_rows=2)
        machine.step_s = {2: 0.020, 1: 0.020}
    assert machine.threads.count == 2
    assert machine.used.count(1) < 80


def test_sizes_that_take_turns_are_learnt_of_as_well() -> None:
    machine = Machine(BESIDE_A_NEIGHBOUR, waited=0.4)
    quick = {count: step_s / 4 for count, step_s in BESIDE_A_NEIGHBOUR.items()}
    for _ in range(500):
        machine.step(1, num_rows=8)
        machine.step_s = quick
        machine.step(1, num_rows=2)
        machine.step_s = BESIDE_A_NEIGHBOUR
    assert machine.used.count(1) > 900


@pytest.mark.parametrize("sizes", [(8,), (8, 2), (1, 5, 30)], ids=str)
@pytest.mark.parametrize("step_s", [0.001, 0.05])
def test_the_kernel_is_asked_at_the_edges_of_windows_alone(
    sizes: tuple[int, ...], step_s: float
) -> None:
    machine = Machine({2: step_s, 1: step_s}, waited=0.4)
    for step in range(1200):
        machine.step(1, num_rows=sizes[step % len(sizes)])
    assert machine.num_asked <= 2 + 2 * 1200 / max(12, 0.2 / step_s)


def test_a_trial_ends_soon_when_the_steps_change_for_others() -> None:
    machine = Machine(BESIDE_A_NEIGHBOUR, waited=0.4)
    while machine.threads.count == 2:
        machine.step(1)
    machine.step(15, num_rows=2)
    assert machine.threads.count == 2


def test_a_number_below_the_next_one_is_reached_step_by_step() -> None:
    machine = Machine({8: 0.080, 7: 0.050, 4: 0.030}, waited=0.4)
    machine.step(300)
    assert machine.step(1000).count(4) > 900


def test_waiting_is_read_of_all_threads(tmp_path: Path) -> None:
    for name, text in {"1": "9 2000000000 3\n", "2": "9 500000000 3\n", "3": ""}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(text)
    assert waited_for_cores_s(tmp_path) == pytest.approx(2.5)
    assert waited_for_cores_s(tmp_path / "no such folder") == 0.0
