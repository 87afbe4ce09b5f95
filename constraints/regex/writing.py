r"""Translates patterns into the engine's syntax, where the whole text must match.

    Python's   re.fullmatch(pattern, text)         `^` and `$` have no effect at the edges
    a schema's re.search(pattern, text)            `^` and `$` anchor the match to the edges

The engine has no anchors inside of a pattern, so they are moved to its edges, or refused.

In the pattern of a JSON string the engine takes a set with all control characters to allow every
escape: it would let `\"` pass for `[^"]`, and `\\` for `[^\\]`. A set without NUL is read right.
"""

from constraints.engine import HEADER
from constraints.errors import Contradiction, NotEnforced, OutOfReach, complaint
from constraints.regex.look_around import without_look_around
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
    return _written_without_anchors(matching(pattern), pattern)


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


def _without_edges(pattern: Pattern) -> tuple[bool, bool, Pattern]:
    """Whether it is anchored to the start, and to the end, and what is between."""
    parts = pattern.parts if isinstance(pattern, Concat) else (pattern,)
    first, last = 0, len(parts)
    while first < last and isinstance(each := parts[first], Anchor) and each.is_start:
        first += 1
    while first < last and isinstance(each := parts[last - 1], Anchor) and not each.is_start:
        last -= 1
    return first > 0, last < len(parts), concat(parts[first:last])


def _written_without_anchors(pattern: Pattern | None, text: str) -> str:
    if pattern is None:
        return written_set(Chars(()))
    _refuse(pattern, text)
    return written(flat(pattern))


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


def between(low: int, high: int) -> str:
    """The digits of the numbers from `low`, 0 or more, to `high`."""
    options: list[str] = []
    while low <= high:
        last = min(high, 10 ** len(str(low)) - 1)
        options.extend(_same_length(str(low), str(last)))
        low = last + 1
    return f"(?:{'|'.join(options)})" if options else r"[^\x{0}-\x{10FFFF}]"


def _same_length(low: str, high: str) -> list[str]:
    """Alternatives of the numerals from `low` to `high`, which are of one length."""
    if low == high:
        return [low]
    rest = len(low) - 1
    if low[0] == high[0]:
        return [low[0] + each for each in _same_length(low[1:], high[1:])]
    if not rest:
        return [_digits(low[0], high[0])]
    options: list[str] = []
    first = int(low[0])
    last = int(high[0])
    if low[1:] != "0" * rest:
        options += [low[0] + each for each in _same_length(low[1:], "9" * rest)]
        first += 1
    tail: list[str] = []
    if high[1:] != "9" * rest:
        tail = [high[0] + each for each in _same_length("0" * rest, high[1:])]
        last -= 1
    if first <= last:
        options.append(f"{_digits(str(first), str(last))}[0-9]{{{rest}}}")
    return options + tail


def _digits(first: str, last: str) -> str:
    return first if first == last else f"[{first}-{last}]"
