"""A server as an operator runs it: keys, TLS, a reload and the drain, in real processes."""

import json
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from tests.certificates import Certificate, make_certificate
from tests.integration.server import START_TIMEOUT_S, RunningServer, launched, wait_until_gone

pytestmark = pytest.mark.slow

KEY, LATER_KEY = "sk-hush-hush", "sk-later"


def entry(name: str, key: str) -> str:
    return f'[[keys]]\nname = "{name}"\nsha256 = "{sha256(key.encode()).hexdigest()}"\n'


def bearing(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def wait_until(server: RunningServer, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert server.process.poll() is None, server.said
        assert time.monotonic() < deadline_s, server.said
        time.sleep(0.05)


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls") / "mine")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(entry("first", KEY))
    return path


@pytest.fixture(scope="module")
def server(pem: Certificate, keys: Path) -> Iterator[RunningServer]:
    tls = ("--ssl-certfile", str(pem.cert), "--ssl-keyfile", str(pem.key))
    guarded = ("--api-key-file", str(keys), "--protect-metrics")
    with launched(*tls, *guarded, wait=False) as running:
        wait_until(running, lambda: "Tandem serves at" in running.said)
        yield running


@pytest.fixture
def client(server: RunningServer, pem: Certificate) -> Iterator[httpx.Client]:
    tls = ssl.create_default_context(cafile=pem.cert)
    with httpx.Client(
        verify=tls, base_url=f"https://127.0.0.1:{server.port}", timeout=60
    ) as client:
        yield client


def test_the_counters_of_a_key_are_there_before_its_first_request(client: httpx.Client) -> None:
    metrics = client.get("/metrics", headers=bearing(KEY)).text
    assert 'tandem_key_generated_tokens_total{key="first"} 0.0\n' in metrics
    assert 'tandem_key_shard_seconds_total{key="first"} 0.0\n' in metrics


def test_who_has_a_key_is_served_and_nobody_else(client: httpx.Client) -> None:
    body = {"inputs": "Once there was", "parameters": {"max_new_tokens": 5}}
    assert client.post("/generate", json=body, headers=bearing(KEY)).status_code == 200
    assert client.post("/generate", json=body).status_code == 401
    assert client.get("/health").status_code == 200
    assert client.get("/metrics").status_code == 401


def test_the_hello_speaks_https(server: RunningServer) -> None:
    assert f"Tandem serves at https://127.0.0.1:{server.port}" in server.said


def test_keys_are_changed_by_sighup_and_a_wrong_file_changes_nothing(
    server: RunningServer, client: httpx.Client, keys: Path
) -> None:
    def status(key: str) -> int:
        return client.get("/info", headers=bearing(key)).status_code

    assert (status(KEY), status(LATER_KEY)) == (200, 401)
    keys.write_text(entry("second", LATER_KEY))
    server.signal(signal.SIGHUP)
    wait_until(server, lambda: status(LATER_KEY) == 200)
    assert status(KEY) == 401

    keys.write_text("keys = 3")
    server.signal(signal.SIGHUP)
    wait_until(server, lambda: "the API keys stay as they were" in server.said)
    assert status(LATER_KEY) == 200


def test_sigterm_drains_what_runs_and_leaves_nothing_behind(
    server: RunningServer, client: httpx.Client
) -> None:
    """The last test of this file: the server is gone afterwards."""
    pids = server.descendants()
    lines: list[str] = []
    body = {"inputs": "Once there was", "parameters": {"max_new_tokens": 400, "ignore_eos": True}}

    def read() -> None:
        headers = bearing(LATER_KEY)
        with client.stream("POST", "/generate_stream", json=body, headers=headers) as stream:
            lines.extend(line for line in stream.iter_lines() if line)

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(server, lambda: bool(lines))
    server.signal(signal.SIGTERM)
    reader.join(60)
    assert server.wait() == 0
    assert json.loads(lines[-1].removeprefix("data:"))["generated_text"] is not None
    assert len(lines) == 400
    assert wait_until_gone(pids) == []
