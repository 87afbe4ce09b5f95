"""What people see: lines on stderr and stdout, which may have lost their reader.

A server outlives the terminal or the log shipper that it was started under. When nobody reads any
more, the lines go nowhere, and everything else goes on.
"""

import os
import sys
from typing import TextIO


def say(text: str) -> None:
    """One line on stderr, from the launcher itself."""
    write(sys.stderr, f"launcher | {text}\n")


def write(stream: TextIO, text: str) -> None:
    """Write and flush; from the first failure on, `stream` leads to nowhere."""
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
