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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from math import isfinite
from string import ascii_lowercase, ascii_uppercase, digits

from constraints.definition_graph import closure
from constraints.engine import GrammarLanguage
from constraints.errors import ConstraintError
from constraints.grammars import gbnf
from constraints.grammars.lark import Word, lines, special_id, words
from constraints.guiding.alphabet import byte_vocabulary, in_bytes
from constraints.guiding.completion import CompletionHints
from constraints.matcher import ANY_LEN
from constraints.regex.syntax import (
    EMPTY,
    Chars,
    Choice,
    Concat,
    Dialect,
    Pattern,
    Reference,
    Repeat,
    choice,
    concat,
    has,
    parse,
)
from constraints.regex.writing import conjuncts, looks_around, matching, searching
from constraints.schema import json_schema
from constraints.schema.reading import Json
from constraints.spec import ConstraintSpec, Kind, Whitespace
from constraints.vocabulary import mark_of

MAX_LEN = 50_000
# Longer patterns are not parsed for a guess: that would take as long as compiling them.
MAX_PATTERN_LEN = 50_000
# The first of these characters in a set represents it: vocabularies spell them in few tokens, and
# JSON needs no escapes for them.
LIKED = ascii_lowercase + digits + ascii_uppercase + " _-.,:;/@#+*=()[]{}<>!?&%$'|~^`" + '"\\\n\t'


def example_text(pattern: Pattern, known: Mapping[str, str] = {}) -> str | None:
    """A short text of the pattern. None: none found.

    known: the texts of rules
    """
    match pattern:
        case Chars():
            return _char_of(pattern)
        case Choice(options):
            texts = [text for each in options if (text := example_text(each, known)) is not None]
            return min(texts, key=len, default=None)
        case Concat(parts):
            whole = ""
            for part in parts:
                text = example_text(part, known)
                if text is None or len(whole) + len(text) > MAX_LEN:
                    return None
                whole += text
            return whole
        case Repeat(Chars() as chars, int(length), _) if (
            _MIN_FILLED_LEN <= length <= MAX_LEN and all(has(chars, each) for each in _FILLER[:-1])
        ):
            return _filled(length, _FILLER if has(chars, _FILLER[-1]) else _FILLER[:-1])
        case Repeat(part, min_count):
            unit = example_text(part, known) if min_count else ""
            return None if unit is None or min_count * len(unit) > MAX_LEN else unit * min_count
        case Reference(name):
            return known.get(name)
    return ""


@lru_cache(maxsize=4096)
def _char_of(chars: Chars) -> str | None:
    """A character of the set, one that is liked where it has one."""
    liked = next((char for char in LIKED if has(chars, char)), None)
    edges = (code for code, _ in chars.ranges if not 0xD800 <= code <= 0xDFFF)
    return liked or next(map(chr, edges), None)


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
# The filler of long strings: vocabularies have its words as tokens.
_FILLER = "something "
_MIN_FILLED_LEN = 20
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
# Patterns of one place.
_MAX_JOINED = 3
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


def _filled(length: int, filler: str = _FILLER) -> str:
    return (filler * (length // len(filler) + 1))[:length]


def _values(schema: dict[str, Json], *, may_parse: bool) -> Iterator[Json]:
    if "const" in schema:
        yield schema["const"]
    values = schema.get("enum")
    if isinstance(values, list):
        yield from values[:_MAX_VALUES]
    items = schema.get("items")
    if schema.get("uniqueItems") is True and isinstance(items, dict):
        low, count = items.get("minimum", 0), schema.get("minItems")
        is_of_numbers = items.get("type") in ("integer", "number") and isinstance(low, int)
        if is_of_numbers and isinstance(count, int):
            yield from range(low, low + min(count, MAX_LEAVES))
    min_len = schema.get("minLength")
    min_len = min_len if isinstance(min_len, int) else 0
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        *_, rest = conjuncts(pattern)
        text = _matching(rest) if may_parse else None
        if text is not None:
            yield text
    joint = _joint_pattern(schema)
    if joint is not None and may_parse and (text := _matching(joint)) is not None:
        yield text
    elif 0 < min_len <= _MAX_FILLED_LEN:
        yield _filled(min_len)
    name = schema.get("format")
    if isinstance(name, str) and name in _TEXTS:
        yield _TEXTS[name]
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


def _joint_pattern(schema: dict[str, Json]) -> str | None:
    """A pattern of the texts in which all patterns of an `allOf` are found."""
    parts = schema.get("allOf")
    everything = [schema, *(parts if isinstance(parts, list) else [])]
    found = [part.get("pattern") for part in everything if isinstance(part, dict)]
    patterns = [each for each in found if isinstance(each, str)]
    if not 1 < len(patterns) <= _MAX_JOINED:
        return None
    return f"^{''.join(rf'(?=[^]*(?:{each}))' for each in patterns)}"


def _matching(pattern: str) -> str | None:
    """A text in which the pattern is found."""
    try:
        found = searching(pattern) if len(pattern) <= MAX_PATTERN_LEN else None
    except ConstraintError:
        return None  # the compiler reports it, or uses another engine
    return None if found is None else example_text(found)


MAX_HINTS = 12
# Longer sources are not parsed.
MAX_SOURCE_LEN = 1 << 20
_MAX_TERMINAL_LEN = 1_000
# The most schemas of a grammar of which an instance is looked for, some milliseconds each.
_MAX_SCHEMAS = 3


def hints_of(spec: ConstraintSpec) -> CompletionHints:
    """The hints of a constraint that compiles."""
    if len(spec.text) > MAX_SOURCE_LEN:
        return CompletionHints()
    try:
        match spec.kind:
            case Kind.JSON_SCHEMA:
                return CompletionHints((), lambda: leaves(json.loads(spec.text)))
            case Kind.REGEX if len(spec.text) <= MAX_PATTERN_LEN:
                found = [example_text(matching(spec.text)) or ""]
            case Kind.LARK:
                return _of_lark(words(spec.text))
            case Kind.GBNF:
                rules = gbnf.read(spec.text)
                patterns = {name: rule.pattern for name, rule in rules.items()}
                found = [_example_of_grammar(patterns, gbnf.ROOT)]
            case Kind.CHOICE:
                found = sorted(json.loads(spec.text), key=len)
            case _:
                found = []
    except ConstraintError:
        found = []  # the compiler reports it, or uses another engine
    return CompletionHints(_encoded(found))


def _of_lark(found: Sequence[Word]) -> CompletionHints:
    strings = [_unquoted(word.text.removesuffix("i")) for word in found if word.kind == "string"]
    patterns = dict.fromkeys(word.text for word in found if word.kind == "regexp")
    parsed = [_parsed(each) for each in patterns if len(each) <= MAX_PATTERN_LEN]
    ids = dict.fromkeys(special_id(word) for word in found if word.kind == "special")
    marks = [mark_of(each) for each in ids if each is not None]
    examples = [example_text(each) or "" for each in parsed]
    short = [text for text in (*strings, *examples) if len(text) <= _MAX_TERMINAL_LEN]
    texts = _encoded(sorted(short, key=len, reverse=True))
    schemas = [word for word in found if word.text == "%json"]
    parts = [leaf for word in schemas for leaf in leaves(word.value)]
    # Of the many of a request's tools a search takes the simplest.
    is_few = len(schemas) <= _MAX_SCHEMAS
    instances = {word.start: _instance(word.value) for word in schemas if is_few}
    named = (line for line in lines(found) if line[0].kind in ("rule", "terminal"))
    definitions = {line[0].text.lstrip("!?"): _defined(line, instances) for line in named}
    whole = _encoded([_example_of_grammar(_IMPORTED | definitions, "start")])
    return CompletionHints(tuple(dict.fromkeys((*whole, *marks, *texts, *parts))))


def _instance(schema: Json) -> str:
    """A short instance; empty: none found."""
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(schema), Whitespace.COMPACT, is_part=True)
    hints = CompletionHints(leaves(schema))
    try:
        grammar = in_bytes(json_schema.prepare(spec).text)
        found = GrammarLanguage(byte_vocabulary(), grammar, hints=hints).matcher().shortest(ANY_LEN)
    except ConstraintError:
        return ""  # the compiler reports it
    return bytes(found or ()).decode()


def _literal(text: str) -> Pattern:
    return concat(Chars(((ord(char), ord(char)),)) for char in text)


# Of what Lark's users import.
_IMPORTED = {
    **dict.fromkeys(("DIGIT", "INT", "NUMBER", "SIGNED_INT", "SIGNED_NUMBER"), _literal("0")),
    **dict.fromkeys(("CNAME", "LETTER", "WORD"), _literal("a")),
    "ESCAPED_STRING": _literal('""'),
    "FLOAT": _literal("0.0"),
    "NEWLINE": _literal("\n"),
}


def _defined(line: Sequence[Word], instances: Mapping[int, str]) -> Pattern:
    """What a rule or a terminal stands for; where it is negated, anything.

    instances: of the schemas, by place
    """
    # Of each bracket that is open, the options and the items of the present one.
    frames: list[tuple[list[Pattern], list[Pattern]]] = [([], [])]
    begin = next((index for index, word in enumerate(line) if word.text == ":"), len(line))
    for before, word in pairwise(line[begin:]):
        options, items = frames[-1]
        match word.kind, word.text:
            case _, "(" | "[":
                frames.append(([], []))
            case _, ")" | "]" if len(frames) > 1:
                frames.pop()
                whole = choice([*options, concat(items)])
                frames[-1][1].append(whole if word.text == ")" else EMPTY)
            case _, "|":
                options.append(concat(items))
                items.clear()
            case _, "?" | "*" if items:
                items[-1] = EMPTY
            case "number", count if items and before.text in ("~", "{") and count.isdecimal():
                items[-1] = Repeat(items[-1], int(count), None)
            case "string", text if before.text != "..":
                items.append(_literal(_unquoted(text.removesuffix("i"))))
            case _, "%json":
                items.append(_literal(instances.get(word.start, "")))
            case "regexp", text if len(text) <= MAX_PATTERN_LEN:
                items.append(_parsed(text))
            case (("rule" | "terminal"), name) if before.text != "->":
                items.append(Reference(name, 0))
            case _, "&":
                break
    return choice([*frames[0][0], concat(frames[0][1])])


def _parsed(regexp: str) -> Pattern:
    pattern, _, flags = regexp[1:].rpartition("/")
    return parse(f"(?{flags}){pattern}" if flags else pattern, Dialect.LARK)


def _encoded(texts: Iterable[str]) -> tuple[bytes, ...]:
    """The first distinct texts in UTF-8; drops lone surrogates."""
    kept = [text for text in dict.fromkeys(texts) if text][:MAX_HINTS]
    return tuple(dict.fromkeys(text.encode(errors="ignore") for text in kept))


def _example_of_grammar(rules: Mapping[str, Pattern], root: str) -> str:
    """A text of the whole grammar, out of those of its rules; empty: none found."""
    mentions = {
        name: [each.name for each in gbnf.references(pattern)] for name, pattern in rules.items()
    }
    texts: dict[str, str] = {}

    def has_text(name: str, _: set[str]) -> bool:
        text = example_text(rules[name], texts)
        if text is not None:
            texts[name] = text
        return text is not None

    closure(mentions, has_text)
    return texts.get(root, "")


def _unquoted(literal: str) -> str:
    try:
        return str(json.loads(literal))
    except ValueError:
        return ""
