"""What may still be taken is the least that the machine, or any control group above us, leaves."""

import os
from pathlib import Path

import pytest

from processes.host import HostMemory

GIB = 1 << 30


@pytest.fixture
def host(tmp_path: Path) -> HostMemory:
    """A machine of 6 GiB available."""
    (tmp_path / "meminfo").write_text(
        f"MemTotal: 99 kB\nMemAvailable: {6 * GIB // 1024} kB\nHugePages_Free: 0\n"
    )
    (tmp_path / "self").mkdir()
    return HostMemory(tmp_path, tmp_path / "cgroup")


def named(host: HostMemory, *lines: str) -> None:
    (host.proc / "self/cgroup").write_text("".join(f"{line}\n" for line in lines))


def group_v2(host: HostMemory, path: str, limit: str, used: int, stat: str = "anon 5\n") -> None:
    folder = host.cgroups / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat)


def group_v1(host: HostMemory, path: str, limit: int, used: int, stat: str = "rss 5\n") -> None:
    folder = host.cgroups / "memory" / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat)


def test_the_machine_may_have_less_than_the_control_group_allows(host: HostMemory) -> None:
    group_v2(host, "", str(10 * GIB), GIB)
    assert host.available_bytes() == 6 * GIB


def test_the_control_group_may_allow_less_than_the_machine_has(host: HostMemory) -> None:
    group_v2(host, "", str(10 * GIB), 7 * GIB)
    assert host.available_bytes() == 3 * GIB


def test_a_control_group_without_a_limit_does_not_count(host: HostMemory) -> None:
    group_v2(host, "", "max", 7 * GIB)
    # What version 1 says where nobody set one.
    group_v1(host, "", 9223372036854771712, 7 * GIB)
    assert host.available_bytes() == 6 * GIB
    (host.proc / "meminfo").unlink()
    assert host.available_bytes() is None


def test_pages_of_files_that_a_group_counts_can_be_had(host: HostMemory) -> None:
    files = f"anon 5\nfile 99\nactive_file {GIB}\ninactive_file {2 * GIB}\n"
    group_v2(host, "", str(10 * GIB), 9 * GIB, files)
    assert host.available_bytes() == 4 * GIB


def test_a_group_of_version_1_counts_those_of_the_groups_below_it(host: HostMemory) -> None:
    files = f"active_file 0\ninactive_file 0\ntotal_active_file {GIB}\ntotal_inactive_file 0\n"
    group_v1(host, "", 10 * GIB, 9 * GIB, files)
    assert host.available_bytes() == 2 * GIB


def test_the_processes_own_group_counts_and_all_above_it(host: HostMemory) -> None:
    named(host, "0::/system.slice/tandem.service")
    group_v2(host, "system.slice/tandem.service", str(5 * GIB), GIB)
    assert host.available_bytes() == 4 * GIB
    group_v2(host, "system.slice", str(8 * GIB), 5 * GIB)
    assert host.available_bytes() == 3 * GIB
    group_v2(host, "system.slice/other.service", str(GIB), GIB)
    assert host.available_bytes() == 3 * GIB


def test_of_version_1_the_memory_controllers_group_counts(host: HostMemory) -> None:
    named(host, "9:cpu,cpuacct:/a", "4:memory:/b:c", "1:name=systemd:/a", "0::/a")
    group_v1(host, "a", GIB, GIB)
    group_v1(host, "b:c", 5 * GIB, GIB)
    assert host.available_bytes() == 4 * GIB


@pytest.mark.parametrize("name", ["/docker/1234", "/../..", "/../1234"])
def test_a_container_sees_its_group_as_the_root(host: HostMemory, name: str) -> None:
    named(host, f"0::{name}")
    group_v2(host, "", str(5 * GIB), GIB)
    # What lies beside the root is nobody's bound.
    group_v2(host, "../1234", str(GIB), GIB)
    assert host.available_bytes() == 4 * GIB


def test_a_group_above_its_limit_has_nothing(host: HostMemory) -> None:
    group_v2(host, "", str(10 * GIB), 11 * GIB)
    assert host.available_bytes() == 0


@pytest.mark.parametrize("line", ["", "garbage", "0:", "x:memory"])
def test_a_line_that_names_no_group_names_none(host: HostMemory, line: str) -> None:
    named(host, line)
    group_v2(host, "", str(5 * GIB), GIB)
    assert host.available_bytes() == 4 * GIB


def test_the_name_of_a_group_may_be_no_utf_8(host: HostMemory) -> None:
    (host.proc / "self/cgroup").write_bytes(b"0::/caf\xe9\n")
    group_v2(host, os.fsdecode(b"caf\xe9"), str(5 * GIB), GIB)
    assert host.available_bytes() == 4 * GIB


def test_a_host_without_proc_is_unknown(tmp_path: Path) -> None:
    assert HostMemory(tmp_path / "none", tmp_path / "none").available_bytes() is None


def test_this_host_is_known() -> None:
    available = HostMemory().available_bytes()
    assert available is None or available > 0
