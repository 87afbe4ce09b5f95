"""How calls are written is read off what a template makes of one."""

import pytest

from router.text.chat_template import ChatTemplate
from router.text.template_traits import HERMES, CallSyntax

TURN = "{{ '<|im_start|>' + m.role + '\\n' }}"
CALLS = "{% if m.tool_calls %}{% for c in m.tool_calls %}"
PLAIN = "{% endfor %}{% else %}{{ m.content }}{% endif %}"
TAGGED = '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
TAGGED += "{{ c.function.arguments | tojson }}}\n</tool_call>"
LISTED = "{% if m.tool_calls %}[TOOL_CALLS]SPACE[{% for c in m.tool_calls %}"
LISTED += "{{ c.function | tojson }}{% endfor %}]</s>{% else %}{{ m.content }}{% endif %}"
BARE = '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}'


def syntax_of(inside: str) -> CallSyntax:
    template = "{% for m in messages %}" + TURN + inside + "<|im_end|>{% endfor %}"
    return ChatTemplate({"default": template}, None, None).call_syntax()


def test_tags_around_an_object() -> None:
    assert syntax_of(CALLS + TAGGED + PLAIN) == HERMES


@pytest.mark.parametrize("space", ["", " "])
def test_a_list_behind_a_token(space: str) -> None:
    syntax = syntax_of(LISTED.replace("SPACE", space))

    assert syntax.opening == f"[TOOL_CALLS]{space}["
    assert (syntax.trigger, syntax.separator, syntax.closing) == ("[TOOL_CALLS]", ", ", "]")
    assert syntax.id_len == 9


def test_an_object_by_itself() -> None:
    syntax = syntax_of(CALLS + BARE + PLAIN)

    assert (syntax.trigger, syntax.opening, syntax.closing) == ("{", "", "")
    assert syntax.middle == '", "parameters": '
    assert syntax.only_at_start
    assert syntax.separator is None


def test_a_mark_that_nobody_knows_is_not_taken_for_an_object_by_itself() -> None:
    assert syntax_of(CALLS + "<|my_call|>" + BARE + PLAIN) == HERMES


@pytest.mark.parametrize(
    "inside",
    ["{{ m.content }}", CALLS + "{{ c.function.name }}({{ c.function.arguments }})" + PLAIN],
)
def test_a_template_without_calls_or_with_others_gets_the_usual_ones(inside: str) -> None:
    assert syntax_of(inside) == HERMES
