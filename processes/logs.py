"""The log of a process, on stderr: text for people, or one JSON object a line.

    record -> text or JSON -> LogWriter: a bounded queue -> its thread -> stderr

The `extra` fields of a record become keys of its JSON object. Libraries log from warnings up.
`Console` writes the lines of several processes, each with a time.

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
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
_OWN_PACKAGES = frozenset(
    {"router", "model_server", "fleet", "processes", "constraints", "native", "client"}
)
_TIME = "%H:%M:%S"
# Behind the names of processes: a server's line names its own, of several servers both are named.
_HAS_TIME = re.compile(r"(?:[^|\n]{1,200} \| )*\d\d:\d\d:\d\d ")


# Select Graphic Rendition (ECMA-48, 8.3.117).
_DIM = "\x1b[2m"
_PLAIN = "\x1b[0m"
_COLOURS = (
    ("\x1b[31m", ("error:", " ERROR ", " CRITICAL ")),
    ("\x1b[33m", ("warning:", " WARNING ")),
)


@dataclass(frozen=True, slots=True)
class MessageWithFields:
    """What is logged with fields that text shows behind it; JSON has them as keys, by `extra`."""

    message: str
    fields: Mapping[str, object]

    def __str__(self) -> str:
        return " ".join([self.message, *(f"{name}={value}" for name, value in self.fields.items())])


class _TextFormatter(logging.Formatter):
    """Who logged a line is said where something is wrong, or looked into."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", _TIME)
        self._plain = logging.Formatter("%(asctime)s %(levelname)s %(message)s", _TIME)

    def format(self, record: logging.LogRecord) -> str:
        if record.levelno == logging.INFO:
            return self._plain.format(record)
        return super().format(record)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = record.msg
        line: dict[str, object] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "target": record.name,
            "message": message.message
            if isinstance(message, MessageWithFields)
            else record.getMessage(),
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
        self.addFilter(_is_wanted)
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


def _is_wanted(record: logging.LogRecord) -> bool:
    is_own = record.name.partition(".")[0] in _OWN_PACKAGES
    return is_own or record.levelno >= logging.WARNING


def _dropped(num_dropped: int) -> str:
    return f"dropped {num_dropped} lines of the log, which could not be written in time"


def start_logging(level: str, *, json_output: bool) -> None:
    """Send this process's log to stderr, from `level` ("info", ...) up; none of it with "off".

    A process that ends by os._exit calls logging.shutdown before, else its last lines are lost.
    """
    handler = _Handler(_JsonFormatter() if json_output else _TextFormatter())
    number = _OFF if level == "off" else level.upper()
    # Loggers with a level of their own may log below `level`.
    handler.setLevel(number)
    logging.basicConfig(level=number, handlers=[handler], force=True)
    # Python's own warnings, as lines of the log.
    logging.captureWarnings(True)


class Console:
    """Lines on stderr, each behind its process's name and with a time; `as_json`: JSON objects.

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

    @property
    def draws_bars(self) -> bool:
        """Whether progress bars may be drawn where the lines go."""
        return not self.as_json and sys.stderr.isatty()

    @property
    def is_watched(self) -> bool:
        """Whether somebody sees what `print` writes."""
        return not self.as_json and sys.stdout.isatty()

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
        return "".join(f"{self._with_name(name, part)}\n" for part in line.split("\n"))

    def _with_name(self, name: str, line: str) -> str:
        text = line if _HAS_TIME.match(line) else f"{time.strftime(_TIME)} {line}"
        if not self._has_colours:
            return f"{name} | {text}"
        colour = next((code for code, words in _COLOURS if any(word in text for word in words)), "")
        return f"{_DIM}{name} |{_PLAIN} {colour}{text}{_PLAIN if colour else ''}"

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
