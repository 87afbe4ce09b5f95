"""The schemas by name, and the verdict on each."""

import json
from pathlib import Path
from typing import Any

from constraints.engine import GrammarLanguage
from constraints.errors import ConstraintError, NotEnforced
from constraints.grammars.watching import WatchedLanguage
from tests.constraints.grammars.rig import of_schema

FOLDER = Path(__file__).parent
SOURCES = ("pydantic", "zod", "hand")


def read(source: str) -> dict[str, Any]:
    lines = (FOLDER / f"{source}.jsonl").read_text().splitlines()
    return {each["name"]: each["schema"] for each in map(json.loads, lines)}


def written(schemas: dict[str, Any]) -> str:
    """The text of a file of theirs: a schema a line."""
    lines = [json.dumps({"name": name, "schema": each}) for name, each in schemas.items()]
    return "".join(f"{line}\n" for line in lines)


def compiled(schema: Any, **how: Any) -> GrammarLanguage | ConstraintError:
    """Its language, or why there is none."""
    try:
        return of_schema(schema, **how)
    except ConstraintError as error:
        return error


def verdicts_of(schemas: dict[str, Any]) -> dict[str, str]:
    """The lines of verdicts.txt by the schemas' names."""
    return {name: f"{name}: {_verdict(each)}" for name, each in schemas.items()}


def _verdict(schema: Any) -> str:
    """`taken`, `noted` with the pointers of its notes, or `refused` with the error and pointer.

    Behind the last one what closing checks say: `checked`, with the pointers of what is judged.
    """
    language = compiled(schema)
    if isinstance(language, GrammarLanguage):
        return " ".join(("noted", *language.not_enforced)) if language.not_enforced else "taken"
    pointer = language.pointer if isinstance(language, NotEnforced) else None
    refused = " ".join(("refused", type(language).__name__, *([pointer] if pointer else [])))
    checked = compiled(schema, strict=False)
    if not isinstance(checked, WatchedLanguage):
        return refused
    noted = (", noted", *checked.not_enforced) if checked.not_enforced else ()
    return " ".join((f"{refused}, checked", *checked.checked_at_close, *noted))
