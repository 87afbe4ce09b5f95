"""A checkpoint is found, or fetched from a hub of our own, and looked over before it is loaded.

Every fault is named with its file.
"""

import json
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from model_server.checkpoint import checkpoint
from model_server.checkpoint.checkpoint import find_checkpoint
from model_server.errors import CheckpointBroken, ModelRefused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of two weight files and an index."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    save_file({"a": torch.zeros(4, 4), "b": torch.zeros(8)}, tmp_path / "part-1.safetensors")
    save_file({"c": torch.zeros(3, dtype=torch.bfloat16)}, tmp_path / "part-2.safetensors")
    weight_map = {"a": "part-1.safetensors", "b": "part-1.safetensors", "c": "part-2.safetensors"}
    (tmp_path / checkpoint.INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def test_a_whole_checkpoint_passes(folder: Path) -> None:
    checkpoint.check(folder)


def test_a_single_weight_file_needs_no_index(folder: Path) -> None:
    (folder / checkpoint.INDEX_NAME).unlink()
    save_file({"a": torch.zeros(2)}, folder / checkpoint.WEIGHTS_NAME)
    checkpoint.check(folder)


def _cut_off(folder: Path) -> None:
    path = folder / "part-1.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def _cut_in_the_header(folder: Path) -> None:
    path = folder / "part-2.safetensors"
    path.write_bytes(path.read_bytes()[:20])


def _with_a_garbled_header(folder: Path) -> None:
    path = folder / "part-2.safetensors"
    content = bytearray(path.read_bytes())
    content[8:12] = b"\xff\xfe{{"
    path.write_bytes(bytes(content))


def _with_a_wrong_shape(folder: Path) -> None:
    path = folder / "part-1.safetensors"
    path.write_bytes(path.read_bytes().replace(b"[4,4]", b"[4,5]"))


def _with_a_longer_index(folder: Path) -> None:
    index = json.loads((folder / checkpoint.INDEX_NAME).read_text())
    index["weight_map"]["d"] = "part-2.safetensors"
    (folder / checkpoint.INDEX_NAME).write_text(json.dumps(index))


def _with_a_path_out_of_the_folder(folder: Path) -> None:
    index = {"weight_map": {"a": "../part-1.safetensors"}}
    (folder / checkpoint.INDEX_NAME).write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "file_name", "fault"),
    [
        (_cut_off, "part-1.safetensors", "is truncated"),
        (_cut_in_the_header, "part-2.safetensors", "is no whole safetensors file"),
        (_with_a_garbled_header, "part-2.safetensors", "its header is not JSON"),
        (_with_a_wrong_shape, "part-1.safetensors", "does not fit its bytes"),
        (_with_a_longer_index, "part-2.safetensors", "lacks 1 tensors"),
        (_with_a_path_out_of_the_folder, "index.json", "lies in no file of this folder"),
        (
            lambda f: (f / "part-2.safetensors").unlink(),
            "part-2.safetensors",
            "1 of 2 weight files",
        ),
        (lambda f: (f / "part-2.safetensors").write_bytes(b""), "part-2.safetensors", "0 bytes"),
        (lambda f: (f / "config.json").unlink(), "config.json", "has no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "config.json", "cannot be read as JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json", "is not a JSON object"),
        (
            lambda f: (f / checkpoint.INDEX_NAME).write_text('{"weight_map": {}}'),
            checkpoint.INDEX_NAME,
            "has no weight_map",
        ),
        (lambda f: (f / checkpoint.INDEX_NAME).unlink(), "model.safetensors", "has neither"),
    ],
)
def test_a_broken_checkpoint_is_refused_with_file_and_fault(
    folder: Path, damage: Callable[[Path], object], file_name: str, fault: str
) -> None:
    damage(folder)
    with pytest.raises(CheckpointBroken) as refusal:
        checkpoint.check(folder)
    assert fault in str(refusal.value)
    assert file_name in str(refusal.value)


def test_a_missing_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointBroken, match="does not exist"):
        checkpoint.check(tmp_path / "nowhere")
    with pytest.raises(CheckpointBroken, match=r"has no config\.json"):
        checkpoint.check(tmp_path)


def test_pickled_weights_are_refused(folder: Path) -> None:
    (folder / checkpoint.INDEX_NAME).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(CheckpointBroken, match="convert them to safetensors"):
        checkpoint.check(folder)


COMMIT = "c" * 40
REPOS = {
    "someone/safe": {"config.json": b"{}", "model.safetensors": b"weights", "notes.md": b"no"},
    "someone/stuck": {"config.json": b"{}", "model.safetensors": b"x" * 1000},
    "someone/pickled": {"config.json": b"{}", "pytorch_model.bin": b"pickle"},
    "someone/packed": {
        "a.gguf": b"of a",
        "b.gguf": b"of b",
        "c/c-00001-of-00002.gguf": b"first of c",
        "c/c-00002-of-00002.gguf": b"second of c",
    },
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


def download(environ: dict[str, str], *names: str) -> list[str]:
    """What a process finds of each model: its folder, or why it is refused."""
    code = (
        "import sys; from model_server.checkpoint.checkpoint import find_checkpoint\n"
        "from model_server.errors import ShardError\n"
        "for name in sys.argv[1:]:\n"
        "    try: print(find_checkpoint(name, None))\n"
        "    except ShardError as error: print('refused:', error)\n"
    )
    argv = [sys.executable, "-c", code, *names]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=True)
    # Where no terminal is, no progress bar is drawn.
    assert "%|" not in done.stderr
    return done.stdout.splitlines()


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


def test_weights_and_small_files_are_fetched_and_the_cache_has_to_do_without_the_hub(
    hub_environ: dict[str, str],
) -> None:
    names = ("someone/safe", "someone/pickled", "no/body")
    found, pickled, unknown = download(hub_environ, *names)
    folder = Path(found)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert "'someone/pickled' offers no .safetensors weights" in pickled
    assert (
        "refused: the model 'no/body': neither a local folder nor the hub has this name" in unknown
    )

    unreachable = {**hub_environ, "HF_ENDPOINT": "http://127.0.0.1:9"}
    cached, missing = download(unreachable, "someone/safe", "someone/other")
    assert cached == found
    assert "could not be fetched" in missing


def test_of_a_repository_of_gguf_files_the_one_that_is_named_is_fetched(
    hub_environ: dict[str, str],
) -> None:
    found, missing = download(hub_environ, "someone/packed/b.gguf", "someone/packed/c.gguf")
    assert [path.name for path in Path(found).parent.iterdir()] == ["b.gguf"]
    assert Path(found).read_bytes() == b"of b"
    assert missing == "refused: 'someone/packed' has no file c.gguf"


def test_of_a_gguf_file_in_parts_all_are_fetched(hub_environ: dict[str, str]) -> None:
    (found,) = download(hub_environ, "someone/packed/c/c-00001-of-00002.gguf")
    parts = sorted(path.read_bytes() for path in Path(found).parent.iterdir())
    assert parts == [b"first of c", b"second of c"]


def test_a_fetch_to_which_nothing_comes_any_more_is_given_up(hub_environ: dict[str, str]) -> None:
    code = (
        "import os; from processes.hub import download\n"
        "from processes.model_folders import DownloadStalled\n"
        "try: download('someone/stuck', None, ['*'], stall_timeout_s=1.0)\n"
        "except DownloadStalled as error: print(error, flush=True); os._exit(0)\n"
    )
    argv = [sys.executable, "-c", code]
    run = subprocess.run(argv, env=hub_environ, capture_output=True, text=True, timeout=18)
    message = "'someone/stuck' could not be fetched from the hub: nothing came for 1 s"
    assert run.stdout.strip() == message
