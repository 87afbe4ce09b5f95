"""Finished holes for conditions: their values and texts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from constraints.where import evaluate as judge

# The values of holes by name; or Finished, with more data.
Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished hole.

    value:      the value of its variable
    text:       its text in the prompt; lengths of a number are those of its text
    num_tokens: without the end token and with a dropped stop phrase; None: unknown
    has_tokens: False if the number will never be known: for nested queries, and for values that are
                not scored yet
    is_mixed:   whether its type lists numbers and texts, so it may be compared with either
    """

    value: object
    text: str
    num_tokens: int | None = None
    has_tokens: bool = True
    is_mixed: bool = False

    @property
    def shown(self) -> str:
        """The text for conditions: the value if that is a text."""
        return self.value if isinstance(self.value, str) else self.text


def finished(value: object) -> Finished:
    """A plain value as a finished hole; its text is that of a prompt."""
    if isinstance(value, Finished):
        return value
    return Finished(value, value if isinstance(value, str) else str(value))


def bare(value: object) -> object:
    """The value of a finished hole, anything else unchanged."""
    return value.value if isinstance(value, Finished) else value


def is_number(value: object) -> bool:
    """Whether it is a number for Python; truth values are."""
    return isinstance(value, int | float | Decimal | Fraction)


def is_scalar(value: object) -> bool:
    """Whether conditions may refer to the text of a hole with this value."""
    return value is None or isinstance(value, str) or is_number(value)


def integer(text: str) -> int | None:
    """The whole number that a text represents, of any length; None: it is none."""
    return None if judge.integer(text) is None else int(Decimal(text))


def written(number: object) -> Decimal:
    """The exact value of a number as written: 0.1 is a tenth. For a hole, that of its text."""
    if isinstance(number, Finished):
        is_written = re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", number.text) is not None
        number = Decimal(number.text) if is_written else number.value
    if isinstance(number, Fraction):
        return Decimal(number.numerator) / Decimal(number.denominator)
    if isinstance(number, int):
        return Decimal(number)
    return number if isinstance(number, Decimal) else Decimal(str(number))
