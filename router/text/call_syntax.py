"""The syntax of a model's tool calls, recognised in a chat that its template rendered.

    trigger ... opening [ head NAME middle ARGUMENTS tail ] separator [ ... ] closing

It knows no templates, no schemas and no masks: texts only.
"""

import re
from dataclasses import dataclass

_MISTRAL = "[TOOL_CALLS]"
_HERMES = "<tool_call>"
# The text between the name and the arguments, whose key has two spellings.
_MIDDLES = ('", "arguments": ', '", "parameters": ')
_MARKED = re.compile(r"(?:(<tool_call>)\s*|(\[TOOL_CALLS\] ?)\[)?\{\"name\": \"$")


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """The texts around names and arguments.

    trigger:   the beginning of `opening + head`; free text never contains it, so that it marks
               where calls begin
    separator: between two calls; None: an answer has one call at most
    only_at_start: the trigger begins a call only at the beginning of an answer, which then has no
               free text; elsewhere it is text
    id_len:    characters of the calls' ids, letters and digits, where templates require it
    """

    trigger: str = _HERMES
    opening: str = _HERMES + "\n"
    head: str = '{"name": "'
    middle: str = _MIDDLES[0]
    tail: str = "}"
    separator: str | None = "\n</tool_call>\n<tool_call>\n"
    closing: str = "\n</tool_call>"
    only_at_start: bool = False
    id_len: int | None = None

    @property
    def example(self) -> str:
        """An example call, for the prompt of a model whose template shows none."""
        call = f"{self.head}NAME{self.middle}ARGUMENTS{self.tail}"
        return f"{self.opening}{call}{self.closing}"

    def __post_init__(self) -> None:
        assert (self.opening + self.head).startswith(self.trigger)
        assert self.trigger


HERMES = CallSyntax()


def find_syntax(rendered: str, spoken: str, name: str, argument: str) -> CallSyntax:
    """The syntax in which `rendered` shows a call of `name`.

    `spoken` is the same chat with a text in the call's place. `argument` is the first key of the
    call's arguments, and does not occur after them. An unknown syntax counts as the most common
    one.
    """
    for middle in _MIDDLES:
        shown = f'{name}{middle}{{"{argument}"'
        place = rendered.rfind(shown)
        if place < 0:
            continue
        marked = _MARKED.search(rendered[:place])
        if marked is None:
            return HERMES
        hermes, mistral = marked.groups()
        if hermes:
            return CallSyntax(middle=middle)
        if mistral:
            return _mistral(mistral, middle)
        # An object by itself, unless an unknown marker is before it.
        return _bare(middle) if spoken.startswith(rendered[: marked.start()]) else HERMES
    return HERMES


def _mistral(marker: str, middle: str) -> CallSyntax:
    """A list of calls behind a special token."""
    return CallSyntax(
        trigger=_MISTRAL,
        opening=marker + "[",
        middle=middle,
        separator=", ",
        closing="]",
        id_len=9,
    )


def _bare(middle: str) -> CallSyntax:
    """An answer that is an object is a call, as with Llama 3."""
    return CallSyntax(
        trigger="{",
        opening="",
        middle=middle,
        separator=None,
        closing="",
        only_at_start=True,
    )
