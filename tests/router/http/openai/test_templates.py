"""What a chat says beside its messages reaches the model's template, or is refused."""

from typing import Any

import pytest

from tests.byte_tokenizer import BOS_ID, byte_ids
from tests.fakes import FakeShard
from tests.router.http.harness import housing
from tests.router.http.openai.asking import CHAT, HI, post, refuse

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SAID = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
ALL = (
    SAID + "{{ tools | tojson if tools }}{{ reasoning_effort }}{{ thinking }}"
    "{% for d in documents or [] %}[{{ d.text }}]{% endfor %}"
)


async def prompt_of(templates: dict[str, str], **fields: Any) -> str:
    """The prompt that the model reads."""
    async with housing(FakeShard(), templates=templates) as house:
        body = {"messages": HI, "max_tokens": 1, "return_token_ids": True, **fields}
        answer = await post(house, CHAT, body)
    return bytes(token_id - byte_ids("\0")[0] for token_id in answer["prompt_token_ids"]).decode()


async def test_tools_that_may_not_be_called_are_shown() -> None:
    prompt = await prompt_of({"default": ALL}, tools=[TOOL], tool_choice="none")

    assert prompt == (
        'user:hi;[{"type": "function", '
        '"function": {"name": "f", "parameters": {"type": "object"}}}]'
    )


async def test_arguments_are_shown_as_parameters() -> None:
    tool = {"type": "function", "function": {"name": "f", "arguments": {"type": "object"}}}
    prompt = await prompt_of({"default": ALL}, tools=[tool], tool_choice="none")

    assert '"function": {"parameters": {"type": "object"}, "name": "f"}' in prompt


async def test_the_template_for_tools_is_taken_when_there_are_some() -> None:
    templates = {"default": "plain", "tool_use": "{{ tools | length }} tools"}

    assert await prompt_of(templates, tools=[TOOL], tool_choice="none") == "1 tools"
    assert await prompt_of(templates, tools=[]) == "plain"


async def test_a_template_is_chosen_by_name() -> None:
    templates = {"default": "plain", "rag": "{% for d in documents %}{{ d.text }}{% endfor %}"}
    documents = [{"title": "a", "text": "first"}]

    assert await prompt_of(templates, chat_template="rag", documents=documents) == "first"
    async with housing(FakeShard(), templates=templates) as house:
        status, error = await refuse(house, CHAT, {"messages": HI, "chat_template": "no"})
    assert (status, error["param"]) == (400, "chat_template")
    assert "default, rag" in error["message"]


async def test_variables_reach_the_template() -> None:
    prompt = await prompt_of(
        {"default": ALL},
        chat_template_kwargs={"thinking": "T", "read_by_no_one": 1},
        reasoning_effort="low",
        documents=[{"text": "D"}],
    )

    assert prompt == "user:hi;lowT[D]"


async def test_a_developer_speaks_as_the_system() -> None:
    messages = [{"role": "developer", "content": "be brief"}, *HI]

    assert await prompt_of({"default": SAID}, messages=messages) == "system:be brief;user:hi;"


async def test_calls_and_their_results_are_shown() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "42"}]},
    ]
    source = (
        "{% for m in messages %}{{ m.role }}:"
        "{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.id }} {{ c.function.name }} "
        "{{ c.function.arguments | tojson }}{% endfor %}"
        "{% else %}{{ m.content }}{{ m.tool_call_id }}{% endif %};{% endfor %}"
    )

    assert await prompt_of({"default": source}, messages=messages) == (
        'user:hi;assistant:a f {"x": 1};tool:42a;'
    )


async def test_calls_at_the_end_are_not_continued() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [*HI, {"role": "assistant", "content": "so", "tool_calls": [call]}]

    prompt = await prompt_of({"default": SAID}, messages=messages)
    assert prompt.startswith('user:hi;assistant:so\n[{"id": "a"')
    assert prompt.endswith(";")


async def test_a_refusal_is_what_the_assistant_said() -> None:
    messages = [*HI, {"role": "assistant", "content": None, "refusal": "no"}, *HI]

    assert await prompt_of({"default": SAID}, messages=messages) == (
        "user:hi;assistant:no;user:hi;"
    )


@pytest.mark.parametrize(("adds", "before"), [(None, []), (False, []), (True, [])])
async def test_special_tokens_are_the_template_s_to_add(adds: Any, before: list[int]) -> None:
    """The byte tokenizer adds none of its own; the template's are read as such."""
    async with housing(FakeShard(), templates={"default": "{{ bos_token }}x"}) as house:
        body = {"messages": HI, "max_tokens": 1, "return_token_ids": True}
        answer = await post(house, CHAT, {**body, "add_special_tokens": adds})

    assert answer["prompt_token_ids"] == [*before, BOS_ID, *byte_ids("x")]
