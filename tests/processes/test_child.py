import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from processes.child import STANDING_BY, Child
from processes.logs import Console


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


async def python(code: str, name: str = "child", console: Console | None = None) -> Child:
    argv = [sys.executable, "-u", "-c", code]
    return await Child.start(name, argv, os.environ, console or Console())


def said(capfd: pytest.CaptureFixture[str]) -> list[str]:
    """The console's lines, without their times."""
    return re.sub(r"\| \d\d:\d\d:\d\d ", "| ", capfd.readouterr().err).splitlines()


async def test_what_a_child_says_is_passed_on_behind_its_name(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code, console = "print('hello'); import sys; print('oh', file=sys.stderr)", Console()
    child = await python(code, "shard 1", console)
    assert await child.wait() == 0
    console.flush()
    assert said(capfd) == ["shard 1 | hello", "shard 1 | oh"]


async def test_json_lines_get_their_speakers_name_and_other_lines_become_objects(
    capfd: pytest.CaptureFixture[str],
) -> None:
    said = '{"level": "ERROR", "seed": 18446744073709551615}'
    code, console = f"print('{said}'); print([1]); print('hm \\x22')", Console(as_json=True)
    child = await python(code, "shard 1", console)
    assert await child.wait() == 0
    console.say("two\nlines", "ERROR")
    console.flush()
    passed, listed, text, own = map(json.loads, capfd.readouterr().err.splitlines())
    assert passed == {"process": "shard 1", "level": "ERROR", "seed": 2**64 - 1}
    assert (listed["process"], listed["message"]) == ("shard 1", "[1]")
    assert (text["level"], text["message"]) == ("INFO", 'hm "')
    assert (own["process"], own["level"], own["message"]) == ("launcher", "ERROR", "two\nlines")


async def test_a_child_that_stands_by_waits_to_be_called_up() -> None:
    code = f"import sys; print('{STANDING_BY}, well'); print(repr(sys.stdin.readline()))"
    child = await Child.start(
        "shard 0", [sys.executable, "-u", "-c", code], os.environ, Console(), waits=True
    )
    await until(lambda: child.stands_by)
    child.call_up()
    assert await child.wait() == 0
    assert child.last_lines == (f"{STANDING_BY}, well", repr("\n"))
    await until(lambda: not child.stands_by)
    child.call_up()  # too late, and no error: its death is seen elsewhere


async def test_a_death_notice_names_the_code_and_the_last_lines() -> None:
    child = await python("[print(i) for i in range(100)]; raise SystemExit(3)", "shard 0")
    await child.wait()
    notice = child.death_notice()
    assert notice.startswith("shard 0 stopped with exit code 3; its last lines:")
    assert notice.endswith("    99")
    assert "\n    50\n" not in notice


async def test_the_error_that_ends_a_child_is_its_death_notice_and_no_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    console = Console()
    code = "print('error: not yet'); print('hm'); print('error: no weights'); raise SystemExit(1)"
    child = await python(code, "shard 0", console)
    await child.wait()
    console.flush()
    assert child.death_notice() == "shard 0: no weights"
    assert said(capfd) == ["shard 0 | error: not yet", "shard 0 | hm"]


async def test_a_progress_bar_is_known_before_its_line_ends() -> None:
    bar = "import sys, time; sys.stdout.write('\\r10%\\r20%'); time.sleep(60)"
    child = await python(bar)
    while child.progress is None:
        await asyncio.sleep(0.01)
    child.kill_group()
    await child.wait()
    assert child.progress == "20%"
    assert child.last_lines == ("20%",)


async def test_a_progress_bar_is_no_line_of_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console()
    child = await python("print('\\r10%\\r99%\\nhm\\r\\n\\r50%')", console=console)
    await child.wait()
    console.flush()
    assert said(capfd) == ["child | hm"]
    assert child.last_lines == ("99%", "hm", "50%")


async def test_a_death_by_signal_is_named() -> None:
    child = await python("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    await child.wait()
    assert "was ended by SIGSEGV" in child.death_notice()


async def test_a_line_without_end_does_not_stop_the_relay() -> None:
    child = await python("print('x' * 300_000); print('after')")
    await child.wait()
    assert child.last_lines[-1] == "after"


def test_a_lost_reader_stops_neither_the_child_nor_its_end() -> None:
    """The launcher's own stderr is a pipe whose reader leaves after the first line."""
    code = (
        "import asyncio, os, sys\n"
        "from processes.child import Child\n"
        "from processes.logs import Console\n"
        "async def main():\n"
        "    talk = 'import time\\nfor i in range(20000): print(i, flush=True)\\ntime.sleep(60)'\n"
        "    argv = [sys.executable, '-c', talk]\n"
        "    child = await Child.start('child', argv, os.environ, Console())\n"
        "    while '19999' not in child.last_lines: await asyncio.sleep(0.01)\n"
        "    await child.stop(5)\n"
        "    sys.stdout.write(f'ended {child.returncode}')\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stderr.readline()
        process.stderr.close()
        assert process.stdout.read() == f"ended {-signal.SIGTERM}"


async def test_stop_ends_a_child_that_ignores_sigterm_and_its_descendants(
    tmp_path: Path,
) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
        "print('up')\n"
        "time.sleep(60)\n"
    )
    child = await python(code)
    while "up" not in child.last_lines:
        await asyncio.sleep(0.01)
    await child.stop(timeout_s=0.3)
    assert child.returncode == -signal.SIGKILL
    assert await _is_gone(int(pid_file.read_text()))


async def _is_gone(pid: int) -> bool:
    deadline_s = time.monotonic() + 30.0
    while time.monotonic() < deadline_s:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            return True
        if stat.rpartition(")")[2].split()[0] == "Z":
            return True
        await asyncio.sleep(0.02)
    return False


def test_a_servers_lines_name_the_server_and_its_process(
    capfd: pytest.CaptureFixture[str],
) -> None:
    console = Console(as_json=True)
    console.pass_on("small", '{"process": "shard 0", "message": "loading"}')
    console.flush()
    said = json.loads(capfd.readouterr().err)
    assert said == {"process": "small | shard 0", "message": "loading"}
