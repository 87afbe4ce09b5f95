"""The launcher, as the router sees it: the process that may have started router and shards."""

import os
import signal


class Launcher:
    """The process with this id, if it is the router's parent; None: nobody started the router."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid

    def restart_shards(self) -> None:
        """Asks for new shards: these hang, so that their end shows nowhere."""
        if self._pid is not None and os.getppid() == self._pid:
            os.kill(self._pid, signal.SIGUSR1)
