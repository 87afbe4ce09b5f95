"""The command lines of a model's server, and of the check before it."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.names import Model


@dataclass(frozen=True, slots=True)
class ServerRules:
    """What all children share. `flags` are those of `launcher serve`.

    `memory_fraction`: what all of them together may fill of a GPU, shared by `max_loaded`.
    """

    flags: Sequence[str]
    folder: Path
    max_loaded: int
    memory_fraction: float
    graceful_timeout_s: float

    def argv(self, model: Model, socket: Path, num_others: int) -> list[str]:
        """The command of one child."""
        # A share is counted with what others hold already.
        share = self.memory_fraction * (num_others + 1) / self.max_loaded
        return [*self._serve(model, share), "--http-uds", str(socket)]

    def check_argv(self, model: Model, needs_file: Path) -> list[str]:
        """The command that looks a model over, and writes what it needs of the host."""
        # What others hold of a GPU they may give back.
        argv = [*self._serve(model, self.memory_fraction), "--dry-run"]
        # Each takes a core for seconds, beside who computes; fetching takes none.
        argv += ["--turn-file", str(self.folder / "turn")]
        return [*argv, "--needs-file", str(needs_file)]

    def _serve(self, model: Model, share: float) -> list[str]:
        argv = [sys.executable, "-m", "launcher", "serve", model.source]
        argv += ["--parent-pid", str(os.getpid()), "--served-model-name", model.name]
        return [*argv, *self.flags, "--cuda-memory-fraction", f"{share:.4f}"]
