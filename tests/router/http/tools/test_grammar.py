"""The grammar of calls, and the schemas of their arguments."""

import json
import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jsonschema
import numpy as np
import pytest

from constraints.compiler import Compiler
from constraints.errors import ConstraintError, Contradiction
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind, Whitespace
from constraints.vocabulary import Vocabulary
from router.http.tools.calls import CallArguments, CallBegun, CallReader
from router.http.tools.grammar import AllowedTool, AllowedTools, arguments_schema, tool_grammar
from router.request.errors import InvalidRequest
from router.text.template_traits import HERMES, CallSyntax
from tests.byte_tokenizer import EOS_ID, NUM_SPECIAL, VOCAB_SIZE, byte_ids, save_byte_tokenizer
from tests.router.http.tools.calls import LLAMA, MISTRAL, SYNTAXES, Call, written

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
# Those that ignore what stands beside a reference.
OLD = [DRAFT_7, "http://json-schema.org/draft-06/schema#", "http://json-schema.org/draft-04/schema"]
NEW = [
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
]
Q = {
    "type": ["object", "null"],
    "properties": {"x": {"type": "boolean"}},
    "required": ["x"],
    "additionalProperties": False,
}
X = {**Q, "type": "object"}


@cache
def compiler() -> Compiler:
    with TemporaryDirectory() as folder:
        path = save_byte_tokenizer(Path(folder)) / "tokenizer.json"
        return Compiler(Vocabulary.load(path, VOCAB_SIZE, [EOS_ID]))


def accepted(schema: dict[str, Any], texts: list[str]) -> list[str]:
    """Those of the texts that arguments of the schema may be."""
    spec = ConstraintSpec(
        Kind.JSON_SCHEMA, json.dumps(arguments_schema(schema, "a")), Whitespace.SPACED
    )
    language = compiler().compile(spec)
    found = []
    for text in texts:
        matcher = language.matcher()
        token_ids = byte_ids(text)
        if matcher.num_legal(token_ids) == len(token_ids):
            for token_id in token_ids:
                matcher.advance(token_id)
            found += [text] * matcher.is_complete
    return found


def refused(schema: dict[str, Any]) -> ConstraintError:
    with pytest.raises(ConstraintError) as error:
        accepted(schema, [])
    return error.value


def referring(target: Any, draft: str = DRAFT_7, **more: Any) -> dict[str, Any]:
    return {"$schema": draft, "$ref": "#/definitions/Q", "definitions": {"Q": target}, **more}


@pytest.mark.parametrize("draft", [*OLD, *NEW])
@pytest.mark.parametrize("more", [{}, {"type": "object"}])
def test_what_a_reference_leads_to_is_held_to_objects(draft: str, more: dict[str, Any]) -> None:
    texts = ["null", '{"x": true}', "{}"]

    assert accepted(referring(Q, draft, **more), texts) == ['{"x": true}']


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": DRAFT_7, "$ref": "#q", "definitions": {"Q": {"$id": "#q", **Q}}},
        {"$schema": DRAFT_7, "$ref": "#/arguments", "arguments": Q},
        referring({"$ref": "#/definitions/R"})
        | {"definitions": {"Q": {"$ref": "#/$defs/R"}}}
        | {"$defs": {"R": Q}},
        referring({"anyOf": [{"type": "string"}, Q]}),
        referring(True),
    ],
    ids=["an anchor", "a place called as ours", "over another", "a choice", "anything"],
)
def test_references_lead_where_they_led(schema: dict[str, Any]) -> None:
    assert accepted(schema, ["null", '""', "5", '{"x": true}']) == ['{"x": true}']


def test_a_draft_that_ignores_what_stands_beside_a_reference_goes_on_doing_so() -> None:
    schema = referring(Q, required=["y"], maxProperties=0)

    assert accepted(schema, ['{"x": true}']) == ['{"x": true}']


def test_a_reference_to_the_whole_leads_to_it() -> None:
    inner = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    schema = referring({**Q, "properties": {"x": inner}})

    texts = ["null", '{"x": null}', '{"x": {"x": null}}', '{"x": 5}']
    assert accepted(schema, texts) == texts[1:3]


def test_a_reference_to_an_object_stays_as_it_is() -> None:
    assert arguments_schema(referring(X), "a") == referring(X)


def test_what_is_never_an_object_is_refused_and_says_why() -> None:
    error = refused(referring({"type": "string"}))

    assert isinstance(error, Contradiction)
    assert error.parts == ('{"type": "object"}', '{"$ref": "#/definitions/Q"}')


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (referring(Q) | {"$ref": "#/no"}, "/arguments/allOf/0/$ref"),
        (referring(Q) | {"$ref": 5}, "/$ref"),
        (referring({**Q, "contains": {}}), "/definitions/Q/contains"),
        (
            referring({**Q, "properties": {"x": {"$ref": "#/no"}}}),
            "/definitions/Q/properties/x/$ref",
        ),
    ],
)
def test_what_is_wrong_is_told_with_the_places_of_its_author(
    schema: dict[str, Any], pointer: str
) -> None:
    assert getattr(refused(schema), "pointer", None) == pointer


def test_endless_depth_is_left_to_who_compiles_it() -> None:
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"items": deep}

    schema = referring(Q, items=deep)
    assert arguments_schema(schema, "a") is not None


@pytest.mark.parametrize("kind", ["string", ["object", "null"], None])
def test_another_type_is_refused_by_its_place(kind: Any) -> None:
    with pytest.raises(InvalidRequest, match="must be `object`") as error:
        arguments_schema({"type": kind}, "tools[0].parameters")
    assert error.value.field == "tools[0].parameters.type"


@pytest.mark.parametrize("target", [{"$ref": 5}, {"$ref": "#/no"}])
def test_what_cannot_be_followed_is_refused_by_the_compiler(target: dict[str, Any]) -> None:
    assert refused(referring(target))


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "more": {"$ref": "#/$defs/tree"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {"leaf": {"$ref": "#/$defs/tree"}},
            "additionalProperties": False,
        }
    },
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = (AllowedTool("get", CITY, "a"), AllowedTool("get_more", NOTHING, "b"))
ROME: Call = ("get", {"city": "Rome", "more": {"leaf": {"leaf": {}}}})
MORE: Call = ("get_more", {})


def accepts(allowed: AllowedTools, syntax: CallSyntax, text: str, form: str | None = None) -> bool:
    grammar = tool_grammar(allowed, syntax, form)
    matcher = compiler().compile(ConstraintSpec(Kind.LARK, grammar, Whitespace.SPACED)).matcher()
    token_ids = byte_ids(text)
    if matcher.num_legal(token_ids) < len(token_ids):
        return False
    for token_id in token_ids:
        matcher.advance(token_id)
    return matcher.is_complete


def allowing(
    *, allows_text: bool = False, may_repeat: bool = False, tools: Any = TOOLS
) -> AllowedTools:
    return AllowedTools(tools, allows_text, may_repeat)


every_syntax = pytest.mark.parametrize("syntax", SYNTAXES.values(), ids=SYNTAXES)


@every_syntax
@pytest.mark.parametrize("call", [ROME, MORE])
def test_a_required_call_is_one_of_the_tools_with_its_arguments(
    syntax: CallSyntax, call: Call
) -> None:
    assert accepts(allowing(), syntax, written(syntax, [call]))


@every_syntax
@pytest.mark.parametrize(
    "calls",
    [
        [("got", {})],
        [("get", {})],
        [("get", {"city": 5})],
        [("get", {"city": "a", "more": {"leaf": 1}})],
        [("get_more", {"city": "a"})],
        [],
    ],
)
def test_other_calls_are_none(syntax: CallSyntax, calls: list[Call]) -> None:
    for allows_text in (False, True) if calls else (False,):
        allowed = allowing(allows_text=allows_text, may_repeat=True)
        assert not accepts(allowed, syntax, written(syntax, calls))


@pytest.mark.parametrize("syntax", [HERMES, MISTRAL])
def test_several_calls_are_in_order_where_the_offer_has_them(syntax: CallSyntax) -> None:
    text = written(syntax, [ROME, MORE, ROME])

    assert accepts(allowing(may_repeat=True), syntax, text)
    assert not accepts(allowing(), syntax, text)


def test_where_a_call_is_the_answer_there_is_one() -> None:
    once = written(LLAMA, [MORE])

    assert accepts(allowing(may_repeat=True), LLAMA, once)
    assert not accepts(allowing(may_repeat=True), LLAMA, once + once)


@every_syntax
@pytest.mark.parametrize("said", ["", "hello", "a <tool", "<tool_cal", "[TOOL_CAL", 'so: {"a"\n\n'])
def test_an_answer_may_be_text(syntax: CallSyntax, said: str) -> None:
    assert accepts(allowing(allows_text=True), syntax, said)
    assert not accepts(allowing(), syntax, said)


@pytest.mark.parametrize("syntax", [HERMES, MISTRAL])
def test_text_may_turn_into_calls_and_not_back(syntax: CallSyntax) -> None:
    allowed = allowing(allows_text=True, may_repeat=True)
    text = written(syntax, [ROME, MORE], said="I look.\n")

    assert accepts(allowed, syntax, text)
    assert not accepts(allowed, syntax, text + " so")
    assert not accepts(allowed, syntax, text[:-1])
    assert not accepts(allowed, syntax, f"a {syntax.trigger}")
    assert not accepts(allowed, syntax, f"a {syntax.trigger} b")


def test_128_tools_are_one_grammar() -> None:
    tools = tuple(AllowedTool(f"tool_{index}", CITY, "a") for index in range(128))
    allowed = allowing(tools=tools)

    assert accepts(allowed, HERMES, written(HERMES, [("tool_127", {"city": "a"})]))
    assert not accepts(allowed, HERMES, written(HERMES, [("tool_128", {"city": "a"})]))


def drawn(allowed: AllowedTools, syntax: CallSyntax, seed: int, budget: int = 120) -> str:
    """An answer at random, as a shard draws it: any legal byte, in time for its end."""
    grammar = tool_grammar(allowed, syntax)
    language = compiler().compile(ConstraintSpec(Kind.LARK, grammar, Whitespace.SPACED))
    guide = OutputConstraintState(language, compiler().vocabulary, Budget(max_len=budget))
    luck = random.Random(seed)
    row = np.zeros(compiler().vocabulary.num_words, dtype=np.int32)
    written = b""
    while not guide.is_over:
        guide.fill(row)
        legal = [i for i in range(VOCAB_SIZE) if row[i // 32] >> (i % 32) & 1]
        luck.shuffle(legal)
        token_id = next(i for i in legal if i == EOS_ID or guide.check(i))
        if token_id == EOS_ID:
            break
        guide.advance(token_id)
        written += bytes([token_id - NUM_SPECIAL])
        if len(written) == budget:
            break
    assert guide.is_satisfied
    return written.decode()


@every_syntax
@pytest.mark.parametrize("allows_text", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_drawn_is_read_as_calls_that_the_schemas_allow(
    syntax: CallSyntax, allows_text: bool, seed: int
) -> None:
    allowed = allowing(allows_text=allows_text, may_repeat=True)
    text = drawn(allowed, syntax, seed)

    reader = CallReader(syntax, allows_text=allows_text)
    calls: list[list[str]] = []
    for piece in reader.push(text) + reader.finish():
        if isinstance(piece, CallBegun):
            calls.append([piece.name, ""])
        elif isinstance(piece, CallArguments):
            calls[-1][1] += piece.text
    assert calls or allows_text
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), {"get": CITY, "get_more": NOTHING}[name])


def test_arguments_are_spaced_as_templates_write_them() -> None:
    call = written(HERMES, [ROME])

    assert accepts(allowing(), HERMES, call)
    assert not accepts(allowing(), HERMES, call.replace('"city": ', '"city":'))
    assert not accepts(allowing(), HERMES, call.replace('"city": ', '"city":  '))


SAY = json.dumps(
    {
        "type": "object",
        "properties": {"say": {"type": "string"}},
        "required": ["say"],
        "additionalProperties": False,
    }
)


@pytest.mark.parametrize("syntax", [HERMES, MISTRAL])
def test_an_answer_of_a_form_calls_or_has_the_form(syntax: CallSyntax) -> None:
    allowed = allowing(allows_text=True, may_repeat=True)
    said = json.dumps({"say": syntax.opening})

    assert accepts(allowed, syntax, said, SAY)
    assert accepts(allowed, syntax, written(syntax, [ROME, MORE]), SAY)
    for text in ("", "hello", "{}", written(syntax, [ROME], said=said), said + said):
        assert not accepts(allowed, syntax, text, SAY)


def test_an_answer_that_has_to_call_has_no_form() -> None:
    assert accepts(allowing(), HERMES, written(HERMES, [ROME]), SAY)
    assert not accepts(allowing(), HERMES, '{"say": ""}', SAY)
