"""A model's server as a child: its command, its environment, why it ended."""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.errors import DidNotStart
from fleet.names import Model
from fleet.servers import LaunchedServer, LaunchedServers, ServerRules, exit_reason
from processes.child import Child
from processes.logs import Console
from tests.fleet.harness import model

RULES = ServerRules(
    flags=("--dtype", "float32"),
    folder=Path("/tmp/f"),
    max_loaded=2,
    memory_fraction=0.8,
    graceful_timeout_s=1.0,
)


class Scripted(ServerRules):
    """Starts a script instead of a server."""

    def argv(self, model: object, socket: Path, num_others: int) -> list[str]:
        return [sys.executable, "-c", *self.flags, str(socket)]


def command_at(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""  # a process of somebody else's that ended meanwhile


def processes_of(word: str) -> list[Path]:
    """The other processes whose command has that word."""
    return [
        path
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if word in command_at(path) and int(path.parent.name) != os.getpid()
    ]


async def ended_with(script: str) -> Child:
    child = await Child.start("x", [sys.executable, "-c", script], {}, Console())
    await child.wait()
    return child


def test_the_command_names_the_model_its_socket_and_its_parent() -> None:
    argv = RULES.argv(model("a"), Path("/tmp/f/1.sock"), 0)
    assert argv[1:5] == ["-m", "launcher", "serve", "/models/a"]
    assert argv[argv.index("--http-uds") + 1] == "/tmp/f/1.sock"
    assert argv[argv.index("--parent-pid") + 1] == str(os.getpid())
    assert argv[argv.index("--served-model-name") + 1] == "a"
    assert argv[argv.index("--dtype") + 1] == "float32"


@pytest.mark.parametrize(("num_others", "share"), [(0, "0.4000"), (1, "0.8000")])
def test_a_model_may_fill_its_share_beside_those_of_others(num_others: int, share: str) -> None:
    argv = RULES.argv(model("a"), Path("s"), num_others)
    assert argv[argv.index("--cuda-memory-fraction") + 1] == share


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        pytest.param(
            [
                "launcher | 12:00:00 loading",
                "shard 0 | error: no weights",
                "launcher | 12:00:01 error: shard 0 stopped",
            ],
            "no weights",
            id="text",
        ),
        pytest.param(
            ['{"message": "loading"}', '{"message": "error: no weights"}'], "no weights", id="json"
        ),
        pytest.param(
            [
                "launcher | 12:00:01 error: router stopped with exit code 1; its last lines:",
                "    Traceback (most recent call last):",
                "    ImportError: no such name",
                "launcher | 12:00:02 stopped",
            ],
            "router stopped with exit code 1: ImportError: no such name",
            id="last-lines",
        ),
        pytest.param(["what?"], "x stopped with exit code 3", id="no-error"),
    ],
)
async def test_the_reason_is_the_first_error_that_was_logged(
    lines: Sequence[str], reason: str
) -> None:
    script = f"import sys; [print(line) for line in {list(lines)!r}]; sys.exit(3)"
    assert exit_reason(await ended_with(script)) == reason


async def test_a_server_that_ends_before_it_is_ready_did_not_start(tmp_path: Path) -> None:
    script = "print('error: /data/a: no such thing'); raise SystemExit(1)"
    rules = Scripted((script,), tmp_path, 1, 0.9, 1.0)
    with pytest.raises(DidNotStart, match=r"^a: no such thing"):
        await LaunchedServers(rules, os.environ, Console()).start(Model("a", "/data/a"), 0)


async def test_a_start_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    script = f"import time, pathlib; pathlib.Path({str(tmp_path / 'up')!r}).touch(); time.sleep(60)"
    rules = Scripted((script,), tmp_path, 1, 0.9, 1.0)
    starting = asyncio.create_task(
        LaunchedServers(rules, os.environ, Console()).start(model("a"), 0)
    )
    while not (tmp_path / "up").exists():
        await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert processes_of(str(tmp_path / "up")) == []


async def test_what_is_the_fronts_own_reaches_no_server(tmp_path: Path) -> None:
    script = (
        "import os; print('error: ' + ','.join(sorted(set(os.environ)"
        " & {'PORT', 'API_KEY', 'MODEL_ID', 'DTYPE'}))); raise SystemExit(1)"
    )
    environ = {**os.environ, "PORT": "1", "API_KEY": "k", "MODEL_ID": "m", "DTYPE": "float32"}
    servers = LaunchedServers(Scripted((script,), tmp_path, 1, 0.9, 1.0), environ, Console())
    with pytest.raises(DidNotStart, match=r"^API_KEY,DTYPE$"):
        await servers.start(model("a"), 0)


async def test_a_command_that_does_not_start_is_reported(tmp_path: Path) -> None:
    class NoSuchCommand(ServerRules):
        def argv(self, model: object, socket: Path, num_others: int) -> list[str]:
            return ["/no/such/command"]

    rules = NoSuchCommand((), tmp_path, 1, 0.9, 1.0)
    with pytest.raises(DidNotStart, match="No such file"):
        await LaunchedServers(rules, os.environ, Console()).start(model("a"), 0)


def test_rules_of_one_place_give_it_all_the_memory() -> None:
    argv = replace(RULES, max_loaded=1).argv(model("a"), Path("s"), 0)
    assert argv[argv.index("--cuda-memory-fraction") + 1] == "0.8000"


def test_the_command_of_a_download_names_the_model_and_its_parent() -> None:
    argv = RULES.download_argv(Model("far", "some/where"))
    assert argv[1:5] == ["-m", "model_server", "download-weights", "some/where"]
    assert argv[argv.index("--parent-pid") + 1] == str(os.getpid())


class Downloading(ServerRules):
    """Starts a script instead of a download."""

    def download_argv(self, model: Model) -> list[str]:
        return [sys.executable, "-c", *self.flags]


async def test_a_download_that_fails_says_why(tmp_path: Path) -> None:
    rules = Downloading(("raise SystemExit('error: no such model')",), tmp_path, 1, 0.9, 1.0)
    with pytest.raises(DidNotStart, match=r"^no such model$"):
        await LaunchedServers(rules, os.environ, Console()).download(model("far"))


async def test_a_download_that_is_given_up_leaves_no_process(tmp_path: Path) -> None:
    up = tmp_path / "up"
    script = f"import time, pathlib; pathlib.Path({str(up)!r}).touch(); time.sleep(60)"
    rules = Downloading((script,), tmp_path, 1, 0.9, 1.0)
    downloading = asyncio.create_task(
        LaunchedServers(rules, os.environ, Console()).download(model("far"))
    )
    while not up.exists():
        await asyncio.sleep(0.01)
    downloading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await downloading
    assert processes_of(str(up)) == []


def test_a_folder_is_local_and_what_cannot_be_one_is_asked_of_the_cache(
    tmp_path: Path,
) -> None:
    cached = {"org/here"}.__contains__
    servers = LaunchedServers(RULES, {}, Console(), cached)
    sources = [str(tmp_path), "org/here", "org/far", "a" * 300]
    found = [servers.is_local(Model("m", source)) for source in sources]
    assert found == [True, True, False, False]


async def test_a_server_is_stopped_though_its_socket_cannot_be_removed(tmp_path: Path) -> None:
    socket = tmp_path / "folder"
    socket.mkdir()
    argv = [sys.executable, "-c", "import time; time.sleep(60)"]
    child = await Child.start("a", argv, os.environ, Console())
    await LaunchedServer(child, socket, 5.0).stop()
    assert child.returncode is not None
