"""The log of a process as its reader gets it, and where nobody reads it: the process goes on."""

import errno
import json
import os
import re
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from processes import logs
from processes.logs import Console

SAY = """
import logging
from processes.logs import MessageWithFields, start_logging
start_logging("INFO", json_output={json})
log = logging.getLogger("router.voice")
log.debug("unheard")
logging.getLogger("somebody.else").info("unheard, too")
log.warning("%d things", 3, extra={{"request_id": "mine", "num_tokens": 4}})
try:
    1 / 0
except ZeroDivisionError:
    log.exception("two\\nlines")
log.info(MessageWithFields("GET /", {{"total_ms": 5}}), extra={{"total_ms": 5, "seed": 7}})
import warnings
warnings.warn("old")
"""


def logged(*, as_json: bool) -> str:
    code = SAY.format(json=as_json)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == ""
    return run.stderr


def test_json_output_is_one_object_a_line() -> None:
    first, second, third, fourth = map(json.loads, logged(as_json=True).splitlines())
    assert datetime.fromisoformat(first.pop("timestamp")).tzinfo is not None
    assert first == {
        "level": "WARNING",
        "target": "router.voice",
        "message": "3 things",
        "request_id": "mine",
        "num_tokens": 4,
    }
    assert second["message"] == "two\nlines"
    assert second["exception"].endswith("ZeroDivisionError: division by zero")
    assert (third["message"], third["total_ms"], third["seed"]) == ("GET /", 5, 7)
    assert "UserWarning: old" in fourth["message"]


def test_a_log_that_is_off_says_nothing() -> None:
    libraries = 'logging.getLogger("uvicorn.error").error("a library has a level of its own")\n'
    code = SAY.format(json=True).replace('"INFO"', '"off"') + libraries
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("", "")


def test_text_is_for_people() -> None:
    text = logged(as_json=False)
    assert text.splitlines()[0].endswith("WARNING router.voice: 3 things")
    assert "ZeroDivisionError" in text
    assert re.search(r"^\d\d:\d\d:\d\d INFO GET / total_ms=5$", text, re.MULTILINE)


def test_a_terminal_gets_colours(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console(has_colours=True)
    console.pass_on("router", "05:04:00 ERROR router: no weights", "ERROR")
    console.pass_on("router", "05:04:00 WARNING router: hm")
    console.pass_on("router", "05:04:00 INFO ready")
    console.flush()
    assert capfd.readouterr().err.splitlines() == [
        "\x1b[2mrouter |\x1b[0m \x1b[31m05:04:00 ERROR router: no weights\x1b[0m",
        "\x1b[2mrouter |\x1b[0m \x1b[33m05:04:00 WARNING router: hm\x1b[0m",
        "\x1b[2mrouter |\x1b[0m 05:04:00 INFO ready",
    ]


def test_every_line_of_a_console_has_one_time(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.say("error: two\n    lines", "ERROR")
    console.pass_on("demo", "router | 05:04:00 INFO ready")
    console.flush()
    own, more, passed = capfd.readouterr().err.splitlines()
    assert re.fullmatch(r"launcher \| \d\d:\d\d:\d\d error: two", own)
    assert re.fullmatch(r"launcher \| \d\d:\d\d:\d\d     lines", more)
    assert passed == "demo | router | 05:04:00 INFO ready"


NUM_LINES = 20_000
_DROPPED = re.compile(r"dropped (\d+) lines of the log, which could not be written in time")
# More than a pipe and the queue hold.
_LOG = f"""
import sys
from processes.logs import start_logging
import logging
start_logging("INFO", json_output="json" in sys.argv)
for number in range({NUM_LINES}):
    logging.getLogger("router").info("%d %s", number, "x" * 100)
sys.stdout.write("said it all\\n")
sys.stdout.flush()
sys.stdin.readline()
"""
_CONSOLE = f"""
import sys
from processes.logs import Console
console = Console("json" in sys.argv)
for number in range({NUM_LINES}):
    console.pass_on("talk", f"{{number}} " + "x" * 100)
sys.stdout.write("said it all\\n")
sys.stdout.flush()
sys.stdin.readline()
console.flush()
"""


def talking(code: str, *argv: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", code, *argv]
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("code", [_LOG, _CONSOLE], ids=["log", "console"])
def test_a_pipe_that_nobody_reads_stops_nobody(code: str) -> None:
    with talking(code) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "said it all\n"
        process.stdin.close()
        assert process.wait(timeout=10) == 0


@pytest.mark.parametrize("code", [_LOG, _CONSOLE], ids=["log", "console"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_whoever_reads_again_learns_how_many_lines_were_dropped(code: str, form: str) -> None:
    with talking(code, form) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "said it all\n"
        _, log = process.communicate("now\n", timeout=10)
    lines = log.splitlines()
    said = [json.loads(line)["message"] for line in lines] if form == "json" else lines
    dropped = [int(found[1]) for line in said if (found := _DROPPED.search(line))]
    assert dropped
    assert len(lines) - len(dropped) + sum(dropped) == NUM_LINES


def test_a_full_disk_stops_nobody() -> None:
    with Path("/dev/full").open("w") as full:
        pipe = subprocess.PIPE
        words = [sys.executable, "-c", _LOG]
        with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=full, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "said it all\n"
            process.stdin.close()
            assert process.wait(timeout=10) == 0


def test_a_disk_that_has_room_again_gets_every_line(tmp_path: Path) -> None:
    failures = [OSError(errno.ENOSPC, "no space"), OSError(errno.EDQUOT, "quota")]
    writes = os.write

    def write(fd: int, data: bytes) -> int:
        if failures:
            raise failures.pop()
        return writes(fd, data)

    path = tmp_path / "log"
    with path.open("w") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "_RETRY_S", 0.01)
        patch.setattr(os, "write", write)
        writer = logs.LogWriter(stream, str)
        for line in ("one\n", "two\n"):
            writer.write(line)
        writer.flush()

    assert path.read_text() == "one\ntwo\n"


def test_a_pipe_that_another_process_made_non_blocking_gets_every_line() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    code = """
from processes.logs import Console
console = Console()
for number in range(5_000):
    console.pass_on("talk", f"{number} " + "x" * 100)
console._lines.flush(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stderr=writing) as process:
        os.close(writing)
        time.sleep(0.2)
        with os.fdopen(reading) as log:
            assert len(log.readlines()) == 5_000
        assert process.wait(timeout=10) == 0
