"""The log of a process, on stderr: text for people, or one JSON object a line.

The `extra` fields of a record become keys of its JSON object.

`Console` writes the lines of several processes. A server outlives the terminal or the log shipper
that it was started under: when nobody reads any more, its lines go nowhere, and it goes on.
"""

import contextlib
import json
import logging
import sys
from datetime import UTC, datetime

import orjson

from processes.log_writer import LogWriter

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
