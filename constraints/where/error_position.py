"""Errors with position, line, caret, and a hint."""

import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches

from constraints.errors import Malformed

# The most characters of a long line that are shown around the place.
_SHOWN_LEN = 72
# The most characters of a name or literal that are quoted.
_QUOTED_LEN = 40


def complaint(text: str, start: int, end: int, what: str, hint: str | None = None) -> Malformed:
    """The error about text[start:end]. `what`: the mistake, `hint`: what to write instead."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    line_end = len(text) if line_end < 0 else line_end
    shown, column = _window(text[line_start:line_end], start - line_start)
    num_carets = max(1, _width(shown[column : column + end - start]))
    line = text.count("\n", 0, start) + 1
    place = f"line {line}, column {start - line_start + 1}" if line > 1 else f"position {start}"
    message = f"{place}: {what}\n  {shown}\n  {' ' * _width(shown[:column])}{'^' * num_carets}"
    return Malformed(f"{message}\n{hint}" if hint else message, start)


def without_place(message: str) -> str:
    """The mistake in a complaint's message, without the place."""
    return message.partition("\n")[0].partition(": ")[2]


def short(written: str) -> str:
    """The source text, shortened for a message."""
    return written if len(written) <= _QUOTED_LEN else written[:_QUOTED_LEN] + "…"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar."""
    matches = get_close_matches(name[:64].lower(), list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def _width(shown: str) -> int:
    """Its number of columns in a terminal."""
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in shown
    )


def _window(line: str, column: int) -> tuple[str, int]:
    """The part of `line` to show, with dots for control characters, and the column in it."""
    begin = max(0, column - _SHOWN_LEN // 2) if len(line) > _SHOWN_LEN else 0
    end = begin + _SHOWN_LEN
    visible = "".join(char if char.isprintable() else "·" for char in line[begin:end])
    prefix = "…" if begin else ""
    suffix = "…" if end < len(line) else ""
    return prefix + visible + suffix, column - begin + len(prefix)
