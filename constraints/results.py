"""Results of checking a constraint, and of judging texts under it."""

from dataclasses import asdict, dataclass, field
from typing import Any

from constraints.spec import Translation


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The properties of a satisfiable constraint.

    min_len:         tokens of a text that satisfies it: the first one found that is short enough
    dropped_phrases: see `Language`
    not_enforced:    JSON Pointers of what a lenient schema does not enforce
    compile_s:       CPU seconds for compiling it and finding that text
    has_dead_ends:   masks may allow tokens behind which no completion is known
    translation:     see `Language`
    """

    min_len: int
    dropped_phrases: tuple[str, ...]
    not_enforced: tuple[str, ...]
    compile_s: float
    has_dead_ends: bool
    translation: Translation | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class SpellingNote:
    """The place in a text, in characters, from which on masks write an instance otherwise."""

    position: int
    message: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of one text under a constraint.

    position:  the number of legal characters; None: the text is accepted
    expected:  descriptions of what may follow them; "the end" if the text may end there
    num_legal: the number of tokens that may follow them, with end tokens
    failure:   the first violation of a schema by a JSON text, or why judging failed
    note:      of an instance of a schema that masks write otherwise
    """

    accepted: bool
    position: int | None
    expected: tuple[str, ...]
    num_legal: int
    failure: str | None = None
    note: SpellingNote | None = None

    def as_object(self, text: str) -> dict[str, Any]:
        """The judgement of `text` in JSON; what is rare stands there only if there is any."""
        rare = {"error": self.failure, "note": self.note and asdict(self.note)}
        return {
            "text": text,
            "accepted": self.accepted,
            "position": self.position,
            "expected": list(self.expected),
            "num_legal_tokens": self.num_legal,
            **{name: value for name, value in rare.items() if value is not None},
        }


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """The violations of a schema by a finished text, with their places; may be empty."""

    violations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JudgeResult:
    """The judgements of texts under a constraint, in their order.

    shortest:        the shortest text found, of `min_len` tokens; None: none was found
    dropped_phrases: see `Language`
    not_enforced:    see `CheckResult`
    checked_at_close: JSON Pointers of what masks do not keep, but is judged where a value ends
    """

    shortest: str | None
    min_len: int | None
    judgements: tuple[Judgement, ...]
    dropped_phrases: tuple[str, ...] = ()
    not_enforced: tuple[str, ...] = ()
    checked_at_close: tuple[str, ...] = ()
