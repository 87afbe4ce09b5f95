"""Whether a clause holds, told by Python itself: the clause is evaluated as it is written.

Nothing of the planner, nor of the server's language, is used: the operators are ten lines of plain
Python over texts.
"""

import builtins
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal


class Text(str):
    """A hole's text and how many tokens it has."""

    num_tokens: int = 0

    @classmethod
    def of(cls, text: str, num_tokens: int = 0) -> "Text":
        made = cls(text)
        made.num_tokens = num_tokens
        return made


@dataclass(frozen=True)
class _Value:
    """What `int(X)` is: a condition, and a number that compares with nothing if there is none."""

    number: Decimal | None

    def __bool__(self) -> bool:
        return self.number is not None

    def _related(self, holds: Callable[[Decimal], bool]) -> bool:
        return self.number is not None and holds(self.number)

    def __lt__(self, other: object) -> bool:
        return self._related(lambda number: number < _exact(other))

    def __le__(self, other: object) -> bool:
        return self._related(lambda number: number <= _exact(other))

    def __gt__(self, other: object) -> bool:
        return self._related(lambda number: number > _exact(other))

    def __ge__(self, other: object) -> bool:
        return self._related(lambda number: number >= _exact(other))

    def __eq__(self, other: object) -> bool:
        return self._related(lambda number: number == _exact(other))

    def __ne__(self, other: object) -> bool:
        return self._related(lambda number: number != _exact(other))


def _exact(number: object) -> Decimal:
    if isinstance(number, _Value):
        assert number.number is not None
        return number.number
    return Decimal(str(number))


def _number(pattern: str) -> Callable[[object], _Value]:
    def number(about: object) -> _Value:
        text = str(about)
        return _Value(Decimal(text) if re.fullmatch(pattern, text) else None)

    return number


def _phrases(phrases: tuple[object, ...]) -> tuple[str, ...]:
    if len(phrases) == 1 and not isinstance(phrases[0], str):
        return tuple(phrases[0])  # type: ignore[arg-type]
    return tuple(map(str, phrases))


_OPERATORS: dict[str, object] = {
    "words": lambda text: text.split(),
    "sentences": lambda text: re.findall(r"[^.]*\.|[^.]+", text),
    "tokens": lambda text: range(text.num_tokens),
    "characters": list,
    "int": _number(r"-?[0-9]+"),
    "float": _number(r"-?[0-9]+(\.[0-9]+)?"),
    "regex": lambda text, pattern: re.fullmatch(pattern, text) is not None,
    "starts_with": lambda text, *phrases: text.startswith(_phrases(phrases)),
    "ends_with": lambda text, *phrases: text.endswith(_phrases(phrases)),
    "stops_at": lambda text, *phrases: all(
        text.find(phrase) in (-1, len(text) - len(phrase)) for phrase in _phrases(phrases)
    ),
    "stops_before": lambda text, *phrases: not any(phrase in text for phrase in _phrases(phrases)),
}


def holds(clause: str, holes: Mapping[str, object], **values: object) -> bool:
    """Whether the clause holds where each hole has this value: a Text, or a number."""
    capitals = {name.upper(): function for name, function in _OPERATORS.items()}
    known = {**vars(builtins), **_OPERATORS, **capitals, **values, **holes}
    return bool(eval(clause, {"__builtins__": {}}, known))
