"""Sampling parameters of the client, with the rule of each number."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TypedDict

# Seeds have 64 bits.
MAX_SEED = 2**64 - 1
# The bound of counts: more than any model or machine has.
MAX_COUNT = 2**31
_HUGE = sys.float_info.max


@dataclass(frozen=True, slots=True)
class NumberRule:
    """The range of an option; `is_open`: without `low` itself."""

    low: float
    high: float = _HUGE
    is_open: bool = False
    is_whole: bool = False

    def allows(self, value: object) -> bool:
        """Whether the value is a number of the range; True and False are no numbers."""
        if isinstance(value, bool) or not isinstance(value, int if self.is_whole else int | float):
            return False
        return (self.low < value if self.is_open else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        kind = "a whole number" if self.is_whole else "a number"
        is_bounded = self.high < _HUGE
        if self.is_open:
            return f"{kind} above {self.low}" + (f", at most {self.high}" if is_bounded else "")
        return f"{kind} from {self.low} " + (f"to {self.high}" if is_bounded else "on")


def _number(low: float, high: float = _HUGE, *, is_open: bool = False) -> dict[str, NumberRule]:
    return {"rule": NumberRule(low, high, is_open)}


def _whole(low: int, high: int) -> dict[str, NumberRule]:
    return {"rule": NumberRule(low, high, is_whole=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. `temperature` 0: the most probable; None: the server's default.

    The rule of each number is in its field's metadata, for programs and the command line.
    """

    temperature: float = field(default=0.0, metadata=_number(0))
    top_k: int | None = field(default=None, metadata=_whole(1, MAX_COUNT))
    top_p: float | None = field(default=None, metadata=_number(0, 1, is_open=True))
    min_p: float | None = field(default=None, metadata=_number(0, 1))
    typical_p: float | None = field(default=None, metadata=_number(0, 1, is_open=True))
    repetition_penalty: float | None = field(default=None, metadata=_number(0, is_open=True))
    frequency_penalty: float | None = field(default=None, metadata=_number(-2, 2))
    presence_penalty: float | None = field(default=None, metadata=_number(-2, 2))
    seed: int | None = field(default=None, metadata=_whole(0, MAX_SEED))
    logit_bias: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))


SAMPLING_RULES: Mapping[str, NumberRule] = MappingProxyType(
    {each.name: each.metadata["rule"] for each in fields(Sampling) if each.metadata}
)


class SamplingOptions(TypedDict, total=False):
    """The numbers of Sampling as keyword arguments."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    seed: int
