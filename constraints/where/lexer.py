"""Splits the text of an expression into tokens; has no grammar.

Literals are Python's: strings in ', ", ''' or \""" with escapes or raw, whole decimal numbers.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from constraints.where.error_position import complaint, short

# Numbers are compared as 64-bit integers.
MAX_DIGITS = 18

# Keywords by spelling; both spellings of one have the same value.
KEYWORDS = {
    **{word: word for word in ("and", "or", "not", "in", "True", "False")},
    **{word.upper(): word for word in ("and", "or", "not", "in")},
}


class TokenKind(Enum):
    """The kind of a token."""

    NAME = "a name"
    KEYWORD = "a keyword"
    NUMBER = "a number"
    STRING = "a string"
    SIGN = "a sign"
    END = "the end"


@dataclass(frozen=True, slots=True)
class Token:
    """A token and its place: `text` is text[start:end], `value` the value of a literal."""

    kind: TokenKind
    text: str
    start: int
    end: int
    value: str | int | None = None


_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[^\W\d]\w*")
_NUMBER = re.compile(r"[0-9][0-9_]*(?:\.[0-9]*)?(?:[^\W_]\w*)?")
_SIGN = re.compile(r"<=|>=|==|!=|[<>()\[\]{},.\-]")
_STRING = re.compile(
    r"""(?P<prefix>[A-Za-z]{0,2})(?P<quote>'''|\"""|'|")""",
)
# The content of a string up to its closing quote, by quote.
_BODIES = {
    "'": re.compile(r"(?:[^'\\\n]|\\.)*", re.DOTALL),
    '"': re.compile(r'(?:[^"\\\n]|\\.)*', re.DOTALL),
    "'''": re.compile(r"(?:[^'\\]|\\.|'(?!''))*", re.DOTALL),
    '"""': re.compile(r'(?:[^"\\]|\\.|"(?!""))*', re.DOTALL),
}
_ESCAPE = re.compile(
    r"\\(?:(?P<octal>[0-7]{1,3})|x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})"
    r"|U(?P<U>[0-9a-fA-F]{8})|N\{(?P<name>[^}]*)\}|(?P<char>.))",
    re.DOTALL,
)
_CHARS = {
    "\n": "", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n",
    "r": "\r", "t": "\t", "v": "\v",
}  # fmt: skip
_SURROGATE = re.compile("[\ud800-\udfff]")
# Signs of other languages, and their equivalents here.
_FOREIGN = {
    "&": "write `and`",
    "|": "write `or`",
    "!": "write `not`, or `!=` to compare",
    "=": "write `==` to compare",
    ":": "a type is written as a condition: int(X), float(X) or regex(X, r'...')",
    "“": "strings stand in straight quotes, ' or \"",
    "”": "strings stand in straight quotes, ' or \"",
    "‘": "strings stand in straight quotes, ' or \"",
    "’": "strings stand in straight quotes, ' or \"",
    "`": "strings stand in straight quotes, ' or \"",
    "/": "a pattern is written regex(X, r'...')",
    "+": "there is no arithmetic",
    "*": "there is no arithmetic",
    "%": "there is no arithmetic",
    "#": "there are no comments",
    ";": "conditions are joined by `and` and `or`",
}


def tokens(text: str) -> Iterator[Token]:
    """The tokens of `text`, the last one of kind END. Raises Malformed."""
    position = 0
    while True:
        position = _skip(_SPACE, text, position)
        if position == len(text):
            break
        token = _token(text, position)
        yield token
        position = token.end
    yield Token(TokenKind.END, "", position, position)


def _token(text: str, start: int) -> Token:
    string = _STRING.match(text, start)
    if string:
        return _string(text, string)
    name = _NAME.match(text, start)
    if name:
        kind = TokenKind.KEYWORD if name[0] in KEYWORDS else TokenKind.NAME
        return Token(kind, name[0], start, name.end())
    number = _NUMBER.match(text, start)
    if number:
        return _number(text, number)
    sign = _SIGN.match(text, start)
    if sign:
        return Token(TokenKind.SIGN, sign[0], start, sign.end())
    raise complaint(text, start, start + 1, _strange(text[start]), _FOREIGN.get(text[start]))


def _number(text: str, match: re.Match[str]) -> Token:
    written = match[0]
    if not re.fullmatch(r"[0-9]+(?:_[0-9]+)*", written):
        raise complaint(text, match.start(), match.end(), f"`{short(written)}` is no whole number")
    digits = written.replace("_", "")
    if len(digits) > MAX_DIGITS:
        raise complaint(
            text, match.start(), match.end(), f"a number has at most {MAX_DIGITS} digits"
        )
    return Token(TokenKind.NUMBER, written, match.start(), match.end(), int(digits))


def _string(text: str, opening: re.Match[str]) -> Token:
    start = opening.start()
    quote = opening["quote"]
    prefix = opening["prefix"].lower()
    if prefix not in ("", "r", "u"):
        raise complaint(
            text,
            start,
            opening.end(),
            f"a string has no prefix `{opening['prefix']}`",
            'write "..." or, without escapes, r"..."',
        )
    body_end = _skip(_BODIES[quote], text, opening.end())
    if not text.startswith(quote, body_end):
        raise complaint(text, start, opening.end(), f"this string is not closed by {quote}")
    body = text[opening.end() : body_end]
    end = body_end + len(quote)
    value = body if prefix == "r" else _unescape(text, body, opening.end())
    surrogate = _SURROGATE.search(value)
    if surrogate:
        raise complaint(
            text,
            start,
            end,
            f"the string has half a character, \\u{ord(surrogate[0]):04x}, which is no text",
            'write characters beyond \\uffff as "\\U0001f600"',
        )
    return Token(TokenKind.STRING, text[start:end], start, end, value)


def _unescape(text: str, body: str, offset: int) -> str:
    """The value of `body`, which begins at text[offset]."""

    def meant(escape: re.Match[str]) -> str:
        if escape["char"] is not None:
            if escape["char"] in "xuUN":
                raise wrong(escape, "has too few digits or no name")
            # As in Python, a backslash before any other character is a backslash.
            return _CHARS.get(escape["char"], escape[0])
        if escape["name"] is not None:
            try:
                return unicodedata.lookup(escape["name"])
            except KeyError:
                raise wrong(escape, "names no character") from None
        code = int(escape["octal"], 8) if escape["octal"] else int(_hex(escape), 16)
        if code > 0x10FFFF:
            raise wrong(escape, "is beyond the last character, \\U0010ffff")
        return chr(code)

    def wrong(escape: re.Match[str], what: str) -> Exception:
        return complaint(
            text,
            offset + escape.start(),
            offset + escape.end(),
            f"the escape {short(escape[0])} {what}",
        )

    return _ESCAPE.sub(meant, body)


def _hex(escape: re.Match[str]) -> str:
    return escape["x"] or escape["u"] or escape["U"]


def place_in(written: str, offset: int | None) -> tuple[int, int]:
    """The place of a character of a literal's value in its source; the whole literal if unclear."""
    opening = _STRING.match(written)
    is_raw = "\\" not in written or (opening is not None and opening["prefix"] in ("r", "R"))
    if offset is None or opening is None or not is_raw or not written.endswith(opening["quote"]):
        return 0, len(written)
    start = min(opening.end() + offset, len(written) - 1)
    return start, start + 1


def _skip(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position


def _strange(char: str) -> str:
    shown = char if char.isprintable() else f"\\u{ord(char):04x}"
    return f"`{shown}` has no meaning here"
