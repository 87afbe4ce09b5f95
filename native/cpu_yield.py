"""Lets idle work leave its core for a moment, again and again.

A core that has anything to run, be it idle work (SCHED_IDLE), does not look for what waits on
another core: Linux balances between the two when one of them runs out of work, and else every few
dozen milliseconds. So whatever waits, a router behind a thread of a step, waits on beside a core
that does what could wait. A thread that yields runs its core out of work every millisecond.

    | computes 1 ms | pause | computes 1 ms | pause | ...     2 % less for it, where nobody waits

Where others want every core it is no worse off: what it leaves of a turn it is still owed.
"""

import ctypes
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from native.library import NativeUnavailable, load_native, path_of

_log = logging.getLogger(__name__)

_SOURCE = Path(__file__).with_name("cpu_yield.cpp")
_EVERY_NS = 1_000_000
_PAUSE_NS = 20_000


class CpuYield:
    """Whoever computes within `yielding` yields its core; without a library nothing happens.

    Each thread has a timer of its own, which its end takes away. A fork has none.

    path: where another process finds the library, see `at`; None: nowhere
    """

    def __init__(self, library: ctypes.CDLL | None = None) -> None:
        self.path: Path | None = None
        self._yield_core = None
        if library is not None:
            self.path = path_of(library)
            self._yield_core = library.tandem_yield
            self._yield_core.argtypes = 2 * (ctypes.c_longlong,)

    @classmethod
    def load(cls) -> "CpuYield":
        """Compiled before or now; one that does nothing where that cannot be."""
        if not sys.platform.startswith("linux"):
            return cls()
        try:
            return cls(load_native(_SOURCE))
        except NativeUnavailable as error:
            _log.info("idle work does not yield its core: %s", error)
            return cls()

    @classmethod
    def at(cls, path: Path | None) -> "CpuYield":
        """What another process has loaded: where there is no environment, no compiler works."""
        try:
            return cls() if path is None else cls(ctypes.CDLL(str(path)))
        except OSError as error:
            _log.info("idle work does not yield its core: %s", error)
            return cls()

    @contextmanager
    def yielding(self) -> Iterator[None]:
        """The calling thread yields its core while this lasts."""
        self._set(_EVERY_NS)
        try:
            yield
        finally:
            self._set(0)

    def _set(self, every_ns: int) -> None:
        if self._yield_core is None:
            return
        error = self._yield_core(every_ns, _PAUSE_NS)
        if error:
            # A sandbox may forbid timers: it is a matter of others' speed alone.
            _log.debug("a thread cannot yield its core: %s", os.strerror(error))
