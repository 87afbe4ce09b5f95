"""What was found of a constraint, and of texts under it."""

from dataclasses import dataclass, field

from constraints.translation import Translation


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What is known of a constraint that can be kept.

    min_len:         tokens of a text that satisfies it: the first that was found short enough
    dropped_phrases: see `Language`
    not_enforced:    JSON Pointers of what a lenient schema leaves out
    compile_s:       seconds of computing that it took to compile, and to find that text
    has_dead_ends:   masks may leave tokens after which no text is known that can be completed
    translation:     see `Language`
    """

    min_len: int
    dropped_phrases: tuple[str, ...]
    not_enforced: tuple[str, ...]
    compile_s: float
    has_dead_ends: bool
    translation: Translation | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Judgement:
    """One text under a constraint.

    position:  characters of the text that can stand; None where it is accepted
    expected:  what may follow them, in words; "the end" where the text may end there
    num_legal: tokens that may follow them, end tokens among them
    failure:   what it breaks of a lenient schema that masks do not hold, or why it could not be
               judged to its end; None nearly always
    """

    accepted: bool
    position: int | None
    expected: tuple[str, ...]
    num_legal: int
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """What a finished text breaks of a lenient schema, each with its place; none: nothing."""

    violations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JudgeResult:
    """Texts under a constraint, in their order.

    shortest:        the shortest text found that satisfies it, of `min_len` tokens; None: none was
    dropped_phrases: see `Language`
    not_enforced:    see `CheckResult`
    """

    shortest: str | None
    min_len: int | None
    judgements: tuple[Judgement, ...]
    dropped_phrases: tuple[str, ...] = ()
    not_enforced: tuple[str, ...] = ()
