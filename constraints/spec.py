"""A constraint as requested: its kind, its text and its options; as translated for llguidance; and
what is answered about it and about texts.

Parsing a pattern or a schema and finding a first text runs in Python and blocks the other Python
threads of its process, such as a shard's steps. So a worker does it, and a shard receives the
result:

    spec -> worker: parses, compiles, finds a text -> Translation -> shard: only compiles
"""

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Kind(Enum):
    """The languages in which a constraint can be written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    GBNF = "gbnf"
    CHOICE = "choice"  # a JSON list of strings
    WHERE = "where"
    TEXT = "text"  # any tokens at all; for a thought with a budget, and an answer without a rule


class Whitespace(Enum):
    """The whitespace allowed between the tokens of a JSON text."""

    FLEXIBLE = "flexible"  # up to a bounded run anywhere
    COMPACT = "compact"  # none
    SPACED = "spaced"  # as Python's json.dumps writes it: after `:` and `,`
    OPTIONAL = "optional"  # after `:` and `,` a space or none


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """A constraint to be compiled; the key of every cache, together with the vocabulary.

    lenient: enforce what is possible of JSON schemas, instead of refusing the rest
    is_part: a schema that a grammar has beside other text, where less can be enforced
    any_key_order: the keys of a schema's objects come in any order, not in the schema's
    strict: refuse a schema that masks cannot keep, instead of judging the rest where a value ends
    """

    kind: Kind
    text: str
    whitespace: Whitespace = Whitespace.FLEXIBLE
    lenient: bool = False
    is_part: bool = False
    any_key_order: bool = False
    strict: bool = False


# The white space before an opener, and between a closer and the text, and the most of it: models do
# not keep to what the template writes there.
SPACES = " \t\r\n"
MAX_SPACES = 4


@dataclass(frozen=True, slots=True)
class ThoughtRule:
    """A thought before the text that constraint and stop strings are for.

        [white space, opener] thought, closer, [white space] text

    Without the opener the answer is the text alone.

    opener, closer: without white space around them; the names of special tokens in them stand for
                    these tokens
    is_begun:       the prompt has the opener
    max_len:        tokens between opener and closer; None: as many as leave room for the text.
                    Then the closer is all that may follow
    """

    opener: str
    closer: str
    is_begun: bool
    max_len: int | None = None

    def __post_init__(self) -> None:
        if not self.closer or not (self.opener or self.is_begun):
            raise ValueError(f"a thought needs its opener and its closer. Given: {self}")


@dataclass(frozen=True, slots=True)
class StopRule:
    """The strings and tokens that end an output.

    kept:      whether the string stays in the text: then the text with the string must satisfy the
               constraint, otherwise that or the text before it (of JSON: the latter)
    token_ids: they cannot be part of the text
    """

    strings: tuple[str, ...] = ()
    kept: bool = True
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens an output may have; an end token does not count.

    max_len:      the most tokens
    min_len:      end tokens are masked before so many tokens, unless nothing else is legal
    may_truncate: the text may end at `max_len` incomplete: masks do not steer it to its end
    """

    max_len: int
    min_len: int = 0
    may_truncate: bool = False


# The most bytes: a shard translates longer ones faster than they are transferred.
MAX_SENT_CHARS = 1_000_000
_MAX_TOKEN_ID = 1 << 31


@dataclass(frozen=True, slots=True)
class Translation:
    """The translation of a constraint for `constraints.engine`.

    grammar:      the grammar text
    not_enforced: JSON Pointers of the parts of a lenient schema that masks do not enforce
    hints:        texts of the language or of its parts, for searches
    completion:   tokens of the first text found; None: not searched
    watch:        what is watched beside the grammar, see `constraints.grammars.watching`

    Raises TypeError and ValueError for invalid values: the sender has parsed hostile texts.
    """

    grammar: str
    not_enforced: tuple[str, ...] = ()
    hints: tuple[bytes, ...] = ()
    completion: tuple[int, ...] | None = None
    watch: str = ""

    def __post_init__(self) -> None:
        for text in (self.grammar, self.watch, *self.not_enforced):
            text.encode()  # refuses lone surrogates
        for token_id in self.completion or ():
            if type(token_id) is not int or not 0 <= token_id < _MAX_TOKEN_ID:
                raise ValueError(f"completion must be of token ids. Given: {token_id!r}")


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
