"""Replaces X, the subject in messages about masks, by the name of the hole."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from client.query.errors import BadCondition

SUBJECT = "X"
# Quoted texts come from the program and stay unchanged. An apostrophe opens no quote.
_PARTS = re.compile(r"""(?P<quoted>"(?:[^"\\]|\\.)*"|(?<!\w)'(?:[^'\\]|\\.)*')|\bX\b""")


def rename_subject(message: str, name: str) -> str:
    """A message about X, with the name of the hole instead."""
    if name == SUBJECT:
        return message
    return _PARTS.sub(lambda part: part["quoted"] or name, message)


@contextmanager
def errors_about(name: str) -> Iterator[None]:
    """Context: BadCondition errors about X name the hole instead."""
    try:
        yield
    except BadCondition as error:
        raise BadCondition(rename_subject(error.message, name), error.place) from error.__cause__
