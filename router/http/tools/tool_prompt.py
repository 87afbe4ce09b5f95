"""Offers tools to the model: in its template or its prompt, and by a constraint. For every API."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from constraints.spec import Kind, Whitespace
from router.http.tools.calls import Calling
from router.http.tools.grammar import AllowedTools, tool_grammar
from router.request.errors import ToolsRefused
from router.request.grammar import RawGrammar
from router.request.validation import RawParams
from router.text.call_syntax import CallSyntax


def offering(
    raw: RawParams, offer: AllowedTools, syntax: CallSyntax, field: str
) -> tuple[RawParams, Calling]:
    """The parameters with the grammar of what may be called, and how answers call.

    `field` is where the tools stand. A grammar that the parameters have is that of answers that do
    not call. Raises ToolsRefused where that cannot be.
    """
    form = None
    parts = {
        tool.place: RawGrammar(Kind.JSON_SCHEMA, tool.parameters, cuts=True) for tool in offer.tools
    }
    if raw.grammar is not None and offer.allows_text:
        form = _form(raw.grammar, raw.names["grammar"], syntax)
        parts[raw.names["grammar"]] = replace(raw.grammar, cuts=True)
    # Spaced as templates write arguments, and so as models have read them.
    text = tool_grammar(offer, syntax, form)
    offered = replace(
        raw,
        grammar=RawGrammar(Kind.LARK, text, whitespace=Whitespace.SPACED),
        grammar_parts=tuple(parts.items()),
        names={**raw.names, "grammar": field},
    )
    # In JSON what begins calls is a text like others.
    syntax = syntax if form is None else replace(syntax, only_at_start=True)
    return offered, Calling(syntax, offer.allows_text)


def _form(grammar: RawGrammar, field: str, syntax: CallSyntax) -> str:
    """The schema of an answer that does not call, as JSON text. Raises ToolsRefused."""
    says_more = grammar.whitespace or grammar.lenient or grammar.cuts
    if grammar.kind is not Kind.JSON_SCHEMA or says_more:
        raise ToolsRefused(
            f"`{field}` and tools that may be called cannot both shape an answer, unless `{field}` "
            "is a JSON schema and says nothing else",
            field,
        )
    if syntax.only_at_start:
        raise ToolsRefused(
            f"`{field}` and tools that may be called cannot both shape an answer of this model, "
            "whose calls are JSON by themselves",
            field,
        )
    return grammar.constraint(field).spec.text


def add_tools(
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
    tools_text = f"\n---\n{orjson.dumps(tools).decode()}\n{prompt}"
    for index in reversed(range(len(messages))):
        message = messages[index]
        if message["role"] != "assistant":
            message = {**message, "content": f"{message.get('content', '')}{tools_text}"}
            return [*messages[:index], message, *messages[index + 1 :]]
    return list(messages)
