"""A file of API keys, read again while the server runs, as an operator changes keys."""

import signal
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from tests.integration.server import launched

pytestmark = pytest.mark.slow


def entry(name: str, key: str) -> str:
    return f'[[keys]]\nname = "{name}"\nsha256 = "{sha256(key.encode()).hexdigest()}"\n'


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_keys_are_changed_by_sighup_and_a_wrong_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(entry("first", "sk-one"))
    with launched("--api-key-file", str(path)) as server:

        def status(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            return httpx.get(f"{server.url}/info", headers=headers, timeout=30).status_code

        assert (status("sk-one"), status("sk-two")) == (200, 401)
        path.write_text(entry("second", "sk-two"))
        server.signal(signal.SIGHUP)
        wait_until(lambda: status("sk-two") == 200)
        assert status("sk-one") == 401

        path.write_text("keys = 3")
        server.signal(signal.SIGHUP)
        wait_until(lambda: "the API keys stay as they were" in server.said)
        assert status("sk-two") == 200

        server.signal(signal.SIGTERM)
        assert server.wait() == 0
