"""An output state accepts every text that fits, token by token, however it got to where it stands.

No least instance meets what may be left out: items, optional properties, the longer branches.
"""

import json
from typing import Any

import pytest

from constraints.grammars.engine import GrammarMatcher
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind, Whitespace
from router.http.tools.grammar import AllowedTool, AllowedTools, tool_grammar
from router.text.template_traits import HERMES
from tests.constraints.cases import record
from tests.constraints.walks import demo_vocabulary, language_of, text_of

VOCABULARY = demo_vocabulary()
STRING = {"type": "string"}
UUID, DATE = {"type": "string", "format": "uuid"}, {"type": "string", "format": "date"}
MOMENT = {"type": "string", "format": "date-time"}
ABOVE_ZERO = {"type": "number", "exclusiveMinimum": 0}
SHARE = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
FROM_TEN = {"type": "integer", "minimum": 10}

PAYMENT = record(
    {"id": UUID, "amount": ABOVE_ZERO, "currency": {"enum": ["EUR", "USD"]}, "when": DATE}
)
PAID = (
    '{"id":"00000000-0000-0000-0000-000000000000","amount":1,"currency":"EUR","when":"2024-01-01"}'
)
BOX = record({"label": STRING, "score": SHARE, "x": FROM_TEN})
BOXED = '{"label":"a","score":0.5,"x":10}'


def open_record(properties: Any) -> Any:
    return {"type": "object", "properties": properties, "required": list(properties)}


def array(items: Any) -> Any:
    return {"type": "array", "items": items}


FOLLOWED = {
    "items": (open_record({"l": array(PAYMENT)}), f'{{"l":[{PAID},{PAID}]}}'),
    "open items": (
        open_record({"l": array(open_record({"price": ABOVE_ZERO, "day": DATE}))}),
        '{"l":[{"price":1,"day":"2024-01-01"}]}',
    ),
    "items that are between zero and one": (
        open_record({"l": array(BOX)}),
        f'{{"l":[{BOXED},{BOXED}]}}',
    ),
    "items below zero": (
        record({"l": array(record({"n": {"type": "number", "exclusiveMaximum": 0}, "d": DATE}))}),
        '{"l":[{"n":-1,"d":"2024-01-01"}]}',
    ),
    "a property that may be left out": (
        {"type": "object", "properties": {"box": BOX}},
        f'{{"box":{BOXED}}}',
    ),
    "what may be null": (
        record({"p": {"anyOf": [PAYMENT, {"type": "null"}]}}),
        f'{{"p":{PAID}}}',
    ),
    "the longer branch": (
        {"anyOf": [record({"error": STRING}), record({"result": BOX})]},
        f'{{"result":{BOXED}}}',
    ),
    "properties before those that are required": (
        array(record({"a": STRING, "b": MOMENT, "c": BOX, "z": FROM_TEN}, ["z"])),
        '[{"b":"2024-01-01T00:00:00Z","z":10}]',
    ),
    "a tree": (
        {
            "$ref": "#/$defs/node",
            "$defs": {"node": open_record({"p": SHARE, "kids": array({"$ref": "#/$defs/node"})})},
        },
        '{"p":0.5,"kids":[{"p":0.5,"kids":[{"p":0.5,"kids":[]}]}]}',
    ),
}


def followed(spec: ConstraintSpec, text: str, slack: int) -> str:
    """As much of the text as is accepted with so many tokens more than it has."""
    token_ids = VOCABULARY.backend.tokenize_str(text)
    budget = Budget(len(token_ids) + slack)
    output_state = OutputConstraintState(language_of(spec, VOCABULARY), VOCABULARY, budget)
    for count, token_id in enumerate(token_ids):
        if not output_state.check(token_id):
            return text_of(token_ids[:count], VOCABULARY)
        output_state.advance(token_id)
    return text


def tool(parameters: Any, *, allows_text: bool) -> ConstraintSpec:
    """The grammar of an answer that may call a tool `send`, or has to."""
    allowed = AllowedTools(
        (AllowedTool("send", parameters, "tools"),), allows_text, may_repeat=True
    )
    return ConstraintSpec(Kind.LARK, tool_grammar(allowed, HERMES), Whitespace.SPACED)


def call(arguments: Any) -> str:
    told = json.dumps(arguments)
    return f'<tool_call>\n{{"name": "send", "arguments": {told}}}\n</tool_call>'


@pytest.mark.parametrize("slack", [2, 20, 1000])
@pytest.mark.parametrize("name", FOLLOWED)
def test_an_instance_can_be_written_whatever_is_left_out_elsewhere(name: str, slack: int) -> None:
    schema, text = FOLLOWED[name]
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(schema))
    assert followed(spec, text, slack) == text


@pytest.mark.parametrize("slack", [2, 100, 1000])
@pytest.mark.parametrize("allows_text", [True, False])
@pytest.mark.parametrize("num_strings", [1, 4, 6])
def test_a_tool_can_be_called(num_strings: int, slack: int, *, allows_text: bool) -> None:
    names = [f"p{index}" for index in range(num_strings)]
    text = call(dict.fromkeys(names, "me"))
    spec = tool(record(dict.fromkeys(names, STRING)), allows_text=allows_text)
    assert followed(spec, text, slack) == text


def test_any_of_many_tools_can_be_called() -> None:
    parameters = {"find": record({"q": STRING}), "pay": PAYMENT, "send": open_record({"box": BOX})}
    tools = tuple(AllowedTool(name, each, "tools") for name, each in parameters.items())
    grammar = tool_grammar(AllowedTools(tools, allows_text=True, may_repeat=True), HERMES)
    spec = ConstraintSpec(Kind.LARK, grammar, Whitespace.SPACED)
    text = call({"box": {"label": "a", "score": 0.5, "x": 10}})
    assert followed(spec, text, 2) == text


def test_searches_that_find_nothing_make_the_next_ones_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(record({"n": FROM_TEN, "day": DATE})))
    output_state = OutputConstraintState(language_of(spec, VOCABULARY), VOCABULARY, Budget(1000))
    output_state.advance(VOCABULARY.backend.tokenize_str("{")[0])
    failed: list[int] = []

    def find_nothing(_: object, max_len: int, tails: object, num_failed: int) -> None:
        failed.append(num_failed)

    monkeypatch.setattr(GrammarMatcher, "shortest", find_nothing)
    blanks = [VOCABULARY.backend.tokenize_str(blank)[0] for blank in (" ", "\n", "\t")]
    monkeypatch.setattr("constraints.output_constraint.next_completion", lambda *_: None)
    assert not any(output_state.check(blank) for blank in blanks)
    assert failed == [0, 1, 2]


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        (record(dict.fromkeys(("from", "to", "street", "zip"), STRING)), None),
        (open_record(dict.fromkeys(("to", "subject", "body", "cc"), STRING)), None),
        (open_record(dict.fromkeys(("path", "old_text", "new_text"), STRING)), None),
        ({"type": "object"}, {}),
        (open_record({"a": FROM_TEN, "b": FROM_TEN}), {"a": 10, "b": 10}),
        (open_record({"p": SHARE, "day": DATE}), {"p": 0.1, "day": "2000-01-01"}),
        (
            open_record(
                {
                    "title": STRING,
                    "start": MOMENT,
                    "who": {
                        **array(open_record({"email": {"type": "string", "format": "email"}})),
                        "minItems": 1,
                    },
                }
            ),
            {"title": "", "start": "2000-01-01T00:00:00Z", "who": [{"email": "a@b.cd"}]},
        ),
    ],
    ids=str,
)
def test_a_call_is_told_to_need_no_more_than_it_does(parameters: Any, arguments: Any) -> None:
    if arguments is None:
        arguments = dict.fromkeys(parameters["properties"], "")
    known_len = len(VOCABULARY.backend.tokenize_str(call(arguments)))
    language = language_of(tool(parameters, allows_text=False), VOCABULARY)
    output_state = OutputConstraintState(language, VOCABULARY, Budget(known_len + 2))
    assert output_state.needed_len <= known_len + 2
