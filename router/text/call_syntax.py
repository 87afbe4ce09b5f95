"""How a model writes calls of tools, found in what its chat template makes of one.

    trigger ... opening [ head NAME middle ARGUMENTS tail ] separator [ ... ] closing

It knows no templates, no schemas and no masks: texts only.
"""

import re
from dataclasses import dataclass

_MISTRAL = "[TOOL_CALLS]"
_HERMES = "<tool_call>"
# What stands between the name and the arguments, whose key models spell in two ways.
_MIDDLES = ('", "arguments": ', '", "parameters": ')
_MARKED = re.compile(r"(?:(<tool_call>)\s*|(\[TOOL_CALLS\] ?)\[)?\{\"name\": \"$")


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """The texts around names and arguments.

    trigger:   what `opening + head` begins with; free text never holds it, so that it tells that
               calls begin
    separator: between two calls; None: an answer has one call at most
    only_at_start: the trigger means a call at the beginning of an answer alone, where it ends the
               hope for free text; elsewhere it is text
    id_len:    of the calls' ids, letters and digits, where templates insist on it
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
        """A call as it is written, to be shown to a model whose template shows none."""
        call = f"{self.head}NAME{self.middle}ARGUMENTS{self.tail}"
        return f"{self.opening}{call}{self.closing}"

    def __post_init__(self) -> None:
        assert (self.opening + self.head).startswith(self.trigger)
        assert self.trigger


HERMES = CallSyntax()


def find_syntax(rendered: str, spoken: str, name: str, argument: str) -> CallSyntax:
    """The syntax in which `rendered` shows a call of `name`.

    `spoken` is the same chat with a text in the call's place. `argument` is the first key of the
    call's arguments, and stands nowhere behind them. What is written in none of the known ways
    is taken for the most common one.
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
        # An object by itself, unless there is a mark before it that is none of ours.
        return _bare(middle) if spoken.startswith(rendered[: marked.start()]) else HERMES
    return HERMES


def _mistral(marker: str, middle: str) -> CallSyntax:
    """A list of calls behind a token of its own."""
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
