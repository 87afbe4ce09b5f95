"""Removes comments as in Figure 1b of LMQL's paper: `"keys", ...] // a longer list`.

`//` is also Python's division. It is a comment only if the line is no valid Python in any case: two
words follow each other behind it, and there is no operand before it (it begins its line, or follows
a string, a list or a sign).
"""

import keyword
import re
from collections.abc import Iterator

from client.query.reading.clause_keywords import DECODER_WORDS
from client.query.reading.text import SourceSpan

_PART = re.compile(
    r"(?P<string>[A-Za-z]{0,2}(?:'''(?s:\\.|.)*?'''|\"\"\"(?s:\\.|.)*?\"\"\""
    r"|'(?:\\(?s:.)|[^'\\\n])*'|\"(?:\\(?s:.)|[^\"\\\n])*\"))"
    r"|(?P<comment>\#[^\n]*)|(?P<slashes>//[^\n]*)"
    r"|(?P<word>\w+)|(?P<line>\n)|(?P<sign>[^\s])"
)
_TWO_WORDS = re.compile(r"\b([^\W\d]\w*)[ \t]+(?=([^\W\d]\w*))")
# Keywords that may be adjacent to words, in Python or in clauses.
_JOINING = {*keyword.kwlist, *DECODER_WORDS, "where", "over", "distribute", "distribution"}
_CLOSING = {")", "]", "}"}


def without_foreign_comments(text: str, region: SourceSpan) -> str:
    """The text with these comments of a region replaced by blanks; offsets stay."""
    parts = []
    begin = 0
    for comment in _comments(text, region):
        parts += [text[begin : comment.start], " " * (comment.end - comment.start)]
        begin = comment.end
    return "".join([*parts, text[begin:]])


def _comments(text: str, region: SourceSpan) -> Iterator[SourceSpan]:
    index = region.start
    can_be_divided = False
    displays = list[bool]()
    while (part := _PART.search(text, index, region.end)) is not None:
        index = part.end()
        shown = part[0]
        if part.lastgroup == "slashes":
            if can_be_divided or not _are_words(shown[2:]):
                index = part.start() + 2
                can_be_divided = False
            else:
                yield SourceSpan(part.start(), part.end())
        elif part.lastgroup in ("line", "string"):
            can_be_divided = False
        elif part.lastgroup == "word":
            can_be_divided = shown.lower() not in _JOINING
        elif part.lastgroup == "sign":
            if shown == "[":
                displays.append(not can_be_divided)
            is_list = shown == "]" and bool(displays) and displays.pop()
            can_be_divided = shown in _CLOSING and not is_list


def _are_words(behind: str) -> bool:
    """Whether two words follow each other before any string."""
    plain = re.split(r"['\"#]", behind)[0]
    return any(_JOINING.isdisjoint(pair.groups()) for pair in _TWO_WORDS.finditer(plain))
