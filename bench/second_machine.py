"""A second machine on this one: a network namespace, a cable to it, and a launcher there.

Needs root, and iproute2. Its address is one of those for documentation (RFC 5737).
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.processes import tree

_NAMESPACE, _HERE, _THERE = "tandem-node", "tandem-here", "tandem-there"
FIRST = "198.51.100.1"
_SECOND = "198.51.100.2"
_INSIDE = ("ip", "netns", "exec", _NAMESPACE, sys.executable, "-m")
# Of both launchers; HTTP and the secret are of the bench alone.
NODES = ("--num-shard", "2", "--nnodes", "2", "--master-addr", FIRST)
SECRET = {"SHARD_TOKEN": "a-secret-of-both-machines"}


@dataclass(slots=True)
class SecondMachine:
    """Owner of the launcher there."""

    argv: Sequence[str]
    log: Path
    _launchers: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._launchers.append(
                subprocess.Popen(
                    [*_INSIDE, "launcher", "serve", *self.argv, "--node-rank", "1"],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "HF_HUB_OFFLINE": "1", **SECRET},
                )
            )

    @property
    def pid(self) -> int:
        """The launcher's."""
        return self._launchers[-1].pid

    def kill(self) -> None:
        """All its processes at once, as by the loss of power."""
        for launcher in self._launchers:
            for pid in [launcher.pid, *tree(launcher.pid)]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            launcher.wait()
        self._launchers.clear()

    def set_cable(self, state: str) -> None:
        """`state`: up or down."""
        _ip("link", "set", _HERE, state)


@contextlib.contextmanager
def second_machine(argv: Sequence[str], log: Path) -> Iterator[SecondMachine]:
    """With a launcher that has these settings."""
    machine = SecondMachine(argv, log)
    _ip("netns", "add", _NAMESPACE)
    try:
        _ip("link", "add", _HERE, "type", "veth", "peer", "name", _THERE, "netns", _NAMESPACE)
        _ip("addr", "add", f"{FIRST}/30", "dev", _HERE)
        _ip("link", "set", _HERE, "up")
        _ip("-n", _NAMESPACE, "addr", "add", f"{_SECOND}/30", "dev", _THERE)
        for device in ("lo", _THERE):
            _ip("-n", _NAMESPACE, "link", "set", device, "up")
        machine.start()
        yield machine
    finally:
        machine.kill()
        # By itself it goes with the namespace, but later; none where it could not be laid.
        subprocess.run(["ip", "link", "del", _HERE], check=False, stderr=subprocess.DEVNULL)
        _ip("netns", "del", _NAMESPACE)


def _ip(*argv: str) -> None:
    subprocess.run(["ip", *argv], check=True)
