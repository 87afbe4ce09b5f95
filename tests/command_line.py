"""Runs `launcher ...` in this process: no second one has to import everything again."""

import contextlib
import io
import sys
import tempfile
from subprocess import CompletedProcess
from unittest.mock import patch

from launcher import main


def run_launcher(*args: str, stdin: str = "") -> CompletedProcess[str]:
    """What `launcher ARGS` writes, and its exit code."""
    argv = ["launcher", *args]
    out, err = io.StringIO(), io.StringIO()
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as typed,
        patch.object(sys, "argv", argv),
        patch.object(sys, "stdin", typed),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        typed.write(stdin)
        typed.seek(0)
        try:
            main()
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int), code
    return CompletedProcess(argv, code, out.getvalue(), err.getvalue())
