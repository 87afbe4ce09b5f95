"""The errors of constraints, as a tree; those in a client's text show its line, a caret and a hint.

ConstraintError
|-- Malformed       the text is no expression, schema, pattern or grammar; with the place
|-- NotEnforced     well-formed, but a part would not be enforced; with that part
|-- Contradiction   nothing can satisfy it; with the parts that exclude each other
|-- DoesNotFit      the shortest text that satisfies it needs more tokens than there are
|-- TooComplex      compiling or following it takes more time or memory than is allowed
|-- IllegalToken    a matcher was given a token that its mask does not allow; nothing changed
`-- EngineFailed    the engine broke while it followed an output, which cannot continue
"""

from collections.abc import Iterable
from difflib import get_close_matches

from rich.cells import cell_len


class ConstraintError(Exception):
    """Base of all errors that this library raises intentionally."""


class Malformed(ConstraintError):
    """The text cannot be parsed.

    `position` is an offset in characters, `pointer` a JSON Pointer into a schema; None where none
    is known. The message contains them, a line with a caret, and what was expected.
    """

    def __init__(
        self, message: str, position: int | None = None, pointer: str | None = None
    ) -> None:
        super().__init__(message)
        self.position = position
        self.pointer = pointer


class NotEnforced(ConstraintError):
    """A part of the constraint would be ignored.

    `pointer` is its JSON Pointer in a schema, `position` its offset in another text; None
    elsewhere.
    """

    def __init__(
        self, message: str, pointer: str | None = None, position: int | None = None
    ) -> None:
        super().__init__(message)
        self.pointer = pointer
        self.position = position


class Contradiction(ConstraintError):
    """No text satisfies the constraint. `parts`: those that exclude each other, as written.

    `parts` may be empty if no smaller conflict is known.
    """

    def __init__(self, message: str, parts: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.parts = parts


class DoesNotFit(ConstraintError):
    """The shortest text found needs `needed_len` tokens, and only `max_len` may be made."""

    def __init__(self, needed_len: int, max_len: int) -> None:
        super().__init__(
            f"the shortest text that satisfies the constraint has {needed_len} tokens,"
            f" and at most {max_len} may be generated"
        )
        self.needed_len = needed_len
        self.max_len = max_len


class TooComplex(ConstraintError):
    """A limit of time, memory or size was reached; the message names it."""


class IllegalToken(ConstraintError):
    """The token cannot follow; the matcher has not changed."""


class EngineFailed(ConstraintError):
    """The matcher is broken and must be discarded."""


class OutOfReach(Exception):
    """Our own automata cannot follow it; `why` is for logs. Not raised outside the compiler."""


class TooManyStates(OutOfReach):
    """They could, but for its size."""


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
    num_carets = max(1, cell_len(shown[column : column + end - start]))
    line = text.count("\n", 0, start) + 1
    place = f"line {line}, column {start - line_start + 1}" if line > 1 else f"position {start}"
    message = f"{place}: {what}\n  {shown}\n  {' ' * cell_len(shown[:column])}{'^' * num_carets}"
    return Malformed(f"{message}\n{hint}" if hint else message, start)


def short(written: str) -> str:
    """The source text, shortened for a message."""
    return written if len(written) <= _QUOTED_LEN else written[:_QUOTED_LEN] + "…"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most similar."""
    matches = get_close_matches(name[:64].lower(), list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def _window(line: str, column: int) -> tuple[str, int]:
    """The part of `line` to show, with dots for control characters, and the column in it."""
    begin = max(0, column - _SHOWN_LEN // 2) if len(line) > _SHOWN_LEN else 0
    end = begin + _SHOWN_LEN
    visible = "".join(char if char.isprintable() else "·" for char in line[begin:end])
    prefix = "…" if begin else ""
    suffix = "…" if end < len(line) else ""
    return prefix + visible + suffix, column - begin + len(prefix)
