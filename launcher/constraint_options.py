"""The options of `launcher check`, and those of `launcher serve` that bound the same work."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from constraints.spec import Kind
from launcher.declared import knob_of, option, section
from router.config import RouterConfig


class ConstraintType(StrEnum):
    json = "json"
    regex = "regex"
    lark = "lark"
    gbnf = "gbnf"
    choice = "choice"
    where = "where"


CONSTRAINT_KINDS: Mapping[ConstraintType, Kind] = MappingProxyType(
    {
        ConstraintType.json: Kind.JSON_SCHEMA,
        ConstraintType.regex: Kind.REGEX,
        ConstraintType.lark: Kind.LARK,
        ConstraintType.gbnf: Kind.GBNF,
        ConstraintType.choice: Kind.CHOICE,
        ConstraintType.where: Kind.WHERE,
    }
)


class Spaces(StrEnum):
    flexible = "flexible"
    compact = "compact"
    spaced = "spaced"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintLimits:
    """What compiling one constraint may take."""

    constraint_timeout: float = knob_of(RouterConfig)
    constraint_memory: int = knob_of(RouterConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What `launcher check` is to judge, and by what."""

    kind: ConstraintType = option(..., "The language of the constraint.", "--type", envvar=None)
    constraint: str = option(
        ..., "A file, the constraint itself, or - for stdin.", "--constraint", envvar=None
    )
    tokenizer: str | None = option(
        None,
        "A model's folder, its tokenizer.json or a hub id.",
        "--tokenizer",
        envvar=None,
        show_default="the bundled model's",
    )
    text: list[str] | None = option(
        None, "A text to judge; may be repeated.", "--text", envvar=None
    )
    lines: str | None = option(
        None, 'JSON lines {"text": ...} to judge, a file or - for stdin.', "--lines", envvar=None
    )
    whitespace: Spaces = option(
        Spaces.flexible, "Which whitespace JSON may have.", "--whitespace", envvar=None
    )
    lenient: bool = option(
        False, "Enforce what can be of a schema, and list the rest.", "--lenient", envvar=None
    )
    limits: ConstraintLimits = section()
