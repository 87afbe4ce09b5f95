"""Where a step's threads run, asked of the kernel, in processes of their own."""

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from model_server.engine.threads import own_cores

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's call")

# Prints the cores of every thread that a product of matrices is computed by, and of one that the
# bound thread starts: with all threads, with one, and with all again.
SCRIPT = """
import json, os, sys, threading
import torch
from model_server.engine.threads import bound, roam

def threads():
    return set(map(int, os.listdir("/proc/self/task")))

def started(*, roams):
    seen = []
    def look():
        if roams:
            roam()
        seen.append(sorted(os.sched_getaffinity(0)))
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return seen[0]

def work():
    torch.set_num_threads(2)
    before = threads() - {threading.get_native_id()}
    cores = bound((0, 1) if sys.argv[1] == "bound" else None)
    use = torch.set_num_threads if cores is None else cores.use
    torch.ones(1 << 22).add_(1)
    ours = sorted(threads() - before)
    report = {}
    for count in (2, 1, 2):
        use(count)
        torch.ones(1 << 22).add_(1)
        report.setdefault(count, []).append([sorted(os.sched_getaffinity(each)) for each in ours])
    report["started"] = [started(roams=False), started(roams=True)]
    print(json.dumps(report))

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""

needs_two_cores = pytest.mark.skipif(
    {0, 1} - os.sched_getaffinity(0) != set(), reason="cores 0 and 1 are not both ours"
)


@cache
def seen(how: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, timeout=60, check=True
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@needs_two_cores
def test_all_threads_have_a_core_each_and_fewer_are_free_to_move() -> None:
    every = sorted(os.sched_getaffinity(0))
    report = seen("bound")
    assert report["2"] == [[[0], [1]]] * 2
    assert report["1"] == [[every, every]]


@needs_two_cores
def test_a_thread_that_a_bound_one_starts_moves_once_it_roams() -> None:
    assert seen("bound")["started"] == [[0], sorted(os.sched_getaffinity(0))]


@needs_two_cores
def test_nothing_is_bound_where_that_is_not_wanted() -> None:
    every = sorted(os.sched_getaffinity(0))
    assert seen("free")["2"] == [[every, every]] * 2


def with_cores(monkeypatch: pytest.MonkeyPatch, *cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(cores))


def test_ranks_of_two_threads_share_the_cores_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    with_cores(monkeypatch, 7, 2, 5, 3)
    assert [own_cores(2, rank, 2) for rank in range(2)] == [(2, 3), (5, 7)]


@pytest.mark.parametrize(
    ("num_threads", "world_size"),
    [(1, 1), (2, 1), (1, 4), (4, 1), (3, 1)],
)
def test_threads_are_bound_only_by_twos_that_are_as_many_as_the_cores(
    num_threads: int, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cores(monkeypatch, 0, 1, 2, 3)
    assert own_cores(num_threads, 0, world_size) is None
