"""Suggestions for messages about unknown names."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

_QUOTED = re.compile(r"'(\w+)'")


def unknown_name(error: BaseException) -> str | None:
    """The name of a NameError; None: another error."""
    if not isinstance(error, NameError):
        return None
    quoted = _QUOTED.search(str(error))
    return quoted[1] if quoted else None


def meant(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, or "" if no known name is similar."""
    names = sorted(set(known) - {name})
    close = get_close_matches(name, names, n=1)
    close += [each for each in names if each.lower() == name.lower()]
    return f"; did you mean `{close[0]}`?" if close else ""


def meant_by(error: BaseException, known: Iterable[str]) -> str:
    """`meant` for the name of a NameError; "" for other errors."""
    name = unknown_name(error)
    if name is not None:
        return meant(name, known)
    if isinstance(error, AttributeError) and isinstance(error.name, str):
        public = (each for each in dir(error.obj) if not each.startswith("_"))
        return meant(error.name, public)
    return ""
