"""Streams that move: what one router told and the rest from another are one undisturbed stream."""

import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.fake_script import letters
from tests.fakes import FakeShard
from tests.integration.server import FRONT_SECRET
from tests.router.http.answering import CHAT, MESSAGES, RESPONSES, TOOLS, body_of
from tests.router.http.harness import House, housing
from tests.router.http.test_thinking import JSON_CALL, Scripted
from tests.scripted_model import JSON_CALLS

GENERATE = "/generate_stream"
COMPLETIONS = "/v1/completions"
THINKS = "<think>\nHm, 🙂.\n</think>\n\nHello!"
CALLS = f"<think>\nHm.\n</think>\n\n{JSON_CALL}"
_TOLD = re.compile(rb": tandem (begin|out) ?(\d*) ([^\n]*)\n\n")
# Times, and the work that was done here.
_CHOICE = re.compile(r'(?<="choices":\[)\{"index":\d+')
_OWN = re.compile(rb'"work_details":{[^}]*}|"completed_at":\d+')


@dataclass
class StreamState:
    """What a front knows of a stream that it has read so far."""

    events: bytes = b""
    begin: dict[str, Any] = field(default_factory=dict)
    out: list[list[int]] = field(default_factory=list)

    def read(self, stream: bytes, num_outs: int | None = None) -> None:
        """A stream, which may break off behind so many tellings of tokens."""
        position = 0
        num_read = 0
        for line in _TOLD.finditer(stream):
            if num_read == num_outs:
                return
            if line[1] == b"begin":
                assert line.start() == position, "it comes before events"
                self.begin = json.loads(line[3])
                self.out += [[] for _ in self.begin["cached"][len(self.out) :]]
            else:
                num_read += 1
                self.out[int(line[2])] += [int(each) for each in line[3].split(b",") if each]
                self.events += stream[position : line.start()]
            position = line.end()
        if num_read != num_outs:
            self.events += stream[position:]

    @property
    def state(self) -> bytes:
        return json.dumps({"begin": self.begin, "out": self.out}).encode()


async def ask(
    house: House, path: str, body: Any, told: StreamState | None = None
) -> httpx.Response:
    """As the front asks, for a new stream or for one that goes on."""
    headers = {"x-tandem-front": FRONT_SECRET, "content-type": "application/json"}
    content = json.dumps(body).encode()
    if told is not None:
        headers["x-tandem-continue"] = str(len(told.state))
        content = told.state + content
    async with house.client as client:
        return await client.post(path, content=content, headers=headers)


def by_choice(events: bytes) -> dict[str, str]:
    """The events of each choice, which come in any order, and those of all."""
    found: dict[str, str] = {}
    for event in _OWN.sub(b"", events).decode().split("\n\n"):
        choice = _CHOICE.search(event)
        key = choice[0] if choice else ""
        found[key] = found.get(key, "") + event
    return found


@asynccontextmanager
async def two_houses(*texts: str) -> AsyncIterator[tuple[House, House]]:
    """Two replicas of a model, which answers each new prompt with the next text, else letters."""
    script = Scripted(texts) if texts else letters
    shards = [FakeShard(script=script, num_blocks=1024) for _ in range(2)]
    templates: dict[str, Any] = {"templates": {"default": JSON_CALLS}, "max_total_len": 2048}
    async with (
        housing(shards[0], front_secret=FRONT_SECRET, **templates) as one,
        housing(shards[1], front_secret=FRONT_SECRET, **templates) as other,
    ):
        # The other one is warm: it finds more in its cache.
        yield one, other


async def check_cuts(path: str, body: Any, texts: Sequence[str], *, everywhere: bool) -> None:
    async with two_houses(*texts) as (one, other):
        answer = await ask(one, path, body)
        assert answer.status_code == 200, answer.text
        whole = StreamState()
        whole.read(answer.content)
        num_outs = answer.content.count(b": tandem out ")
        assert num_outs >= 4
        some = (num_outs // 3, num_outs)
        for cut in range(1, num_outs + 1) if everywhere else some:
            told = StreamState()
            told.read(answer.content, cut)
            rest = await ask(other, path, body, told)
            assert rest.status_code == 200, rest.text
            told.read(rest.content)
            assert by_choice(told.events) == by_choice(whole.events), f"cut at {cut}"
            assert told.out == whole.out


SAMPLED: dict[str, Any] = {"temperature": 0.8}
LOGPROBS: dict[str, Any] = {"logprobs": True, "top_logprobs": 1}
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
CASES: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "tgi": (
        GENERATE,
        {"inputs": "hello", "parameters": {"max_new_tokens": 9, "details": True, "top_k": 5}},
        (),
    ),
    "tgi, a stop string": (
        GENERATE,
        {"inputs": "hello", "parameters": {"stop": ["lo, y"], "details": True}},
        ("hel lo, x hello, you", "x"),
    ),
    "tgi, a thought": (GENERATE, {"inputs": "hi", "parameters": {"details": True}}, (THINKS,)),
    "chat": (CHAT, body_of(CHAT, stream=True, **SAMPLED, **LOGPROBS), (THINKS,)),
    "chat, calls": (CHAT, body_of(CHAT, stream=True, tools=[TOOLS[CHAT]], **USAGE), (CALLS,)),
    "chat, two choices": (
        CHAT,
        body_of(CHAT, stream=True, n=2, stream_options={"include_usage": True}),
        (THINKS,),
    ),
    "chat, a stop string": (CHAT, body_of(CHAT, stream=True, stop=["lo!"], **USAGE), (THINKS,)),
    "completions": (
        COMPLETIONS,
        {"prompt": "hi", "stream": True, "echo": True, "return_token_ids": True, **SAMPLED},
        (THINKS,),
    ),
    "completions, prompts": (
        COMPLETIONS,
        {"prompt": ["hi", "ho"], "n": 2, "stream": True, "max_tokens": 5, **SAMPLED},
        (),
    ),
    "responses": (RESPONSES, body_of(RESPONSES, stream=True, **SAMPLED), (THINKS,)),
    "responses, calls": (
        RESPONSES,
        body_of(RESPONSES, stream=True, tools=[TOOLS[RESPONSES]]),
        (CALLS,),
    ),
    "messages": (MESSAGES, body_of(MESSAGES, stream=True, stop_sequences=["lo!"]), (THINKS,)),
    "messages, calls": (
        MESSAGES,
        body_of(MESSAGES, stream=True, tools=[TOOLS[MESSAGES]]),
        (CALLS,),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_stream_that_moves_is_the_one_that_does_not(
    case: tuple[str, Any, tuple[str, ...]],
) -> None:
    await check_cuts(*case, everywhere=False)


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_stream_may_move_at_any_event(case: tuple[str, Any, tuple[str, ...]]) -> None:
    await check_cuts(*case, everywhere=True)
