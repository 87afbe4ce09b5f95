"""`launcher serve --nnodes 2`: one model over two launchers, of which either may lose its shard."""

import os
import signal
import time
from typing import Any

import pytest

from processes.addresses import free_port
from tests.integration.server import launched
from tests.integration.test_recovery import texts, together, undisturbed, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

KEPT = [("drawn", 0), ("pattern", 0)]


def start(node_rank: int, port: int, *, wait: bool) -> Any:
    """A launcher without restarts of its own; its machine is this one."""
    nodes = ("--num-shard", "2", "--nnodes", "2", "--node-rank", f"{node_rank}")
    place = ("--master-addr", "127.0.0.1", "--master-port", f"{port}")
    others = ("--dtype", "float32", "--max-restarts", "0")
    secret = "a-secret-of-all-machines"
    return launched(*nodes, *place, *others, wait=wait, SHARD_TOKEN=secret)


def test_a_launcher_that_is_killed_and_comes_back_costs_streams_a_pause() -> None:
    port = free_port()
    with start(1, port, wait=False) as second, start(0, port, wait=True) as first:
        expected = undisturbed(first, KEPT)
        answers: dict[str, Any] = {}
        threads = together(first, KEPT, answers)
        while len(answers) < len(KEPT):
            time.sleep(0.01)
        for pid in [second.process.pid, *second.descendants()]:
            os.kill(pid, signal.SIGKILL)
        wait_until("after the kill", first, "/health/ready", 503)
        with start(1, port, wait=False) as third:
            for thread in threads:
                thread.join(200)
            assert not any(thread.is_alive() for thread in threads), first.said + third.said
            assert {name: texts(events) for name, events in answers.items()} == {
                name: texts(events) for name, events in expected.items()
            }
            # It is fit itself, so that no restart is counted; one would be too many.
            assert "rank 0 lost the others" in first.said
            assert "the shards will be started anew now" in first.said
