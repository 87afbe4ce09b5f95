"""The memory that a host has available, the pool's share of it, and freed memory that stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from model_server.engine import memory
from model_server.engine.memory import keep_freed_memory
from model_server.errors import OutOfMemory
from processes.host import HostMemory

CPU = torch.device("cpu")
GIB = 1 << 30


@pytest.fixture
def host(tmp_path: Path) -> HostMemory:
    """A host of 6 GiB available."""
    (tmp_path / "meminfo").write_text(f"MemAvailable: {6 * GIB // 1024} kB\n")
    return HostMemory(tmp_path, tmp_path)


@pytest.fixture
def silent(tmp_path: Path) -> HostMemory:
    """A host that reports nothing."""
    return HostMemory(tmp_path / "none", tmp_path / "none")


def pool_bytes(host: HostMemory, num_ranks: int = 1) -> int:
    return memory.pool_bytes(CPU, peak_bytes=0, memory_fraction=0.9, num_ranks=num_ranks, host=host)


def test_a_host_may_not_tell(silent: HostMemory) -> None:
    assert pool_bytes(silent) == 2 * GIB
    memory.require_room(CPU, 1 << 60, silent)
    memory.require_weights_fit(CPU, 1 << 60, memory.available_bytes(CPU, silent))


def test_a_pool_takes_a_quarter_and_ranks_share_it(host: HostMemory) -> None:
    assert pool_bytes(host) == 6 * GIB // 4
    assert pool_bytes(host, num_ranks=2) == 6 * GIB // 8


def test_what_is_reserved_is_no_pool_s(host: HostMemory) -> None:
    reserved = memory.pool_bytes(
        CPU, peak_bytes=0, memory_fraction=0.9, num_ranks=2, reserved_bytes=GIB, host=host
    )
    assert reserved == 4 * GIB // 8


def test_a_pool_of_a_large_host_is_capped(host: HostMemory) -> None:
    (host.proc / "meminfo").write_text(f"MemAvailable: {99 * GIB // 1024} kB\n")
    assert pool_bytes(host) == 2 * GIB


def test_what_does_not_fit_is_refused_with_the_numbers(host: HostMemory) -> None:
    memory.require_room(CPU, 6 * GIB, host)
    with pytest.raises(OutOfMemory, match=r"7\.00 GiB does not fit into the 6\.00 GiB"):
        memory.require_room(CPU, 7 * GIB, host)


def test_a_step_on_the_host_has_no_peak_to_tell() -> None:
    ran = []
    assert memory.peak_of(CPU, lambda: ran.append(1)) == 0
    assert ran == [1]


def test_weights_may_take_what_is_available(host: HostMemory) -> None:
    available = memory.available_bytes(CPU, host)
    memory.require_weights_fit(CPU, 6 * GIB, available)
    with pytest.raises(OutOfMemory, match=r"weights of 7\.00 GiB do not fit into the 6\.00 GiB"):
        memory.require_weights_fit(CPU, 7 * GIB, available)


@pytest.mark.parametrize(("device", "needed"), [("cpu", 12), ("cuda", 4)])
def test_ranks_share_the_host_and_have_a_gpu_each(device: str, needed: int) -> None:
    assert memory.weights_of_all(torch.device(device), 4, 3) == needed


SCRIPT = """
import resource, sys, torch
from model_server.engine.memory import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    raise SystemExit("not taken")
def step():
    return sum(torch.ones(1 << 21) for _ in range(3))
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 100)
"""


def faults_a_step(how: str) -> int:
    # glibc raises its threshold by itself, by chance of what was freed first: not in this test.
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(128 * 1024)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.nightly
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_tensors_of_megabytes_are_made_without_page_faults() -> None:
    assert faults_a_step("keep") * 5 < faults_a_step("default")


@pytest.mark.skipif(sys.platform.startswith("linux"), reason="taken on Linux")
def test_other_systems_are_left_alone() -> None:
    assert keep_freed_memory() is False
