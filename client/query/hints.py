"""What somebody may have meant: the ends of messages about names that nobody knows."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

_QUOTED = re.compile(r"'(\w+)'")


def unknown_name(error: BaseException) -> str | None:
    """The name that a NameError is about; None: the error is another."""
    if not isinstance(error, NameError):
        return None
    quoted = _QUOTED.search(str(error))
    return quoted[1] if quoted else None


def meant(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, nothing if no other known name is close."""
    names = sorted(set(known) - {name})
    close = get_close_matches(name, names, n=1)
    close += [each for each in names if each.lower() == name.lower()]
    return f"; did you mean `{close[0]}`?" if close else ""


def meant_by(error: BaseException, known: Iterable[str]) -> str:
    """The same of the name that an exception is about, if it is about one."""
    name = unknown_name(error)
    if name is not None:
        return meant(name, known)
    if isinstance(error, AttributeError) and isinstance(error.name, str):
        public = (each for each in dir(error.obj) if not each.startswith("_"))
        return meant(error.name, public)
    return ""
