"""Places in the text of a program."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """A program's text and where it came from: a path, or a name in angle brackets.

    `first_line`: the line of the file at which the text begins, counted from 1.
    """

    text: str
    name: str
    first_line: int = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Lines and columns of the program's text, counted from 1; the end column is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int
