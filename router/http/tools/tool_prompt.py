"""Shows allowed tools to the model in its prompt, and constrains its answer to their calls."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from constraints.spec import Kind, Whitespace
from router.http.tools.calls import CallFormat
from router.http.tools.grammar import AllowedTools, tool_grammar
from router.request.errors import ToolsRefused
from router.request.grammar import RawGrammar
from router.request.validation import RawParams
from router.text.call_syntax import CallSyntax


def constrain_to_tools(
    raw: RawParams, allowed: AllowedTools, syntax: CallSyntax
) -> tuple[RawParams, CallFormat]:
    """The parameters with the grammar of the allowed calls, and the format of the calls.

    A grammar that the parameters have already is that of answers without calls. Raises ToolsRefused
    where the two cannot be combined.
    """
    form = None
    parts = {
        tool.place: RawGrammar(Kind.JSON_SCHEMA, tool.parameters, cuts=True)
        for tool in allowed.tools
    }
    if raw.grammar is not None and allowed.allows_text:
        form = _form(raw.grammar, raw.names["grammar"], syntax)
        parts[raw.names["grammar"]] = replace(raw.grammar, cuts=True)
    # Spaced as templates write arguments, and so as models have read them.
    text = tool_grammar(allowed, syntax, form)
    constrained = replace(
        raw,
        grammar=RawGrammar(Kind.LARK, text, whitespace=Whitespace.SPACED),
        grammar_parts=tuple(parts.items()),
        names={**raw.names, "grammar": allowed.field},
    )
    # In JSON what begins calls is a text like others.
    syntax = syntax if form is None else replace(syntax, only_at_start=True)
    return constrained, CallFormat(syntax, allowed.allows_text)


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
    """The messages, with the tools behind the text of the last one that is not the assistant's.

    For templates that show no tools; the place is TGI's. `prompt` follows the tools.
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
