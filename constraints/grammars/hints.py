"""Extracts hints from a constraint's source: texts of its language, or of parts of it.

They give a search what masks do not show: the one word of a pattern that ends a loop, or the
leaves of a schema:

const and enum     the values, the first few
pattern, format    a short text
minLength          a text of words
bounds             the numbers at them
required           the names, with the colon behind them

The ways between the leaves are forced, or shown by masks; see `constraints/guiding/search.py`.

A short text that matches a pattern is built from its syntax. It need not be the shortest, nor
valid, since the engine has more detailed tables of characters: a wrong hint costs one check by the
matcher and nothing else.
"""

import json
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from functools import lru_cache
from itertools import chain, permutations
from math import isfinite
from string import ascii_lowercase, ascii_uppercase, digits

from constraints.engine import GrammarLanguage, Limits, error_of
from constraints.errors import ConstraintError
from constraints.grammars.lark import words
from constraints.guiding.alphabet import byte_vocabulary
from constraints.guiding.completion import CompletionHints
from constraints.regex.look_around import conjuncts, looks_around
from constraints.regex.syntax import (
    Chars,
    Choice,
    Concat,
    Dialect,
    Pattern,
    Repeat,
    has,
    parse,
)
from constraints.regex.writing import matching, searching
from constraints.schema import formats
from constraints.schema.grammar import grammar_of, parts
from constraints.schema.place import WATCH
from constraints.schema.reading import Json
from constraints.schema.rewriting import Rewritten
from constraints.spec import ConstraintSpec, Kind, Whitespace
from constraints.vocabulary import mark_of

MAX_LEN = 50_000
# Longer patterns are not parsed for a guess: that would take as long as compiling them.
MAX_PATTERN_LEN = 50_000
# The first of these characters in a set represents it: vocabularies spell them in few tokens, and
# JSON needs no escapes for them.
LIKED = ascii_lowercase + digits + ascii_uppercase + " _-.,:;/@#+*=()[]{}<>!?&%$'|~^`" + '"\\\n\t'


def example_text(pattern: Pattern, min_len: int = 0) -> str | None:
    """A short text of at least `min_len` characters. None: none found."""
    found = _example(pattern, 0)
    if found is not None and len(found[0]) < min_len:
        found = _example(pattern, min_len - len(found[0]))
    return None if found is None or found[1] else found[0]


def _example(pattern: Pattern, extra_len: int) -> tuple[str, int] | None:
    """A text `extra_len` longer than necessary, and how much of `extra_len` did not fit."""
    match pattern:
        case Chars():
            char = _char_of(pattern)
            return None if char is None else (char, extra_len)
        case Choice(options):
            found = [
                each for option in options if (each := _example(option, extra_len)) is not None
            ]
            return min(found, key=lambda each: (each[1], len(each[0])), default=None)
        case Concat(parts):
            text = ""
            for part in parts:
                found_part = _example(part, extra_len)
                if found_part is None or len(text) > MAX_LEN:
                    return None
                text += found_part[0]
                extra_len = found_part[1]
            return text, extra_len
        case Repeat():
            return _repeated(pattern, extra_len)
        case _:
            return "", extra_len


def _repeated(pattern: Repeat, extra_len: int) -> tuple[str, int] | None:
    found = _example(pattern.part, 0)
    if found is None or not found[0]:
        return None if found is None and pattern.min_count else ("", extra_len)
    unit = found[0]
    count = pattern.min_count
    more = -(-extra_len // len(unit))
    if pattern.max_count is not None:
        more = min(more, pattern.max_count - count)
    count += more
    if count * len(unit) > MAX_LEN:
        return None
    return unit * count, max(0, extra_len - more * len(unit))


def _char_of(chars: Chars) -> str | None:
    match chars:
        case Chars(((first, last),), (), False, False) if first == last:
            return None if 0xD800 <= first <= 0xDFFF else chr(first)
    return _preferred_char(chars)


@lru_cache(maxsize=4096)
def _preferred_char(chars: Chars) -> str | None:
    for char in LIKED:
        if has(chars, char):
            return char
    return next(edges_of(chars), None)


def edges_of(chars: Chars) -> Iterator[str]:
    """Characters at the edges of a set given by numbers: inside, or just outside if negated."""
    for first, last in chars.ranges:
        for code in (first - 1, last + 1) if chars.negated else (first, last):
            is_char = 0 <= code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF
            if is_char and has(chars, chr(code)):
                yield chr(code)


# The shortest text that is valid by every definition.
_TEXTS = {
    "byte": "",
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "duration": "P1D",
    "email": "a@b.cd",
    "hostname": "a",
    "ipv4": "0.0.0.0",
    "ipv6": "::",
    "json-pointer": "",
    "relative-json-pointer": "0",
    "time": "00:00:00Z",
    "uri": "a:b",
    "uri-reference": "",
    "uuid": "00000000-0000-0000-0000-000000000000",
}
# Whose texts may be longer by what they begin with.
_GROWING = ("email", "hostname", "uri")
# The same, by the pattern that replaces the format in a rewritten schema.
_TEXTS_BY_PATTERN = {
    f"^(?:{pattern})$": _TEXTS[name] for name, pattern in formats.PATTERNS.items() if name in _TEXTS
}
# The filler of long strings: vocabularies have its words as tokens.
_FILLER = "the "
_MAX_FILLED_LEN = 5_000
_MAX_LEAF_LEN = 6_000
MAX_LEAVES = 300
_MAX_PLACES = 5_000
# Of one enumeration.
_MAX_VALUES = 3
# The most characters of patterns that are parsed for one schema.
_MAX_PATTERNS_LEN = 60_000
# What counts for a pattern whose automaton is needed.
_LOOKING_LEN = 2_500
# Of one place, and all their characters.
_MAX_JOINED = 3
_MAX_JOINED_LEN = 500
_NO_SCHEMAS = frozenset(("const", "enum", "default", "examples"))


def leaves(document: Json) -> tuple[bytes, ...]:
    """The leaves of a schema in JSON, each once, the shortest first."""
    found: dict[str, None] = {}
    patterns_left = _MAX_PATTERNS_LEN
    todo = [document]
    for _ in range(_MAX_PLACES):
        if not todo or len(found) >= MAX_LEAVES:
            break
        part = todo.pop()
        if isinstance(part, list):
            todo += reversed(part)
        if not isinstance(part, dict):
            continue
        pattern = part.get("pattern")
        if isinstance(pattern, str):
            patterns_left -= _LOOKING_LEN if looks_around(pattern) else len(pattern)
        for value in _values(part, may_parse=patterns_left >= 0):
            text = _written(value)
            if 0 < len(text) <= _MAX_LEAF_LEN:
                found.setdefault(text)
        for text in _joint_matches(part):
            found.setdefault(json.dumps(text, ensure_ascii=False))
        required = part.get("required")
        for name in required if isinstance(required, list) else ():
            found.setdefault(f"{json.dumps(name, ensure_ascii=False)}:")
        todo += [inner for key, inner in reversed(part.items()) if key not in _NO_SCHEMAS]
    ordered = sorted(found, key=len)
    return tuple(text.encode(errors="ignore") for text in ordered)


def _written(value: Json) -> str:
    """The value in JSON, numbers without an exponent; empty: it has none."""
    if isinstance(value, float) and isfinite(value):
        return format(Decimal(repr(value)), "f")
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return ""


def _values(schema: dict[str, Json], *, may_parse: bool) -> Iterator[Json]:
    if "const" in schema:
        yield schema["const"]
    values = schema.get("enum")
    if isinstance(values, list):
        yield from values[:_MAX_VALUES]
    min_len = schema.get("minLength")
    min_len = min_len if isinstance(min_len, int) else 0
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        known = _TEXTS_BY_PATTERN.get(pattern)
        text = known if known is not None or not may_parse else _matching(pattern, min_len)
        if text is not None:
            yield text
    elif 0 < min_len <= _MAX_FILLED_LEN:
        yield (_FILLER * (min_len // len(_FILLER) + 1))[:min_len]
    name = schema.get("format")
    if isinstance(name, str) and name in _TEXTS:
        yield _TEXTS[name]
        if name in _GROWING and len(_TEXTS[name]) < min_len <= _MAX_FILLED_LEN:
            yield _TEXTS[name].rjust(min_len, "a")
    for key, step in (
        ("minimum", 0),
        ("maximum", 0),
        ("multipleOf", 0),
        ("exclusiveMinimum", 1),
        ("exclusiveMaximum", -1),
    ):
        bound = schema.get(key)
        if isinstance(bound, int | float) and not isinstance(bound, bool):
            yield bound + step


def _joint_matches(schema: dict[str, Json]) -> Iterator[str]:
    """Texts in which several patterns are found, one behind the other."""
    parts = schema.get("allOf")
    everything = [schema, *(parts if isinstance(parts, list) else [])]
    found = [part["pattern"] for part in everything if isinstance(part, dict) and "pattern" in part]
    patterns = [each for each in found if isinstance(each, str)]
    if not 1 < len(patterns) <= _MAX_JOINED or sum(map(len, patterns)) > _MAX_JOINED_LEN:
        return
    lens = [part.get("minLength", 0) for part in everything if isinstance(part, dict)]
    min_len = max(each for each in lens if isinstance(each, int))
    for ordered in permutations(patterns):
        texts = [_matching(pattern, 0) for pattern in ordered]
        rest_len = sum(len(text) for text in texts[1:] if text is not None)
        texts[0] = _matching(ordered[0], min_len - rest_len)
        if None not in texts:
            yield "".join(text for text in texts if text is not None)


def _matching(pattern: str, min_len: int) -> str | None:
    """A text in which the pattern is found, of at least `min_len` characters."""
    *_, rest = conjuncts(pattern)
    try:
        found = searching(rest) if len(pattern) <= MAX_PATTERN_LEN else None
    except ConstraintError:
        return None  # the compiler reports it, or uses another engine
    return None if found is None else example_text(found, min_len)


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
                language = GrammarLanguage(byte_vocabulary(), grammar, Limits(), error_of)
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
