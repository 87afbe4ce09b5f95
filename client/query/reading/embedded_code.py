"""Finds the end of Python code in a prompt: in braces, or in a hole's annotation.

[X: f("]")]
          `-- the sign searched for; the one in the string does not count
"""

import re

from client.query.reading.text import Fragment

_CLOSED_BY = {"(": ")", "[": "]", "{": "}"}
_QUOTES = re.compile(r"'''|\"\"\"|'|\"")


class EmbeddedCode:
    """The characters of one prompt, read as code. Immutable."""

    def __init__(self, value: Fragment) -> None:
        self._chars = value.code
        self._offsets = value.offsets

    def find(self, index: int, signs: str, end: int | None = None) -> int | None:
        """The first of some signs outside of brackets and strings of Python code.

        Quotes with a backslash may delimit the code's strings, or be part of them.
        """
        stop = len(self._chars) if end is None else end
        found = self._found(index, signs, stop, skips_escaped=False)
        if found is None:
            found = self._found(index, signs, stop, skips_escaped=True)
        return found

    def _found(self, index: int, signs: str, stop: int, *, skips_escaped: bool) -> int | None:
        closing: list[str] = []
        while index < stop:
            char = self._chars[index]
            quotes = _QUOTES.match(self._chars, index, stop)
            if quotes and not (skips_escaped and self._is_escaped(index)):
                behind = self._behind_string(quotes[0], index, stop, skips_escaped)
                if behind is None:
                    return None
                index = behind
                continue
            if not closing and char in signs and not self._is_inequality(index):
                return index
            if char in _CLOSED_BY:
                closing.append(_CLOSED_BY[char])
            elif closing and char == closing[-1]:
                closing.pop()
            index += 1
        return None

    def _is_escaped(self, index: int) -> bool:
        return self._offsets[index + 1] - self._offsets[index] > 1

    def _is_inequality(self, index: int) -> bool:
        return self._chars[index : index + 2] == "!="

    def _behind_string(self, quotes: str, index: int, stop: int, skips_escaped: bool) -> int | None:
        index += len(quotes)
        while index < stop:
            if self._chars[index] == "\\":
                index += 2
            elif skips_escaped and self._is_escaped(index):
                index += 1
            elif self._chars.startswith(quotes, index):
                return index + len(quotes)
            else:
                index += 1
        return None
