"""The forms of messages that templates read."""

from typing import Any

import pytest

from router.request.errors import TemplateFailed
from router.text.chat_template import ChatTemplate

USER = {"role": "user", "content": "hi"}
TOOL = {"role": "tool", "content": "42", "tool_call_id": "call00001"}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}]

# In the style of templates that write an object out as JSON.
OBJECTS = """\
{%- for m in messages %}
    {%- if m.role == 'assistant' and m.tool_calls %}
        {%- for call in m.tool_calls %}
            {{- '<call>' ~ call.function.name ~ (call.function.arguments | tojson) ~ '</call>' }}
        {%- endfor %}
    {%- elif m.role == 'tool' %}{{- '<result>' + m.content + '</result>' }}
    {%- else %}{{- m.role + ':' + m.content }}
    {%- endif %}
{%- endfor %}"""

# In the style of templates that know a message of calls by its content, which is None.
TEXTS = """\
{%- for m in messages %}
    {%- if m['role'] == 'assistant' and m['content'] is none %}
        {%- for call in m['tool_calls'] %}
            {{- '<call>' + call['function']['name'] + call['function']['arguments'] + '</call>' }}
        {%- endfor %}
    {%- elif m['role'] == 'tool' %}{{- '<result>' + m['content'] + '</result>' }}
    {%- else %}{{- m['role'] + ':' + m['content'] }}
    {%- endif %}
{%- endfor %}"""

# In the style of templates that look into the content for the marks of thoughts.
LOOKS = OBJECTS.replace(
    "{%- elif m.role == 'tool'", "{{- m.role if '</think>' in m.content }}{%- elif m.role == 'tool'"
).replace("{%- if m.role", "{%- if '</think>' not in m.content + '' and m.role")

PARTS = """\
{%- for m in messages %}
    {{- m.role + ':' }}
    {%- for part in m.content %}
        {%- if part.type == 'text' %}{{- part.text }}{% endif %}
    {%- endfor %}
{%- endfor %}"""

# In the style of templates that know two sides, which speak in turns.
TURNS = """\
{%- for m in messages %}
    {%- if m.role != ('assistant' if loop.index0 % 2 else 'user') %}
        {{- raise_exception('turns must alternate') }}
    {%- endif %}
    {{- m.role ~ ':' ~ (m.content if m.content is string else m.content | length) ~ ';' }}
{%- endfor %}"""

PLAIN_MESSAGES = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"


def chat(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, "<s>", "</s>")


def calling(arguments: Any, **fields: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    call = {"id": "call00001", "type": "function", "function": function}
    return {"role": "assistant", "tool_calls": [call], **fields}


@pytest.mark.parametrize("arguments", ['{"x": "é"}', {"x": "é"}])
@pytest.mark.parametrize("fields", [{}, {"content": None}])
@pytest.mark.parametrize(
    ("source", "before"),
    [(OBJECTS, "user:hi"), (TEXTS, "user:hi"), (LOOKS, "user:hi")],
)
def test_arguments_of_a_call_come_as_the_template_writes_them(
    source: str, before: str, fields: Any, arguments: Any
) -> None:
    text = chat(source).render([USER, calling(arguments, **fields)], tools=TOOLS)

    assert text == before + '<call>f{"x": "é"}</call>'


def test_a_template_that_writes_none_of_itself_shows_calls_too() -> None:
    source = "{{- '-> None;' if tools }}" + OBJECTS

    assert chat(source).render([USER, calling({"x": 1})], tools=TOOLS) == (
        '-> None;user:hi<call>f{"x": 1}</call>'
    )


@pytest.mark.parametrize(
    ("content", "shown"),
    [(None, ""), ("well", "well\n"), ([{"type": "text", "text": "well"}], "well")],
)
def test_calls_are_put_into_the_content_in_the_generic_form_where_the_template_shows_none(
    content: Any, shown: str
) -> None:
    source = PARTS if isinstance(content, list) else PLAIN_MESSAGES
    text = chat(source).render([calling('{"x": 1}', content=content)])

    calls = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    assert text.rstrip(";") == f"assistant:{shown}{calls}"


def test_several_calls_of_a_turn_are_what_the_generic_form_writes_of_several() -> None:
    (call,) = calling("")["tool_calls"]
    second = {**call, "function": {"name": "g", "arguments": {"x": "é"}}}
    text = chat(PLAIN_MESSAGES).render([{"role": "assistant", "tool_calls": [call, second]}])

    assert text.removeprefix("assistant:").rstrip(";") == (
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"x": "é"}}\n</tool_call>'
    )


@pytest.mark.parametrize("source", [OBJECTS, TEXTS])
def test_the_result_of_a_call_is_shown(source: str) -> None:
    text = chat(source).render([USER, calling("{}"), TOOL])

    assert text == "user:hi<call>f{}</call><result>42</result>"


@pytest.mark.parametrize("role", ["tool", "function"])
def test_results_become_user_messages_for_a_template_that_knows_none(role: str) -> None:
    result = {**TOOL, "role": role}
    answered = [USER, calling("{}", content="so"), result, {**result, "content": "43"}]
    text = chat(TURNS).render([*answered, USER, calling("{}", content="well"), result])

    calls = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert text == (
        f"user:hi;assistant:so\n{calls};user:42\n43\nhi;assistant:well\n{calls};user:42;"
    )


def test_parts_of_results_stay_parts() -> None:
    parts = [{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]
    text = chat(TURNS).render([USER, calling("{}"), {**TOOL, "content": parts}, TOOL])

    assert text.endswith("user:4;")


# In the styles of templates that take one system message: one refuses another, one drops it.
STRICT = """\
{%- for m in messages %}
    {%- if m.role == 'system' and not loop.first %}{{- raise_exception('system first') }}{% endif %}
    {{- m.role + ':' + m.content + ';' }}
{%- endfor %}"""
PREFIXED = """\
{%- if messages[0].role == 'system' %}
    {%- set prefix = messages[0].content + ' ' %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set prefix = '' %}
    {%- set turns = messages %}
{%- endif %}
{%- for m in turns if m.role != 'system' %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('turns must alternate') }}
    {%- endif %}
    {{- '<' + m.role + '>' + (prefix if loop.first else '') + m.content }}
{%- endfor %}"""
RULES = {"role": "system", "content": "be kind"}
MORE_RULES = {"role": "developer", "content": "be brief"}


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (STRICT, "system:be kind\n\nbe brief;user:hi;user:hi;"),
        (PREFIXED, "<user>be kind\n\nbe brief hi\n\nhi"),
        (PLAIN_MESSAGES, "system:be kind;system:be brief;user:hi;user:hi;"),
    ],
)
def test_messages_in_a_row_are_joined_where_the_template_takes_one(source: str, shown: str) -> None:
    assert chat(source).render([RULES, MORE_RULES, USER, USER]) == shown


def test_parts_in_a_row_are_joined_as_parts() -> None:
    source = "{%- if messages | length > 1 %}{{- raise_exception('one') }}{% endif %}" + PARTS
    said = {"role": "user", "content": [{"type": "text", "text": "ho"}]}

    assert chat(source).render([USER, said]) == "user:hi\n\nho"


def test_a_role_that_the_template_refuses_stays_refused() -> None:
    with pytest.raises(TemplateFailed, match="turns must alternate"):
        chat(TURNS).render([RULES, USER])


def test_a_template_that_shows_every_role_gets_results_as_they_are() -> None:
    assert chat(PLAIN_MESSAGES).render([USER, TOOL]) == "user:hi;tool:42;"


def test_arguments_that_are_no_json_stay_as_the_model_wrote_them() -> None:
    assert chat(OBJECTS).render([calling("{x")]) == '<call>f"{x"</call>'
    assert chat(OBJECTS).render([calling("")]) == "<call>f{}</call>"


def test_an_empty_list_of_calls_is_none() -> None:
    message = {"role": "assistant", "content": "no", "tool_calls": []}
    assert chat(OBJECTS).render([message]) == "assistant:no"


def test_the_old_way_to_call_a_function_is_shown_as_the_new_one() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}
    result = {"role": "function", "name": "f", "content": "42"}
    assert chat(OBJECTS).render([USER, call, result]) == (
        "user:hi<call>f{}</call><result>42</result>"
    )


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (PLAIN_MESSAGES, "system:be brief;"),
        (
            "{% if messages[0].role == 'developer' %}D{% endif %}" + PLAIN_MESSAGES,
            "Ddeveloper:be brief;",
        ),
        (
            "{% if messages[0].role in ['system', 'developer'] %}D{% endif %}" + PLAIN_MESSAGES,
            "Ddeveloper:be brief;",
        ),
    ],
)
def test_a_developer_is_the_system_where_the_template_knows_none(source: str, shown: str) -> None:
    assert chat(source).render([{"role": "developer", "content": "be brief"}]) == shown


@pytest.mark.parametrize("content", ["hi", [{"type": "text", "text": "hi"}]])
def test_a_template_that_reads_parts_gets_parts(content: Any) -> None:
    assert chat(PARTS).render([{"role": "user", "content": content}]) == "user:hi"


def test_a_text_of_parts_is_continued() -> None:
    messages = [USER, {"role": "assistant", "content": "well"}]
    assert chat(PARTS).render(messages, continue_final_message=True) == "user:hiassistant:well"


# In the style of Qwen2.5-VL, SmolVLM and LLaVA, and of templates that read texts alone.
IN_PLACE = """\
{%- for m in messages %}{{- '<|' + m.role + '|>' }}
    {%- if m.content is string %}{{- m.content }}{% else %}
    {%- for part in m.content %}
        {%- if part.type == 'image' %}{{- '<start><image><end>' }}
        {%- elif 'text' in part %}{{- part.text }}{% endif %}
    {%- endfor %}{% endif %}
{%- endfor %}"""
IMAGES_FIRST = """\
{%- for m in messages %}{{- m.role + ':' }}
    {%- for part in m.content | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}
    {%- for part in m.content | selectattr('type', 'equalto', 'text') %}{{- part.text }}{% endfor %}
{%- endfor %}"""
LOOKED_AT: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "image"}]},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " c"}]},
]


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (
            IN_PLACE,
            "<|user|>a <start><image><end><|assistant|>b<|user|><start><image><end> c",
        ),
        (IMAGES_FIRST, "user:<image>a assistant:buser:<image> c"),
        (PARTS, "user:a <image>assistant:buser:<image> c"),
        (PLAIN_MESSAGES, "user:a <image>;assistant:b;user:<image> c;"),
    ],
    ids=["in place", "images first", "drops images", "texts alone"],
)
def test_each_image_of_a_chat_is_one_marker_in_the_prompt(source: str, shown: str) -> None:
    template = chat(source)
    template.prove(image_marker="<image>")

    assert template.render(LOOKED_AT) == shown


def test_an_image_of_a_role_that_shows_none_stands_in_its_text_as_a_users_does() -> None:
    source = IN_PLACE.replace("m.content is string", "m.role == 'tool' or m.content is string")
    template = chat(source)
    template.prove(image_marker="<image>")
    result = {"role": "tool", "tool_call_id": "c", "content": LOOKED_AT[0]["content"]}

    assert template.render([USER, calling("{}"), result]).endswith("<|tool|>a <start><image><end>")


def test_a_template_knows_no_images_where_the_model_sees_none() -> None:
    assert chat(PARTS).render(LOOKED_AT[:1]) == "user:a "
