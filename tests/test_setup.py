"""The wheel: what it holds, what it may be installed on, and that what it installs serves."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
import venv
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

from processes.addresses import free_port

ROOT = Path(__file__).resolve().parents[1]
# In a process of its own: it reads setup.py as pip does, and makes nothing.
_PLAN = """
import json
from setuptools import distutils as _
from distutils.core import run_setup
distribution = run_setup("setup.py", stop_after="commandline")
files = distribution.get_command_obj("build_py")
files.ensure_finalized()
wheel = distribution.get_command_obj("bdist_wheel")
wheel.ensure_finalized()
print(json.dumps([files.build_lib, files.get_outputs(include_bytecode=False), wheel.get_tag()]))
"""


def tracked() -> list[str]:
    words = ["git", "-C", str(ROOT), "ls-files", "-z"]
    listed = subprocess.run(words, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout")
    return listed.stdout.rstrip("\0").split("\0")


@pytest.fixture(scope="module")
def plan() -> tuple[set[str], list[str]]:
    """The files of the wheel, and its tag."""
    words = [sys.executable, "-c", _PLAN]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    folder, files, tag = json.loads(done.stdout.splitlines()[-1])
    return {str(Path(file).relative_to(folder)) for file in files}, tag


def test_the_wheel_holds_every_file_of_the_product_and_no_other(
    plan: tuple[set[str], list[str]],
) -> None:
    files, _ = plan
    packages = {name.split("/")[0] for name in files if "/" in name}
    of_product = {
        name
        for name in tracked()
        if name.split("/")[0] in packages and not name.startswith("models/training/")
    }

    assert files == of_product | {"launcher.py"}
    assert {"models/demo/model.safetensors", "router/http/server/bundle/index.html"} < files


def test_the_wheel_is_of_one_platform_and_any_python(plan: tuple[set[str], list[str]]) -> None:
    _, (python, abi, platform) = plan
    assert (python, abi) == ("py3", "none")
    assert platform == sysconfig.get_platform().replace("-", "_").replace(".", "_")


def test_readme_installs_the_wheel_by_its_name(plan: tuple[set[str], list[str]]) -> None:
    _, (python, abi, _) = plan
    name = f"tandem-{version('tandem')}-{python}-{abi}-linux_x86_64.whl"
    assert f"pip install {name}\n" in (ROOT / "README.md").read_text()


@pytest.mark.nightly
def test_what_a_wheel_installs_serves_from_an_empty_folder(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    _run_pip(
        environ, "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)
    )
    (wheel,) = tmp_path.glob("tandem-*.whl")
    shutil.rmtree(source)

    # What Tandem needs is there already; Tandem itself is not.
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    libraries = {"base": str(tmp_path / "venv"), "platbase": str(tmp_path / "venv")}
    purelib = Path(sysconfig.get_path("purelib", "venv", libraries))
    (purelib / "packages.pth").write_text(sysconfig.get_path("purelib"))
    _run_pip(environ, "--python", str(python), "install", "--no-deps", str(wheel))

    empty = tmp_path / "empty"
    empty.mkdir()
    port = free_port()
    words = [f"{tmp_path}/venv/bin/launcher", "serve", "--port", str(port)]
    with subprocess.Popen(words, cwd=empty, env=environ) as server:
        try:
            page = _once_it_answers(f"http://127.0.0.1:{port}/", server)
            body = json.dumps({"inputs": "Once", "parameters": {"max_new_tokens": 3}}).encode()
            asked = urllib.request.Request(
                f"http://127.0.0.1:{port}/generate", body, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(asked) as answer:
                text = json.load(answer)["generated_text"]
        finally:
            server.terminate()

    assert b"<title>" in page
    assert text
    assert server.returncode == 0
    assert list((purelib / "native" / "built").glob("dense-*.so"))


def _run_pip(environ: Mapping[str, str], *words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", *words], env=environ, check=True)


def _once_it_answers(url: str, server: "subprocess.Popen[bytes]") -> bytes:
    deadline_s = time.monotonic() + 300
    asked = urllib.request.Request(url, headers={"Accept": "text/html"})
    while server.poll() is None and time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(asked) as answer:
                return bytes(answer.read())
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise AssertionError("the server does not answer")
