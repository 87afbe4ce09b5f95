"""A constraint as it is asked for: what kind of text it is, and how it is to be read."""

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """The languages in which a constraint can be written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    GBNF = "gbnf"
    CHOICE = "choice"  # a JSON list of strings
    WHERE = "where"


class Whitespace(Enum):
    """Which whitespace a JSON text may have between its tokens."""

    FLEXIBLE = "flexible"  # up to a bounded run anywhere
    COMPACT = "compact"  # none
    SPACED = "spaced"  # as Python's json.dumps writes it: after `:` and `,`


@dataclass(frozen=True, slots=True)
class ConstraintSpec:
    """A constraint to be compiled; the key of every cache, together with the vocabulary.

    lenient: enforce what can be of a JSON schema, instead of refusing the rest
    """

    kind: Kind
    text: str
    whitespace: Whitespace = Whitespace.FLEXIBLE
    lenient: bool = False


@dataclass(frozen=True, slots=True)
class StopRule:
    """Strings that end an output, and whether they stay in its text; tokens that end it.

    kept:      the text with the string in it must satisfy the constraint
    dropped:   the text before the string must
    token_ids: none of them can be used as text
    """

    strings: tuple[str, ...] = ()
    kept: bool = True
    token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens an output may have. Its end needs none: it may stop where it is complete.

    max_len: at most so many tokens
    min_len: an end token is masked before so many, unless nothing else is legal
    cuts:    the client prefers a cut text to a steered one: masks do not look at the budget
    """

    max_len: int
    min_len: int = 0
    cuts: bool = False
