"""The options of `launcher check`, and those of `launcher serve` that bound the same work."""

from enum import StrEnum
from typing import Annotated, Optional

import typer

from launcher.options import LIMITS


class ConstraintType(StrEnum):
    json = "json"
    regex = "regex"
    lark = "lark"
    gbnf = "gbnf"
    choice = "choice"
    where = "where"


class Spaces(StrEnum):
    flexible = "flexible"
    compact = "compact"
    spaced = "spaced"


ConstraintTimeout = Annotated[
    float,
    typer.Option(
        envvar="CONSTRAINT_TIMEOUT",
        min=0.01,
        rich_help_panel=LIMITS,
        help="Seconds of computing that compiling a grammar may take.",
    ),
]
ConstraintMemory = Annotated[
    int,
    typer.Option(
        envvar="CONSTRAINT_MEMORY",
        min=16,
        rich_help_panel=LIMITS,
        help="MiB that compiling a grammar may take.",
    ),
]
MaxConstraintsWaiting = Annotated[
    int,
    typer.Option(
        envvar="MAX_CONSTRAINTS_WAITING",
        min=1,
        rich_help_panel=LIMITS,
        help="Grammars that may wait to be compiled; more are answered 429.",
    ),
]
CheckedType = Annotated[
    ConstraintType, typer.Option("--type", help="The language of the constraint.")
]
CheckedConstraint = Annotated[
    str, typer.Option("--constraint", help="A file, the constraint itself, or - for stdin.")
]
CheckTokenizer = Annotated[
    Optional[str],
    typer.Option(
        "--tokenizer",
        show_default="the bundled model's",
        help="A model's folder, its tokenizer.json or a hub id.",
    ),
]
CheckedTexts = Annotated[
    Optional[list[str]], typer.Option("--text", help="A text to judge; may be repeated.")
]
CheckedLines = Annotated[
    Optional[str],
    typer.Option("--lines", help='JSON lines {"text": ...} to judge, a file or - for stdin.'),
]
CheckedSpaces = Annotated[
    Spaces, typer.Option("--whitespace", help="Which whitespace JSON may have.")
]
Lenient = Annotated[
    bool, typer.Option("--lenient", help="Enforce what can be of a schema, and list the rest.")
]
