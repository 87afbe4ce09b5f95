"""A shard in waiting: imports what a shard needs, and becomes one when a line comes on stdin.

    python -m model_server.standby serve MODEL_ID ...

Most of a shard's start is imports; a killed one is replaced without them. Until the line comes, no
weights are read and no GPU is touched. At the end of stdin, which is that of the launcher, it ends.
`ps` and `top` call it tandem-standby while it waits, and tandem-shard from then on.
"""

# ruff: noqa: PLC0415
# What takes long to import is imported by the thread of low priority.

import gc
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from processes.child import SHARD_COMM, STANDBY_COMM, STANDING_BY

_MIB = 1 << 20


class _Preparation(threading.Thread):
    """Imports beside what serves, at the lowest priority.

    In a thread of its own: without privileges no process can raise its priority again.
    """

    def __init__(self, argv: list[str]) -> None:
        super().__init__(name="preparation")
        self._argv = argv
        self.serve: Callable[[], int] | None = None

    def run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        from model_server import __main__ as shard
        from model_server.config import ServeConfig, num_gpus, parse
        from model_server.errors import ShardError
        from model_server.loading import prepare

        settings = parse(self._argv)
        prepared = None
        if isinstance(settings, ServeConfig) and (settings.device == "cpu" or not num_gpus()):
            try:
                # It imports the model's class, too.
                prepared = prepare(settings)
            except ShardError as error:
                # The checkpoint is another one by now; what takes its place will say so as well.
                sys.stderr.write(f"error: {error}\n")
                return
        if prepared is not None and prepared.constraints is not None:
            prepared.constraints.wait_read()
        gc.collect()
        self.serve = partial(shard.main, self._argv, prepared)


def main(argv: list[str]) -> int:
    """Returns the exit code: 0 where the launcher is gone, 1 where no shard could be prepared."""
    preparation = _Preparation(argv)
    preparation.start()
    preparation.join()
    if preparation.serve is None:
        return 1
    _be_called(STANDBY_COMM)
    sys.stdout.write(f"{STANDING_BY}, in {_private_mib()} MiB of memory\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        return 0
    _be_called(SHARD_COMM)
    return preparation.serve()


def _be_called(name: str) -> None:
    Path("/proc/self/comm").write_text(name)


def _private_mib() -> int:
    """Resident memory that no other process shares."""
    with open("/proc/self/statm") as statm:
        _, resident, shared, *_ = statm.read().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE") // _MIB


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
