"""The log of a process, on stderr: text for people, or one JSON object a line.

The `extra` fields of a record become keys of its JSON object.

`Console` writes the lines of several processes. A server outlives the terminal or the log shipper
that it was started under: when nobody reads any more, its lines go nowhere, and it goes on.
"""

import contextlib
import json
import logging
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

import orjson

# Above every level: TGI's LOG_LEVEL also knows "off".
_OFF = logging.CRITICAL + 1
_STANDARD_KEYS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# What they log, the router logs itself.
_QUIET_LOGGERS = ("uvicorn", "httpx", "huggingface_hub")


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


def start_logging(level: str, *, json_output: bool) -> None:
    """Send this process's log to stderr, from `level` ("info", ...) up; none of it with "off"."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
    handler.setFormatter(_JsonFormatter() if json_output else text)
    number = _OFF if level == "off" else level.upper()
    # Loggers with a level of their own may log below `level`.
    handler.setLevel(number)
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for name in _QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class Console:
    """Lines on stderr, each behind its process's name; `as_json`: each one a JSON object."""

    as_json: bool = False

    def say(self, text: str, level: str = "INFO") -> None:
        """A line of the launcher itself."""
        self.pass_on("launcher", text, level)

    def pass_on(self, name: str, line: str, level: str = "INFO") -> None:
        """A process's line. A JSON object gets its name; of any other line `level` is a guess."""
        text = _object(name, line, level) if self.as_json else f"{name} | {line}"
        write(sys.stderr, f"{text}\n")


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


def write(stream: TextIO, text: str) -> None:
    """Write and flush; from the first failure on, `stream` leads to nowhere."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
