"""The log of a process, as its reader gets it."""

import json
import subprocess
import sys
from datetime import datetime

import pytest

TIERS = ["router", "model_server"]
SAY = """
import logging
from {tier}.logs import start_logging
start_logging("INFO", json_output={json})
log = logging.getLogger("{tier}.voice")
log.debug("unheard")
log.warning("%d things", 3, extra={{"request_id": "mine", "num_tokens": 4}})
try:
    1 / 0
except ZeroDivisionError:
    log.exception("two\\nlines")
"""


def said(tier: str, *, as_json: bool) -> str:
    code = SAY.format(tier=tier, json=as_json)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == ""
    return run.stderr


@pytest.mark.parametrize("tier", TIERS)
def test_json_output_is_one_object_a_line(tier: str) -> None:
    first, second = map(json.loads, said(tier, as_json=True).splitlines())
    assert datetime.fromisoformat(first.pop("timestamp")).tzinfo is not None
    assert first == {
        "level": "WARNING",
        "target": f"{tier}.voice",
        "message": "3 things",
        "request_id": "mine",
        "num_tokens": 4,
    }
    assert second["message"] == "two\nlines"
    assert second["exception"].endswith("ZeroDivisionError: division by zero")


def test_a_log_that_is_off_says_nothing() -> None:
    libraries = 'logging.getLogger("uvicorn.error").error("a library has a level of its own")\n'
    code = SAY.format(tier="router", json=True).replace('"INFO"', '"off"') + libraries
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (run.stdout, run.stderr) == ("", "")


@pytest.mark.parametrize("tier", TIERS)
def test_text_is_for_people(tier: str) -> None:
    text = said(tier, as_json=False)
    assert text.splitlines()[0].endswith(f"WARNING {tier}.voice: 3 things")
    assert "ZeroDivisionError" in text
