"""What of a finished answer is checked against which schema; thoughts behind raw prompts."""

import json
from dataclasses import replace
from typing import Any

import pytest

from constraints.spec import ConstraintSpec, Kind
from proto.contract import FinishReason
from router.http.answers import RawThought, Reading, SchemasOfAnswer
from router.request.request import Finished, JudgedPart, TokenGenerated, TokenLogprob
from router.text.answer_format import AnswerFormat, ThoughtForm
from tests.router.text.answers import FORMATS, THINK, CallValue, written

ODD: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "string"}}}
EVEN: dict[str, Any] = {"type": "object", "properties": {"y": {"type": "integer"}}}
FORM = ConstraintSpec(Kind.JSON_SCHEMA, '{"type":"array"}')


def schemas(answer_format: AnswerFormat) -> SchemasOfAnswer:
    tools = {"odd": ODD, "even": EVEN}
    return SchemasOfAnswer(Reading(answer_format, may_call=True, parameters_by_tool=tools), FORM)


@pytest.mark.parametrize("name", FORMATS)
def test_the_arguments_of_each_call_have_the_schema_of_its_tool(name: str) -> None:
    calls: list[CallValue] = [("odd", {"x": "}a"}), ("even", {"y": 2})]
    form = FORMATS[name].calls
    if form is None or form.between is None:
        calls = calls[:1]
    found = schemas(FORMATS[name]).of(written(FORMATS[name], calls))
    assert [(part.name, json.loads(part.text)) for part in found] == calls
    kinds = [json.loads(part.spec.text) for part in found]
    assert kinds == [ODD, EVEN][: len(calls)]


def test_an_answer_that_calls_nothing_has_the_schema_of_the_text_behind_its_thought() -> None:
    parts = schemas(AnswerFormat(thought=THINK))
    assert parts.of("<think>\n[\n</think>\n\n[1]") == [JudgedPart(FORM, "[1]")]
    assert replace(parts, text=None).of("[1]") == []


@pytest.mark.parametrize(
    ("prompt", "texts", "num_tokens"),
    [
        ("Hi", ["[THINK]", "Hm", ".", "[/THINK]", "Hello", "</s>"], 4),
        ("Hi [THINK]", ["Hm", ".", "</s>"], 3),
    ],
)
def test_marks_of_a_thought_may_be_tokens_that_no_text_shows(
    prompt: str, texts: list[str], num_tokens: int
) -> None:
    thought = RawThought(ThoughtForm("[THINK]", "[/THINK]"), prompt)
    for token_id, text in enumerate(texts):
        is_special = text[0] in "[<"
        token = TokenLogprob(token_id, text, None, is_special, hidden=is_special)
        thought.token(TokenGenerated(token, "" if is_special else text))
    end = Finished(FinishReason.EOS, "", "", 1, 0, len(texts), None)
    assert thought.fields(end) == {"reasoning": "Hm.", "reasoning_tokens": num_tokens}
