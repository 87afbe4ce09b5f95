"""Keys and TLS as an operator sets them: real processes, and no key where others could see it."""

import os
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.server import START_TIMEOUT_S, RunningServer, launched
from tests.router.http.server.certificates import Certificate, make_certificate

pytestmark = pytest.mark.slow
KEY = "sk-hush-hush"


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls") / "mine")


@pytest.fixture(scope="module")
def server(pem: Certificate) -> Iterator[RunningServer]:
    flags = ("--ssl-certfile", str(pem.cert), "--ssl-keyfile", str(pem.key))
    with launched("--protect-metrics", *flags, wait=False, API_KEY=f"sk-other,{KEY}") as running:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while "Tandem serves at" not in running.said:
            assert running.process.poll() is None, running.said
            assert time.monotonic() < deadline_s, running.said
            time.sleep(0.05)
        yield running


@pytest.fixture
def client(server: RunningServer, pem: Certificate) -> Iterator[httpx.Client]:
    tls = ssl.create_default_context(cafile=pem.cert)
    with httpx.Client(verify=tls, base_url=f"https://127.0.0.1:{server.port}") as client:
        yield client


def test_who_has_a_key_is_served_and_nobody_else(client: httpx.Client) -> None:
    body = {"inputs": "Once there was", "parameters": {"max_new_tokens": 5}}
    mine = {"authorization": f"Bearer {KEY}"}
    assert client.post("/generate", json=body, headers=mine, timeout=60).status_code == 200
    assert client.post("/generate", json=body).status_code == 401
    assert client.get("/health").status_code == 200
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers=mine).status_code == 200


def test_the_hello_speaks_https_and_asks_for_a_key(server: RunningServer) -> None:
    assert f"Tandem serves at https://127.0.0.1:{server.port}" in server.said
    assert '-H "Authorization: Bearer $API_KEY"' in server.said


def test_no_secret_is_in_a_log_a_command_line_or_a_shard(
    server: RunningServer, client: httpx.Client
) -> None:
    client.get("/info", headers={"authorization": f"Bearer {KEY}"})
    assert KEY not in server.said
    for pid in [server.process.pid, *server.descendants()]:
        assert KEY not in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    shard = Path(f"/proc/{server.pid_of('model_server')}/environ").read_text(errors="replace")
    assert "PATH=" in shard
    assert KEY not in shard
    assert KEY in Path(f"/proc/{server.pid_of('router')}/environ").read_text(errors="replace")
    assert os.environ.get("API_KEY") is None
