r"""Parses escapes in patterns, and defines the characters of their classes.

Python's classes follow the Unicode version of this Python; ECMA 262's \d and \w are ASCII only.
"""

import unicodedata
from dataclasses import dataclass
from enum import Enum

from constraints.errors import ConstraintError, NotEnforced
from constraints.grammars.patterns import Chars
from constraints.where.code_points import NUM_CODE_POINTS, WHITESPACE, Ranges
from constraints.where.error_position import complaint


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
# Code points that this Python knows; excludes newer letters of the engine's tables.
_AGE = rf"\p{{age:{unicodedata.unidata_version.rsplit('.', 1)[0]}}}"
_CONTROLS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11}


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags at a place of the pattern."""

    folded: bool = False
    dot_all: bool = False
    ascii: bool = False

    def switched(self, letters: str, on: bool) -> "Flags":
        return Flags(
            on if "i" in letters else self.folded,
            on if "s" in letters else self.dot_all,
            on if "a" in letters else self.ascii and not (on and "u" in letters),
        )


class EscapeReader:
    """Reads a pattern character by character."""

    def __init__(self, text: str, dialect: Dialect) -> None:
        self._text = text
        self._is_python = dialect is not Dialect.ECMA
        self._has_properties = dialect is not Dialect.PYTHON
        self._at = 0
        self._flags = Flags()

    def _wrong(self, start: int, what: str, hint: str | None = None) -> ConstraintError:
        return complaint(self._text, start, max(self._at, start + 1), what, hint)

    def _unsupported(self, start: int, what: str) -> ConstraintError:
        wrong = self._wrong(start, f"{what} is not supported")
        return NotEnforced(str(wrong), position=start)

    def _peek(self, length: int = 1) -> str:
        return self._text[self._at : self._at + length]

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
        if char in "01234567":
            return self._octal(start, char)
        if char in "xuU":
            return self._hex(start, char)
        if char == "N" and self._is_python:
            return self._unicode_name(start)
        if char in "pP" and self._has_properties:
            return self._property(start, char)
        letter = self._peek()
        if char == "c" and not self._is_python and letter.isascii() and letter.isalpha():
            self._at += 1
            return ord(letter) % 32
        raise self._wrong(start, f"`\\{char}` stands for nothing")

    def _named_class(self, char: str) -> Chars:
        return Chars(*self._class_members(char.lower()), negated=char.isupper())

    def _class_members(self, char: str) -> tuple[Ranges, tuple[str, ...]]:
        is_ascii = self._flags.ascii or not self._is_python
        if char == "s":
            if not self._is_python:
                return _ECMA_SPACE, ()
            return (_ASCII_SPACE if is_ascii else WHITESPACE), ()
        if is_ascii:
            return (_DIGIT if char == "d" else _WORD), ()
        if char == "d":
            return (), (rf"[\p{{Nd}}&&{_AGE}]",)
        return ((0x5F, 0x5F),), (rf"[[\p{{L}}\p{{N}}]&&{_AGE}]",)

    def _octal(self, start: int, first: str) -> int:
        digits = first
        while len(digits) < 3 and self._peek() and self._peek() in "01234567":
            digits += self._peek()
            self._at += 1
        if not self._is_python and digits != "0":
            raise self._wrong(start, "octal escapes are not allowed; write \\xhh")
        return int(digits, 8)

    def _hex(self, start: int, char: str) -> int:
        if char == "u" and not self._is_python and self._take("{"):
            close = self._text.find("}", self._at)
            digits = self._text[self._at : close] if close >= 0 else ""
            self._at = close + 1 if close >= 0 else self._at
        else:
            length = {"x": 2, "u": 4, "U": 8}[char]
            digits = self._peek(length) if char != "U" or self._is_python else ""
            self._at += length
            if len(digits) < length:
                digits = ""
        if not digits or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            raise self._wrong(start, f"`\\{char}` needs hexadecimal digits")
        code = self._joined(int(digits, 16))
        if code >= NUM_CODE_POINTS or 0xD800 <= code <= 0xDFFF:
            raise self._wrong(start, "no such character")
        return code

    def _joined(self, code: int) -> int:
        """Join surrogate pairs: ECMA's \\ud83d\\ude00 is one character."""
        if 0xD800 <= code <= 0xDBFF and not self._is_python and self._peek(2) == "\\u":
            low = self._text[self._at + 2 : self._at + 6]
            if len(low) == 4 and low[:1] in "dD" and low[1:2] in "cdefCDEF":
                self._at += 6
                return 0x10000 + ((code - 0xD800) << 10) + (int(low, 16) - 0xDC00)
        return code

    def _unicode_name(self, start: int) -> int:
        close = self._text.find("}", self._at)
        name = self._text[self._at + 1 : close] if self._peek() == "{" and close > 0 else ""
        self._at = max(close + 1, self._at)
        try:
            return ord(unicodedata.lookup(name))
        except (KeyError, TypeError):
            raise self._wrong(start, "no character has this name") from None

    def _property(self, start: int, char: str) -> Chars:
        close = self._text.find("}", self._at)
        name = self._text[self._at + 1 : close] if self._peek() == "{" and close > 0 else ""
        self._at = max(close + 1, self._at)
        if not name or not all(
            each.isascii() and (each.isalnum() or each in "_=") for each in name
        ):
            raise self._wrong(start, f"`\\{char}` needs a property's name in braces")
        return Chars((), (rf"\p{{{name}}}",), negated=char == "P")
