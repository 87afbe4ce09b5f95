"""Lines on stderr and stdout, which may have lost their reader.

A server outlives the terminal or the log shipper that it was started under. When nobody reads any
more, the lines go nowhere, and everything else goes on.
"""

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO


@dataclass(frozen=True, slots=True)
class Console:
    """Lines on stderr, each behind its speaker's name; `as_json`: each one a JSON object."""

    as_json: bool = False

    def say(self, text: str, level: str = "INFO") -> None:
        """What the launcher itself has to say."""
        self.pass_on("launcher", text, level)

    def pass_on(self, name: str, line: str, level: str = "INFO") -> None:
        """A process's line. A JSON object gets its name; of any other line `level` is a guess."""
        text = _object(name, line, level) if self.as_json else f"{name} | {line}"
        write(sys.stderr, f"{text}\n")


def _object(name: str, line: str, level: str) -> str:
    with contextlib.suppress(ValueError):
        said = json.loads(line)
        if isinstance(said, dict):
            # A server's line names its own process already; of several servers, both are named.
            process = " | ".join([name, *([str(said["process"])] if "process" in said else [])])
            return json.dumps({**said, "process": process}, ensure_ascii=False)
    now = datetime.now(UTC).isoformat()
    words = {"process": name, "timestamp": now, "level": level, "target": name, "message": line}
    return json.dumps(words, ensure_ascii=False)


def write(stream: TextIO, text: str) -> None:
    """Write and flush; from the first failure on, `stream` leads to nowhere."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
