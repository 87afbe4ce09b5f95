"""`launcher serve --dry-run`: what can be known of a model before it is loaded.

    checkpoint, fetched if need be -> the shard's check of it -> the router's check of the tokenizer

No weight is read and nothing listens, so another server may go on beside it.
"""

import asyncio
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from processes.child import Child, ChildFailed
from processes.console import Console
from processes.deployment import Deployment
from processes.signals import Signals, Stopped

_STOP_S = 2.0


class DryRun:
    """Owner of the processes that check the model, one after the other. To be made in its event
    loop. `check_flags` are further flags of the shard's check."""

    def __init__(
        self,
        deployment: Deployment,
        environ: Mapping[str, str],
        console: Console,
        check_flags: Sequence[str] = (),
    ) -> None:
        self._deployment = deployment
        self._environ = environ
        self._console = console
        self._check_flags = check_flags
        self._signals = Signals(
            deployment.parent_pid, lambda number: console.say(f"{number.name}: stopping")
        )

    async def run(self) -> int:
        """Returns the exit code: 0 where the model may be loaded, else 1; the reason is logged."""
        try:
            await self._signals.unless_stopped(self._check())
        except ChildFailed as error:
            self._console.say(f"error: {error}", "ERROR")
            return 1
        except Stopped:
            return 1
        finally:
            self._signals.close()
        self._console.say(f"{self._deployment.model_id} may be loaded")
        return 0

    async def _check(self) -> None:
        deployment = self._deployment
        # What is fetched takes as long as it takes; the process itself gives up in a silence.
        is_folder = os.path.isdir(os.path.expanduser(deployment.model_id))
        limit_s = deployment.startup_timeout_s if is_folder else None
        with tempfile.TemporaryDirectory(prefix="tandem-check-") as temporary:
            folder_file = Path(temporary, "folder")
            await self._run_child(
                [*deployment.check_argv(folder_file), *self._check_flags],
                deployment.shard_environ(0, self._environ),
                limit_s,
            )
            folder = Path(folder_file.read_text())
        await self._run_child(
            deployment.router_argv(folder, "router.check"),
            deployment.router_environ(self._environ),
            deployment.startup_timeout_s,
        )

    async def _run_child(
        self, argv: Sequence[str], environ: Mapping[str, str], limit_s: float | None
    ) -> None:
        child = await Child.start("check", argv, environ, self._console)
        try:
            await asyncio.wait_for(child.wait(), limit_s)
        except TimeoutError as error:
            raise ChildFailed(
                f"the check is not done after {limit_s:.0f} s (--shard-startup-timeout)"
            ) from error
        finally:
            await child.stop(_STOP_S)
        if child.returncode != 0:
            raise ChildFailed(child.death_notice())
