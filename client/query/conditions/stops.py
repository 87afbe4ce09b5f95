"""Applies stop phrases to a text: where it ends, and what is dropped.

The rule is the server's: the phrase that is complete first ends the text; among several that are
complete at the same character the longest, but a dropped one before a kept one.
"""

from dataclasses import dataclass

from constraints.where.evaluate import truncate_before
from constraints.where.terms import Expression, StopsAt, StopsBefore


@dataclass(frozen=True, slots=True)
class Stops:
    """`kept` phrases stay in the text that they end, `dropped` ones are removed."""

    kept: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    @classmethod
    def of(cls, parts: tuple[Expression, ...]) -> "Stops":
        """The phrases of all stop operators in a conjunction."""
        kept = [phrase for part in parts if isinstance(part, StopsAt) for phrase in part.phrases]
        dropped = [
            phrase for part in parts if isinstance(part, StopsBefore) for phrase in part.phrases
        ]
        return cls(tuple(dict.fromkeys(kept)), tuple(dict.fromkeys(dropped)))

    @property
    def phrases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.kept, *self.dropped)))

    def truncate(self, text: str) -> str:
        """The text up to its end, without a dropped phrase."""
        ends = [text.find(phrase) + len(phrase) for phrase in self.phrases if phrase in text]
        ended = text[: min(ends)] if ends else text
        return truncate_before(self.dropped, ended)
