"""Servers under measurement end with the bench."""

import os
import signal
import subprocess
import sys

import pytest

from processes.addresses import free_port

_BENCH = """
import sys, time
from bench.load import Target
from bench.processes import Server, running
port = sys.argv[1]
url = f"http://127.0.0.1:{port}"
command = (sys.executable, "-m", "http.server", "--bind", "127.0.0.1", port)
with running(Server("test", command, url, Target(url, "openai"))) as pid:
    print(pid, flush=True)
    time.sleep(60)
"""


def test_a_terminated_bench_ends_its_server() -> None:
    command = [sys.executable, "-c", _BENCH, str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        pid = int(bench.stdout.readline())
        bench.send_signal(signal.SIGTERM)
        assert bench.wait(30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
