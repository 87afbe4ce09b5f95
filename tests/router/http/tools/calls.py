"""Calls as texts and as values, in every syntax, for tests."""

import json
from typing import Any

from router.text.template_traits import HERMES, CallSyntax

MISTRAL = CallSyntax(
    trigger="[TOOL_CALLS]",
    opening="[TOOL_CALLS][",
    separator=", ",
    closing="]",
    id_len=9,
)
LLAMA = CallSyntax(
    trigger="{",
    opening="",
    middle='", "parameters": ',
    separator=None,
    closing="",
    only_at_start=True,
)
SYNTAXES = {"hermes": HERMES, "mistral": MISTRAL, "llama": LLAMA}

Call = tuple[str, dict[str, Any]]


def written(syntax: CallSyntax, calls: list[Call], said: str = "") -> str:
    """What a model writes that calls these, one after the other."""
    if not calls:
        return said
    texts = [
        syntax.head + name + syntax.middle + json.dumps(arguments) + syntax.tail
        for name, arguments in calls
    ]
    return said + syntax.opening + (syntax.separator or "").join(texts) + syntax.closing
