r"""Translates patterns into the engine's syntax, where the whole text must match.

    Python's   re.fullmatch(pattern, text)         `^` and `$` have no effect at the edges
    a schema's re.search(pattern, text)            `^` and `$` anchor the match to the edges

The engine has no anchors inside of a pattern, so they are moved to its edges, or refused.

In the pattern of a JSON string the engine takes a set with all control characters to allow every
escape: it would let `\"` pass for `[^"]`, and `\\` for `[^\\]`. A set without NUL is read right.

Nor has it look-around and word boundaries, which schemas' patterns have:

    ^(?=.*[a-z])(?!.*x).{8,}$   ->  three patterns that hold together: conjuncts()
    ^(?!.*x)                    ->  a pattern of its automaton: without_look_around()
"""

import re
from functools import lru_cache

import numpy as np

from constraints.engine import HEADER, GrammarLanguage
from constraints.errors import (
    ConstraintError,
    Contradiction,
    EngineFailed,
    NotEnforced,
    OutOfReach,
    TooComplex,
    complaint,
    short,
)
from constraints.guiding.alphabet import alphabet_of, byte_vocabulary
from constraints.regex.dfa import automaton_of, pattern_of
from constraints.regex.syntax import (
    ANY,
    Anchor,
    Chars,
    Choice,
    Concat,
    Dialect,
    Empty,
    Look,
    Pattern,
    Repeat,
    children,
    choice,
    concat,
    flat,
    has,
    has_looks,
    mapped,
    options_of,
    parse,
    written_set,
)

# The last of the control characters, which begin with NUL.
_LAST_CONTROL = 0x1F


def without_misread_sets(pattern: Pattern) -> Pattern:
    """The same pattern; where sets would be misread, without NUL in any set like them."""
    return mapped(pattern, _without_nul) if _is_misread(pattern) else pattern


def _is_misread(pattern: Pattern) -> bool:
    if not isinstance(pattern, Chars):
        return any(map(_is_misread, children(pattern)))
    return _has_nul_alone(pattern) and pattern.ranges[0][1] >= _LAST_CONTROL


def _has_nul_alone(chars: Chars) -> bool:
    """Whether a set has NUL, and not both of what has to be escaped."""
    return has(chars, "\0") and not (has(chars, '"') and has(chars, "\\"))


def _without_nul(pattern: Pattern) -> Pattern:
    if not isinstance(pattern, Chars) or not _has_nul_alone(pattern):
        return pattern
    return Chars(tuple((max(first, 1), last) for first, last in pattern.ranges if last))


_ANY_TEXT = Repeat(ANY, 0, None)
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_ ")


def to_grammar(pattern: str) -> str:
    """The grammar of the texts that match the whole pattern. Raises Malformed, NotEnforced."""
    return f"{HEADER}start: /{translate(pattern)}/\n"


def contradiction(pattern: str) -> Contradiction:
    """The error for a pattern that matches nothing."""
    wrong = complaint(pattern, 0, len(pattern), "nothing matches this pattern")
    return Contradiction(str(wrong), (pattern,))


def translate(pattern: str) -> str:
    """Python's pattern in the engine's syntax, for use between slashes.

    A text matches the result if and only if re.fullmatch(pattern, text). Raises Malformed,
    NotEnforced.
    """
    return _written_without_anchors(matching(pattern), pattern, is_followed=False)


def matching(pattern: str) -> Pattern:
    """A pattern of the texts that Python's pattern matches as a whole. Raises Malformed."""
    options = options_of(parse(pattern, Dialect.PYTHON))
    return choice(_without_edges(option)[2] for option in options)


def translate_terminal(pattern: str) -> str:
    """A terminal's pattern (Python's syntax and \\p{...}); anchors are refused.

    Raises Malformed, NotEnforced.
    """
    return _written_without_anchors(parse(pattern, Dialect.LARK), pattern)


def translate_search(pattern: str) -> str:
    """A schema's pattern (ECMA 262) in the engine's syntax, matching whole texts that contain it.

    For use in a schema. Raises Malformed, NotEnforced.
    """
    whole = [without_misread_sets(each) for each in _searched(pattern)]
    return _written_without_anchors(choice(whole) if whole else None, pattern)


def search_grammar(pattern: str) -> str:
    """The grammar of the texts that contain a schema's pattern. Raises Malformed, NotEnforced."""
    translated = _written_without_anchors(searching(pattern), pattern)
    return f"{HEADER}start: /{translated}/\n"


def searching(pattern: str) -> Pattern | None:
    """A pattern of the whole texts that contain a schema's pattern. None: there are none.

    Raises Malformed, NotEnforced.
    """
    whole = _searched(pattern)
    return choice(whole) if whole else None


def _searched(pattern: str) -> list[Pattern]:
    whole: list[Pattern] = []
    for option in options_of(parse(pattern, Dialect.ECMA)):
        is_started, is_ended, inner = _without_edges(option)
        before = () if is_started else (_ANY_TEXT,)
        after = () if is_ended else (_ANY_TEXT,)
        found: Pattern | None = concat((*before, inner, *after))
        if has_looks(inner):
            try:
                found = without_look_around(option)
            except (OutOfReach, NotEnforced):
                _refuse(inner, pattern, anchors=False)
                _refuse(inner, pattern)
                raise
        if found is not None:
            whole.append(found)
    return whole


# Of what looks around, and is written by its automaton.
_MAX_STATES = 400
_LOOKS = re.compile(r"\(\?<?[=!]|\\[bB]")
_TOKEN = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)


def conjuncts(pattern: str) -> list[str]:
    """Patterns that are all found where this one is: its leading look-aheads, and the rest."""
    found: list[str] = []
    rest = 1
    opened = depth = 0
    for token in _TOKEN.finditer(pattern, rest):
        if token[0] == "(":
            opened = opened if depth else token.start()
            depth += 1
        elif token[0] == ")":
            depth -= 1
            if depth == 0 and opened == rest and pattern.startswith(("(?=", "(?!"), rest):
                kind = ":" if pattern[rest + 2] == "=" else "!"
                found.append(f"^(?{kind}{pattern[rest + 3 : token.start()]})")
                rest = token.end()
        elif token[0] == "|" and depth == 0:
            return [pattern]
    if not found or not pattern.startswith("^") or pattern[rest : rest + 1] in tuple("*+?{"):
        return [pattern]
    return [*found, f"^{pattern[rest:]}"] if pattern[rest:] else found


def opposite(pattern: str) -> str:
    """A pattern that is found where this one is not."""
    return rf"^(?![\s\S]*(?:{pattern}))"


def looks_around(pattern: str) -> bool:
    """Whether a pattern is rewritten by its automaton, which takes up to 0.1 s."""
    return _LOOKS.search(pattern) is not None


@lru_cache(maxsize=64)
def without_look_around(pattern: Pattern) -> Pattern | None:
    """A pattern of the whole texts in which this one is found. None: there are none.

    Raises OutOfReach, NotEnforced.
    """
    whole = Concat((_ANY_TEXT, pattern, _ANY_TEXT))
    return pattern_of(automaton_of(whole, _MAX_STATES))


def _without_edges(pattern: Pattern) -> tuple[bool, bool, Pattern]:
    """Whether it is anchored to the start, and to the end, and what is between."""
    parts = pattern.parts if isinstance(pattern, Concat) else (pattern,)
    first, last = 0, len(parts)
    while first < last and isinstance(each := parts[first], Anchor) and each.is_start:
        first += 1
    while first < last and isinstance(each := parts[last - 1], Anchor) and not each.is_start:
        last -= 1
    return first > 0, last < len(parts), concat(parts[first:last])


def _written_without_anchors(
    pattern: Pattern | None, text: str, *, is_followed: bool = True
) -> str:
    if pattern is None:
        return written_set(Chars(()))
    _refuse(pattern, text)
    found = written(flat(pattern))
    return followed(found) if is_followed else found


# A count behind a group in which there is one, as in `(a{1,50}b?){1,50}`.
_NESTED_COUNTS = re.compile(r"\}[^{}]*\)\{")
# How many bytes of a text are followed where counts may multiply: bad ones break within 40.
_FOLLOWED_LEN = 64


def followed(pattern: str) -> str:
    """A written pattern as it is. Raises TooComplex, as `follow`."""
    if _NESTED_COUNTS.search(pattern):
        follow(GrammarLanguage(byte_vocabulary(), f"{HEADER}start: /{pattern}/\n"), pattern)
    return pattern


def follow(language: GrammarLanguage, pattern: str) -> None:
    """Raises TooComplex where the engine breaks on counts of this pattern, as outputs would.

    What is followed has the same byte where it may: it is in the most repetitions at once. The
    engine remembers it, and an output that needs as much at once does not break.
    """
    if not _NESTED_COUNTS.search(pattern):
        return
    matcher = language.matcher()
    alphabet = alphabet_of(language.vocabulary)
    row = np.zeros(language.vocabulary.num_words, dtype=np.int32)
    last = -1  # no byte yet
    try:
        for _ in range(_FOLLOWED_LEN):
            if matcher.is_over:
                return
            matcher.fill_mask(row)
            legal = alphabet.allowed(row).tolist()
            if not legal:
                return
            last = last if last in legal else legal[0]
            matcher.advance(last)
    except EngineFailed as error:
        raise TooComplex(
            f"counted repetitions are within others in `{short(pattern)}`, so that there are too"
            f" many ways to read one text ({error}): lower their bounds, or write `*` or `+` inside"
        ) from None


def _refuse(pattern: Pattern, text: str, *, anchors: bool = True) -> None:
    """Raises NotEnforced for what the engine cannot follow, with its place in `text`."""
    match pattern:
        case Anchor(is_start, at) if anchors:
            sign = "^" if is_start else "$"
            what = f"`{sign}` is supported only where the edge of the text is known to be"
        case Look(_, _, _, at) if text[at] == "\\":
            what = f"a word boundary `{text[at : at + 2]}` is not supported"
        case Look(_, is_ahead, _, at):
            what = f"{'look-ahead' if is_ahead else 'look-behind'} is not supported"
        case _:
            for part in children(pattern):
                _refuse(part, text, anchors=anchors)
            return
    raise NotEnforced(str(complaint(text, at, at + 1, what)), position=at)


def written(pattern: Pattern) -> str:
    """A pattern without anchors in the engine's syntax."""
    match pattern:
        case Empty():
            return "(?:)"
        case Chars(((first, last),)) if first == last and chr(first) in _PLAIN:
            return chr(first)
        case Chars():
            return written_set(pattern)
        case Concat(parts):
            return "".join(written(part) for part in parts)
        case Choice(options):
            return f"(?:{'|'.join(written(option) for option in options)})"
        case Repeat(part, min_count, max_count):
            inner = written(part)
            if not isinstance(part, Chars | Choice):
                inner = f"(?:{inner})"
            return inner + bounds(min_count, max_count)
    raise AssertionError(f"{pattern} was to be refused before")


def bounds(min_count: int, max_count: int | None) -> str:
    """How a repeat is written. `max_count` None: unbounded."""
    match min_count, max_count:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
    if min_count == max_count:
        return f"{{{min_count}}}"
    return f"{{{min_count},{'' if max_count is None else max_count}}}"


def is_found(pattern: str, text: str) -> bool:
    """Whether a schema's pattern matches somewhere in the text, as masks read it.

    Raises Malformed, NotEnforced, TooComplex, EngineFailed for what cannot be decided.
    """
    language = _containing(pattern)
    if language is None:
        return False
    # A lone surrogate is a character that UTF-8 does not have.
    read = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    matcher = language.matcher()
    token_ids = list(read.encode())
    if matcher.num_legal(token_ids) < len(token_ids):
        return False
    matcher.follow(token_ids)
    return matcher.is_complete


def is_searchable(pattern: str) -> bool:
    """Whether it can be searched for."""
    try:
        _containing(pattern)
    except ConstraintError:
        return False
    return True


@lru_cache(maxsize=64)
def _containing(pattern: str) -> GrammarLanguage | None:
    """The texts that contain it; None: there are none."""
    try:
        grammar = search_grammar(pattern)
        return GrammarLanguage(byte_vocabulary(), grammar)
    except Contradiction:
        return None
