"""The log of a process, on stderr: text for people, or one JSON object a line.

    record -> text or JSON -> LogWriter: a bounded queue -> its thread -> stderr

The `extra` fields of a record become keys of its JSON object. `Console` writes the lines of several
processes.

A server outlives the terminal or the log shipper that it was started under, and waits for neither:
a pipe that nobody reads holds 64 KiB, and a full disk nothing. Only the writer's thread waits
there. What does not fit into the queue meanwhile is dropped, and a line says how much was; without
a reader the lines go nowhere.
"""

import contextlib
import errno
import json
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

import orjson

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


# Above every level: TGI's LOG_LEVEL also knows "off".
_OFF = logging.CRITICAL + 1
_STANDARD_KEYS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# What they log, the router logs itself.
_QUIET_LOGGERS = ("uvicorn", "httpx", "huggingface_hub")


# Select Graphic Rendition (ECMA-48, 8.3.117).
_DIM = "\x1b[2m"
_PLAIN = "\x1b[0m"
_COLOURS = (("\x1b[31m", ("error:", " ERROR ", " CRITICAL ")), ("\x1b[33m", (" WARNING ",)))


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "target": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD_KEYS}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


class _Handler(logging.Handler):
    """Formats records where they are made, and leaves the writing to a thread."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self._writer = LogWriter(sys.stderr, self._dropped_line)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.write(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001 (a log fails nobody)
            self.handleError(record)

    def flush(self) -> None:
        """Called at the process's end, too, by logging.shutdown."""
        self._writer.flush()

    def _dropped_line(self, num_dropped: int) -> str:
        values = {"name": __name__, "levelname": "WARNING", "msg": _dropped(num_dropped)}
        return f"{self.format(logging.makeLogRecord(values))}\n"


def _dropped(num_dropped: int) -> str:
    return f"dropped {num_dropped} lines of the log, which could not be written in time"


def start_logging(level: str, *, json_output: bool) -> None:
    """Send this process's log to stderr, from `level` ("info", ...) up; none of it with "off".

    A process that ends by os._exit calls logging.shutdown before, else its last lines are lost.
    """
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
    handler = _Handler(_JsonFormatter() if json_output else text)
    number = _OFF if level == "off" else level.upper()
    # Loggers with a level of their own may log below `level`.
    handler.setLevel(number)
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)


class Console:
    """Lines on stderr, each behind its process's name; `as_json`: each one a JSON object.

    has_colours: names are dim, warnings yellow and errors red, as terminals show it
    """

    def __init__(self, as_json: bool = False, *, has_colours: bool = False) -> None:
        self.as_json = as_json
        self._has_colours = has_colours
        self._lines = LogWriter(sys.stderr, self._dropped_line)
        self._texts = LogWriter(sys.stdout, lambda num_dropped: "")

    def say(self, text: str, level: str = "INFO") -> None:
        """A line of the launcher itself."""
        self.pass_on("launcher", text, level)

    def pass_on(self, name: str, line: str, level: str = "INFO") -> None:
        """A process's line. A JSON object gets its name; of any other line `level` is a guess."""
        self._lines.write(self._line(name, line, level))

    def print(self, text: str) -> None:
        """A text for people, on stdout."""
        self._texts.write(text)

    def flush(self) -> None:
        """Wait until everything is written, a moment at most."""
        self._lines.flush()
        self._texts.flush()

    def _line(self, name: str, line: str, level: str) -> str:
        if self.as_json:
            return f"{_object(name, line, level)}\n"
        if not self._has_colours:
            return f"{name} | {line}\n"
        colour = next((code for code, words in _COLOURS if any(word in line for word in words)), "")
        return f"{_DIM}{name} |{_PLAIN} {colour}{line}{_PLAIN if colour else ''}\n"

    def _dropped_line(self, num_dropped: int) -> str:
        return self._line("launcher", _dropped(num_dropped), "WARNING")


def _object(name: str, line: str, level: str) -> str:
    with contextlib.suppress(ValueError):
        record = json.loads(line)
        if isinstance(record, dict):
            # A server's line names its own process already; of several servers, both are named.
            process = f"{name} | {record['process']}" if "process" in record else name
            return json.dumps({**record, "process": process}, ensure_ascii=False)
    now = datetime.now(UTC).isoformat()
    record = {"process": name, "timestamp": now, "level": level, "target": name, "message": line}
    return json.dumps(record, ensure_ascii=False)
