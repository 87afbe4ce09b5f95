"""Extracts hints from a constraint's source: texts of its language, or of parts of it.

They give a search what masks do not show: the leaves of a schema, or the one word of a
pattern that ends a loop. A wrong hint costs one check by the matcher and nothing else.
"""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import chain

from constraints.errors import ConstraintError
from constraints.grammars.engine import GrammarLanguage
from constraints.grammars.engine_messages import explain
from constraints.grammars.example_text import MAX_PATTERN_LEN, example_text
from constraints.grammars.lark_reader import words
from constraints.grammars.limits import Limits
from constraints.grammars.pattern_escapes import Dialect
from constraints.grammars.pattern_parser import parse
from constraints.grammars.regex import matching
from constraints.grammars.schema.engine_options import grammar_of
from constraints.grammars.schema.place import WATCH
from constraints.grammars.schema.reading import Json
from constraints.grammars.schema.rewriting import Rewritten
from constraints.grammars.schema.unproductive_definitions import parts
from constraints.grammars.schema_hints import leaves
from constraints.guiding.alphabet import byte_vocabulary
from constraints.guiding.completion import CompletionHints
from constraints.spec import ConstraintSpec, Kind, Whitespace
from constraints.vocabulary import mark_of

MAX_HINTS = 12
_MAX_WANTED_LEN = 2_000
# Longer sources are not parsed.
MAX_SOURCE_LEN = 1 << 20
_MAX_TERMINALS = 200
_MAX_TERMINAL_LEN = 1_000

# Schemas with these keywords may have patterns, which are rewritten for the engine.
_WITH_PATTERNS = re.compile(r"attern|propertyNames|\\u")
_SPECIAL = re.compile(r"<\[(\d+)\]>")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_PATTERN = re.compile(r"/((?:[^/\\\n]|\\.)+)/")
# A character in the engine's syntax.
_BRACED = re.compile(r"\\x\{([0-9A-F]+)\}")
# In a pattern: a class of two or three characters.
_FEW = re.compile(r"\[[^\W_^][^\]\\-]{1,2}\]")
# A class, an escape, something special, or a run of plain characters.
_PIECES = re.compile(
    r"\[(?:[^\]\\]|\\.)*\]|\\(.)|\{[\d,]*\}|\(\?(?:[a-zA-Z-]*[:)]|P<\w+>)"
    r"|[()|?*+.^$]|([^\\\[\](){}|?*+.^$]+)"
)


def hints_of(
    spec: ConstraintSpec, grammar: str = "", rewritten: Rewritten | None = None
) -> CompletionHints:
    """The hints of a constraint that compiles.

    grammar:   the translation of a GBNF grammar for the engine
    rewritten: the rewritten schema, if available; not changed any more
    """
    if len(spec.text) > MAX_SOURCE_LEN:
        return CompletionHints()
    parts: list[bytes] = []
    marks: list[bytes] = []
    match spec.kind:
        case Kind.JSON_SCHEMA:
            return _of_schema(spec, rewritten)
        case Kind.REGEX:
            found = [_example_match(spec.text), *_runs(spec.text)]
        case Kind.LARK:
            text, schemas = _without_schemas(spec.text)
            found = _of_grammar(text)
            marks = [mark_of(int(each)) for each in dict.fromkeys(_SPECIAL.findall(text))]
            parts = [leaf for schema in schemas for leaf in leaves(schema)]
        case Kind.GBNF:
            found = [*_of_grammar(spec.text), *_of_terminals(grammar)]
        case Kind.CHOICE:
            found = sorted(json.loads(spec.text), key=len)[:MAX_HINTS]
        case Kind.WHERE:
            found = []
    best = list(dict.fromkeys(text for text in found if text))[:MAX_HINTS]
    return CompletionHints((*marks, *_encoded(best), *dict.fromkeys(parts)))


def _of_schema(spec: ConstraintSpec, rewritten: Rewritten | None) -> CompletionHints:
    is_at_hand = rewritten is not None and not _WITH_PATTERNS.search(spec.text)

    def more() -> tuple[bytes, ...]:
        if rewritten is None or not is_at_hand:
            return leaves(json.loads(spec.text))
        return leaves([rewritten.root, rewritten.definitions])

    def all_hints() -> tuple[bytes, ...]:
        return (*(() if rewritten is None else _wanted(rewritten)), *more())

    return CompletionHints((), all_hints)


def _wanted(rewritten: Rewritten) -> Iterator[bytes]:
    """Instances of what arrays have to contain, which no leaf and no mask shows."""
    definitions = rewritten.definitions
    for part in chain.from_iterable(map(parts, (rewritten.root, *definitions.values()))):
        for wanted in part.get(WATCH, {}).get("contains", ()):
            both = {"allOf": [part.get("items", True), wanted["like"]]}
            grammar = grammar_of(both, definitions, Whitespace.COMPACT)
            try:
                language = GrammarLanguage(byte_vocabulary(), grammar, Limits(), explain)
                found = language.matcher().shortest(_MAX_WANTED_LEN)
            except ConstraintError:
                continue  # a search does without
            if found:
                yield bytes(found)


def _encoded(texts: Iterable[str]) -> tuple[bytes, ...]:
    """The distinct texts in UTF-8; drops lone surrogates."""
    return tuple(dict.fromkeys(text.encode(errors="ignore") for text in texts))


def _without_schemas(grammar: str) -> tuple[str, list[Json]]:
    """The grammar without the schemas inside, and these."""
    if "%json" not in grammar:
        return grammar, []
    try:
        schemas = [word for word in words(grammar) if word.text == "%json"]
    except ConstraintError:
        return grammar, []  # the compiler reports it
    for word in reversed(schemas):
        grammar = grammar[: word.start] + grammar[word.end :]
    return grammar, [word.value for word in schemas]


def _example_match(pattern: str) -> str:
    """A text that matches the whole pattern; "" if none is found."""
    try:
        whole = matching(pattern) if len(pattern) <= MAX_PATTERN_LEN else None
    except ConstraintError:
        return ""  # the compiler reports it, or uses another engine
    return "" if whole is None else example_text(whole) or ""


def _example_terminals(patterns: Iterable[str]) -> list[str]:
    """Example texts of terminals, if they are short and few."""
    distinct = [each for each in dict.fromkeys(patterns) if len(each) <= MAX_PATTERN_LEN]
    texts = map(_example_terminal, distinct[:_MAX_TERMINALS])
    return [text for text in texts if len(text) <= _MAX_TERMINAL_LEN]


def _example_terminal(pattern: str) -> str:
    try:
        return example_text(parse(pattern, Dialect.LARK)) or ""
    except ConstraintError:
        return ""


def _runs(pattern: str) -> list[str]:
    """Runs of literal characters, without those that a repetition applies to.

    Of a class of two or three characters, as in `[fF][oO][xX]`, the first one is used.
    """
    runs = []
    run = ""
    for match in _PIECES.finditer(pattern):
        escaped, plain = match.groups()
        if _FEW.fullmatch(match.group()):
            plain = match.group()[1]
        if escaped is not None and not escaped.isalnum():
            plain = escaped
        if plain is not None:
            run += plain
            continue
        if match.group()[0] in "?*+{" and len(run) > 1:
            runs += [run[:-1], run[-1]]
        else:
            runs.append(run)
        run = ""
    return sorted(dict.fromkeys([*runs, run]), key=len, reverse=True)


def _of_grammar(grammar: str) -> list[str]:
    quoted = [_unquoted(match.group()) for match in _QUOTED.finditer(grammar)]
    patterns = [match.group(1) for match in _PATTERN.finditer(_QUOTED.sub("", grammar))]
    pieces = [run for pattern in patterns for run in _runs(pattern)] + _example_terminals(patterns)
    return sorted(dict.fromkeys([*quoted, *pieces]), key=len, reverse=True)


def _of_terminals(grammar: str) -> list[str]:
    patterns = [match.group(1) for match in _PATTERN.finditer(grammar)]
    return _example_terminals(_BRACED.sub(_spelled_out, each) for each in patterns)


def _spelled_out(code: re.Match[str]) -> str:
    return rf"\U{int(code[1], 16):08x}"


def _unquoted(literal: str) -> str:
    try:
        return str(json.loads(literal))
    except ValueError:
        return ""
