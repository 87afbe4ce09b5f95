"""Texts of clients in which a control token's text stands for itself.

A chat template puts clients' texts between control tokens (`<|end|><|user|>`). A client that writes
those into a text must not speak for others, so they are marked before the template is rendered:

    content    "so I typed <|end|>"                     a control token's text, of a client
    marked     "so I typed <" mark "|end|>"             mark: digits that are in no text of the chat
    rendered   "<|user|>so I typed <" mark "|end|><|end|>"
    runs        |-------|----------------------|-----|
                 tokens   plain, without marks   tokens

Nearly no chat has such a text; then nothing is marked, and the prompt is a plain string.
"""

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from router.request.errors import InvalidRequest

# Each mark makes the prompt longer.
MAX_MARKED = 1 << 14
_NUM_DIGITS = 24
# Fields whose words the API prescribes, and a template compares.
_NOT_SHOWN = frozenset({"type", "role"})


class MarkedText(str):
    """A rendered prompt, in which `mark` splits what clients wrote."""

    mark: str

    def __new__(cls, text: str, mark: str) -> "MarkedText":
        marked = super().__new__(cls, text)
        marked.mark = mark
        return marked

    @property
    def visible(self) -> str:
        """The prompt as it reads."""
        return self.replace(self.mark, "")


def visible(prompt: str) -> str:
    """A prompt as it reads."""
    return prompt.visible if isinstance(prompt, MarkedText) else prompt


@dataclass(frozen=True, slots=True)
class Run:
    """A piece of a prompt, without marks; in a plain one control tokens' texts are text."""

    text: str
    is_plain: bool


class ControlTokens:
    """Finds the texts of a model's control tokens. One of a single character is not looked for."""

    def __init__(self, texts: Iterable[str]) -> None:
        found = sorted({text for text in texts if len(text) > 1}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, found)))
        self._longest = max(map(len, found), default=0)

    def marked(self, values: Any) -> tuple[Any, str | None]:
        """Values of a template with all their strings marked, and the mark; None: nothing is."""
        if not self._longest:
            return values, None
        walk = _Walk(self._pattern, self._longest)
        found = walk.value(values)
        return (found, walk.mark) if walk.has_marked else (values, None)

    def runs(self, prompt: MarkedText) -> list[Run]:
        """The pieces of a prompt; the template's control tokens are in those that are not plain."""
        runs: list[Run] = []
        unmarked = ""
        start = 0
        spans = [match.span() for match in self._pattern.finditer(prompt)]
        for stop, after in [*spans, (len(prompt), len(prompt))]:
            between = prompt[start:stop]
            token = prompt[stop:after]
            if prompt.mark in between:
                runs += [Run(unmarked, False)] if unmarked else []
                runs.append(Run(between.replace(prompt.mark, ""), True))
                unmarked = token
            else:
                unmarked += between + token
            start = after
        return [*runs, Run(unmarked, False)] if unmarked else runs


class _Walk:
    """One walk through the values of a template, in the order in which it would show them.

    A token's text may be spread over neighbours, which a template shows without anything between.
    """

    def __init__(self, pattern: re.Pattern[str], longest: int) -> None:
        self.mark = "".join(secrets.choice("0123456789") for _ in range(_NUM_DIGITS))
        self.has_marked = False
        self._pattern = pattern
        self._longest = longest
        self._num_marked = 0
        self._tail = ""

    def value(self, value: Any) -> Any:
        """A copy in which what has to be is marked."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {
                self._split(key): each if key in _NOT_SHOWN else self.value(each)
                for key, each in value.items()
            }
        if isinstance(value, Sequence):
            return [self.value(each) for each in value]
        return value

    def _text(self, text: str) -> str:
        # A template may trim what it shows.
        seam = self._tail + text.lstrip()[: self._longest]
        spread = any(
            match.start() < len(self._tail) < match.end() for match in self._pattern.finditer(seam)
        )
        self._tail = (self._tail + text).rstrip()[-self._longest :]
        self.has_marked |= spread
        return self.mark + self._split(text) if spread else self._split(text)

    def _split(self, text: str) -> str:
        """The text with a mark in each control token's text."""
        marked = self._pattern.sub(self._divided, text)
        # What is left of a token may be another one.
        while marked != text:
            self.has_marked = True
            text = marked
            marked = self._pattern.sub(self._divided, marked)
        return marked

    def _divided(self, match: re.Match[str]) -> str:
        self._num_marked += 1
        if self._num_marked > MAX_MARKED:
            message = f"`messages` must have at most {MAX_MARKED} texts of control tokens"
            raise InvalidRequest(message, "messages")
        return match[0][0] + self.mark + match[0][1:]
