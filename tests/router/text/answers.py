"""Answers as models write them, for tests: one form of each kind, and a writer for all of them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

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

CallValue = tuple[str, Mapping[str, Any]]
THINK = ThoughtForm("<think>\n", "\n</think>\n\n")


XML = Parameters(
    ">\n<parameter=",
    "\n</parameter>\n<parameter=",
    "\n</parameter>\n</function>",
    ">\n</function>",
    ValueForm(">\n", "", Code.RAW),
    ValueForm(">\n", "", Code.JSON),
)

FORMATS: dict[str, AnswerFormat] = {
    "hermes": AnswerFormat(calls=GENERIC_CALLS),
    "hermes, thinking": AnswerFormat(thought=THINK, calls=GENERIC_CALLS),
    "llama json": AnswerFormat(
        calls=CallForm('{"name": "', '", "parameters": ', None, "}"),
        other_calls=(CallForm('<|python_tag|>{"name": "', '", "parameters": ', None, "}"),),
    ),
    "mistral list": AnswerFormat(
        calls=CallForm(
            '[TOOL_CALLS][{"name": "', '", "arguments": ', '}, {"name": "', "}]", id_len=9
        )
    ),
    "mistral list with ids": AnswerFormat(
        calls=CallForm(
            '[TOOL_CALLS] [{"name": "',
            '", "arguments": ',
            f', "id": "{ID}"}}, {{"name": "',
            f', "id": "{ID}"}}]',
            id_len=9,
        )
    ),
    "name, then json": AnswerFormat(
        thought=ThoughtForm("<think>", "</think>"),
        calls=CallForm(
            "<|calls|><|call|>", "<|sep|>", "<|end_call|><|call|>", "<|end_call|><|end_calls|>"
        ),
    ),
    "name in a fence": AnswerFormat(
        calls=CallForm(
            "<|calls|><|call|>function<|sep|>",
            "\n```json\n",
            "\n```<|end_call|>\n<|call|>function<|sep|>",
            "\n```<|end_call|><|end_calls|>",
        )
    ),
    "name and number": AnswerFormat(
        calls=CallForm(
            "<|section|><|call|>",
            "<|argument|>",
            "<|end_call|><|call|>",
            "<|end_call|><|end_section|>",
            name_in_id=True,
        )
    ),
    "numbered": AnswerFormat(
        thought=ThoughtForm("<|START_THINKING|>", "<|END_THINKING|>"),
        content_opening="<|START_RESPONSE|>",
        content_closing="<|END_RESPONSE|>",
        calls=CallForm(
            f'<|START_ACTION|>[\n    {{"tool_call_id": "{NUMBER}", "tool_name": "',
            '", "parameters": ',
            f'}},\n    {{"tool_call_id": "{NUMBER}", "tool_name": "',
            "}\n]<|END_ACTION|>",
        ),
    ),
    "parameters in tags": AnswerFormat(
        thought=THINK,
        calls=CallForm(
            "<tool_call>\n<function=",
            "",
            "\n</tool_call>\n<tool_call>\n<function=",
            "\n</tool_call>",
            parameters=XML,
        ),
    ),
    "keys in tags": AnswerFormat(
        thought=ThoughtForm("\n<think>", "</think>\n"),
        calls=CallForm(
            "\n<tool_call>",
            "",
            "\n<tool_call>",
            "",
            parameters=Parameters(
                "\n<arg_key>",
                "</arg_value>\n<arg_key>",
                "</arg_value>\n</tool_call>",
                "\n</tool_call>",
                ValueForm("</arg_key>\n<arg_value>", "", Code.RAW),
                ValueForm("</arg_key>\n<arg_value>", "", Code.JSON),
            ),
        ),
    ),
    "named tags": AnswerFormat(
        calls=CallForm(
            '<calls>\n<invoke name="',
            "",
            '\n<invoke name="',
            "\n</calls>",
            parameters=Parameters(
                '">\n<parameter name="',
                '</parameter>\n<parameter name="',
                "</parameter>\n</invoke>",
                '">\n</invoke>',
                ValueForm('">', "", Code.RAW),
                ValueForm('">', "", Code.JSON),
            ),
        )
    ),
    "strings told apart": AnswerFormat(
        calls=CallForm(
            '<calls>\n<invoke name="',
            "",
            '\n<invoke name="',
            "\n</calls>",
            parameters=Parameters(
                '">\n<parameter name="',
                '\n<parameter name="',
                "\n</invoke>",
                '">\n</invoke>',
                ValueForm('" string="true">', "</parameter>", Code.RAW),
                ValueForm('" string="false">', "</parameter>", Code.JSON),
            ),
        )
    ),
    "python list": AnswerFormat(
        calls=CallForm(
            "[",
            "",
            ", ",
            "]",
            parameters=Parameters(
                "(",
                ", ",
                ")",
                "()",
                ValueForm("=", "", Code.PYTHON),
                ValueForm("=", "", Code.PYTHON),
            ),
        )
    ),
    "python lines": AnswerFormat(
        calls=CallForm(
            "<function_calls>",
            "",
            "\n",
            "</function_calls>",
            parameters=Parameters(
                "(",
                ", ",
                ")",
                "()",
                ValueForm("=", "", Code.PYTHON),
                ValueForm("=", "", Code.PYTHON),
            ),
        )
    ),
    "channels": AnswerFormat(
        thought=ThoughtForm(
            "<|channel|>analysis<|message|>",
            "<|end|><|start|>assistant",
            preamble="<|channel|>commentary<|message|>",
        ),
        content_opening="<|channel|>final<|message|>",
        calls=CallForm(" to=functions.", "<|channel|>commentary json<|message|>", None, ""),
        other_calls=(
            CallForm(
                "<|channel|>commentary to=functions.",
                " <|constrain|>json<|message|>",
                None,
                "",
                marker="<|channel|>commentary to=functions.",
            ),
        ),
        ends=("<|return|>", "<|call|>"),
    ),
    "bare keys": AnswerFormat(
        thought=ThoughtForm("<|channel>thought\n", "<channel|>"),
        calls=CallForm(
            "<|tool_call>call:",
            "",
            "<tool_call|><|tool_call>call:",
            "<tool_call|>",
            parameters=Parameters(
                "{",
                ",",
                "}",
                "{}",
                ValueForm(':<|"|>', '<|"|>', Code.RAW),
                ValueForm(":", "", Code.LAX),
            ),
        ),
    ),
}


def lax(value: Any, quote: str) -> str:
    """JSON with bare keys, and with strings between `quote`."""
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, list):
        return f"[{','.join(lax(each, quote) for each in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{lax(each, quote)}' for key, each in value.items())}}}"
    return json.dumps(value)


def written(
    form: AnswerFormat,
    calls: Sequence[CallValue] = (),
    text: str = "",
    thought: str = "",
    calls_form: CallForm | None = None,
) -> str:
    """The answer as the model writes it; `calls_form` is one of its others."""
    parts = []
    if thought:
        assert form.thought is not None
        parts.append(form.thought.opening + thought + form.thought.closing)
    if text:
        parts.append(form.content_opening + text + form.content_closing)
    calls_form = calls_form or form.calls
    if calls and calls_form is not None:
        parts.append(written_calls(calls_form, calls))
    return "".join(parts)


def written_calls(form: CallForm, calls: Sequence[CallValue]) -> str:
    parts = []
    for index, (name, arguments) in enumerate(calls):
        before = form.first if index == 0 else form.between
        assert before is not None
        label = f"functions.{name}:{index}" if form.name_in_id else name
        parts += [_filled(before, index, 0 if index == 0 else index - 1), label]
        parts += [form.middle, _written_arguments(form, arguments)]
    return "".join(parts) + _filled(form.last, len(calls) - 1, len(calls) - 1)


def _filled(text: str, number: int, id_of: int) -> str:
    return text.replace(NUMBER, str(number)).replace(ID, f"call0000{id_of + 1}")


def _written_arguments(form: CallForm, arguments: Mapping[str, Any]) -> str:
    each = form.parameters
    if each is None:
        return json.dumps(arguments, ensure_ascii=False)
    if not arguments:
        return each.none
    shown = []
    for key, value in arguments.items():
        value_form = each.string if isinstance(value, str) else each.other
        shown.append(
            f"{key}{value_form.opening}{_written(value, value_form, each)}{value_form.closing}"
        )
    return each.first + each.between.join(shown) + each.end


def _written(value: Any, form: ValueForm, each: Parameters) -> str:
    if form.code is Code.RAW:
        return str(value)
    if form.code is Code.LAX:
        return lax(value, each.quote)
    if form.code is Code.PYTHON:
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


_TYPES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


def schema_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of such arguments."""
    properties = {key: {"type": _TYPES[type(value)]} for key, value in arguments.items()}
    return {"type": "object", "properties": properties}


_CHAT = """\
{%- macro write(v) %}LAX{% endmacro -%}
{%- for m in messages -%}
{%- if m.role == 'user' %}<|user|>{{ m.content }}<|eot|>
{%- elif m.role == 'tool' %}<|tool|>{{ m.content }}<|eot|>
{%- elif m.role == 'system' %}<|system|>{{ m.content }}<|eot|>
{%- else %}<|start|>assistant
{%- if m.reasoning_content %}THOUGHT{% endif %}
{%- if m.content %}CONTENT{% endif %}
{%- for c in m.tool_calls or [] %}CALL{% endfor %}<|eot|>
{%- endif %}{% endfor %}
{%- if tools %}{% endif %}
{%- if add_generation_prompt %}<|start|>assistantPROMPT{% endif %}"""
_LAX = """\
{%- if v is string %}QUOTE{{ v }}QUOTE
{%- elif v is mapping %}{{ '{' }}
{%- for k, e in v.items() %}{{ k }}:{{ write(e) }}{{ ',' if not loop.last }}{% endfor %}{{ '}' }}
{%- elif v is iterable %}[{% for e in v %}{{ write(e) }}{{ ',' if not loop.last }}{% endfor %}]
{%- else %}{{ v | tojson }}{% endif %}"""


def as_template(form: AnswerFormat, *, opens_thought: bool = False) -> str:
    """A chat template whose model answers in this form; its prompt may open the thought."""
    calls = form.calls
    thought = form.thought or ThoughtForm("", "")
    call = ""
    if calls is not None:
        first = _literal(calls.first, "c.id")
        between = _literal(calls.between or "", "loop.previtem.id")
        name = "{{ c.id }}" if calls.name_in_id else "{{ c.function.name }}"
        call = f"{{% if loop.first %}}{first}{{% else %}}{between}{{% endif %}}{name}"
        call += _literal(calls.middle, "c.id") + _arguments_template(calls)
        call += f"{{% if loop.last %}}{_literal(calls.last, 'c.id')}{{% endif %}}"
        if calls.between is None:
            call += "{% if not loop.last %}{{ raise_exception('one call') }}{% endif %}"
    quote = calls.parameters.quote if calls is not None and calls.parameters is not None else ""
    texts = {
        "LAX": _LAX.replace("QUOTE", _literal(quote)),
        "THOUGHT": _literal(thought.opening)
        + "{{ m.reasoning_content }}"
        + _literal(thought.closing),
        "CONTENT": _literal(form.content_opening)
        + "{{ m.content }}"
        + _literal(form.content_closing),
        "CALL": call,
        "PROMPT": _literal(thought.opening) if opens_thought else "",
    }
    source = _CHAT
    for place, text in texts.items():
        source = source.replace(place, text)
    return source


def dropping(earlier: str = "", prompt: str = "<think>") -> str:
    """A chat template that cuts thoughts from answers, or from those of which `earlier` is true."""
    return f"""\
{{%- for m in messages %}}<|{{{{ m.role }}}}|>
{{%- if m.role == 'assistant'{earlier} %}}{{{{ m.content.split('</think>')[-1] }}}}
{{%- else %}}{{{{ m.content }}}}{{% endif %}}<|eot|>{{% endfor %}}
{{%- if add_generation_prompt %}}<|assistant|>{prompt}{{% endif %}}"""


def _literal(text: str, call_id: str = "") -> str:
    """Jinja for a text, with the places of ids and numbers in it."""
    parts = re.split(f"([{ID}{NUMBER}])", text)
    places = {ID: f"{{{{ {call_id} }}}}", NUMBER: "{{ loop.index0 }}"}
    shown = [places.get(part, f"{{{{ {json.dumps(part)} }}}}") for part in parts if part]
    return "".join(shown)


def _arguments_template(form: CallForm) -> str:
    each = form.parameters
    if each is None:
        return "{{ c.function.arguments | tojson }}"
    texts = [
        _literal(value.opening) + _VALUES[value.code] + _literal(value.closing)
        for value in (each.string, each.other)
    ]
    shown = f"{{% if v is string %}}{texts[0]}{{% else %}}{texts[1]}"
    between = f"{{% if not loop.last %}}{_literal(each.between)}{{% endif %}}"
    return (
        f"{{% if c.function.arguments %}}{_literal(each.first)}"
        f"{{% for k, v in c.function.arguments.items() %}}{{{{ k }}}}{shown}{{% endif %}}{between}"
        f"{{% endfor %}}{_literal(each.end)}{{% else %}}{_literal(each.none)}{{% endif %}}"
    )


_VALUES = {
    Code.RAW: "{{ v }}",
    Code.JSON: "{{ v | tojson }}",
    # Strings are not escaped, as templates in Python's form have them.
    Code.PYTHON: "{{ '\"' ~ v ~ '\"' if v is string else v }}",
    Code.LAX: "{{ write(v) }}",
}
