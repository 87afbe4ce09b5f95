"""Models that think and call in their own forms, behind real masks: it comes out as written."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.server import RunningServer, launched, metric
from tests.router.http.answering import (
    CHAT,
    MESSAGES,
    PATHS,
    RESPONSES,
    TOOLS,
    body_of,
    events_in,
    told,
    told_by_events,
)
from tests.scripted_model import (
    CHANNEL_TOKENS,
    CHANNELS,
    CHATML_TOKENS,
    JSON_CALLS,
    TAGGED_CALLS,
    Tokens,
    save_scripted_model,
)

pytestmark = pytest.mark.slow

# Tokens of prompts behind which a model says something, calls, and answers by what came of it.
SAYS = 400
CALLS = 700
GOES_ON = 1100
MAX_LEN = 1536
THOUGHT = "Rome? <b>{\n"


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of model. Scripts are what it writes behind the prompt's end."""

    template: str
    tokens: Tokens
    thought: str
    content: str
    call: str
    ends: tuple[str, ...]

    def save(self, folder: Path) -> Path:
        scripts = {
            SAYS: f"{self.thought}{self.content}Hello!",
            CALLS: self.thought + self.call,
            GOES_ON: f"{self.thought}{self.content}Sunny.",
        }
        return save_scripted_model(
            folder, self.template, self.tokens, scripts, ends=self.ends, max_len=MAX_LEN
        )


FAMILIES = {
    "json calls": Family(
        JSON_CALLS,
        CHATML_TOKENS,
        f"<think>\n{THOUGHT}\n</think>\n\n",
        "",
        '<tool_call>\n{"name": "look", "arguments": {"city": "Rome"}}\n</tool_call>',
        ("<|im_end|>",),
    ),
    "tagged calls": Family(
        TAGGED_CALLS,
        CHATML_TOKENS,
        f"{THOUGHT}\n</think>\n\n",
        "",
        "<tool_call>\n<function=look>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
        ("<|im_end|>",),
    ),
    "channels": Family(
        CHANNELS,
        CHANNEL_TOKENS,
        f"<|channel|>analysis<|message|>{THOUGHT}<|end|><|start|>assistant",
        "<|channel|>final<|message|>",
        "<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
        '{"city": "Rome"}<|call|>',
        ("<|return|>", "<|call|>"),
    ),
}
COUNTS = {
    RESPONSES: (f"{RESPONSES}/input_tokens", "input_tokens"),
    MESSAGES: (f"{MESSAGES}/count_tokens", "input_tokens"),
}
CHOICES: dict[str, list[Any]] = {
    CHAT: ["auto", "required", {"type": "function", "function": {"name": "look"}}],
    RESPONSES: ["auto", "required", {"type": "function", "name": "look"}],
    MESSAGES: [{"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "look"}],
}


@contextmanager
def serving(family: Family, folder: Path, *flags: str) -> Iterator[RunningServer]:
    # Other tests take the cores as well: what is slow there is no fault of a grammar.
    patient = ("--constraint-timeout", "20")
    with launched(*patient, *flags, model=family.save(folder)) as server:
        yield server


def prompt_len(server: RunningServer, path: str, body: dict[str, Any]) -> int:
    if path == CHAT:
        answer = server.http.post("/chat_tokenize", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return len(answer.json()["tokenize_response"])
    counts, field = COUNTS[path]
    fields = {key: value for key, value in body.items() if key != "max_tokens"}
    answer = server.http.post(counts, json=fields, timeout=60)
    assert answer.status_code == 200, answer.text
    return int(answer.json()[field])


def ask(server: RunningServer, path: str, start: int, body: dict[str, Any]) -> Any:
    """The answer, whole and streamed, to a prompt that is as long as the script wants it."""
    messages = body["input" if path == RESPONSES else "messages"]
    messages[0] = {**messages[0], "content": "hi"}
    room = start - prompt_len(server, path, body)
    messages[0] = {**messages[0], "content": "hi" + "." * room}
    whole = server.http.post(path, json=body, timeout=60)
    assert whole.status_code == 200, whole.text
    streamed = server.http.post(path, json={**body, "stream": True}, timeout=60)
    assert streamed.status_code == 200, streamed.text
    answer = whole.json()
    assert told_by_events(path, events_in(streamed.text)) == told(path, answer)
    return answer


def going_on(path: str, answer: Any) -> list[Any]:
    """The turns behind the first: what the model thought and called, and what came of it."""
    if path == CHAT:
        message = answer["choices"][0]["message"]
        call_id = message["tool_calls"][0]["id"]
        return [message, {"role": "tool", "tool_call_id": call_id, "content": "sunny"}]
    if path == MESSAGES:
        call_id = answer["content"][-1]["id"]
        result = {"type": "tool_result", "tool_use_id": call_id, "content": "sunny"}
        said = {"role": "assistant", "content": answer["content"]}
        return [said, {"role": "user", "content": [result]}]
    call_id = answer["output"][-1]["call_id"]
    output = {"type": "function_call_output", "call_id": call_id, "output": "sunny"}
    return [*answer["output"], output]


# By day the form with the most marks; what tells forms apart is held where answers are read.
@pytest.mark.parametrize(
    "name",
    [
        "channels",
        pytest.param("json calls", marks=pytest.mark.nightly),
        pytest.param("tagged calls", marks=pytest.mark.nightly),
    ],
)
def test_what_a_model_writes_is_told_in_every_api(name: str, tmp_path: Path) -> None:
    rome = [("look", {"city": "Rome"})]
    with serving(FAMILIES[name], tmp_path) as server:
        info = server.http.get("/info").json()
        assert (info["calls"]["proven"], info["thoughts"]["proven"]) == (True, True)
        for path_index, path in enumerate(PATHS):
            said = ask(server, path, SAYS, body_of(path))
            assert told(path, said) == (THOUGHT.strip(), "Hello!", [])
            # Each choice in each API, and each with each form.
            choice = CHOICES[path][(path_index + [*FAMILIES].index(name)) % 3]
            body = body_of(path, tools=[TOOLS[path]], tool_choice=choice)
            called = ask(server, path, CALLS, body)
            assert told(path, called) == (THOUGHT.strip(), "", rome), choice
            none = {"type": "none"} if path == MESSAGES else "none"
            body = body_of(path, tools=[TOOLS[path]], tool_choice=none)
            thought, text, calls = told(path, ask(server, path, CALLS, body))
            assert (thought, "Rome" in text, calls) == (THOUGHT.strip(), True, []), text
            special = [mark for mark, is_special in FAMILIES[name].tokens.items() if is_special]
            assert not any(mark in text for mark in special), text
            field = "input" if path == RESPONSES else "messages"
            body = body_of(path, tools=[TOOLS[path]])
            body[field] += going_on(path, called)
            assert told(path, ask(server, path, GOES_ON, body)) == (THOUGHT.strip(), "Sunny.", [])


@pytest.mark.nightly
def test_a_thought_goes_on_where_its_shard_was_killed(tmp_path: Path) -> None:
    thought = " ".join(f"It is {number}." for number in range(25))
    family = replace(FAMILIES["tagged calls"], thought=f"{thought}\n</think>\n\n")
    with serving(family, tmp_path, "--max-restarts", "20") as server:
        body = body_of(MESSAGES, tools=[TOOLS[MESSAGES]], tool_choice={"type": "any"})
        undisturbed = ask(server, MESSAGES, CALLS, body)
        assert told(MESSAGES, undisturbed) == (thought, "", [("look", {"city": "Rome"})])
        lines: list[str] = []
        body["stream"] = True
        with server.http.stream("POST", MESSAGES, json=body, timeout=120) as stream:
            for line in stream.iter_lines():
                lines.append(line + "\n")
                if len(lines) == 60:
                    os.kill(server.pid_of("model_server"), signal.SIGKILL)
        events = events_in("".join(lines))
        assert told_by_events(MESSAGES, events) == told(MESSAGES, undisturbed)
        deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
        signed = [delta["signature"] for delta in deltas if delta["type"] == "signature_delta"]
        assert signed == [undisturbed["content"][0]["signature"]]
        assert metric(server, "tandem_shard_failures_total") == 1
