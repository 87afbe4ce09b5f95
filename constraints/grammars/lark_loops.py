r"""Whether terminals of a grammar have loops that force the same byte without end.

In `start: A "ab"` with `A: /a+/` the terminal takes every `a`, so nothing but another `a` can
follow: bytes are forced without end, and the engine would collect them without end. This needs a
loop that always continues with the same byte; a loop like `/[a-z]+/` always has a choice. Unknown
constructs count as such loops: forced bytes are then collected more carefully, which costs time.
"""

import json
from collections.abc import Iterator, Sequence

from constraints.grammars.lark_reader import Word, definitions
from constraints.grammars.pattern_escapes import Dialect
from constraints.grammars.pattern_parser import parse
from constraints.grammars.patterns import Chars, Choice, Concat, Pattern, Repeat, children
from constraints.where.code_points import NUM_CODE_POINTS, Ranges, first_bytes

# Keywords whose numbers may have any number of trailing zeros and nothing else.
_NUMBER_BOUNDS = ("multipleOf", "inimum", "aximum")
# Words of a terminal: loops outside of patterns, and operators that restrict a pattern.
_LOOPS = frozenset("+*{")
_EXCLUSIONS = frozenset("&~")
_SURROGATES = (0xD800, 0xDFFF)
_DIGITS: Ranges = ((0x30, 0x39),)


def may_run_on(found: Sequence[Word]) -> bool:
    """Whether bytes may be forced without end; for a grammar whose patterns are valid."""
    return any(map(_word_may_run_on, found)) or any(map(_terminal_may_run_on, _terminals(found)))


def _terminals(found: Sequence[Word]) -> Iterator[tuple[Word, ...]]:
    """The bodies of terminals; rules with attributes count as terminals."""
    for definition in definitions(found):
        if definition.name.kind == "terminal" or definition.has_attributes:
            yield definition.body


def _terminal_may_run_on(body: Sequence[Word]) -> bool:
    texts = {word.text for word in body}
    return not texts.isdisjoint(_LOOPS) or not texts.isdisjoint(_EXCLUSIONS)


def _word_may_run_on(word: Word) -> bool:
    if word.text == "%json":
        return any(keyword in json.dumps(word.value) for keyword in _NUMBER_BOUNDS)
    if word.kind == "regexp":
        pattern, _, flags = word.text[1:].rpartition("/")
        return _is_narrow(parse((f"(?{flags})" if flags else "") + pattern, Dialect.LARK))
    return word.text == "%regex"


def _is_narrow(pattern: Pattern) -> bool:
    """Whether some loop in it may continue with one byte only."""
    if isinstance(pattern, Chars):
        return not members(pattern)
    match pattern:
        case Repeat(part, _, None) if _begins(part).bit_count() < 2:
            return True
    return any(map(_is_narrow, children(pattern)))


def _begins(pattern: Pattern) -> int:
    """Bytes with which it can begin, as bits; possibly not all of them."""
    match pattern:
        case Chars():
            return first_bytes(members(pattern))
        case Concat(parts):
            return _begins(parts[0]) if parts else 0
        case Choice(options):
            found = 0
            for option in options:
                found |= _begins(option)
            return found
        case Repeat(part, _, max_count) if max_count != 0:
            return _begins(part)
        case _:
            return 0


def members(chars: Chars) -> Ranges:
    """Characters of a set; without those of named sets and of other letter cases."""
    if not chars.negated:
        # `\d` and `\w` contain all digits.
        has_digits = any(name.startswith("[") for name in chars.named)
        return _encodable((*chars.ranges, *(_DIGITS if has_digits else ())))
    if chars.named or chars.folded:
        return ()
    rest = []
    start = 0
    for first, last in sorted(chars.ranges):
        rest.append((start, first - 1))
        start = max(start, last + 1)
    return _encodable((*rest, (start, NUM_CODE_POINTS - 1)))


def _encodable(ranges: Ranges) -> Ranges:
    low, high = _SURROGATES
    pieces = [(first, min(last, low - 1)) for first, last in ranges]
    pieces += [(max(first, high + 1), last) for first, last in ranges]
    return tuple((first, last) for first, last in pieces if first <= last)
