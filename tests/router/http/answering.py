"""Asking the three APIs of chats for answers that think, say and call, and what these tell."""

import json
from typing import Any

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
PATHS = (CHAT, RESPONSES, MESSAGES)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LOOK = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
# A tool that looks at a city, as each API has it.
TOOLS: dict[str, Any] = {
    CHAT: LOOK,
    RESPONSES: {"type": "function", "name": "look", "parameters": SCHEMA},
    MESSAGES: {"name": "look", "input_schema": SCHEMA},
}

# It shows nothing of the tools, so that prompts stay short, but reads them.
SHORT_TEMPLATE = (
    "{% if tools %}{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}{{ '' if loop.first else '\n' }}"
    """<tool_call>\n{"name": "{{ call.function.name }}", "arguments": """
    "{{ call.function.arguments | tojson }}}\n</tool_call>"
    "{% endfor %}{{ '\n' }}{% endfor %}"
)


def body_of(path: str, said: str = "hi", **fields: Any) -> dict[str, Any]:
    """A request about one message."""
    messages = [{"role": "user", "content": said}]
    if path == RESPONSES:
        return {"input": messages, **fields}
    return {"messages": messages, "max_tokens": 400, **fields}


def events_in(text: str) -> list[Any]:
    """The data of a stream's events."""
    lines = [line for line in text.split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def told(path: str, answer: Any) -> tuple[str, str, list[Any]]:
    """Thought, text and calls of a whole answer."""
    if path == CHAT:
        message = answer["choices"][0]["message"]
        assert message.get("reasoning") == message.get("reasoning_content")
        calls = [each["function"] for each in message.get("tool_calls", [])]
        found = [(each["name"], json.loads(each["arguments"])) for each in calls]
        return message.get("reasoning", ""), message["content"] or "", found
    if path == MESSAGES:
        parts: dict[str, list[Any]] = {"thinking": [], "text": [], "tool_use": []}
        for block in answer["content"]:
            parts[block["type"]].append(block)
        thought = "".join(block["thinking"] for block in parts["thinking"])
        text = "".join(block["text"] for block in parts["text"])
        return thought, text, [(block["name"], block["input"]) for block in parts["tool_use"]]
    thought = text = ""
    found = []
    for item in answer["output"]:
        if item["type"] == "reasoning":
            thought += "".join(part["text"] for part in item["content"])
        elif item["type"] == "message":
            text += "".join(part["text"] for part in item["content"])
        else:
            found.append((item["name"], json.loads(item["arguments"])))
    return thought, text, found


def told_by_events(path: str, events: list[Any]) -> tuple[str, str, list[Any]]:
    """Thought, text and calls of a stream."""
    thought = text = ""
    calls: list[list[str]] = []
    if path == CHAT:
        deltas = [choice["delta"] for event in events for choice in event["choices"]]
        thought = "".join(delta.get("reasoning", "") for delta in deltas)
        assert thought == "".join(delta.get("reasoning_content", "") for delta in deltas)
        text = "".join(delta.get("content") or "" for delta in deltas)
        for call in (call for delta in deltas for call in delta.get("tool_calls", [])):
            if "id" in call:
                calls.append([call["function"]["name"], ""])
            calls[-1][1] += call["function"]["arguments"]
    for event in events if path == RESPONSES else ():
        if event["type"] == "response.reasoning_text.delta":
            thought += event["delta"]
        elif event["type"] == "response.output_text.delta":
            text += event["delta"]
        elif event["type"] == "response.output_item.added" and "name" in event["item"]:
            calls.append([event["item"]["name"], ""])
        elif event["type"] == "response.function_call_arguments.delta":
            calls[-1][1] += event["delta"]
    for event in events if path == MESSAGES else ():
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            calls.append([event["content_block"]["name"], ""])
        delta = event.get("delta", {})
        thought += delta.get("thinking", "")
        text += delta.get("text", "")
        if "partial_json" in delta:
            calls[-1][1] += delta["partial_json"]
    return thought, text, [(name, json.loads(arguments)) for name, arguments in calls]
