"""The hole's own name in what is said of its mask, where the hole is always called X."""

import re

_SUBJECT = "X"
# Texts in quotes are what the program says, X in them or not. An apostrophe opens none.
_PARTS = re.compile(r"""(?P<quoted>"(?:[^"\\]|\\.)*"|(?<!\w)'(?:[^'\\]|\\.)*')|\bX\b""")


def named(message: str, name: str) -> str:
    """A message about X as one about the hole `name`."""
    if name == _SUBJECT:
        return message
    return _PARTS.sub(lambda part: part["quoted"] or name, message)
