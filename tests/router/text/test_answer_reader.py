"""Thoughts, text and calls are told from text as it comes, the same however it is cut."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto.contract import FinishReason
from router.request.request import Finished
from router.text.answer_format import AnswerFormat
from router.text.answer_reader import (
    Answer,
    AnswerReader,
    Call,
    CallArguments,
    CallBegun,
    Piece,
    TextPiece,
    ThoughtPiece,
)
from tests.router.text.answers import FORMATS, CallValue, schema_of, written

HOSTILE = {"code": "if a < b && c > \"d\":\n\tprint('é{}[]\\\\', f(x=1))\n# </end> 日本 👍"}
ARGUMENTS: dict[str, Mapping[str, Any]] = {
    "none": {},
    "types": {
        "s": "x y",
        "t": "42",
        "i": -3,
        "f": 2.5,
        "b": True,
        "z": None,
        "l": [1, "a"],
        "o": {"k": [1]},
    },
    "hostile": HOSTILE,
}
HERMES = FORMATS["hermes"]
TAGGED = FORMATS["parameters in tags"]
LLAMA = FORMATS["llama json"]
THOUGHT = "First,\n\nthe <tool_call> of all."


def reader_of(
    form: AnswerFormat,
    calls: Sequence[CallValue] = (),
    *,
    in_thought: bool = False,
    may_call: bool = True,
) -> AnswerReader:
    schemas = {name: schema_of(arguments) for name, arguments in calls}
    return AnswerReader(form, schemas, in_thought=in_thought, may_call=may_call)


def told(reader: AnswerReader, texts: Sequence[str]) -> list[Piece]:
    """The pieces, neighbours of one kind as one."""
    pieces: list[Piece] = []
    for piece in [*(each for text in texts for each in reader.push(text)), *reader.finish()]:
        last = pieces[-1] if pieces else None
        if isinstance(piece, CallArguments) and isinstance(last, CallArguments):
            pieces[-1] = CallArguments(piece.index, last.text + piece.text)
        elif isinstance(piece, TextPiece) and isinstance(last, TextPiece):
            pieces[-1] = TextPiece(last.text + piece.text)
        elif isinstance(piece, ThoughtPiece) and isinstance(last, ThoughtPiece):
            pieces[-1] = ThoughtPiece(last.text + piece.text)
        else:
            pieces.append(piece)
    return pieces


def values(answer: Answer) -> list[CallValue]:
    return [(call.name, json.loads(call.arguments)) for call in answer.calls]


def cut(text: str, places: Sequence[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:stop] for start, stop in pairwise(bounds)]


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
@pytest.mark.parametrize("name", FORMATS)
def test_every_cut_of_an_answer_tells_the_same(name: str, arguments: Mapping[str, Any]) -> None:
    form = FORMATS[name]
    for calls_form in (form.calls, *form.other_calls):
        assert calls_form is not None
        calls: list[CallValue] = [("look_up", arguments)]
        if calls_form.between is not None:
            calls.append(("fetch-all.v2", HOSTILE))
        text = "" if calls_form.is_bare or form.content_opening else "Let me see."
        thought = THOUGHT if form.thought else ""
        answer = written(form, calls, text, thought, calls_form)

        whole = reader_of(form, calls).read(answer)
        pieces = told(reader_of(form, calls), [answer])

        assert (whole.thought, whole.text, values(whole)) == (thought, text, calls)
        assert all(call.is_whole for call in whole.calls)
        assert told(reader_of(form, calls), list(answer)) == pieces
        for place in range(1, len(answer)):
            parts = [answer[:place], answer[place:]]
            assert told(reader_of(form, calls), parts) == pieces, parts


@pytest.mark.parametrize("name", FORMATS)
@given(data=st.data())
def test_nonsense_is_told_the_same_however_it_is_cut(name: str, data: st.DataObject) -> None:
    form = FORMATS[name]
    calls: list[CallValue] = [("look_up", ARGUMENTS["types"]), ("get", HOSTILE)]
    num_calls = 2 if form.calls is not None and form.calls.between is not None else 1
    right = written(form, calls[:num_calls], "", "Hm." if form.thought else "")
    pieces = [right[start : start + 9] for start in range(0, len(right), 9)]
    words = st.sampled_from([*pieces, right, *form.markers, "look_up", " ", "\n", '"', "}", "a, b"])
    text = "".join(data.draw(st.lists(words, max_size=12)))
    places = data.draw(st.lists(st.integers(0, 999), max_size=20))
    in_thought = data.draw(st.booleans())

    whole = told(reader_of(form, calls, in_thought=in_thought), [text])

    assert told(reader_of(form, calls, in_thought=in_thought), cut(text, places)) == whole
    assert told(reader_of(form, calls, in_thought=in_thought), list(text)) == whole


@given(text=st.text(alphabet="<tool_cal>/hink [TOLCAS]{\n x", max_size=40))
@pytest.mark.parametrize("name", FORMATS)
def test_text_that_calls_nothing_is_told_to_the_last_character(name: str, text: str) -> None:
    form = replace(FORMATS[name], thought=None, content_opening="", content_closing="")
    assert told(reader_of(form, may_call=False), list(text)) == ([TextPiece(text)] if text else [])


def test_arguments_are_told_as_they_come() -> None:
    answer = written(HERMES, [("get", {"city": "Rome"})])
    reader = reader_of(HERMES)
    pieces = [piece for character in answer for piece in reader.push(character)]

    assert pieces[0] == CallBegun(0, "get")
    assert all(isinstance(piece, CallArguments) and len(piece.text) == 1 for piece in pieces[1:])


def test_strings_in_tags_are_told_as_they_come() -> None:
    reader = reader_of(TAGGED, [("get", {"city": "Rome"})])
    reader.push("<tool_call>\n<function=get>\n<parameter=city>\n")

    assert reader.push('Ro"m') == [CallArguments(0, 'Ro\\"m')]
    assert reader.push("e\n</para") == [CallArguments(0, "e")]
    assert reader.push("meter>\n</function>\n</tool_call>") == [
        CallArguments(0, '"'),
        CallArguments(0, "}"),
    ]


def test_text_is_held_back_only_where_it_may_become_a_call() -> None:
    reader = reader_of(HERMES)

    assert reader.push("see <tool") == [TextPiece("see")]
    assert reader.push("box> there") == [TextPiece(" <toolbox> there")]
    assert reader.push("<tool_call") == []
    assert reader.finish() == [TextPiece("<tool_call")]


def test_white_space_is_dropped_beside_marks_and_nowhere_else() -> None:
    thinking = FORMATS["hermes, thinking"]

    assert reader_of(thinking).read("\n a\n\n") == Answer("", "\n a\n\n", ())
    assert reader_of(thinking).read(" <think> a\n\nb \n</think>\n\n\n c\n") == Answer(
        "a\n\nb", "c\n", ()
    )
    answer = "Well.\n\n" + written(HERMES, [("get", {})]) + "\n"
    assert reader_of(HERMES).read(answer) == Answer("", "Well.", (Call("get", "{}", True),))


def test_a_prompt_may_have_opened_the_thought() -> None:
    thinking = FORMATS["hermes, thinking"]
    reader = reader_of(thinking, in_thought=True)

    pieces = reader.push("Hm <tool_call> ")
    assert (pieces, reader.in_thought) == ([ThoughtPiece("Hm <tool_call>")], True)
    pieces = reader.push("\n</think>\n\n")
    assert (pieces, reader.in_thought) == ([], False)
    assert reader.push("So.") == [TextPiece("So.")]


def test_a_thought_that_is_cut_is_a_thought() -> None:
    reader = reader_of(FORMATS["hermes, thinking"], in_thought=True)
    assert reader.read("Hm, </thi") == Answer("Hm, </thi", "", ())


def test_what_opens_a_thought_is_text_within_a_text() -> None:
    text = "The tag <think> opens thoughts."
    assert reader_of(FORMATS["hermes, thinking"]).read(text).text == text


def test_an_object_within_a_text_is_no_call_where_calls_begin_answers() -> None:
    text = 'a {"name": "get", "parameters": {}}'
    assert reader_of(LLAMA).read(text).text == text


@pytest.mark.parametrize("text", ['{"a": 1}', '{"name": "Rome", "size": 3}', "{", "[1] says"])
@pytest.mark.parametrize("name", ["llama json", "python list"])
def test_what_only_begins_like_a_call_is_text(name: str, text: str) -> None:
    assert reader_of(FORMATS[name]).read(text) == Answer("", text, ())


@pytest.mark.parametrize(
    "answer",
    [
        '<tool_call>{"name":"get","arguments":{"a":1}}</tool_call>',
        '<tool_call>\n\n{ "name": "get", "arguments":\n{"a":1} }\n</tool_call>\n\n',
    ],
)
def test_white_space_within_marks_may_differ(answer: str) -> None:
    assert reader_of(HERMES).read(answer).calls == (Call("get", '{"a":1}', True),)


def test_a_value_keeps_its_own_white_space() -> None:
    calls: list[CallValue] = [("get", {"code": "\n  a\n\n"})]
    assert values(reader_of(TAGGED, calls).read(written(TAGGED, calls))) == calls

    close = "<tool_call><function=get><parameter=code>  a</parameter></function></tool_call>"
    assert values(reader_of(TAGGED, calls).read(close)) == [("get", {"code": "  a"})]


@pytest.mark.parametrize(
    "answer",
    ["<tool_call>is a tag</tool_call>", "<tool_call>\n[1]", '<tool_call>\n{"name": ""} so'],
)
def test_a_mark_without_a_call_is_text(answer: str) -> None:
    assert reader_of(HERMES).read(answer) == Answer("", answer, ())


def test_a_call_that_leaves_its_form_is_followed_by_text() -> None:
    answer = '<tool_call>\n{"name": "get", "arguments": {"a": 1}, so </tool_call> it is'
    assert reader_of(HERMES).read(answer) == Answer(
        "", ", so </tool_call> it is", (Call("get", '{"a": 1}', True),)
    )
    answer = "<tool_call>\n<function=get>\n<parameter=a>\n1\n</parameter>\nSo."
    assert reader_of(TAGGED, [("get", {"a": 1})]).read(answer) == Answer(
        "", "</parameter>\nSo.", (Call("get", '{"a": 1', False),)
    )


def test_calls_may_begin_anew() -> None:
    answer = written(HERMES, [("get", {})], "One.") + "\nTwo.\n" + written(HERMES, [("put", {})])
    assert reader_of(HERMES).read(answer) == Answer(
        "", "One.Two.", (Call("get", "{}", True), Call("put", "{}", True))
    )


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "integer"}, "5", 5),
        ({"type": "number"}, "5", 5),
        ({"type": "integer"}, "five", "five"),
        ({"type": "integer"}, '"5"', 5),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "5", "5"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5", 5),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "5 or so", "5 or so"),
        ({"anyOf": [{"type": "string"}, {}]}, "[1", "[1"),
        ({"enum": ["5", "6"]}, "5", "5"),
        ({"const": 5}, "5", 5),
        ({"$ref": "#/$defs/word"}, "5", "5"),
        ({"$ref": "#/$defs/loop"}, "5", 5),
        ({"type": "boolean"}, "True", True),
        ({"type": "object"}, "{'a': (1, None)}", {"a": [1, None]}),
        ({"type": "number"}, "1e999", math.inf),
        ({"type": "number"}, "NaN", "NaN"),
        ({}, "{1, 2}", "{1, 2}"),
        ({}, "[" * 9999, "[" * 9999),
        ({}, '"\\ud800"', "\ud800"),
    ],
)
def test_a_value_in_tags_is_what_the_schema_says(schema: Any, text: str, value: Any) -> None:
    definitions = {"word": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}
    parameters = {"properties": {"a": schema}, "$defs": definitions}
    reader = AnswerReader(TAGGED, {"get": parameters}, in_thought=False, may_call=True)
    answer = f"<tool_call>\n<function=get>\n<parameter=a>\n{text}\n</parameter>\n</function>"

    (call,) = reader.read(answer + "\n</tool_call>").calls

    assert json.loads(call.arguments) == {"a": value}
    assert call.arguments.encode()


def test_bare_keys_within_strings_stay_text() -> None:
    calls: list[CallValue] = [("get", {"o": {"a": "x, b: c", "d": [True, None, 'e"']}})]
    form = FORMATS["bare keys"]
    assert values(reader_of(form, calls).read(written(form, calls))) == calls
    mixed = '<|tool_call>call:get{o:{a:"x, b: c",d:[<|"|>{y: z<|"|>]}}<tool_call|>'
    assert values(reader_of(form, calls).read(mixed)) == [
        ("get", {"o": {"a": "x, b: c", "d": ["{y: z"]}})
    ]


@pytest.mark.parametrize("length", range(1, 40))
def test_a_call_that_is_cut_is_told_as_far_as_it_goes(length: int) -> None:
    form = FORMATS["mistral list"]
    reader = reader_of(form)
    answer = reader.read(written(form, [("get", {"city": "Rome"})])[:length])

    whole = '{"city": "Rome"}'
    assert answer.text == ("[TOOL_CALLS]"[:length] if length < len("[TOOL_CALLS]") else "")
    assert all(call.name == "get" and whole.startswith(call.arguments) for call in answer.calls)
    assert reader.is_cut == any(call.arguments != whole for call in answer.calls)
    assert reader.has_begun == (length >= len("[TOOL_CALLS]"))


CHANNELS = FORMATS["channels"]
CHANNEL_MARKS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>")
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"


def channel_reader(*, may_call: bool = True) -> AnswerReader:
    return AnswerReader(CHANNELS, {}, in_thought=False, may_call=may_call, hidden=CHANNEL_MARKS)


@pytest.mark.parametrize(
    ("answer", "thought", "text"),
    [
        (PREAMBLE + written(CHANNELS, [("get", {})]), "", "I look."),
        (PREAMBLE + written(CHANNELS, text="Ha."), "", "I look.\n\nHa."),
        (PREAMBLE + written(CHANNELS, text="Ha.", thought="Hm."), "Hm.", "I look.\n\nHa."),
        (written(CHANNELS, thought="Hm.") + PREAMBLE, "Hm.", "I look."),
        (PREAMBLE.removesuffix("<|start|>assistant"), "", "I look."),
    ],
)
def test_a_preamble_is_text(answer: str, thought: str, text: str) -> None:
    whole = channel_reader().read(answer)
    assert (whole.thought, whole.text) == (thought, text)
    pieces = told(channel_reader(), [answer])
    for place in range(1, len(answer)):
        assert told(channel_reader(), [answer[:place], answer[place:]]) == pieces, place


@pytest.mark.parametrize("may_call", [False, True])
def test_a_special_token_that_marks_nothing_is_no_text(may_call: bool) -> None:
    answer = "<|channel|>commentary to=functions.get <|constrain|>json<|message|>{}<|start|>x"
    whole = channel_reader(may_call=may_call).read(answer)
    text = "x" if may_call else "commentary to=functions.get json{}x"
    assert (whole.text, len(whole.calls)) == (text, int(may_call))
    pieces = told(channel_reader(may_call=may_call), [answer])
    for place in range(1, len(answer)):
        parts = [answer[:place], answer[place:]]
        assert told(channel_reader(may_call=may_call), parts) == pieces, place
        cut = channel_reader(may_call=may_call).read(answer[:place])
        assert not any(mark in cut.text for mark in CHANNEL_MARKS), cut


def ending(text: str, *, satisfied: bool = True) -> Finished:
    return Finished(FinishReason.LENGTH, text, "", 1, 0, 1, 0, constraint_satisfied=satisfied)


def settled(form: AnswerFormat, calls: Sequence[CallValue], end: Finished) -> Finished:
    reader = reader_of(form, calls)
    reader.read(end.text)
    return reader.settled(end)


@pytest.mark.parametrize("name", FORMATS)
def test_tokens_that_end_right_behind_whole_calls_have_cut_nothing(name: str) -> None:
    form = FORMATS[name]
    assert form.calls is not None
    calls: list[CallValue] = [("get", {"city": "}"}), ("wait", {"n": 1})]
    calls = calls[: 1 if form.calls.between is None else 2]
    text = written(form, calls)

    lengths = range(len(text) + 1)
    reasons = [settled(form, calls, ending(text[:n])).reason for n in lengths]
    whole = [n for n in lengths if reasons[n] is FinishReason.CONSTRAINT_COMPLETE]

    # Some close calls one by one; white space behind one is no other.
    first = len(written(form, calls[:1]))
    blank = [n for n in range(first, len(text)) if not text[first:n].strip()]
    closes_each = name in (
        "hermes", "hermes, thinking", "parameters in tags", "keys in tags", "bare keys",
    )  # fmt: skip
    assert whole == ([*blank, len(text)] if closes_each and len(calls) > 1 else [len(text)])
    unsatisfied = ending(text, satisfied=False)
    assert settled(form, calls, unsatisfied).reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "reason", [each for each in FinishReason if each is not FinishReason.LENGTH]
)
def test_every_other_end_is_told_as_it_is(reason: FinishReason) -> None:
    end = replace(ending(written(HERMES, [("get", {})])), reason=reason)
    assert settled(HERMES, [("get", {})], end) is end
