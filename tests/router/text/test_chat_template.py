"""Templates in the style of well-known families render as transformers renders them."""

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from router.request.errors import TemplateFailed
from router.text.chat_template import ChatTemplate
from tests.router.text import small_tokenizers

CHATML = """\
{% for message in messages %}
<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}
{% generation %}{{ message.content }}{% endgeneration %}<|im_end|>
{% else %}
{{ message.content }}<|im_end|>
{% endif %}
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""

HEADERS = """\
{{- bos_token }}
{%- if tools is not none %}
    {{- '<|start_header_id|>tools<|end_header_id|>\\n\\n' }}
    {{- tools | tojson(indent=2) + '<|eot_id|>' }}
{%- endif %}
{%- for message in messages -%}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if message.tool_calls is defined %}
        {%- for call in message.tool_calls %}
            {{- call.function | tojson }}
        {%- endfor %}
    {%- else %}
        {{- message['content'] | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

INST = """\
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set turns = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in turns %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must take turns: user, assistant, user') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {%- set before = system ~ '\\n\\n' if loop.last and system is defined else '' %}
        {{- '[INST] ' + before + message.content + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""

PARTS = """\
{%- set ns = namespace(images=0) %}
{%- for message in messages %}
    {%- if message.content is string %}{% set parts = [{'type': 'text', 'text': message.content}] %}
    {%- else %}{% set parts = message.content %}{% endif %}
    {{- message.role | upper ~ ': ' }}
    {%- for part in parts %}
        {%- if part.type != 'text' %}{% set ns.images = ns.images + 1 %}{% continue %}{% endif %}
        {{- part.text }}
    {%- endfor %}
    {{- '\\n' }}
{%- endfor %}
{{- ns.images }} {{ 'doc' if documents else 'no doc' }}
"""

NAMED = """\
{% for message in messages %}
{{ message.role }}{% if 'name' in message %} ({{ message.name }}){% endif %}: {{ message.content }}
{% endfor %}
"""

USER = {"role": "user", "content": '  Zażółć <b> & "gęślą"? 🙂 '}
ASSISTANT = {"role": "assistant", "content": "Yes. "}
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"ć": 1}}}
    ],
}
TOOL = {"role": "tool", "content": "42", "tool_call_id": "1"}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "<ć>", "parameters": {}}}]


@pytest.fixture(scope="module")
def transformers_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder = tmp_path_factory.mktemp("model")
    return AutoTokenizer.from_pretrained(
        small_tokenizers.save(small_tokenizers.byte_level(), folder)
    )


def chat(source: str, **settings: Any) -> ChatTemplate:
    return ChatTemplate({"default": source}, "<s>", "</s>", **settings)


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize(
    ("source", "messages", "tools"),
    [
        pytest.param(CHATML, [SYSTEM, USER, ASSISTANT, USER], None, id="chatml"),
        pytest.param(
            NAMED, [{**USER, "name": None}, {**USER, "name": "Ann"}], None, id="an empty field"
        ),
        pytest.param(HEADERS, [SYSTEM, USER], None, id="headers"),
        pytest.param(HEADERS, [USER, CALL, TOOL], TOOLS, id="headers with tools"),
        pytest.param(INST, [SYSTEM, USER, ASSISTANT, USER], None, id="inst"),
        pytest.param(INST, [USER, ASSISTANT], None, id="inst without system"),
        pytest.param(
            PARTS,
            [
                {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "see"}]},
                USER,
            ],
            None,
            id="parts",
        ),
    ],
)
def test_a_chat_renders_as_transformers_renders_it(
    transformers_tokenizer: PreTrainedTokenizerBase,
    source: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
    add_generation_prompt: bool,
) -> None:
    ours = chat(source).render(messages, tools=tools, add_generation_prompt=add_generation_prompt)
    theirs = transformers_tokenizer.apply_chat_template(
        messages,
        tools=list(tools) if tools else None,
        chat_template=source,
        add_generation_prompt=add_generation_prompt,
        tokenize=False,
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("source", "final"),
    [
        pytest.param(CHATML, "Yes, and \n", id="spaces kept"),
        pytest.param(HEADERS, "Yes, and  ", id="spaces trimmed"),
        pytest.param(INST, "a", id="a letter that the template writes too"),
        pytest.param(INST, "it's [/INST]</s>", id="what the template writes around it"),
        pytest.param(
            PARTS,
            [{"type": "text", "text": "one"}, {"type": "text", "text": "two "}, {"type": "image"}],
            id="the last text of several parts",
        ),
    ],
)
def test_a_final_message_is_continued_as_in_transformers(
    transformers_tokenizer: PreTrainedTokenizerBase, source: str, final: Any
) -> None:
    messages = [USER, {"role": "assistant", "content": final}]
    ours = chat(source).render(messages, continue_final_message=True)
    theirs = transformers_tokenizer.apply_chat_template(
        messages, chat_template=source, continue_final_message=True, tokenize=False
    )
    assert ours == theirs
    last = final if isinstance(final, str) else "two "
    assert ours.endswith((last, last.rstrip()))


def test_messages_are_left_as_they_were() -> None:
    messages = [{"role": "assistant", "content": [{"type": "text", "text": "a"}], "name": None}]
    chat(PARTS).render(messages, continue_final_message=True)
    assert messages == [
        {"role": "assistant", "content": [{"type": "text", "text": "a"}], "name": None}
    ]


@pytest.mark.parametrize(
    ("messages", "source"),
    [
        pytest.param([], CHATML, id="no message"),
        pytest.param([{"role": "assistant"}], CHATML, id="no content"),
        pytest.param([{"role": "assistant", "content": [{"type": "image"}]}], PARTS, id="no text"),
        pytest.param([ASSISTANT], "{{ messages | length }}", id="left out by the template"),
    ],
)
def test_what_cannot_be_continued_is_refused(messages: list[dict[str, Any]], source: str) -> None:
    with pytest.raises(TemplateFailed, match="the last message") as refused:
        chat(source).render(messages, continue_final_message=True)
    assert refused.value.field == "messages"


def test_the_template_for_tools_is_taken_when_there_are_tools() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools | length }}"}, None, None)
    assert template.render([USER], tools=TOOLS) == "1"
    assert template.render([USER]) == "plain"
    assert template.reads("tools", with_tools=True)


@pytest.mark.parametrize(("source", "reads_tools"), [(HEADERS, True), (CHATML, False)])
def test_whether_a_template_shows_tools_is_known(source: str, reads_tools: bool) -> None:
    assert chat(source).reads("tools", with_tools=True) is reads_tools


def test_a_special_token_that_the_model_lacks_is_empty() -> None:
    template = ChatTemplate({"default": "[{{ bos_token }}{{ eos_token }}]"}, None, "</s>")
    assert template.render([USER]) == "[</s>]"


def test_more_variables_reach_the_template_and_hide_none_of_its_own() -> None:
    template = chat("{{ thinking }} {{ bos_token }} {{ messages | length }}")
    assert template.render([USER], variables={"thinking": True}) == "True <s> 1"


@pytest.mark.parametrize(
    "name", ["messages", "tools", "bos_token", "strftime_now", "range", "tandem_tick", "a b", ""]
)
def test_a_variable_may_not_take_a_name_that_is_taken(name: str) -> None:
    with pytest.raises(TemplateFailed, match="may not be called") as refused:
        chat(CHATML).render([USER], variables={name: "x"})
    assert refused.value.field == "chat_template_kwargs"


def test_a_template_is_taken_by_its_name() -> None:
    template = ChatTemplate({"default": "plain", "rag": "{{ documents }}"}, None, None)
    assert template.names == ("default", "rag")
    assert template.render([USER], name="rag", variables={"documents": 3}) == "3"
    assert template.reads("documents", name="rag")
    assert not template.reads("documents")


def test_a_template_knows_the_date() -> None:
    template = chat("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2031, 2, 3))
    assert template.render([USER]) == "03 Feb 2031"


@pytest.mark.parametrize(
    ("templates", "expected"),
    [
        pytest.param({}, ["has none", "--tokenizer-config-path"], id="no template"),
        pytest.param({"rag": "x"}, ["'default'", "has only rag"], id="only others"),
        pytest.param({"default": "{% if %}"}, ["'default'", "broken"], id="syntax error"),
        pytest.param(
            {"default": "{{ x | nope }}"}, ["'default'", "broken", "nope"], id="no filter"
        ),
        pytest.param({"default": "{{" + "(" * 5000}, ["'default'", "broken"], id="no bottom"),
        pytest.param({"default": INST}, ["roles must take turns"], id="raise_exception"),
        pytest.param({"default": "{{ x.y.z }}"}, ["'x' is undefined"], id="undefined variable"),
        pytest.param({"default": "{{ 1 / 0 }}"}, ["ZeroDivisionError"], id="arithmetic"),
        pytest.param({"default": "{{ messages.append(1) }}"}, ["unsafe"], id="changes messages"),
        pytest.param({"default": "{{ ''.__class__.mro() }}"}, ["unsafe"], id="Python's insides"),
        pytest.param(
            {"default": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"},
            ["RecursionError"],
            id="recursion",
        ),
    ],
)
def test_a_template_that_fails_says_why(templates: dict[str, str], expected: list[str]) -> None:
    template = ChatTemplate(templates, "<s>", "</s>")
    with pytest.raises(TemplateFailed) as refused:
        template.render([ASSISTANT])
    assert refused.value.field == "messages"
    for part in expected:
        assert part in str(refused.value)


LOOP = "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"
TREE = "{% macro t(n) %}{% if n %}{{ t(n - 1) }}{{ t(n - 1) }}{% endif %}{% endmacro %}{{ t(60) }}"
DOUBLING = (
    "{% set n = namespace(s='x') %}{% for i in range(99) %}{% set n.s = n.s OP n.s %}{% endfor %}"
)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(LOOP, id="loops in loops"),
        pytest.param(TREE, id="a macro that calls itself twice"),
        pytest.param("{% for i in range(10 ** 9) %}x{% endfor %}", id="a long range"),
        pytest.param("{% for i in range(99999) %}" + "x" * 999 + "{% endfor %}", id="much output"),
        pytest.param(DOUBLING.replace("OP", "~").replace("START", "'x'"), id="joined by ~"),
        pytest.param(DOUBLING.replace("OP", "+").replace("START", "'x'"), id="joined by +"),
        pytest.param(DOUBLING.replace("OP", "*").replace("START", "9"), id="squares of squares"),
        pytest.param("{{ 'x' * 10 ** 10 }}", id="a long text"),
        pytest.param("{{ [0] * 10 ** 10 }}", id="a long list"),
        pytest.param("{{ 9 ** (9 ** 9) }}", id="a long number"),
    ],
)
def test_a_template_without_end_is_stopped(source: str) -> None:
    begin_s = time.perf_counter()
    with pytest.raises(TemplateFailed):
        chat(source, time_limit_s=0.3).render([USER])
    assert time.perf_counter() - begin_s < 10


def test_a_long_chat_is_within_the_bounds() -> None:
    messages = [USER, ASSISTANT] * 2000
    assert chat(CHATML).render(messages).count("<|im_start|>") == 4001
    big = [{"role": "user", "content": "x" * 2_000_000}]
    assert len(chat(INST).render(big)) > 2_000_000


def test_templates_of_a_folder_reach_the_chat(tmp_path: Path) -> None:
    folder = small_tokenizers.save(small_tokenizers.byte_level(), tmp_path, chat_template=CHATML)
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = ChatTemplate({"default": CHATML}, "<s>", "</s>").render([USER])
    assert ours == theirs.apply_chat_template([USER], add_generation_prompt=True, tokenize=False)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (CHATML, "<|im_end|>"),
        (HEADERS, "<|eot_id|>"),
        (INST, "</s>"),
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}", ""),
        ("{{ raise_exception('no') }}", ""),
        ("{{ messages", ""),
    ],
)
def test_what_a_template_writes_behind_an_answer_is_known(source: str, expected: str) -> None:
    assert ChatTemplate({"default": source}, "<s>", "</s>").after_answer() == expected
    assert ChatTemplate({}, "<s>", "</s>").after_answer() == ""
