"""Addresses: which are free, what is wrong with others; folders of sockets, which do not stay."""

import asyncio
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from processes.addresses import (
    AddressInUse,
    answers_http2,
    free_port,
    own_address,
    require_free_port,
    require_socket_path,
    socket_folder,
    url_of,
)
from processes.settings import BadConfig


@pytest.mark.parametrize(
    ("hostname", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:3000"),
        ("0.0.0.0", "http://127.0.0.1:3000"),
        ("::", "http://[::1]:3000"),
        ("box.local", "http://box.local:3000"),
    ],
)
def test_the_address_to_try_is_one_that_can_be_called(hostname: str, url: str) -> None:
    assert url_of(hostname, 3000) == url
    assert url_of(hostname, 3000, has_tls=True) == url.replace("http:", "https:")


def test_a_port_in_use_is_refused_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match=f"127.0.0.1:{port}: .*in use"):
            require_free_port("127.0.0.1", port)
    require_free_port("127.0.0.1", free_port())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_own_address_towards_a_machine_has_an_interface(host: str) -> None:
    assert own_address(host) == (host, "lo")


def test_an_interface_is_named_for_every_address_that_machines_may_be_reached_at() -> None:
    """As the kernel says it, by another way: those of the default routes, where there are any."""
    for family, anywhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((anywhere, 9))
            except OSError:
                continue
            host = probe.getsockname()[0]
        found, interface = own_address(anywhere)
        assert found == host
        shown = subprocess.run(
            ["ip", "-o", "addr", "show", "dev", interface], capture_output=True, text=True
        )
        assert f" {host}/" in shown.stdout


def test_a_machine_that_has_no_address_is_refused_by_its_name() -> None:
    with pytest.raises(BadConfig, match=r"--master-addr 'no\.such\.machine\.invalid': "):
        own_address("no.such.machine.invalid")


async def test_who_answers_is_told_from_who_only_accepts() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(24))
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        assert await answers_http2(*server.sockets[0].getsockname())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not await answers_http2(*silent.getsockname())
    assert not await answers_http2("127.0.0.1", free_port())


def test_a_path_is_taken_as_long_as_the_system_takes_it(tmp_path: Path) -> None:
    longest = Path(f"{tmp_path}/{'s' * (107 - len(str(tmp_path)) - 1)}")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(longest))
        require_socket_path("--http-uds", longest)
        bound.listen()
        with pytest.raises(AddressInUse, match="somebody listens at"):
            require_socket_path("--http-uds", longest)
    with pytest.raises(BadConfig, match="at most 107 bytes"):
        require_socket_path("--http-uds", longest, "s")


def test_a_path_by_a_short_way_is_as_long_as_that_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.chdir(deep)
    require_socket_path("--http-uds", Path("s"))


def test_a_path_that_cannot_be_looked_at_is_a_line(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(BadConfig, match=r"^--http-uds '.*': must be in a folder that exists"):
        require_socket_path("--http-uds", tmp_path / "loop" / "s")
    with pytest.raises(BadConfig, match="at most 107 bytes"):
        require_socket_path("--http-uds", tmp_path / ("s" * 300))


_USES = """
import sys
from processes.addresses import socket_folder
with socket_folder() as folder:
    sys.stdout.write(f"{folder}\\n")
    sys.stdout.flush()
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's folder for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def used_by_a_process() -> tuple[subprocess.Popen[str], Path]:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", _USES], stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_private_and_goes_with_its_process(temporary: Path) -> None:
    with socket_folder() as folder:
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o077 == 0
    assert list(temporary.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_one(temporary: Path) -> None:
    process, left = used_by_a_process()
    with process:
        (left / "shard-0").touch()
        process.kill()
        process.wait()
        assert left.is_dir()
        with socket_folder() as folder:
            assert list(temporary.iterdir()) == [folder]


def test_a_folder_in_use_and_folders_of_others_stay(temporary: Path) -> None:
    other = temporary / "tandem-notes"
    other.mkdir()
    process, used = used_by_a_process()
    with process:
        with socket_folder() as folder:
            assert set(temporary.iterdir()) == {other, used, folder}
        process.communicate("\n")
    assert list(temporary.iterdir()) == [other]
