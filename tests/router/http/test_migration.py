"""Who the front is, and which streams it may bring from elsewhere."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.byte_tokenizer import NUM_SPECIAL
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.integration.server import FRONT_SECRET
from tests.router.http.harness import House, housing, listening, open_request
from tests.router.http.test_moving import GENERATE, StreamState, ask
from tests.router.rig import adapter_folder

BODY: dict[str, Any] = {"inputs": "hello", "parameters": {"max_new_tokens": 6}}
CHAT_BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6, "stream": True}
CHAT = "/v1/chat/completions"


def shard() -> FakeShard:
    return FakeShard(num_blocks=256)


async def told_by(house: House, path: str = GENERATE, body: Any = BODY) -> StreamState:
    """What the front knows of a stream of which it has read two tellings."""
    told = StreamState()
    told.read((await ask(house, path, body)).content, 2)
    return told


async def post(house: House, content: bytes, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with house.client as client:
        return await client.post(
            GENERATE, content=content, headers={"content-type": "application/json", **named}
        )


async def test_streams_of_others_tell_nothing() -> None:
    async with housing(shard(), front_secret=FRONT_SECRET) as house, housing(shard()) as open_house:
        for answer in (
            await post(house, json.dumps(BODY).encode()),
            await post(house, json.dumps(BODY).encode(), x_tandem_front="guessed guessed"),
            await post(open_house, json.dumps(BODY).encode(), x_tandem_front=FRONT_SECRET),
        ):
            assert answer.status_code == 200
            assert b": tandem" not in answer.content


async def test_nobody_else_brings_a_stream() -> None:
    async with housing(shard(), front_secret=FRONT_SECRET) as house, housing(shard()) as open_house:
        told = await told_by(house)
        content = told.state + json.dumps(BODY).encode()
        given = {"x_tandem_continue": str(len(told.state))}
        for answer in (
            await post(house, content, **given),
            await post(house, content, **given, x_tandem_front="guessed guessed"),
            await post(open_house, content, **given, x_tandem_front=FRONT_SECRET),
        ):
            assert answer.status_code == 403
            assert answer.json()["error_type"] == "not_the_front"


async def test_a_stream_that_began_elsewhere_goes_on_only_if_it_may_differ() -> None:
    async with housing(shard(), front_secret=FRONT_SECRET) as house:
        told = await told_by(house)
        told.begin["fingerprint"] = "0.0.0-other"
        content = told.state + json.dumps(BODY).encode()
        given = {"x_tandem_continue": str(len(told.state)), "x_tandem_front": FRONT_SECRET}
        refused = await post(house, content, **given)
        taken = await post(house, content, **given, x_tandem_migrate="any")

    assert (refused.status_code, refused.json()["error_type"]) == (409, "replica_differs")
    assert "0.0.0-other" in refused.json()["error"]
    assert taken.status_code == 200
    assert b'"generated_text":"' in taken.content


ROOT = "0" * 32
GOOD: dict[str, Any] = {"root": ROOT, "asked_s": 1e9, "fingerprint": "0.0.1", "cached": [0]}


@pytest.mark.parametrize(
    ("state", "place"),
    [
        (b"no JSON", "not JSON"),
        (b"[]", "JSON object"),
        (b"[" * 4000, "JSON"),
        (b"{}", "`begin`"),
        ({"begin": {**GOOD, "root": "x"}, "out": [[]]}, "`begin.root`"),
        ({"begin": {**GOOD, "asked_s": 1e300}, "out": [[]]}, "`begin.asked_s`"),
        ({"begin": {**GOOD, "cached": ["a"]}, "out": [[]]}, "`begin.cached"),
        ({"begin": GOOD, "out": [["a"]]}, "`out"),
        ({"begin": GOOD, "out": [[5, 1 << 40]]}, "`out`"),
        ({"begin": GOOD, "out": [[-1, 5]]}, "`out`"),
        ({"begin": GOOD, "out": [[5, -2]]}, "`out`"),
    ],
)
async def test_what_no_replica_has_told_is_refused(state: Any, place: str) -> None:
    told = state if isinstance(state, bytes) else json.dumps(state).encode()
    async with housing(shard(), front_secret=FRONT_SECRET) as house:
        answer = await post(
            house,
            told + json.dumps(BODY).encode(),
            x_tandem_continue=str(len(told)),
            x_tandem_front=FRONT_SECRET,
        )

    assert answer.status_code == 400, answer.text
    assert place in answer.json()["error"]


@pytest.mark.parametrize("state_len", ["-1", "²", "1000000", "many", "9" * 5000])
async def test_a_length_beyond_the_body_is_refused(state_len: str) -> None:
    async with housing(shard(), front_secret=FRONT_SECRET) as house:
        headers = {"x-tandem-front": FRONT_SECRET, "x-tandem-continue": state_len.encode()}
        async with house.client as client:
            answer = await client.post(GENERATE, json=BODY, headers=headers)  # type: ignore[arg-type]

    assert answer.status_code == 400
    assert "x-tandem-continue" in answer.json()["error"]


@pytest.mark.parametrize(
    "out", [[], [[], []], [[5] * 6], [[5] * 40]], ids=["none", "two", "all", "more"]
)
async def test_choices_that_the_request_has_not_are_refused(out: list[list[int]]) -> None:
    async with housing(shard(), front_secret=FRONT_SECRET) as house:
        told = await told_by(house, CHAT, CHAT_BODY)
        told.out = out
        answer = await ask(house, CHAT, CHAT_BODY, told)

    assert answer.status_code == 400
    assert "`out`" in answer.json()["error"]["message"]


async def test_a_stream_with_log_probabilities_of_its_prompt_tells_nothing() -> None:
    body = {"prompt": "hi", "max_tokens": 4, "echo": True, "logprobs": 1, "stream": True}
    async with housing(shard(), front_secret=FRONT_SECRET) as house:
        answer = await ask(house, "/v1/completions", body)

    assert b"[DONE]" in answer.content
    assert b": tandem" not in answer.content


async def test_a_prompt_has_the_dates_of_its_first_replica() -> None:
    template = "{{ strftime_now('%d.%m.%Y') }} {{ messages[0].content }}"
    edge: dict[str, Any] = {"templates": {"default": template}, "front_secret": FRONT_SECRET}
    async with housing(FakeShard(script=saying("hello", 13)), **edge) as house:
        told = await told_by(house, CHAT, CHAT_BODY)
        told.begin["asked_s"] = datetime(2020, 2, 29, 12, tzinfo=UTC).timestamp()
        await ask(house, CHAT, CHAT_BODY, told)
        prompts = [
            bytes(token_id - NUM_SPECIAL for token_id in request.token_ids[:13])
            for method, call in house.shard.calls
            if method == "Prefill"
            for request in call.batch.requests
        ]

    assert prompts[0] != prompts[1] == b"29.02.2020 hi"


async def test_a_chat_does_not_go_on_behind_another_template() -> None:
    template = "{{ messages[0].content }}"
    named: dict[str, Any] = {"front_secret": FRONT_SECRET}
    async with (
        housing(shard(), templates={"default": template}, **named) as one,
        housing(shard(), templates={"default": f"{template}!"}, **named) as other,
    ):
        told = await told_by(one, CHAT, CHAT_BODY)
        refused = await ask(other, CHAT, CHAT_BODY, told)

    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "replica_differs")


async def test_a_stream_goes_on_with_an_adapter_of_the_same_files_alone(tmp_path: Path) -> None:
    folder = Path(adapter_folder(tmp_path, "one"))
    body = {**CHAT_BODY, "model": "one"}
    shards = [FakeShard(num_blocks=256, max_loras=1) for _ in range(3)]
    async with (
        housing(shards[0], front_secret=FRONT_SECRET) as one,
        housing(shards[1], front_secret=FRONT_SECRET) as same,
        housing(shards[2], front_secret=FRONT_SECRET) as other,
    ):
        for house in (one, same):
            await house.rig.adapters.load("one", str(folder))
        (folder / "adapter_config.json").write_text('{"r": 9}')
        await other.rig.adapters.load("one", str(folder))
        told = await told_by(one, CHAT, body)
        taken = await ask(same, CHAT, body, told)
        refused = await ask(other, CHAT, body, told)

    assert taken.status_code == 200
    assert b"[DONE]" in taken.content
    assert refused.status_code == 400
    assert "`adapter` must be that of the adapter here" in refused.json()["error"]["message"]


async def test_a_server_that_stops_leaves_its_streams_to_the_front() -> None:
    slow = shard()
    slow.faults.delay_s = 0.01
    body = {**BODY, "parameters": {"max_new_tokens": 100}}
    async with housing(slow, front_secret=FRONT_SECRET) as house, listening(house.app) as port:
        path = GENERATE
        others = await open_request(port, "POST", path, json.dumps(body).encode())
        fronts = await open_request(
            port, "POST", path, json.dumps(body).encode(), x_tandem_front=FRONT_SECRET
        )
        heads = [await reader.readuntil(b"data:") for reader, _ in (others, fronts)]
        await house.rig.batcher.drain(0.0)
        ends = [await reader.read() for reader, _ in (others, fronts)]
        for _, writer in (others, fronts):
            writer.close()

    assert [b": tandem begin" in head for head in heads] == [False, True]
    assert [b'"error_type"' in end for end in ends] == [True, False]
    assert [end.endswith(b"0\r\n\r\n") for end in ends] == [True, False]


async def test_a_deadline_counts_from_the_first_replica() -> None:
    async with housing(shard(), front_secret=FRONT_SECRET, max_duration_s=60.0) as house:
        told = await told_by(house, CHAT, CHAT_BODY)
        told.begin["asked_s"] -= 120.0
        answer = await ask(house, CHAT, CHAT_BODY, told)

    assert '"finish_reason":"deadline"' in answer.text
