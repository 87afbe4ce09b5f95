"""The log of a process, on stderr: text for people, or one JSON object a line.

The `extra` fields of a record become keys of its JSON object.
"""

import logging
import sys
from datetime import UTC, datetime

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
