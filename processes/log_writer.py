"""The writer of a log: lines wait in a bounded queue, and a thread writes them.

A pipe that nobody reads holds 64 KiB; whoever writes more waits for its reader, and on a full disk
for room. Only the thread waits here. What does not fit into the queue meanwhile is dropped, and a
line says how much was.
"""

import contextlib
import errno
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

MAX_WAITING_LEN = 1 << 20
# At a process's end: how long a reader may take for what still waits.
_LAST_LINES_S = 1.0
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_RETRY_S = 1.0


class LogWriter:
    """Writes lines to `stream`, in order. Without a reader or a file, it leads to nowhere.

    `dropped_line` makes the line that reports how many lines were dropped at its place.
    """

    def __init__(self, stream: TextIO, dropped_line: Callable[[int], str]) -> None:
        self._fd = stream.fileno()
        self._dropped_line = dropped_line
        self._changed = threading.Condition()
        # The line that is being written is the first one.
        self._waiting: deque[bytes] = deque()
        self._waiting_len = 0
        self._num_dropped = 0
        self._thread: threading.Thread | None = None

    def write(self, text: str) -> None:
        """Add a text to what is to be written. Never waits for whoever reads."""
        data = text.encode(errors="backslashreplace")
        with self._changed:
            if self._waiting_len + len(data) > MAX_WAITING_LEN:
                self._num_dropped += 1
                return
            self._report_dropped()
            self._append(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float = _LAST_LINES_S) -> None:
        """Wait until everything is written, for `timeout_s` at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, timeout_s)

    def _append(self, data: bytes) -> None:
        self._waiting.append(data)
        self._waiting_len += len(data)

    def _report_dropped(self) -> None:
        if self._num_dropped:
            line = self._dropped_line(self._num_dropped)
            self._num_dropped = 0
            self._append(line.encode())

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                data = self._waiting[0]
            self._write_out(data)
            with self._changed:
                self._waiting_len -= len(self._waiting.popleft())
                if not self._waiting:
                    self._report_dropped()
                self._changed.notify_all()

    def _write_out(self, data: bytes) -> None:
        """By the descriptor: a lock of the stream's would outlast this thread at exit."""
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                # Another process that writes there has made it one that does not wait.
                select.select([], [self._fd], [])
            except OSError as error:
                if error.errno in _NO_ROOM:
                    time.sleep(_RETRY_S)
                    continue
                with contextlib.suppress(OSError):
                    nowhere = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(nowhere, self._fd)
                    os.close(nowhere)
                return
