"""Parses string literals, mapping each character to its place in the program."""

import re
import unicodedata

from client.query.reading.text import Fragment, Text
from client.query.reading.tokens import Token

_LITERAL = re.compile(r"([A-Za-z]*)('''|\"\"\"|'|\")")
_ONE_LINE = re.compile(r"(?:[^\n\\]|\\.)*", re.DOTALL)
_ESCAPE = re.compile(
    r"\\(?:(?P<plain>[\n\\'\"abfnrtv])|(?P<octal>[0-7]{1,3})|x(?P<x>[0-9a-fA-F]{2})"
    r"|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8})|N\{(?P<name>[^{}]+)\}|(?P<cut>[xuUN]))"
)
_PLAIN = {
    "\n": "",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}


def literal_of(text: Text, tokens: tuple[Token, ...]) -> Fragment:
    """The joined value of adjacent literals, with escapes resolved. Raises BadProgram.

    Content in braces of f-strings is left unchanged.
    """
    chars: list[str] = []
    offsets: list[int] = []
    for token in tokens:
        content = content_of(token)
        body = text.text[content.start : content.stop]
        if len(_quotes_of(token)) == 1:
            _require_one_line(text, body, content.start)
        if "r" in prefix_of(token):
            chars.extend(body)
            offsets.extend(content)
        else:
            _unescape(text, body, content.start, chars, offsets)
    offsets.append(tokens[-1].end)
    return Fragment("".join(chars), offsets)


def prefix_of(token: Token) -> str:
    """The prefix before the quotes, in lower case."""
    match = _LITERAL.match(token.text)
    assert match is not None
    return match[1].lower()


def content_of(token: Token) -> range:
    """The offsets between the quotes."""
    match = _LITERAL.match(token.text)
    assert match is not None
    return range(token.start + match.end(), token.end - len(match[2]))


def _quotes_of(token: Token) -> str:
    match = _LITERAL.match(token.text)
    assert match is not None
    return match[2]


def _require_one_line(text: Text, body: str, start: int) -> None:
    """Refuse line ends: before 3.12 Python's tokens include them behind an escaped backslash."""
    match = _ONE_LINE.match(body)
    assert match is not None
    if match.end() < len(body):
        raise text.bad("the string does not end on its line", start + match.end())


def is_prompt_literal(token: Token) -> bool:
    """Whether it is a string and not bytes."""
    match = _LITERAL.match(token.text)
    return match is not None and "b" not in match[1].lower()


def _unescape(text: Text, body: str, start: int, chars: list[str], offsets: list[int]) -> None:
    index = 0
    while index < len(body):
        match = _ESCAPE.match(body, index) if body[index] == "\\" else None
        if match is None:
            chars.append(body[index])
            offsets.append(start + index)
            index += 1
            continue
        made = _meaning(match)
        if made is None:
            raise text.bad(
                f"the escape {match[0]!r} is not complete, or no character", start + index
            )
        chars.extend(made)
        offsets.extend([start + index] * len(made))
        index = match.end()


def _meaning(match: re.Match[str]) -> str | None:
    """The value of an escape; None: it is malformed."""
    if match["plain"] is not None:
        return _PLAIN[match["plain"]]
    if match["octal"] is not None:
        return chr(int(match["octal"], 8))
    if match["name"] is not None:
        try:
            return unicodedata.lookup(match["name"])
        except KeyError:
            return None
    digits = match["x"] or match["u"] or match["U"]
    if digits is None or int(digits, 16) > 0x10FFFF:
        return None
    return chr(int(digits, 16))
