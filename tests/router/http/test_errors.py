"""Refusals: what they quote, their status, their word, and their time to come back."""

import asyncio
import json
from time import monotonic
from typing import Any

import httpx
import pytest

from router.engine.batcher import BatcherLimits
from router.http.errors import Dialect, InternalErrors, problem_of
from router.request.errors import Overloaded, ServerStopped
from router.text.chat_template import ChatTemplate
from tests.fakes import FakeShard
from tests.router.http.harness import MAX_INPUT_LEN, MAX_TOTAL_LEN, House, housing
from tests.router.rig import asking

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
HI = [{"role": "user", "content": "hi"}]
MANY = 10**30


def generate(**parameters: Any) -> dict[str, Any]:
    return {"inputs": "hi", "parameters": parameters}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": HI, **fields}


def respond(**fields: Any) -> dict[str, Any]:
    return {"input": "hi", **fields}


def message(**fields: Any) -> dict[str, Any]:
    return {"messages": HI, "max_tokens": 3, **fields}


def saying(*blocks: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


def saying_text(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


BIAS = "must be an object of token ids with numbers"
TURN = 'must be a block like {"type": "text", "text": ...}, or of type `image`'
CASES: list[tuple[str, dict[str, Any], str]] = [
    ("/generate", generate(seed=MANY), f"`seed` must be between 0 and {2**64 - 1}. Given: {MANY}"),
    (
        "/generate",
        generate(max_new_tokens=-MANY),
        f"`max_new_tokens` must be a whole. Given: -{MANY}",
    ),
    (
        "/generate",
        generate(max_new_tokens=MANY),
        f"`max_new_tokens` must be at most. Given: {MANY}",
    ),
    ("/generate", generate(truncate=MANY), f"`truncate` must be between 1 and. Given: {MANY}"),
    (
        "/generate",
        generate(logit_bias={"5": "a"}),
        f'`parameters.logit_bias` {BIAS}, as `5`. Given: "a"',
    ),
    (
        "/generate",
        generate(stop_token_ids=[5, MANY, MANY]),
        f"`stop_token_ids` must be of token ids. Given: {MANY}",
    ),
    (
        "/generate",
        generate(stop_token_ids=[MANY, 0.5]),
        "`parameters.stop_token_ids[1]` must be a valid integer. Given: 0.5",
    ),
    ("/generate", generate(logit_bias={"a": 1}), 'whose keys are token ids. Given: "a"'),
    (
        "/generate",
        generate(adapter_id="a"),
        '`adapter_id` must be absent: no adapter is loaded. Given: "a"',
    ),
    (
        "/generate",
        generate(grammar={"type": "json", "value": "nix"}),
        '`grammar` is not valid: the value is a string that is not JSON. Given: "nix"',
    ),
    ("/v1/completions", {"prompt": ["a", 5]}, "`prompt` must be a string. Given: 5"),
    ("/v1/completions", {"prompt": [[1], "a"]}, '`prompt` must be a string. Given: "a"'),
    ("/v1/completions", {"prompt": [True]}, "`prompt` must be a string. Given: true"),
    ("/v1/completions", {"prompt": []}, "`prompt` must be a string. Given: a list of 0"),
    (CHAT, chat(stop=["a", 5]), "`stop` must be a string or a list of strings. Given: 5"),
    (
        CHAT,
        chat(guided_json=5),
        "`guided_json` is not valid: the value must be a JSON schema. Given: 5",
    ),
    (
        CHAT,
        chat(guided_choice=[]),
        "`guided_choice` is not valid: the value of `choice` must be. Given: a list of 0",
    ),
    (CHAT, chat(verbosity=""), '`verbosity` must be one of low. Given: ""'),
    (CHAT, chat(top_logprobs=2), "`top_logprobs` needs `logprobs` to be true. Given: 2"),
    (CHAT, chat(metadata=5), "`metadata` must be an object. Given: 5"),
    (CHAT, chat(tool_choice="required"), '`tool_choice` asks for a call. Given: "required"'),
    (CHAT, chat(chat_template="x"), '`chat_template` must be the name of one. Given: "x"'),
    (RESPONSES, respond(background=5), "`background` must be a valid boolean. Given: 5"),
    (RESPONSES, respond(reasoning=5), "`reasoning` must be an object. Given: 5"),
    (
        RESPONSES,
        respond(text={"size": 5}),
        "`text.size` is not a parameter of this route. Given: 5",
    ),
    (
        RESPONSES,
        respond(text={"k" * 5000: 5}),
        f"`text.{'k' * 60}...` is not a parameter of this route. Given: 5",
    ),
    (CHAT, chat(metadata={"k" * 5000: 5}), f"`metadata.{'k' * 60}...` must be a valid. Given: 5"),
    (RESPONSES, respond(max_tool_calls=MANY), f"`max_tool_calls` must be between. Given: {MANY}"),
    (RESPONSES, respond(max_tool_calls=-MANY), f"`max_tool_calls` must be between. Given: -{MANY}"),
    (RESPONSES, respond(input=[5]), "`input[0]` must be an object. Given: 5"),
    (RESPONSES, respond(input=[{"role": 5}]), "`input[0].role` must be one of. Given: 5"),
    (
        RESPONSES,
        respond(previous_response_id="x"),
        "`previous_response_id`: Response `x` is not known",
    ),
    (MESSAGES, message(messages=5), "`messages` must be a list of at least one message. Given: 5"),
    (MESSAGES, message(messages=[{"role": 5}]), "`messages[0].role` must be one of. Given: 5"),
    (MESSAGES, message(messages=saying(5)), f"`messages[0].content[0]` {TURN}. Given: 5"),
    (
        MESSAGES,
        message(messages=saying({"type": "text", "text": 5})),
        f"`messages[0].content[0]` {TURN}. Given: the text 5",
    ),
    (
        MESSAGES,
        message(messages=saying({"type": 5})),
        f"`messages[0].content[0]` {TURN}. Given: a block of type 5",
    ),
    (MESSAGES, message(system=5), "`system` must be a string or a list of blocks. Given: 5"),
    (MESSAGES, message(max_tokens=MANY), f"`max_tokens` exceed context limit: 9 + {MANY} > 160"),
]
LONG = "a" * 130
SUM = f"This model's maximum context length is {MAX_TOTAL_LEN} tokens. "
ALONE = f"This model's maximum context length is {MAX_INPUT_LEN} tokens for "
# What is asked, and the words and the parameter by which programs know that it is too long.
TOO_LONG: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("/v1/completions", {"prompt": "a", "max_tokens": 500}, SUM, "max_tokens"),
    ("/v1/completions", {"prompt": LONG, "max_tokens": 5}, ALONE, "prompt"),
    ("/v1/completions", {"prompt": LONG, "max_tokens": 500}, ALONE, "prompt"),
    ("/v1/completions", {"prompt": LONG * 5000}, ALONE, "prompt"),
    ("/v1/completions", {"prompt": LONG, "echo": True, "max_tokens": 0}, ALONE, "prompt"),
    (CHAT, {"messages": saying_text(LONG)}, ALONE, "messages"),
    (RESPONSES, {"input": LONG, "max_output_tokens": 500}, ALONE, "input"),
    (RESPONSES, {"input": "a", "max_output_tokens": 500}, SUM, "max_output_tokens"),
]


async def test_openais_clients_know_that_the_context_is_too_small() -> None:
    async with housing(FakeShard(), max_body_len=1_000_000) as house, house.client as client:
        for path, body, words, param in TOO_LONG:
            answer = await client.post(path, json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
            assert (error["message"][: len(words)], error["param"]) == (words, param)


async def test_anthropics_clients_know_that_the_context_is_too_small() -> None:
    long = {"messages": saying_text(LONG), "max_tokens": 500}
    short = {"messages": saying_text("a"), "max_tokens": 500}
    async with housing(FakeShard()) as house, house.client as client:
        answers = [await client.post(MESSAGES, json=body) for body in (long, short)]

    assert [answer.status_code for answer in answers] == [400, 400]
    assert [answer.json()["error"]["message"] for answer in answers] == [
        f"prompt is too long: {len(f'user: {LONG}') + 1} tokens > {MAX_INPUT_LEN} maximum",
        "input length and `max_tokens` exceed context limit: 8 + 500 > 160, "
        "decrease input length or `max_tokens` and try again",
    ]


async def test_a_refusal_quotes_field_rule_and_value() -> None:
    async with housing(FakeShard()) as house:
        for path, body, refusal in CASES:
            answer = await house.client.post(path, json=body)
            assert 400 <= answer.status_code < 500
            error = answer.json()["error"]
            message = error if isinstance(error, str) else error["message"]
            begin, _, given = refusal.partition(". Given: ")
            for part in (begin, given):
                assert part in message


PROMPT = "Once upon"
GENERATE = {"inputs": PROMPT, "parameters": {"max_new_tokens": 2}}
CHAT_BODY = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
TEXT = {"prompt": PROMPT, "max_tokens": 2}


def fill(house: House, num_requests: int) -> None:
    """Takes slots and keeps them."""
    for index in range(num_requests):
        house.rig.batcher.submit(asking(f"{index}", 500))


def check_times(answer: httpx.Response) -> float:
    """The exact time, which both headers hold."""
    exact_ms = int(answer.headers["retry-after-ms"])
    assert 1000 <= exact_ms <= 60_000
    assert int(answer.headers["retry-after"]) == -(-exact_ms // 1000)
    return exact_ms / 1000


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("/generate", GENERATE, "error_type"),
        ("/v1/chat/completions", CHAT_BODY, "code"),
        ("/v1/chat/completions", {**CHAT_BODY, "stream": True}, "code"),
        ("/v1/completions", TEXT, "code"),
    ],
)
async def test_a_full_house_is_a_429_and_each_client_gets_a_later_time(
    path: str, body: dict[str, Any], word: str
) -> None:
    async with housing(FakeShard(num_blocks=2048)) as house, house.client as client:
        fill(house, 8)
        asked_s = []
        answers = []
        for _ in range(3):
            asked_s.append(monotonic())
            answers.append(await client.post(path, json=body))
        asked_s.append(monotonic())
        rejected = house.rig.metrics.rejected.value("overloaded")
        header_s = house.rig.metrics.retry_after.value()
    for answer in answers:
        assert answer.status_code == 429
        error = answer.json()
        assert (error if word == "error_type" else error["error"])[word] == "overloaded"
    times_s = [check_times(answer) for answer in answers]
    # Each is counted from its own moment, which lies between two of those that were taken.
    for index in range(2):
        assert asked_s[index] + times_s[index] < asked_s[index + 2] + times_s[index + 1]
    assert rejected == 3
    assert header_s == pytest.approx(times_s[2], abs=0.001)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"inputs": "a", "parameters": {"best_of": 2, "do_sample": True}}),
        ("/v1/chat/completions", {**CHAT_BODY, "n": 2}),
        ("/v1/chat/completions", {**CHAT_BODY, "n": 2, "stream": True}),
        ("/v1/completions", {**TEXT, "prompt": ["a", "b"]}),
    ],
)
async def test_a_request_of_two_sequences_does_not_take_one_slot_and_fail(
    path: str, body: dict[str, Any]
) -> None:
    shard = FakeShard(num_blocks=2048)
    async with housing(shard) as house, house.client as client:
        fill(house, 7)
        answer = await client.post(path, json=body)
        assert answer.status_code == 429
        assert house.rig.batcher.num_streams == 7
        assert house.rig.metrics.rejected.value("overloaded") == 1
        assert house.rig.metrics.sequence_ends.value("cancelled") == 0


async def test_in_a_native_stream_the_refusal_is_an_event_with_the_time() -> None:
    async with housing(FakeShard(num_blocks=2048)) as house, house.client as client:
        fill(house, 8)
        answer = await client.post("/generate_stream", json=GENERATE)
    assert answer.status_code == 200
    event = json.loads(answer.text.removeprefix("data:"))
    assert (event["error"], event["error_type"]) == ("Model is overloaded", "overloaded")
    assert event["retry_after"] == -(-event["retry_after_ms"] // 1000) >= 1


@pytest.mark.parametrize(("path", "body"), [("/generate", GENERATE), ("/v1/completions", TEXT)])
async def test_a_draining_house_is_a_503_of_its_own_word(path: str, body: dict[str, Any]) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        await house.rig.batcher.drain(1.0)
        answer = await client.post(path, json=body)
    assert answer.status_code == 503
    assert "draining" in answer.text
    check_times(answer)


@pytest.mark.parametrize(("path", "body"), [("/generate", GENERATE), ("/v1/completions", TEXT)])
async def test_broken_shards_are_a_503_of_their_own_word(path: str, body: dict[str, Any]) -> None:
    shard = FakeShard()
    limits = BatcherLimits(max_concurrent_requests=8, restart_s=0.1, retry_s=0.1, tick_s=0.02)
    async with housing(shard, batcher_limits=limits) as house, house.client as client:
        await shard.stop()
        async with asyncio.timeout(30):
            while not house.rig.metrics.rejected.value("unhealthy"):
                answer = await client.post(path, json=body)
                await asyncio.sleep(0.02)
    assert answer.status_code == 503
    assert "unhealthy" in answer.text
    assert check_times(answer) == 1.0


def test_both_headers_hold_the_same_time_and_the_rounding_is_upward() -> None:
    problem = problem_of(Overloaded("full", 2.0004), Dialect.OPENAI)
    assert problem.headers == {"retry-after": "3", "retry-after-ms": "2001"}


def test_what_the_stop_of_a_server_cut_may_be_asked_of_the_next_one() -> None:
    problem = problem_of(ServerStopped("stopped"), Dialect.TGI)
    assert problem.status == 503
    assert problem.headers["retry-after"] == "1"


CHAT_OF_BUG = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def failed(errors: InternalErrors, num_times: int) -> InternalErrors:
    for _ in range(num_times):
        errors.ended("POST", "internal_error")
    return errors


def test_five_in_a_row_are_many() -> None:
    assert not failed(InternalErrors(), 4).are_many
    assert failed(InternalErrors(), 5).are_many


@pytest.mark.parametrize(
    ("method", "error_type", "expected"),
    [("POST", None, False), ("GET", None, True), ("POST", "validation", True)],
)
def test_one_that_succeeds_takes_it_back(
    method: str, error_type: str | None, expected: bool
) -> None:
    errors = failed(InternalErrors(), 5)
    errors.ended(method, error_type)
    assert errors.are_many == expected


def test_a_minute_without_any_takes_it_back() -> None:
    now_s = 0.0
    errors = failed(InternalErrors(lambda: now_s), 5)
    now_s = 61.0
    assert not errors.are_many
    assert not failed(errors, 1).are_many


async def test_ready_says_so_and_live_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(self: ChatTemplate, *_: object, **__: object) -> str:
        raise ZeroDivisionError

    async with housing(FakeShard()) as house, house.client as client:

        async def statuses() -> list[int]:
            paths = ("/health/ready", "/health", "/health/live")
            return [(await client.get(path)).status_code for path in paths]

        async def chat() -> httpx.Response:
            return await client.post("/v1/chat/completions", json=CHAT_OF_BUG)

        with monkeypatch.context() as broken:
            broken.setattr(ChatTemplate, "render", break_down)
            for _ in range(5):
                assert (await chat()).status_code == 500
        ailing = await statuses()
        assert (await chat()).status_code == 200
        well = await statuses()

    assert (ailing, well) == ([503, 503, 200], [200, 200, 200])
