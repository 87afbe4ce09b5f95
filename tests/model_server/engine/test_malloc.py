"""Freed memory stays with the process."""

import subprocess
import sys

import pytest

from model_server.engine.malloc import keep_freed_memory

SCRIPT = """
import resource, sys, torch
from model_server.engine.malloc import keep_freed_memory
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
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, timeout=60, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")
def test_tensors_of_megabytes_are_made_without_page_faults() -> None:
    assert faults_a_step("keep") * 5 < faults_a_step("default")


@pytest.mark.skipif(sys.platform.startswith("linux"), reason="taken on Linux")
def test_other_systems_are_left_alone() -> None:
    assert keep_freed_memory() is False
