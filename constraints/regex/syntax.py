r"""Parses regular expressions: Python's, as clients write them, and ECMA 262's, as in schemas.

Pattern = Empty | Chars | Concat | Choice | Repeat | Anchor | Look

The two differ in the meaning of \d, \w, \s, `.`, `$` and \B, in a few escapes and in braces.
Python's classes follow the Unicode version of this Python; ECMA 262's \d and \w are ASCII only.
What is not regular (backreferences, atomic groups) is refused here, where its place is known, and
what hardly anyone writes (comments, octal numbers, names of characters). Lazy repeats match the
same whole texts as greedy ones. Which characters are equal when a pattern ignores case is Python's
rule in both; there a class like `\w` applies to the character itself, not to its other case.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

import regex

from constraints.errors import ConstraintError, NotEnforced, TooComplex, complaint
from constraints.regex.char_sets import (
    NUM_CODE_POINTS,
    WHITESPACE,
    Ranges,
    class_of,
    complement,
    encodable,
    in_any_case,
    united,
)


@dataclass(frozen=True, slots=True)
class Empty:
    """The empty text."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set: (first, last) code points, sorted."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Concat:
    """One after the other."""

    parts: tuple["Pattern", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of them."""

    options: tuple["Pattern", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """From `min_count` to `max_count` times, None: unbounded."""

    part: "Pattern"
    min_count: int
    max_count: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The start of the text, or its end.

    of_lines:          of a line, too
    may_have_newline:  a newline that ends the text may follow, as behind Python's `$`
    """

    is_start: bool
    position: int
    of_lines: bool = False
    may_have_newline: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """A lookahead or a lookbehind."""

    part: "Pattern"
    is_ahead: bool
    is_negated: bool
    position: int


@dataclass(frozen=True, slots=True)
class Reference:
    """Of a grammar alone: what a rule stands for."""

    name: str
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Terminal:
    """Of a grammar alone: what the engine's lexer reads at once; compared by identity."""

    part: "Pattern"


Pattern = Empty | Chars | Concat | Choice | Repeat | Anchor | Look | Reference | Terminal

EMPTY = Empty()
ANY = Chars(((0, NUM_CODE_POINTS - 1),))


def children(pattern: Pattern) -> tuple[Pattern, ...]:
    """The direct parts of a pattern."""
    match pattern:
        case Concat(parts):
            return parts
        case Choice(options):
            return options
        case Repeat(part) | Look(part):
            return (part,)
        case _:
            return ()


def mapped(pattern: Pattern, change: Callable[[Pattern], Pattern]) -> Pattern:
    """The pattern with all of its parts changed that have no parts themselves."""
    match pattern:
        case Concat(parts):
            return concat(mapped(part, change) for part in parts)
        case Choice(options):
            return Choice(tuple(mapped(option, change) for option in options))
        case Repeat(part) | Look(part):
            return replace(pattern, part=mapped(part, change))
        case _:
            return change(pattern)


def concat(parts: Iterable[Pattern]) -> Pattern:
    """One after the other, without what is empty."""
    kept = tuple(part for part in parts if part != EMPTY)
    return kept[0] if len(kept) == 1 else Concat(kept) if kept else EMPTY


def choice(options: Iterable[Pattern]) -> Pattern:
    """One of the options, of which there is at least one."""
    kept = tuple(options)
    return kept[0] if len(kept) == 1 else Choice(kept)


def flat(pattern: Pattern) -> Pattern:
    """The same texts in fewer readings, which the engine follows all: of loops in a loop, and of
    counts of counts, one. `(a+ | b)*` is `(a | b)*`, and `(a{1,5}){1,5}` is `a{1,25}`."""
    match pattern:
        case Concat(parts):
            return concat(map(flat, parts))
        case Choice(options):
            return choice(map(flat, options))
        case Repeat(part, (0 | 1) as least, None):
            repeated = [*_repeated(part, least)]
            return Repeat(choice(map(flat, repeated)), least, None) if repeated else EMPTY
        case Repeat(Repeat(part, (0 | 1) as first, int(last)), least, int(most)) if (
            0 < last * most <= MAX_REPEAT
        ):
            return flat(Repeat(part, first * least, last * most))
        case Repeat(part):
            return replace(pattern, part=flat(part))
    return pattern


def _repeated(part: Pattern, least: int) -> Iterator[Pattern]:
    """The options that a loop repeats, `least` times or more, without repeats of their own."""
    match part:
        case Choice(options):
            for option in options:
                yield from _repeated(option, least)
        case Repeat(inner, min_count, max_count) if least <= min_count <= 1 and max_count != 0:
            yield from _repeated(inner, least)
        case Empty() if least == 0:
            pass
        case _:
            yield part


def options_of(pattern: Pattern) -> tuple[Pattern, ...]:
    """Patterns of which one matches."""
    return pattern.options if isinstance(pattern, Choice) else (pattern,)


def has_looks(pattern: Pattern) -> bool:
    """Whether there is anything in it that the engine cannot follow."""
    is_look = isinstance(pattern, Look | Anchor)
    return is_look or any(map(has_looks, children(pattern)))


@lru_cache(maxsize=1024)
def written_set(chars: Chars) -> str:
    """A set in the engine's syntax; characters are written as numbers, so none is special."""
    if chars == ANY:
        return "(?s:.)"
    members = "".join(
        rf"\x{{{first:X}}}" if first == last else rf"\x{{{first:X}}}-\x{{{last:X}}}"
        for first, last in encodable(chars.ranges)
    )
    return f"[{members}]" if members else r"[^\x{0}-\x{10FFFF}]"


def between(low: int, high: int) -> str:
    """The digits of the numbers from `low`, 0 or more, to `high`."""
    options: list[str] = []
    while low <= high:
        # The longest run from here on: of all that have one digit more, as in [3-7][0-9]{2}.
        num_free = 0
        while low and low % 10 ** (num_free + 1) == 0 and low + 10 ** (num_free + 1) - 1 <= high:
            num_free += 1
        size = 10**num_free
        kept, digit = divmod(low // size, 10)
        num_digits = min(10 - digit, (high - low + 1) // size)
        last = digit + num_digits - 1
        free = f"[0-9]{{{num_free}}}" if num_free else ""
        options.append(f"{kept or ''}{digit if digit == last else f'[{digit}-{last}]'}{free}")
        low += num_digits * size
    return f"(?:{'|'.join(options)})" if options else written_set(Chars(()))


def has(chars: Chars, char: str) -> bool:
    """Whether the set has the character."""
    return any(first <= ord(char) <= last for first, last in chars.ranges)


class Dialect(Enum):
    """Which syntax and classes a pattern has."""

    PYTHON = "python"
    ECMA = "ecma"
    LARK = "lark"  # Python's, and \p{...}


_DIGIT: Ranges = ((0x30, 0x39),)
_WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_ASCII_SPACE: Ranges = ((0x09, 0x0D), (0x20, 0x20))
_ECMA_SPACE: Ranges = (
    (0x09, 0x0D),
    (0x20, 0x20),
    *((first, last) for first, last in WHITESPACE if first >= 0xA0),
    (0xFEFF, 0xFEFF),
)
_NEWLINE: Ranges = ((10, 10),)
_ECMA_LINE_ENDS: Ranges = ((10, 10), (13, 13), (0x2028, 0x2029))
_CONTROLS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11}


# The most repeats: engines count in 32 bits.
MAX_REPEAT = 1_000_000
_MAX_DEPTH = 100
# Of the sets of a pattern, together; Python's `\w` has 734.
_MAX_RANGES = 200_000
_FOLDED_RANGES = 100


_REPEAT = re.compile(r"([*+?])|\{([0-9]{0,40})(,?)([0-9]{0,40})\}")
_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_PROPERTY = re.compile(r"\{([A-Za-z0-9_=]+)\}")
# Characters by number; in ECMA 262 some take two, which are halves of a pair.
_HEX = "[0-9a-fA-F]"
_PYTHON_CODE = re.compile(rf"x({_HEX}{{2}})|u({_HEX}{{4}})|U({_HEX}{{8}})")
_ECMA_CODE = re.compile(
    rf"x({_HEX}{{2}})|u\{{({_HEX}+)\}}"
    rf"|u([dD][89abAB]{_HEX}{{2}})\\u([dD][c-fC-F]{_HEX}{{2}})|u({_HEX}{{4}})"
)
# What stands behind the parenthesis of a group that is no plain one.
_GROUP = (
    r"\?(?:(?P<look><?[=!])|%s<(?P<name>[^>]*)>"
    r"|(?P<on>[aimsu]*)(?:-(?P<off>[imsu]+))?(?P<end>[:)]))"
)
_PYTHON_GROUP = re.compile(_GROUP % "P")
_ECMA_GROUP = re.compile(_GROUP % "")
# Whether it is ahead, and whether it is negated.
_LOOKS = {"=": (True, False), "!": (True, True), "<=": (False, False), "<!": (False, True)}
_UNSUPPORTED_GROUPS = {
    ">": "an atomic group",
    "#": "a comment",
    "x": "a pattern with space and comments in it",
    "(": "a condition on a group",
    "P=": "a reference back",
}


def parse(text: str, dialect: Dialect) -> Pattern:
    """Parse a pattern. Raises Malformed, and NotEnforced for what is not regular."""
    return Parser(text, dialect).parse()


class Parser:
    """Parses one pattern from left to right; that of grammars in GBNF is built upon it."""

    def __init__(self, text: str, dialect: Dialect) -> None:
        self._text = text
        self._is_python = dialect is not Dialect.ECMA
        self._has_properties = dialect is not Dialect.PYTHON
        self._at = 0
        self._flags: frozenset[str] = frozenset()
        self._depth = 0
        self._names: set[str] = set()
        self._num_ranges = 0

    def parse(self) -> Pattern:
        pattern = self._choice()
        if self._at < len(self._text):
            raise self._wrong(self._at, "a `)` that closes nothing")
        return pattern

    def _wrong(self, start: int, what: str, hint: str | None = None) -> ConstraintError:
        return complaint(self._text, start, max(self._at, start + 1), what, hint)

    def _unsupported(self, start: int, what: str) -> ConstraintError:
        wrong = self._wrong(start, f"{what} is not supported")
        return NotEnforced(str(wrong), position=start)

    def _peek(self, length: int = 1) -> str:
        return self._text[self._at : self._at + length]

    def _read(self, what: re.Pattern[str]) -> re.Match[str] | None:
        found = what.match(self._text, self._at)
        self._at = self._at if found is None else found.end()
        return found

    def _take(self, expected: str) -> bool:
        if self._text.startswith(expected, self._at):
            self._at += len(expected)
            return True
        return False

    def _class_or_code(self, start: int) -> Chars | int:
        """The class or the character of an escape, inside and outside of sets."""
        char = self._peek()
        self._at += 1
        if not char:
            raise self._wrong(start, "a `\\` at the end")
        if char in "dDwWsS":
            return self._named_class(char)
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "a" and self._is_python:
            return 7
        if char.isascii() and char.isalnum():
            return self._numbered(start, char)
        return ord(char)

    def _numbered(self, start: int, char: str) -> Chars | int:
        """A character given by number or name, or a property of characters."""
        if char == "0" and self._peek() not in tuple("01234567"):
            return 0
        if char in "xuU":
            return self._code(start)
        if char in "pP" and self._has_properties:
            return self._property(start, char)
        letter = self._peek()
        if char == "c" and not self._is_python and letter.isascii() and letter.isalpha():
            self._at += 1
            return ord(letter) % 32
        raise self._wrong(start, f"`\\{char}` stands for nothing")

    def _named_class(self, char: str) -> Chars:
        return self._set_of(self._class_members(char.lower()), negated=char.isupper())

    def _set_of(self, ranges: Ranges, *, negated: bool) -> Chars:
        self._num_ranges += len(ranges)
        if self._num_ranges > _MAX_RANGES:
            raise TooComplex("the sets of characters of the pattern are too many and too large")
        return Chars(complement(ranges) if negated else ranges)

    def _class_members(self, char: str) -> Ranges:
        is_ascii = "a" in self._flags or not self._is_python
        if char == "s":
            if not self._is_python:
                return _ECMA_SPACE
            return _ASCII_SPACE if is_ascii else WHITESPACE
        if is_ascii:
            return _DIGIT if char == "d" else _WORD
        return class_of(rf"\{char}")

    def _code(self, start: int) -> int:
        self._at -= 1
        found = self._read(_PYTHON_CODE if self._is_python else _ECMA_CODE)
        if found is None:
            raise self._wrong(start, f"`\\{self._peek()}` needs hexadecimal digits")
        code, *low = [int(digits, 16) for digits in found.groups() if digits]
        if low:
            code = 0x10000 + ((code - 0xD800) << 10) + (low[0] - 0xDC00)
        if code >= NUM_CODE_POINTS or 0xD800 <= code <= 0xDFFF:
            raise self._wrong(start, "no such character")
        return code

    def _property(self, start: int, char: str) -> Chars:
        name = self._read(_PROPERTY)
        if name is None:
            raise self._wrong(start, f"`\\{char}` needs a property's name in braces")
        try:
            found = class_of(rf"\p{name[0]}")
        except regex.error:
            raise self._wrong(start, "no property has this name") from None
        return self._set_of(found, negated=char == "P")

    def _choice(self) -> Pattern:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._wrong(self._at, f"groups in groups, more than {_MAX_DEPTH} deep")
        flags = self._flags
        options: list[Pattern] = []
        while not options or self._take("|"):
            option = self._concat()
            options += option.options if isinstance(option, Choice) else (option,)
        self._flags = flags
        self._depth -= 1
        return choice(options)

    def _concat(self) -> Pattern:
        parts: list[Pattern] = []
        while self._at < len(self._text) and self._peek() not in "|)":
            start = self._at
            part = self._atom()
            if part is not None:
                part = self._repeated(part, start)
                parts += part.parts if isinstance(part, Concat) else (part,)
        return concat(parts)

    def _atom(self) -> Pattern | None:
        """One repeatable item; None for items without text, such as flags."""
        start = self._at
        char = self._peek()
        if self._repeat_bounds() is not None:
            raise self._wrong(start, f"nothing before `{char}` to repeat")
        self._at += 1
        match char:
            case "(":
                return self._group(start)
            case "[":
                return self._set(start)
            case ".":
                return self._dot()
            case "^" | "$":
                of_lines = "m" in self._flags
                is_dollar = char == "$" and self._is_python and not of_lines
                return Anchor(char == "^", start, of_lines, is_dollar)
            case "\\":
                return self._escape(start)
            case _:
                return self._char(ord(char))

    def _char(self, code: int) -> Chars:
        return Chars(self._folded(((code, code),)))

    def _dot(self) -> Chars:
        if "s" in self._flags:
            return ANY
        return Chars(complement(_NEWLINE if self._is_python else _ECMA_LINE_ENDS))

    # -- repeats

    def _repeated(self, part: Pattern, start: int) -> Pattern:
        at = self._at
        bounds = self._repeat_bounds()
        if bounds is None:
            return part
        is_bare = isinstance(part, Anchor) and self._text[start] != "("
        if is_bare or self._text[start : start + 2] in (r"\b", r"\B"):
            raise self._wrong(start, "an anchor cannot be repeated")
        min_count, max_count = bounds
        if max(min_count, max_count or 0) > MAX_REPEAT:
            raise self._wrong(at, f"a repeat of more than {MAX_REPEAT}")
        if max_count is not None and min_count > max_count:
            raise self._wrong(at, "the least number of repeats is larger than the most")
        if self._take("+"):
            raise self._unsupported(at, "a possessive repeat")
        self._take("?")  # lazy: the same texts
        again = self._at
        if self._repeat_bounds() is not None:
            raise self._wrong(again, "a repeat of a repeat; put the inner one in (?:...)")
        if isinstance(part, Anchor):
            return part if min_count else EMPTY
        return Repeat(part, min_count, max_count)

    def _repeat_bounds(self) -> tuple[int, int | None] | None:
        """The counts of a repeat here; None: there is none, or a brace that is a character."""
        found = _REPEAT.match(self._text, self._at)
        if found is None or not (found[1] or found[2] or (self._is_python and found[3])):
            return None
        self._at = found.end()
        if found[1]:
            return _SIGNS[found[1]]
        min_count = int(found[2] or 0)
        return min_count, min_count if not found[3] else int(found[4]) if found[4] else None

    # -- groups

    def _group(self, start: int) -> Pattern | None:
        outer = self._flags
        found = self._read(_PYTHON_GROUP if self._is_python else _ECMA_GROUP)
        look = None if found is None else found["look"]
        if found is None:
            self._check_plain(start)
        elif found["name"] is not None:
            self._name(found["name"], start)
        elif found["end"]:
            letters = set(found["on"])
            kept = self._flags - set(found["off"] or ()) - ({"a"} if "u" in letters else set())
            self._flags = kept | letters
            if found["end"] == ")":
                if start or not letters or found["off"]:
                    raise self._wrong(start, "flags for the whole pattern stand at its beginning")
                return None
        pattern = self._choice()
        if not self._take(")"):
            raise self._wrong(start, "this `(` is never closed")
        self._flags = outer
        return pattern if look is None else Look(pattern, *_LOOKS[look], start)

    def _check_plain(self, start: int) -> None:
        if self._take("?"):
            for sign, name in _UNSUPPORTED_GROUPS.items():
                if self._take(sign):
                    raise self._unsupported(start, name)
            raise self._wrong(start, "a kind of group that is not known")

    def _name(self, name: str, start: int) -> None:
        if not name.isidentifier():
            raise self._wrong(start, "a group's name is an identifier between `<` and `>`")
        if name in self._names:
            raise self._wrong(start, f"a second group named `{name}`")
        self._names.add(name)

    # -- escapes and sets

    def _escape(self, start: int) -> Pattern:
        char = self._peek()
        if char in ("A", "Z") and self._is_python:
            self._at += 1
            return Anchor(char == "A", start)
        if char in ("b", "B"):
            self._at += 1
            return self._word_boundary(start, is_negated=char == "B")
        if char in tuple("kg123456789"):
            self._at += 1
            raise self._unsupported(start, "a reference back")
        found = self._class_or_code(start)
        return found if isinstance(found, Chars) else self._char(found)

    def _word_boundary(self, start: int, *, is_negated: bool) -> Pattern:
        word = Chars(self._class_members("w"))
        behind, no_behind, ahead, no_ahead = (
            Look(word, is_ahead, is_other, start)
            for is_ahead, is_other in itertools.product((False, True), repeat=2)
        )
        if not is_negated:
            return Choice((Concat((behind, no_ahead)), Concat((no_behind, ahead))))
        outside: tuple[Pattern, ...] = (no_behind, no_ahead)
        if self._is_python and re.fullmatch(r"\B", "") is None:
            # In older Pythons `\B` does not match in an empty text.
            outside += (Choice((Look(ANY, False, False, start), Look(ANY, True, False, start))),)
        return Choice((Concat((behind, ahead)), Concat(outside)))

    def _set(self, start: int) -> Chars:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        classes: list[Ranges] = []
        is_first = self._is_python
        while is_first or not self._take("]"):
            if self._at >= len(self._text):
                raise self._wrong(start, "this `[` is never closed")
            is_first = False
            at = self._at
            low = self._set_item()
            if self._peek() == "-" and self._peek(2) not in ("-]", "-"):
                self._at += 1
                high = self._set_item()
                if isinstance(low, Chars) or isinstance(high, Chars):
                    raise self._wrong(at, "a range goes from a character to a character")
                if low > high:
                    raise self._wrong(at, "a range whose end is before its beginning")
                ranges.append((low, high))
            elif isinstance(low, Chars):
                classes.append(low.ranges)
            else:
                ranges.append((low, low))
        found = united([self._folded(tuple(ranges)), *classes])
        return self._set_of(found, negated=negated)

    def _folded(self, ranges: Ranges) -> Ranges:
        """The set, with other letter cases if the pattern ignores case."""
        if "i" not in self._flags or not ranges:
            return ranges
        if len(ranges) > 1:
            self._num_ranges += _FOLDED_RANGES  # it takes as long as so many
        return in_any_case(ranges, "a" in self._flags)

    def _set_item(self) -> Chars | int:
        start = self._at
        char = self._peek()
        self._at += 1
        if char != "\\":
            return ord(char) if char else 0
        if self._take("b"):
            return 8
        return self._class_or_code(start)
