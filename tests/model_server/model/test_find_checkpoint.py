"""Downloads, against a small hub of our own on the loopback interface."""

import json
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from model_server.checkpoint.checkpoint import find_checkpoint
from model_server.errors import ModelRefused

COMMIT = "c" * 40
REPOS = {
    "someone/safe": {"config.json": b"{}", "model.safetensors": b"weights", "notes.md": b"no"},
    "someone/stuck": {"config.json": b"{}", "model.safetensors": b"x" * 1000},
    "someone/pickled": {"config.json": b"{}", "pytorch_model.bin": b"pickle"},
}


class Hub(BaseHTTPRequestHandler):
    """The three answers of the hub that a download needs: the listing, heads and files."""

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def answer(self, *, with_body: bool) -> None:
        path = self.path.split("?")[0].strip("/")
        for repo, files in REPOS.items():
            if path.startswith(f"api/models/{repo}/tree"):
                listing = [
                    {"type": "file", "path": name, "size": len(body), "oid": "0" * 40}
                    for name, body in files.items()
                ]
                return self.send(200, json.dumps(listing).encode(), {})
            if path.startswith(f"api/models/{repo}"):
                siblings = [{"rfilename": name} for name in files]
                info = {"id": repo, "sha": COMMIT, "siblings": siblings}
                return self.send(200, json.dumps(info).encode(), {})
            for name, body in files.items():
                if path == f"{repo}/resolve/{COMMIT}/{name}":
                    return self.send(200, body if with_body else None, {}, len(body))
        return self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def send(
        self, status: int, body: bytes | None, headers: dict[str, str], length: int | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body or b"") if length is None else length))
        self.send_header("ETag", f'"{zlib.crc32(self.path.encode()):x}"')
        self.send_header("X-Repo-Commit", COMMIT)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if body is None:
            return
        if self.path.startswith("/someone/stuck/") and self.path.endswith(".safetensors"):
            self.wfile.write(body[:10])
            self.wfile.flush()
            time.sleep(20)
            return
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def hub_environ(tmp_path: Path) -> Iterator[dict[str, str]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
    }
    server.shutdown()
    server.server_close()
    thread.join()


def download(environ: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; from model_server.checkpoint.checkpoint import find_checkpoint\n"
        "from model_server.errors import ShardError\n"
        "try: print(find_checkpoint(sys.argv[1], None))\n"
        "except ShardError as error: print('refused:', error)\n"
    )
    argv = [sys.executable, "-c", code, *args]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=True)


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    assert find_checkpoint(str(tmp_path), None) == tmp_path.resolve()


@pytest.mark.parametrize(
    "model_id", ["/no/such/folder", "./nowhere", "~/nowhere-at-all", "~no-such-user/x"]
)
def test_a_path_that_does_not_exist_is_refused_by_name(model_id: str) -> None:
    with pytest.raises(ModelRefused, match="does not exist"):
        find_checkpoint(model_id, None)


def test_a_name_that_no_hub_can_have_is_refused() -> None:
    with pytest.raises(ModelRefused, match="neither an existing folder nor a hub id"):
        find_checkpoint("a/b/c/d", None)


def test_weights_and_small_files_are_fetched_and_nothing_else(
    hub_environ: dict[str, str],
) -> None:
    folder = Path(download(hub_environ, "someone/safe").stdout.strip())
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == b"weights"


def test_pickled_weights_of_the_hub_are_refused(hub_environ: dict[str, str]) -> None:
    refused = download(hub_environ, "someone/pickled").stdout
    assert "'someone/pickled' offers no .safetensors weights" in refused


def test_an_unknown_model_is_refused_with_its_name(hub_environ: dict[str, str]) -> None:
    assert "refused: the hub does not give 'no/body'" in download(hub_environ, "no/body").stdout


def test_without_the_hub_the_cache_has_to_do(hub_environ: dict[str, str]) -> None:
    first = download(hub_environ, "someone/safe").stdout
    unreachable = {**hub_environ, "HF_ENDPOINT": "http://127.0.0.1:9"}
    assert download(unreachable, "someone/safe").stdout == first
    assert "could not be fetched" in download(unreachable, "someone/other").stdout


def test_a_fetch_to_which_nothing_comes_any_more_is_given_up(hub_environ: dict[str, str]) -> None:
    code = (
        "import os; from processes.hub import DownloadStalled, download\n"
        "try: download('someone/stuck', None, ['*'], stall_timeout_s=1.0)\n"
        "except DownloadStalled as error: print(error, flush=True); os._exit(0)\n"
    )
    argv = [sys.executable, "-c", code]
    run = subprocess.run(argv, env=hub_environ, capture_output=True, text=True, timeout=18)
    message = "'someone/stuck' could not be fetched from the hub: nothing came for 1 s"
    assert run.stdout.strip() == message
