"""The form of answers is read from templates, and from nothing else."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.text.answer_format import (
    GENERIC_CALLS,
    ID,
    NUMBER,
    AnswerFormat,
    CallForm,
    Code,
    Parameters,
    ThoughtForm,
    ValueForm,
)
from router.text.answer_reader import AnswerReader
from router.text.chat_template import ChatTemplate
from router.text.format_proof import Verdict
from tests.router.text.answers import (
    FORMATS,
    CallValue,
    as_template,
    dropping,
    schema_of,
    written,
)

TYPES = {"s": "x y", "t": "42", "i": -3, "f": 2.5, "b": True, "z": None, "l": [1, "a"]}
USER = {"role": "user", "content": "hi"}


def template_of(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, "<s>", "</s>")


def verdict_of(form: AnswerFormat, *, opens_thought: bool = False) -> Verdict:
    return template_of(as_template(form, opens_thought=opens_thought)).verdict()


def check(form: AnswerFormat, *, opens_thought: bool = False) -> None:
    """What is read of the form's template is proven, and reads what the form writes."""
    verdict = verdict_of(form, opens_thought=opens_thought)

    assert form.calls is not None
    assert verdict.calls.is_proven, verdict.calls.reason
    assert verdict.thought.is_proven == (form.thought is not None), verdict.thought.reason
    calls: list[CallValue] = [("get", TYPES), ("wait-2.b", {})]
    calls = calls[: 1 if form.calls.between is None else 2]
    thought = "First this." if form.thought else ""
    schemas = {name: schema_of(arguments) for name, arguments in calls}
    reader = AnswerReader(verdict.answer_format, schemas, in_thought=False, may_call=True)
    answer = reader.read(written(form, calls, "", thought))
    found = [(call.name, json.loads(call.arguments)) for call in answer.calls]
    assert (answer.thought, answer.text, found) == (thought, "", calls)
    assert reader.is_over


@pytest.mark.parametrize("name", FORMATS)
def test_every_kind_of_form_is_read_from_its_template(name: str) -> None:
    check(FORMATS[name])


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.thought])
def test_the_prompt_may_open_the_thought(name: str) -> None:
    form = FORMATS[name]
    if form.content_opening:
        return  # its prompt never does
    check(form, opens_thought=True)


WORDS = st.text("abcdefghij_", min_size=3, max_size=8).filter(lambda word: word.strip("_"))
SPACES = st.sampled_from(["", "", "\n", " "])


@st.composite
def tags(draw: st.DrawFn) -> tuple[str, str]:
    """What opens and closes something."""
    word = draw(WORDS)
    return draw(
        st.sampled_from(
            [
                (f"<{word}>", f"</{word}>"),
                (f"<|{word}|>", f"<|end_{word}|>"),
                (f"<|{word}|>", f"<{word}|>"),
                (f"[{word.upper()}]", f"[/{word.upper()}]"),
                (f"<x:{word}>", f"</x:{word}>"),
            ]
        )
    )


@st.composite
def forms(draw: st.DrawFn) -> AnswerFormat:
    """A form of answers as somebody might invent it."""
    marks = draw(st.lists(tags(), min_size=5, max_size=5, unique_by=lambda pair: pair[0]))
    (section, end_section), (call, end_call), (think, end_think), (key, end_key), value = marks
    space = draw(SPACES)
    has_section = draw(st.booleans())
    first = (section + space if has_section else "") + call + space
    between = space + end_call + space + call + space
    last = space + end_call + (space + end_section if has_section else "")
    thought = ThoughtForm(think + space, space + end_think + space) if draw(st.booleans()) else None
    kind = draw(st.sampled_from(["object", "name, object", "tags", "python"]))
    if kind == "object":
        name, arguments = draw(st.sampled_from([("name", "arguments"), ("tool", "parameters")]))
        ids = draw(st.sampled_from(["", f'"id": "{ID}", ', f'"n": {NUMBER}, ']))
        head = f'{{{ids}"{name}": "'
        calls = CallForm(first + head, f'", "{arguments}": ', "}" + between + head, "}" + last)
    elif kind == "name, object":
        calls = CallForm(first, key, between, last)
    elif kind == "python":
        form = ValueForm("=", "", Code.PYTHON)
        parameters = Parameters("(", ", ", ")", "()", form, form)
        calls = CallForm(first, "", between, last, parameters=parameters)
    else:
        opening = end_key + space + value[0]
        parameters = Parameters(
            space + key,
            value[1] + space + key,
            value[1] + space + end_call,
            space + end_call,
            ValueForm(opening, "", Code.RAW),
            ValueForm(opening, "", Code.JSON),
        )
        last = space + end_section if has_section else ""
        calls = CallForm(first, "", space + call + space, last, parameters=parameters)
    return AnswerFormat(thought=thought, calls=calls)


@given(form=forms())
@settings(max_examples=12)
def test_a_form_that_nobody_knows_is_read_from_its_template(form: AnswerFormat) -> None:
    check(form)


def test_a_template_that_shows_no_calls_gets_the_generic_ones() -> None:
    verdict = template_of(
        "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    ).verdict()

    assert verdict.answer_format.calls == GENERIC_CALLS
    assert (verdict.calls.is_on, verdict.calls.is_proven) == (True, False)
    assert verdict.calls.reason == "the template shows no calls"


def test_calls_that_cannot_be_read_are_off() -> None:
    name = "{{ c.function.name }}"
    source = as_template(FORMATS["parameters in tags"])
    faults = {
        source.replace(name, f"{name}:{name}"): "the name is written twice",
        source.replace(name, "it"): "the name is not shown",
        source.replace(name, ""): "the name is not shown",
    }
    for changed, reason in faults.items():
        verdict = template_of(changed).verdict()
        assert verdict.answer_format.calls is None
        assert (verdict.calls.is_on, verdict.calls.reason) == (False, reason)
        assert verdict.thought.is_proven


def test_what_a_prompt_has_with_other_white_space_opens_no_text() -> None:
    verdict = template_of(
        "{% for m in messages %}{% if m.role == 'user' %}<user>{{ m.content }}{% else %}"
        "{{ '\n\n<model>\n' + m.content }}<end>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<model>\n' }}{% endif %}"
    ).verdict()
    assert verdict.answer_format.content_opening == ""


TOOLS_AT_THE_END = (
    "{% for m in messages %}{% if m.role == 'user' %}<user>"
    "{% if tools and loop.last %}{{ tools | tojson + '\n' }}{% endif %}{{ m.content }}"
    "{% if loop.last %}<model>{% endif %}{% else %}{{ '\n' }}<model>{{ m.content or '' }}"
    """{% for c in m.tool_calls or [] %}<call>{"name": "{{ c.function.name }}", "arguments": """
    "{{ c.function.arguments | tojson }}}</call>{% endfor %}<end>{% endif %}{% endfor %}"
)


def test_calls_that_hold_words_of_the_chat_are_off() -> None:
    verdict = template_of(TOOLS_AT_THE_END).verdict()
    assert verdict.answer_format.calls is None
    assert verdict.calls.reason == (
        "calls stand behind another prompt than the one that asks for them"
    )


def test_a_template_that_runs_too_long_is_one_of_text() -> None:
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    verdict = ChatTemplate({"default": source}, None, None, time_limit_s=0.02).verdict()

    assert verdict.answer_format == AnswerFormat(calls=GENERIC_CALLS)
    assert "was stopped" in verdict.calls.reason


@pytest.mark.parametrize("earlier", ["", " and not loop.last"])
@pytest.mark.parametrize(("prompt", "is_proven"), [("<think>", True), ("", False)])
def test_history_that_drops_thoughts_tells_their_marks(
    earlier: str, prompt: str, is_proven: bool
) -> None:
    template = template_of(dropping(earlier, prompt))
    verdict = template.verdict()

    assert verdict.answer_format.thought == ThoughtForm("<think>", "</think>")
    assert (verdict.thought.is_on, verdict.thought.is_proven) == (True, is_proven)
    assert verdict.thought.reason.startswith("the template drops thoughts of earlier answers")
    assert not template.thought_key()


def test_thoughts_beside_calls_alone_may_begin_in_the_prompt() -> None:
    form = FORMATS["hermes, thinking"]
    source = as_template(form, opens_thought=True)
    template = template_of(source.replace("if m.reasoning_content", "if m.tool_calls"))
    verdict = template.verdict()

    assert verdict.answer_format.thought == form.thought
    assert verdict.thought.is_proven
    assert verdict.calls.is_proven
    assert template.thought_key() == "reasoning_content"


SILENT = """\
{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}<|eot|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""


def declaring(opening: str, closing: str) -> dict[str, Any]:
    """What a checkpoint may say beside its template."""
    thinking = {"open": opening, "close": closing, "content": "text"}
    return {"version": 1, "fields": {"thinking": thinking, "content": {}}}


def test_a_checkpoint_may_name_the_marks_of_thoughts_that_its_template_drops() -> None:
    declared = declaring("<muse>", "</muse>")
    verdict = ChatTemplate({"default": SILENT}, None, None, response_template=declared).verdict()

    assert verdict.answer_format.thought == ThoughtForm("<muse>", "</muse>")
    assert (verdict.thought.is_on, verdict.thought.is_proven) == (True, False)


@pytest.mark.parametrize(
    ("marks", "reason"),
    [
        (("<think>", "</think>"), ""),
        (("<muse>", "</muse>"), "the checkpoint's response_template names '<muse>' and '</muse>'"),
    ],
)
def test_a_checkpoint_that_names_other_marks_than_its_template_is_reported(
    marks: tuple[str, str], reason: str
) -> None:
    source = as_template(FORMATS["hermes, thinking"])
    template = ChatTemplate({"default": source}, None, None, response_template=declaring(*marks))

    assert template.verdict().thought.is_proven
    assert template.verdict().thought.reason == reason


@pytest.mark.parametrize(
    "declared",
    [[], {"fields": []}, {"fields": {"thinking": {"open_pattern": "<a>", "close": "</a>"}}}],
)
def test_of_what_a_checkpoint_declares_only_literal_marks_are_read(declared: Any) -> None:
    verdict = ChatTemplate({"default": SILENT}, None, None, response_template=declared).verdict()
    assert verdict.answer_format.thought is None


def test_marks_around_texts_are_read() -> None:
    verdict = verdict_of(FORMATS["numbered"])

    assert verdict.answer_format.content_opening == "<|START_RESPONSE|>"
    assert verdict.answer_format.content_closing == "<|END_RESPONSE|>"
    assert verdict.answer_format.ends == ("<|eot|>", "</s>")


def test_a_recipient_may_stand_in_both_places() -> None:
    found = verdict_of(FORMATS["channels"]).answer_format
    assert found.other_calls == FORMATS["channels"].other_calls
    # Without one the text is for the user.
    assert found.thought == FORMATS["channels"].thought


def test_an_interpreters_mark_may_stand_before_an_object() -> None:
    assert verdict_of(FORMATS["llama json"]).answer_format.other_calls == (
        CallForm('<|python_tag|>{"name": "', '", "parameters": ', None, "}"),
    )


# What history needs.


def message(thought: str = "", text: str = "", calls: Any = ()) -> dict[str, Any]:
    shown: dict[str, Any] = {"role": "assistant", "content": text or None}
    if thought:
        shown["reasoning_content"] = thought
    if calls:
        shown["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": "f", "arguments": "{}"}}
            for call_id in calls
        ]
    return shown


def rendered(source: str, *messages: Mapping[str, Any]) -> str:
    return template_of(source).render([USER, *messages], add_generation_prompt=False)


@pytest.mark.parametrize("key", ["thinking", "reasoning"])
def test_a_thought_is_put_where_the_template_reads_it(key: str) -> None:
    source = as_template(FORMATS["hermes, thinking"]).replace("reasoning_content", key)

    assert template_of(source).thought_key() == key
    assert rendered(source, message("Hm.", "So.")).endswith("<think>\nHm.\n</think>\n\nSo.<|eot|>")


def test_a_thought_may_be_a_part_of_the_content() -> None:
    source = """\
{%- for m in messages %}<|{{ m.role }}|>{% if m.content is string %}{{ m.content }}{% else %}
{%- for p in m.content %}
{{- '[THINK]' + p.thinking + '[/THINK]' if p.type == 'thinking' else p.text }}
{%- endfor %}{% endif %}<|eot|>{% endfor %}"""

    assert rendered(source, message("Hm.", "So.")).endswith("[THINK]Hm.[/THINK]So.<|eot|>")
    assert template_of(source).verdict().thought.is_proven


def test_a_thought_is_dropped_where_the_template_shows_none() -> None:
    assert rendered(as_template(FORMATS["hermes"]), message("Hm.", "So.")).endswith(
        "assistantSo.<|eot|>"
    )


REFUSING = """\
{%- for m in messages if m.tool_calls and m.content %}{{ raise_exception('both') }}{% endfor %}"""


def test_text_beside_calls_becomes_a_thought_where_the_template_refuses_it() -> None:
    source = REFUSING + as_template(FORMATS["hermes, thinking"])
    text = rendered(source, message("Hm.", "So.", ["a"]))
    assert "<think>\nHm.\n\nSo.\n</think>\n\n<tool_call>" in text

    text = rendered(REFUSING + as_template(FORMATS["hermes"]), message("Hm.", "So.", ["a"]))
    assert "assistant<tool_call>" in text


def test_calls_are_not_lost_beside_a_text() -> None:
    source = as_template(FORMATS["hermes"]).replace(
        "in m.tool_calls or []", "in (m.tool_calls or [] if not m.content else [])"
    )
    assert "<tool_call>" in rendered(source, message("", "So.", ["a"]))


STRICT = """\
{%- for m in messages %}{% for c in m.tool_calls or [] if c.id | length != 9 %}
{{- raise_exception('ids have nine characters') }}{% endfor %}{% endfor %}"""


def test_foreign_ids_are_written_as_the_template_wants_them() -> None:
    source = STRICT + as_template(FORMATS["mistral list with ids"])
    source = source.replace("<|tool|>", "<|tool|>{{ m.tool_call_id }}=")
    result = {"role": "tool", "content": "42", "tool_call_id": "call_abc-123456789"}
    text = rendered(source, message("", "", ["call_abc-123456789", "Xy3456789"]), result)

    new = text.partition("<|tool|>")[2].partition("=")[0]
    assert len(new) == 9
    assert new.isalnum()
    assert f'"id": "{new}"' in text
    assert '"id": "Xy3456789"' in text
    assert template_of(source).verdict().answer_format.calls is not None


def test_ids_name_their_tools_where_the_template_shows_nothing_else() -> None:
    source = as_template(FORMATS["name and number"])
    text = rendered(source, message("", "", ["a", "b"]), USER, message("", "", ["c"]))

    assert [f"functions.f:{number}" in text for number in range(4)] == [True, True, True, False]


def test_end_tokens_of_the_checkpoint_are_no_part_of_calls() -> None:
    form = FORMATS["hermes"]
    assert form.calls is not None
    ended = replace(form, calls=replace(form.calls, last=form.calls.last + "<|eom|>"))
    template = template_of(as_template(ended))

    template.prove(["<|eom|>"])

    assert template.verdict().answer_format.calls == form.calls
