"""The hole's own name in what is said of its mask, where the hole is always called X."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from client.query.errors import BadCondition

SUBJECT = "X"
# Texts in quotes are what the program says, X in them or not. An apostrophe opens none.
_PARTS = re.compile(r"""(?P<quoted>"(?:[^"\\]|\\.)*"|(?<!\w)'(?:[^'\\]|\\.)*')|\bX\b""")


def rename_subject(message: str, name: str) -> str:
    """A message about X as one about the hole `name`."""
    if name == SUBJECT:
        return message
    return _PARTS.sub(lambda part: part["quoted"] or name, message)


@contextmanager
def errors_about(name: str) -> Iterator[None]:
    """What is refused in here is said of the hole `name`. For what knows no holes but X."""
    try:
        yield
    except BadCondition as error:
        raise BadCondition(rename_subject(error.message, name), error.place) from error.__cause__
