"""Languages over single bytes, and what they hold of whole texts."""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from constraints.compiler import MIB, Compiler
from constraints.engine import GrammarLanguage
from constraints.grammars.watching import WatchedLanguage
from constraints.matcher import Language, Matcher
from constraints.regex.dfa import Automaton
from constraints.spec import ConstraintSpec, Kind, Whitespace
from tests.constraints.cases import Json, byte_vocabulary, legal_of

END_ID = 256


@lru_cache(maxsize=1)
def compiler() -> Compiler:
    return Compiler(byte_vocabulary(), max_bytes=4 * MIB)


def compiled(
    kind: Kind,
    text: str,
    *,
    whitespace: Whitespace = Whitespace.FLEXIBLE,
    **how: Any,
) -> GrammarLanguage:
    language = compiler().compile(ConstraintSpec(kind, text, whitespace, **how))
    assert isinstance(language, GrammarLanguage)
    return language


def of_schema(schema: Any, *, strict: bool = True, **how: Any) -> GrammarLanguage:
    """Its language; what masks cannot keep is refused, unless it is not `strict`."""
    return compiled(Kind.JSON_SCHEMA, json.dumps(schema), strict=strict, **how)


def table(name: str) -> list[Json]:
    """The rows of tests/constraints/NAME.jsonl."""
    path = Path(__file__).parents[1] / f"{name}.jsonl"
    return list(map(json.loads, path.read_text().splitlines()))


def rows(folder: str) -> list[tuple[str, Json]]:
    """The rows of a folder of tables, each with its kind of constraint, which names its table."""
    files = sorted(Path(__file__).parents[1].joinpath(folder).glob("*.jsonl"))
    return [(file.stem, row) for file in files for row in table(f"{folder}/{file.stem}")]


def of_row(kind: str, row: Json) -> GrammarLanguage:
    """The language that is asked for, as `schema` or `text`, with the options `how`."""
    how = dict(row.get("how", {}))
    if "whitespace" in how:
        how["whitespace"] = Whitespace(how["whitespace"])
    if kind == "json":
        return of_schema(row["schema"], **how)
    return compiled(Kind[kind.upper()], row["text"], **how)


def accepts(language: Language, text: str) -> bool:
    """Whether the whole text is in the language, asked byte by byte."""
    tokens = [*text.encode(), END_ID]
    return language.matcher().num_legal(tokens) == len(tokens)


def accepts_value(language: Language, value: Any) -> bool:
    return accepts(language, json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def legal(matcher: Matcher) -> list[int]:
    return legal_of(matcher, byte_vocabulary())


def takes(automaton: Automaton, text: str) -> bool:
    """Whether an automaton over characters has the text."""
    state = 0
    for char in text:
        state = int(automaton.steps[state, automaton.partition.label_of(ord(char))])
    return bool(automaton.accepts[state])


def walk(language: Language, draw: np.random.Generator, max_len: int) -> str | None:
    """A text drawn token by token from masks alone; None if it did not end (in time)."""
    matcher = language.matcher()
    tokens: list[int] = []
    while len(tokens) < max_len:
        allowed = legal(matcher)
        if isinstance(language, WatchedLanguage) and language.checked_at_close:
            # Masks leave to the judge what closes a value.
            allowed = [each for each in allowed if matcher.num_legal([each])]
        if not allowed:
            assert language.may_have_dead_ends
            return None
        token = int(draw.choice(allowed))
        if token == END_ID:
            return b"".join(byte_vocabulary().tokens[each] for each in tokens).decode()
        matcher.advance(token)
        tokens.append(token)
    rest = matcher.shortest(400)
    if rest is None:
        return None
    return b"".join(byte_vocabulary().tokens[each] for each in (*tokens, *rest)).decode()
