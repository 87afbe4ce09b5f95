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
from processes.deployment import Deployment
from processes.logs import Console
from processes.signals import Signals, Stopped

_STOP_S = 2.0


async def dry_run(
    deployment: Deployment,
    environ: Mapping[str, str],
    console: Console,
    check_flags: Sequence[str] = (),
) -> int:
    """Check the model. Returns the exit code: 0 where it may be loaded, else 1; logs the reason.

    `check_flags` are further flags of the shard's check.
    """
    signals = Signals(deployment.parent_pid, lambda number: console.say(f"{number.name}: stopping"))
    try:
        await signals.unless_stopped(_check(deployment, environ, console, check_flags))
    except ChildFailed as error:
        console.say(f"error: {error}", "ERROR")
        return 1
    except Stopped:
        return 1
    finally:
        signals.close()
    console.say(f"{deployment.model_id} may be loaded")
    return 0


async def _check(
    deployment: Deployment,
    environ: Mapping[str, str],
    console: Console,
    check_flags: Sequence[str],
) -> None:
    # What is fetched takes as long as it takes; the process itself gives up in a silence.
    is_folder = os.path.isdir(os.path.expanduser(deployment.model_id))
    limit_s = deployment.startup_timeout_s if is_folder else None
    with tempfile.TemporaryDirectory(prefix="tandem-check-") as temporary:
        folder_file = Path(temporary, "folder")
        argv = [*deployment.check_argv(folder_file), *check_flags]
        await _finish(argv, deployment.shard_environ(0, environ), console, limit_s)
        argv = deployment.router_argv(Path(folder_file.read_text()), "router.check")
    await _finish(argv, deployment.router_environ(environ), console, deployment.startup_timeout_s)


async def _finish(
    argv: Sequence[str], environ: Mapping[str, str], console: Console, limit_s: float | None
) -> None:
    """Run a process to its end. Raises ChildFailed."""
    child = await Child.start("check", argv, environ, console)
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
