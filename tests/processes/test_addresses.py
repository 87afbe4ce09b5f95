"""Addresses: which are free, and what is wrong with those that cannot be listened at."""

import socket
from pathlib import Path

import pytest

from processes.addresses import (
    AddressInUse,
    free_port,
    require_free_port,
    require_socket_path,
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
