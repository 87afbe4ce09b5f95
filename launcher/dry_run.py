"""`launcher serve --dry-run`: what can be known of a model before it is loaded.

    checkpoint, fetched if need be -> the shard's examination of it -> tokenizer

No weight is read and nothing listens, so another server may go on beside it.
"""

import asyncio
import os
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import BadSetting, ChildFailed
from launcher.precheck import check_tokenizer
from launcher.settings import ServeSettings
from launcher.stop_request import Stopped, StopRequest
from processes.child import Child
from processes.console import Console

_STOP_S = 2.0


@dataclass(frozen=True, slots=True)
class Beside:
    """What else there is. `turn_file`: what is locked by the one process, of those that name it,
    that looks a model over. `needs_file`: where the bytes are written that the model needs of the
    host, if whoever asks is to decide whether it fits."""

    turn_file: Path | None = None
    needs_file: Path | None = None

    def flags(self) -> list[str]:
        """As the process is told."""
        turn = [] if self.turn_file is None else ["--turn-file", str(self.turn_file)]
        needs = [] if self.needs_file is None else ["--needs-file", str(self.needs_file)]
        return [*turn, *needs]


class DryRun:
    """Owner of the process that looks the model over."""

    def __init__(
        self,
        settings: ServeSettings,
        environ: Mapping[str, str],
        console: Console,
        beside: Beside,
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._console = console
        self._beside = beside
        self._child: Child | None = None
        self._stop = StopRequest(self._on_signal)

    async def run(self) -> int:
        """Answers the exit code: 0 where the model may be loaded, else 1 with the reason told."""
        self._stop.listen(self._settings.parent_pid)
        try:
            with tempfile.TemporaryDirectory(prefix="tandem-check-") as told:
                folder = await self._look_over(Path(told, "folder"))
            check_tokenizer(self._settings, self._environ, folder)
        except (BadSetting, ChildFailed) as error:
            self._console.say(f"error: {error}", "ERROR")
            return 1
        except Stopped:
            return 1
        finally:
            self._stop.close()
            if self._child is not None:
                await self._child.stop(_STOP_S)
        self._console.say(f"{self._settings.model_id} may be loaded")
        return 0

    async def _look_over(self, folder_file: Path) -> Path:
        settings = self._settings
        self._child = child = await Child.start(
            "check",
            [*settings.check_argv(folder_file), *self._beside.flags()],
            settings.shard_environ(0, self._environ),
            self._console,
        )
        # What is fetched takes as long as it takes; the process itself gives up in a silence.
        is_folder = os.path.isdir(os.path.expanduser(settings.model_id))
        limit_s = settings.startup_timeout_s if is_folder else None
        try:
            await self._stop.or_stop(asyncio.wait_for(child.wait(), limit_s))
        except TimeoutError as error:
            raise ChildFailed(
                f"the check is not done after {limit_s:.0f} s (--shard-startup-timeout)"
            ) from error
        if child.returncode != 0:
            raise ChildFailed(child.death_notice())
        return Path(folder_file.read_text())

    def _on_signal(self, signum: signal.Signals, num_signals: int) -> None:
        self._console.say(f"{signum.name}: stopping")
