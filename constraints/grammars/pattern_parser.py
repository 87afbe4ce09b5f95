r"""Parses regular expressions: Python's, as clients write them, and ECMA 262's, as in schemas.

The two differ in the meaning of \d, \w, \s and `.`, in a few escapes and in braces. What is not
regular or not supported by the engine (look-around, backreferences, atomic groups, \b) is refused
here, where its place is known. Lazy repeats match the same whole texts as greedy ones.
"""

from constraints.errors import ConstraintError
from constraints.grammars.letter_case import folded
from constraints.grammars.pattern_escapes import Dialect, EscapeReader
from constraints.grammars.patterns import (
    ANY,
    EMPTY,
    Anchor,
    Chars,
    Choice,
    Concat,
    Pattern,
    Repeat,
    written_set,
)
from constraints.where.code_points import Ranges

# The most repeats: engines count in 32 bits.
MAX_REPEAT = 1_000_000
_MAX_DEPTH = 100


_FLAGS = frozenset("aimsux")
_LOOKS = {"=": "look-ahead", "!": "look-ahead", "<=": "look-behind", "<!": "look-behind"}
_UNSUPPORTED_GROUPS = {
    ">": "an atomic group",
    "(": "a condition on a group",
    "P=": "a reference back",
}


def parse(text: str, dialect: Dialect) -> Pattern:
    """Parse a pattern. Raises Malformed, and NotEnforced for what masks cannot enforce."""
    return PatternParser(text, dialect).parse()


class PatternParser(EscapeReader):
    """Parses one pattern from left to right."""

    def __init__(self, text: str, dialect: Dialect) -> None:
        super().__init__(text, dialect)
        self._depth = 0
        self._names: set[str] = set()
        # The first construct that only other automata may support.
        self._refusal: ConstraintError | None = None

    def parse(self) -> Pattern:
        pattern = self._choice()
        if self._at < len(self._text):
            raise self._wrong(self._at, "a `)` that closes nothing")
        if self._refusal is not None:
            raise self._refusal
        return pattern

    def _refuse_later(self, start: int, what: str) -> None:
        """Record a refusal; it is raised only if the rest of the pattern is well-formed."""
        self._refusal = self._refusal or self._unsupported(start, what)

    def _choice(self) -> Pattern:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._wrong(self._at, f"groups in groups, more than {_MAX_DEPTH} deep")
        flags = self._flags
        options = [self._concat()]
        while self._take("|"):
            options.append(self._concat())
        self._flags = flags
        self._depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _concat(self) -> Pattern:
        parts: list[Pattern] = []
        while self._at < len(self._text) and self._peek() not in "|)":
            start = self._at
            part = self._atom()
            if part is not None:
                parts.append(self._repeated(part, start))
        return parts[0] if len(parts) == 1 else Concat(tuple(parts)) if parts else EMPTY

    def _atom(self) -> Pattern | None:
        """One repeatable item; None for items without text, such as flags."""
        start = self._at
        char = self._peek()
        self._at += 1
        match char:
            case "(":
                return self._group(start)
            case "[":
                return self._set(start)
            case ".":
                return self._dot()
            case "^" | "$":
                return Anchor(char == "^", start)
            case "\\":
                return self._escape(start)
            case "*" | "+" | "?":
                raise self._wrong(start, f"nothing before `{char}` to repeat")
            case "{" if self._bounds(start) is not None:
                raise self._wrong(start, "nothing before `{` to repeat")
            case _:
                return self._char(ord(char))

    def _char(self, code: int) -> Chars:
        return self._folded(Chars(((code, code),)))

    def _dot(self) -> Chars:
        if self._flags.dot_all:
            return ANY
        ends: Ranges = ((10, 10),)
        if not self._is_python:
            ends = ((10, 10), (13, 13), (0x2028, 0x2029))
        return Chars(ends, negated=True)

    # -- repeats

    def _repeated(self, part: Pattern, start: int) -> Pattern:
        at = self._at
        bounds = self._repeat_bounds(at)
        if bounds is None:
            return part
        if isinstance(part, Anchor) and self._text[start] != "(":
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
        if self._repeat_bounds(again) is not None:
            raise self._wrong(again, "a repeat of a repeat; put the inner one in (?:...)")
        if isinstance(part, Anchor):
            return part if min_count else EMPTY
        return Repeat(part, min_count, max_count)

    def _repeat_bounds(self, start: int) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if self._take("{"):
            found = self._bounds(start)
            if found is None:
                self._at = start
            return found
        return None

    def _bounds(self, start: int) -> tuple[int, int | None] | None:
        """The counts behind `{`; None: the brace is an ordinary character."""
        close = self._text.find("}", start)
        inner = self._text[start + 1 : close] if close >= 0 else ""
        low, comma, high = inner.partition(",")
        is_repeat = (low or (self._is_python and comma)) and all(
            not number or (number.isascii() and number.isdigit()) for number in (low, high)
        )
        if not is_repeat or len(inner) > 40:
            return None
        self._at = close + 1
        min_count = int(low or 0)
        return min_count, min_count if not comma else int(high) if high else None

    # -- groups

    def _group(self, start: int) -> Pattern | None:
        flags = self._flags
        if self._take("?"):
            if self._take("#"):
                self._skip_comment(start)
                return None
            if self._is_flags_alone(start):
                return None
            self._group_kind(start)
        pattern = self._choice()
        if not self._take(")"):
            raise self._wrong(start, "this `(` is never closed")
        self._flags = flags
        return pattern

    def _skip_comment(self, start: int) -> None:
        close = self._text.find(")", self._at)
        if close < 0:
            raise self._wrong(start, "this comment is never closed")
        self._at = close + 1

    def _group_kind(self, start: int) -> None:
        """Read what follows `(?` up to the group's content."""
        if self._take(":"):
            return
        for sign, name in _LOOKS.items():
            if self._take(sign):
                self._refuse_later(start, name)
                return
        for sign, name in _UNSUPPORTED_GROUPS.items():
            if self._take(sign):
                raise self._unsupported(start, name)
        if self._take("P<" if self._is_python else "<"):
            close = self._text.find(">", self._at)
            name = self._text[self._at : close] if close >= 0 else ""
            self._at = close + 1 if close >= 0 else self._at
            if not name.isidentifier():
                raise self._wrong(start, "a group's name is an identifier between `<` and `>`")
            if name in self._names:
                raise self._wrong(start, f"a second group named `{name}`")
            self._names.add(name)
            return
        on, off = self._flag_letters(start)
        if not self._take(":"):
            raise self._wrong(start, "a kind of group that is not known")
        self._flags = self._flags.switched(on, True).switched(off, False)

    def _is_flags_alone(self, start: int) -> bool:
        """Whether this is `(?i)`, which applies from here on; if so it is consumed."""
        at = self._at
        on, off = self._flag_letters(start)
        if not on or off or not self._take(")"):
            self._at = at
            return False
        if at != 2:
            raise self._wrong(start, "flags for the whole pattern stand at its beginning")
        self._flags = self._flags.switched(on, True)
        return True

    def _flag_letters(self, start: int) -> tuple[str, str]:
        at = self._at
        while self._peek() and (self._peek() in _FLAGS or self._peek() == "-"):
            self._at += 1
        on, _, off = self._text[at : self._at].partition("-")
        if "x" in on:
            raise self._unsupported(start, "the flag x")
        return on, off

    # -- escapes and sets

    def _escape(self, start: int) -> Pattern:
        char = self._peek()
        if char in ("A", "Z") and self._is_python:
            self._at += 1
            return Anchor(char == "A", start)
        if char in ("b", "B"):
            self._at += 1
            self._refuse_later(start, f"a word boundary `\\{char}`")
            return EMPTY
        if char in ("k", "g") or (char in "123456789" and char and not self._is_octal()):
            self._at += 1
            raise self._unsupported(start, "a reference back")
        found = self._class_or_code(start)
        return found if isinstance(found, Chars) else self._char(found)

    def _is_octal(self) -> bool:
        digits = self._peek(3)
        return len(digits) == 3 and digits[0] in "0123" and set(digits) <= set("01234567")

    def _set(self, start: int) -> Chars:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        named: list[str] = []
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
                self._add_class(low, ranges, named)
            else:
                ranges.append((low, low))
        return self._folded(Chars(tuple(ranges), tuple(named), negated))

    def _add_class(self, chars: Chars, ranges: list[tuple[int, int]], named: list[str]) -> None:
        named.append(written_set(chars))

    def _folded(self, chars: Chars) -> Chars:
        """The set, with other letter cases if the pattern ignores case."""
        if not self._flags.folded:
            return chars
        return folded(chars, is_python=self._is_python, is_ascii=self._flags.ascii)

    def _set_item(self) -> Chars | int:
        start = self._at
        char = self._peek()
        self._at += 1
        if char != "\\":
            return ord(char) if char else 0
        if self._take("b"):
            return 8
        return self._class_or_code(start)
