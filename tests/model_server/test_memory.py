"""What a host has to give is the least that anybody says, and a pool takes its share of that."""

from pathlib import Path

import pytest
import torch

from model_server import memory
from model_server.errors import OutOfMemory

CPU = torch.device("cpu")
GIB = 1 << 30


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host of 6 GiB available, in a control group of 10 GiB of which 1 is used."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 99 kB\nMemAvailable: {6 * GIB // 1024} kB\n")
    (tmp_path / "max").write_text(f"{10 * GIB}\n")
    (tmp_path / "current").write_text(f"{GIB}\n")
    monkeypatch.setattr(memory, "_MEMINFO", meminfo)
    monkeypatch.setattr(memory, "_CGROUP_FILES", ((tmp_path / "max", tmp_path / "current"),))
    return tmp_path


def pool_bytes(num_ranks: int = 1) -> int:
    return memory.pool_bytes(CPU, peak_bytes=0, memory_fraction=0.9, num_ranks=num_ranks)


def test_the_machine_may_have_less_than_the_control_group_allows(host: Path) -> None:
    assert memory.host_available_bytes() == 6 * GIB


def test_the_control_group_may_allow_less_than_the_machine_has(host: Path) -> None:
    (host / "current").write_text(str(7 * GIB))
    assert memory.host_available_bytes() == 3 * GIB


def test_a_control_group_without_a_limit_does_not_count(host: Path) -> None:
    (host / "max").write_text("max\n")
    assert memory.host_available_bytes() == 6 * GIB


def test_pages_of_files_that_a_control_group_counts_can_be_had(host: Path) -> None:
    (host / "current").write_text(str(9 * GIB))
    (host / "memory.stat").write_text(f"anon 5\nactive_file {GIB}\ninactive_file {2 * GIB}\n")
    assert memory.host_available_bytes() == 4 * GIB


def test_a_group_above_its_limit_has_nothing(host: Path) -> None:
    (host / "current").write_text(str(11 * GIB))
    assert memory.host_available_bytes() == 0


def test_a_host_may_not_tell(host: Path) -> None:
    (host / "meminfo").unlink()
    (host / "max").unlink()
    assert memory.host_available_bytes() is None
    assert pool_bytes() == 2 * GIB
    memory.require_room(CPU, 1 << 60)


def test_a_pool_takes_a_quarter_and_ranks_share_it(host: Path) -> None:
    assert pool_bytes() == 6 * GIB // 4
    assert pool_bytes(num_ranks=2) == 6 * GIB // 8


def test_a_pool_of_a_large_host_is_capped(host: Path) -> None:
    (host / "meminfo").write_text(f"MemAvailable: {99 * GIB // 1024} kB\n")
    (host / "max").write_text("max\n")
    assert pool_bytes() == 2 * GIB


def test_what_does_not_fit_is_refused_with_the_numbers(host: Path) -> None:
    memory.require_room(CPU, 6 * GIB)
    with pytest.raises(OutOfMemory, match=r"7\.00 GiB does not fit into the 6\.00 GiB"):
        memory.require_room(CPU, 7 * GIB)


def test_this_host_tells() -> None:
    available = memory.host_available_bytes()
    assert available is None or available > 0


def test_a_step_on_the_host_has_no_peak_to_tell() -> None:
    ran = []
    assert memory.peak_of(CPU, lambda: ran.append(1)) == 0
    assert ran == [1]


def fit(rank_gib: int, **words: int) -> None:
    options = {"num_ranks": 1, "to_come": 0, **words}
    memory.require_weights_fit(CPU, rank_gib * GIB, memory_fraction=0.9, **options)


def test_weights_may_take_what_is_there_and_what_others_give_back(host: Path) -> None:
    fit(6)
    fit(9, to_come=3 * GIB)
    fit(3, num_ranks=2)
    for words in ({}, {"to_come": GIB // 2}):
        with pytest.raises(OutOfMemory, match=r"weights of 7\.00 GiB do not fit into the 6\.[05]0"):
            fit(7, **words)
    with pytest.raises(OutOfMemory, match=r"weights of 8\.00 GiB"):
        fit(4, num_ranks=2)


def test_where_a_host_does_not_tell_all_weights_may_be_tried(host: Path) -> None:
    (host / "meminfo").unlink()
    (host / "max").unlink()
    fit(1 << 20)
