"""A model's server as a child process: the command lines, its end, why it ended."""

import contextlib
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from fleet.names import Model
from processes.child import Child

_logger = logging.getLogger("fleet")

_MAX_REASON_LEN = 500
# In front of the lines of other processes that an error quotes.
_INDENT = "    "
_PROCESS_NAME = re.compile(r"\S+( \d+)? \| ")


@dataclass(frozen=True, slots=True)
class ServerRules:
    """What all servers share. `flags` are those of `launcher serve`; `folder` holds the sockets.

    `memory_fraction` of a GPU is shared by `max_loaded` servers.
    """

    flags: Sequence[str]
    folder: Path
    max_loaded: int
    memory_fraction: float
    graceful_timeout_s: float

    def argv(self, model: Model, socket: Path, num_others: int) -> list[str]:
        """The command of a server beside `num_others`."""
        # The share includes the memory that the others hold.
        share = self.memory_fraction * (num_others + 1) / self.max_loaded
        return [*self._serve(model, share), "--http-uds", str(socket)]

    def check_argv(self, model: Model, needs_file: Path) -> list[str]:
        """The command of a check, which writes the bytes that the model needs to `needs_file`."""
        # Other models may be unloaded for it.
        argv = [*self._serve(model, self.memory_fraction), "--dry-run"]
        # One check at a time computes, for some seconds on one core; downloads go on beside it.
        argv += ["--turn-file", str(self.folder / "turn")]
        return [*argv, "--needs-file", str(needs_file)]

    def _serve(self, model: Model, share: float) -> list[str]:
        argv = [sys.executable, "-m", "launcher", "serve", model.source]
        argv += ["--parent-pid", str(os.getpid()), "--served-model-name", model.name]
        return [*argv, *self.flags, "--cuda-memory-fraction", f"{share:.4f}"]


class LaunchedServer:
    """Owner of the child process of one server. The child ends when this process does."""

    def __init__(self, child: Child, socket: Path, stop_timeout_s: float) -> None:
        self._child = child
        self._socket = socket
        self._stop_timeout_s = stop_timeout_s

    @property
    def socket(self) -> Path:
        """The unix socket at which it answers."""
        return self._socket

    async def ended(self) -> str:
        """Wait for its end; returns the reason in one line."""
        await self._child.wait()
        return exit_reason(self._child)

    async def stop(self) -> None:
        """Stop it after its running requests, within the graceful timeout."""
        await self._child.stop(self._stop_timeout_s)
        try:
            self._socket.unlink(missing_ok=True)
        except OSError as error:
            # No other server gets this path.
            _logger.warning("%s stays behind: %s", self._socket, error.strerror)

    def stop_now(self) -> None:
        """Stop it at once: a second signal makes it end its own children too."""
        self._child.signal(signal.SIGTERM)


def exit_reason(child: Child) -> str:
    """Why a child ended, in one line: the first error that it logged, or how it ended."""
    lines = list(child.last_lines)
    for index, line in enumerate(lines):
        message = _message(line)
        if message.lower().startswith("error: "):
            quoted = takewhile(lambda line: line.startswith(_INDENT), lines[index + 1 :])
            return _one_line(message[len("error: ") :].splitlines(), list(quoted))
    return child.death_notice().splitlines()[0].split(";")[0][:_MAX_REASON_LEN]


def _one_line(error: Sequence[str], quoted: Sequence[str]) -> str:
    """The first line of an error; the last line of a process that it quotes is appended."""
    first, *rest = [*error, *quoted]
    reason, quotes, _ = first.partition("; its last lines:")
    if quotes and rest:
        reason = f"{reason}: {_message(rest[-1].strip())}"
    return reason[:_MAX_REASON_LEN]


def _message(line: str) -> str:
    """The message of a log line, which is text after a process's name, or JSON."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(line)["message"])
    return _PROCESS_NAME.sub("", line)
