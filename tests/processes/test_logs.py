"""The log of a process, as its reader gets it."""

import json
import subprocess
import sys
from datetime import datetime

import pytest

from processes.logs import Console

SAY = """
import logging
from processes.logs import start_logging
start_logging("INFO", json_output={json})
log = logging.getLogger("router.voice")
log.debug("unheard")
log.warning("%d things", 3, extra={{"request_id": "mine", "num_tokens": 4}})
try:
    1 / 0
except ZeroDivisionError:
    log.exception("two\\nlines")
"""


def logged(*, as_json: bool) -> str:
    code = SAY.format(json=as_json)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == ""
    return run.stderr


def test_json_output_is_one_object_a_line() -> None:
    first, second = map(json.loads, logged(as_json=True).splitlines())
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


def test_a_log_that_is_off_says_nothing() -> None:
    libraries = 'logging.getLogger("uvicorn.error").error("a library has a level of its own")\n'
    code = SAY.format(json=True).replace('"INFO"', '"off"') + libraries
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("", "")


def test_text_is_for_people() -> None:
    text = logged(as_json=False)
    assert text.splitlines()[0].endswith("WARNING router.voice: 3 things")
    assert "ZeroDivisionError" in text


def test_a_terminal_gets_colours(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console(has_colours=True)
    console.say("error: no weights", "ERROR")
    console.pass_on("router", "05:04 WARNING router: hm")
    console.pass_on("router", "05:04 INFO router: ready")
    console.flush()
    assert capfd.readouterr().err.splitlines() == [
        "\x1b[2mlauncher |\x1b[0m \x1b[31merror: no weights\x1b[0m",
        "\x1b[2mrouter |\x1b[0m \x1b[33m05:04 WARNING router: hm\x1b[0m",
        "\x1b[2mrouter |\x1b[0m 05:04 INFO router: ready",
    ]
