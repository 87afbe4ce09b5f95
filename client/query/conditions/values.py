"""Finished holes, as conditions see them: what their variables are bound to, and their text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from constraints.where import evaluate as judge

# What the variables of holes are bound to, by name; or Finished, which holds more.
Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished hole.

    value:      what its variable is bound to
    text:       what stands in the prompt; lengths of a number are those of its text
    num_tokens: of the model, without the end and with a dropped stop phrase; None: not known
    has_tokens: whether it ever will be; not of what a nested query makes, nor of a value that is
                yet to be scored
    is_mixed:   whether its type lists numbers and texts, so that it may be compared with either
    """

    value: object
    text: str
    num_tokens: int | None = None
    has_tokens: bool = True
    is_mixed: bool = False

    @property
    def shown(self) -> str:
        """The text that conditions are about: the value, if it is one."""
        return self.value if isinstance(self.value, str) else self.text


def finished(value: object) -> Finished:
    """A bare value as a finished hole; its text is what a prompt would show."""
    if isinstance(value, Finished):
        return value
    return Finished(value, value if isinstance(value, str) else str(value))


def bare(value: object) -> object:
    """The value of a finished hole, anything else as it is."""
    return value.value if isinstance(value, Finished) else value


def is_number(value: object) -> bool:
    """Whether Python calculates with it; truth values are numbers."""
    return isinstance(value, int | float | Decimal | Fraction)


def is_scalar(value: object) -> bool:
    """Whether conditions may speak of the text of a hole with this value."""
    return value is None or isinstance(value, str) or is_number(value)


def integer(text: str) -> int | None:
    """The whole number that a text is, of any length; None: it is none."""
    return None if judge.integer(text) is None else int(Decimal(text))


def written(number: object) -> Decimal:
    """A number as it is written: 0.1 is a tenth. A finished hole's is the one in its text."""
    if isinstance(number, Finished):
        is_written = re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", number.text) is not None
        number = Decimal(number.text) if is_written else number.value
    if isinstance(number, Fraction):
        return Decimal(number.numerator) / Decimal(number.denominator)
    if isinstance(number, int):
        return Decimal(number)
    return number if isinstance(number, Decimal) else Decimal(str(number))
