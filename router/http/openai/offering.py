"""An offer of tools brought to the model: told in its prompt where its template does not, and kept
by a constraint. The same for every API that has tools."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from constraints.spec import Kind, Whitespace
from router.grammar import RawGrammar
from router.http.openai.tool_grammar import Offer, tool_grammar
from router.text.call_syntax import CallSyntax
from router.validation import RawParams


def offering(raw: RawParams, offer: Offer, syntax: CallSyntax, field: str) -> RawParams:
    """The parameters with the grammar of what may be called; `field` is where the tools stand."""
    # Spaced as templates write arguments, and so as models have read them.
    grammar = RawGrammar(Kind.LARK, tool_grammar(offer, syntax), whitespace=Whitespace.SPACED)
    parts = {
        tool.place: RawGrammar(Kind.JSON_SCHEMA, tool.parameters, cuts=True) for tool in offer.tools
    }
    return replace(
        raw,
        grammar=grammar,
        grammar_parts=tuple(parts.items()),
        names={**raw.names, "grammar": field},
    )


def tell_tools(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    syntax: CallSyntax,
    prompt: str | None = None,
) -> list[Mapping[str, Any]]:
    """The messages, the last that is not the model's own with the tools behind its text.

    For templates that show no tools; the place is TGI's, and `prompt` what is said behind them.
    """
    if prompt is None:
        prompt = f"To call one of these functions, answer with {syntax.example}"
    told = f"\n---\n{orjson.dumps(tools).decode()}\n{prompt}"
    for index in reversed(range(len(messages))):
        message = messages[index]
        if message["role"] != "assistant":
            message = {**message, "content": f"{message.get('content', '')}{told}"}
            return [*messages[:index], message, *messages[index + 1 :]]
    return list(messages)
