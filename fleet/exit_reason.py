"""Why a child ended, in a line: read off what it said last."""

import contextlib
import json
import re
from collections.abc import Sequence
from itertools import takewhile

from processes.child import Child

_MAX_LEN = 500
# In front of the lines of others that an error quotes.
_INDENT = "    "
_SPEAKER = re.compile(r"\S+( \d+)? \| ")


def reason_of(child: Child) -> str:
    """Why it ended: the error that it told first, or how it ended."""
    lines = list(child.last_lines)
    for index, line in enumerate(lines):
        words = _message(line)
        if words.lower().startswith("error: "):
            behind = list(takewhile(lambda line: line.startswith(_INDENT), lines[index + 1 :]))
            return _told([*words[len("error: ") :].splitlines(), *behind])[:_MAX_LEN]
    return child.death_notice().splitlines()[0].split(";")[0][:_MAX_LEN]


def _told(lines: Sequence[str]) -> str:
    """An error in a line: its first one, with what a process said last behind how it ended."""
    first, *rest = lines
    how, announces, _ = first.partition("; its last lines:")
    return f"{how}: {_message(rest[-1].strip())}" if announces and rest else how


def _message(line: str) -> str:
    """A line without its speaker, of a log for people or of JSON lines."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(line)["message"])
    return _SPEAKER.sub("", line)
