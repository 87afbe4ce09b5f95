"""Constraints of answers whose text stands between marks of the model's own."""

import re
from collections.abc import Mapping
from dataclasses import replace

import orjson

from constraints.spec import Kind, Whitespace
from router.engine.validation import RawParams
from router.request.errors import Unsupported
from router.request.parameters import RawGrammar
from router.text.answer_format import AnswerFormat
from router.text.grammar_rules import GrammarRules

# What stands for itself in a pattern between slashes, and what does not.
_IN_SLASHES = re.compile(r"\\.|[/\n]", re.DOTALL)


def constrain_between_marks(
    raw: RawParams, answer_format: AnswerFormat, marks: Mapping[str, int]
) -> RawParams:
    """The parameters with their grammar between the marks of a text.

    `marks` are the special tokens in the texts of the format, by name. Raises Unsupported for
    constraints that are no part of a grammar, InvalidRequest for what is none.
    """
    grammar = raw.grammar
    if grammar is None or not answer_format.content_opening:
        return raw
    field = raw.name("grammar")
    # What is written there, as it is checked by itself.
    text = grammar.constraint(field).spec.text
    rules = GrammarRules(marks)
    is_plain = not (grammar.lenient or grammar.any_key_order)
    if grammar.kind is Kind.JSON_SCHEMA and is_plain:
        body = rules.rule(f"%json {text}")
    elif grammar.kind is Kind.REGEX:
        body = rules.terminal(f"/{_IN_SLASHES.sub(_escaped, text)}/")
    elif grammar.kind is Kind.CHOICE:
        choices = (orjson.dumps(choice).decode() for choice in orjson.loads(text))
        body = rules.rule(" | ".join(choices))
    else:
        raise Unsupported(
            f"`{field}`: this model writes its answers between marks, where only JSON schemas "
            "without `lenient` and `key_order`, regular expressions and choices are kept",
            field,
        )
    closing = rules.exact(answer_format.content_closing)
    start = f"{rules.exact(answer_format.content_opening)} {body} {closing}"
    whole = RawGrammar(
        Kind.LARK,
        rules.text(start),
        whitespace=grammar.whitespace or Whitespace.FLEXIBLE,
        cuts=grammar.cuts,
    )
    part = replace(grammar, cuts=True, is_part=True)
    return replace(raw, grammar=whole, grammar_parts=((field, part),))


def _escaped(match: re.Match[str]) -> str:
    return {"/": "\\/", "\n": "\\n"}.get(match[0], match[0])
