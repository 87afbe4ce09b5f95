"""GENERATE in version 1, as LMQL's own client reads it."""

import json
from typing import Any

import pytest

from tests.byte_tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE, byte_ids
from tests.fakes import FakeShard
from tests.router.http.lmtp.talking import served, talking
from tests.router.rig import says

ONCE = byte_ids("Once")


async def test_tokens_come_with_their_alternatives_and_the_last_one_says_why() -> None:
    async with served(FakeShard()) as (_, port), talking(port, "/") as talk:
        messages = await talk.ask("GENERATE", prompt=ONCE, max_tokens=6, model="model")

    assert [command for command, _ in messages] == ["TOKEN"] * 6
    assert {frozenset(fields) for _, fields in messages} == {
        frozenset({"token", "stream_id", "logprob", "finish_reason", "top_logprobs"})
    }
    assert [fields["finish_reason"] for _, fields in messages] == [None] * 5 + ["length"]
    assert all(
        fields["top_logprobs"][str(fields["token"])] == fields["logprob"] for _, fields in messages
    )


@pytest.mark.parametrize("num_asked", [0, 1, 3])
async def test_the_chosen_token_is_among_the_alternatives(num_asked: int) -> None:
    async with served(FakeShard()) as (_, port), talking(port, "/") as talk:
        messages = await talk.ask("GENERATE", prompt=ONCE, max_tokens=2, top_logprobs=num_asked)

    assert [len(fields["top_logprobs"]) for _, fields in messages] == [max(1, num_asked)] * 2
    assert all(str(fields["token"]) in fields["top_logprobs"] for _, fields in messages)


async def test_the_end_token_is_a_token_with_stop() -> None:
    async with served(says("Hello", "Once")) as (_, port), talking(port, "/") as talk:
        messages = await talk.ask("GENERATE", prompt=ONCE, max_tokens=16)

    assert [fields["token"] for _, fields in messages] == [*byte_ids("Hello"), EOS_ID]
    assert [fields["finish_reason"] for _, fields in messages] == [None] * 5 + ["stop"]


async def test_a_constraint_that_is_complete_ends_with_the_end_token() -> None:
    shard = says("yes", "Once")
    # All but the first token are forced, and nothing but the end may follow: none is drawn.
    shard.followed.num_forced = lambda _: 5
    constraint = {"type": "choice", "value": ["yes"]}
    async with served(shard) as (_, port), talking(port, "/") as talk:
        messages = await talk.ask("GENERATE", prompt=ONCE, max_tokens=16, constraint=constraint)

    assert [fields["token"] for _, fields in messages] == [*byte_ids("yes"), EOS_ID]
    assert [fields["finish_reason"] for _, fields in messages] == [None] * 3 + ["stop"]
    assert messages[-1][1]["top_logprobs"] == {str(EOS_ID): 0.0}


async def test_without_a_number_32_tokens_come_or_as_many_as_there_is_room_for() -> None:
    async with served(FakeShard()) as (_, port), talking(port, "/") as talk:
        plain = await talk.ask("GENERATE", 1, prompt=ONCE)
        narrow = await talk.ask("GENERATE", 2, prompt=byte_ids("x" * 120), max_tokens=None)

    assert (len(plain), len(narrow)) == (32, 32)


async def test_an_empty_prompt_is_the_beginning_of_a_sequence() -> None:
    shard = FakeShard()
    async with served(shard) as (_, port), talking(port, "/") as talk:
        messages = await talk.ask("GENERATE", prompt=[], max_tokens=1)

    assert messages[-1][1]["finish_reason"] == "length"
    prefill = next(request for method, request in shard.calls if method == "Prefill")
    assert list(prefill.batch.requests[0].token_ids) == [BOS_ID]


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": "4"}, "max_tokens", "integer"),
        ({"max_tokens": 200}, "max_tokens", "at most 160"),
        ({"prompt": None}, "prompt", "required"),
        ({"prompt": [VOCAB_SIZE]}, "prompt", "between 0 and 257"),
        ({"prompt": [-1]}, "prompt", "between 0 and 257"),
        ({"prompt": "text"}, "prompt", "list"),
        ({"prompt": byte_ids("x" * 121)}, "prompt", "at most 120"),
        ({"model": "another"}, "model", "does not exist"),
        ({"temperature": -1}, "temperature", "at least 0"),
        ({"top_logprobs": 1000}, "top_logprobs", "between 0 and 256"),
        ({"logit_bias": {str(VOCAB_SIZE): 100}}, "logit_bias", "between 0 and 257"),
        ({"logit_bias": {"x": 100}}, "logit_bias", "token ids"),
        ({"logit_bias": {"--5": 100}}, "logit_bias", "token ids"),
        ({"logit_bias": {"1_0": 100}}, "logit_bias", 'whose keys are token ids. Given: "1_0"'),
        ({"logit_bias": {"7": 1, " 7 ": 100}}, "logit_bias", 'Given: " 7 "'),
        ({"logit_bias": {"\u0663": 100}}, "logit_bias", 'Given: "\u0663"'),
        ({"logit_bias": {"+7": 100}}, "logit_bias", 'Given: "+7"'),
        ({"logit_bias": {"-7": 100}}, "logit_bias", "between 0 and 257. Given: -7"),
        ({"logit_bias": {"9" * 5000: 100}}, "logit_bias", "token ids"),
        ({"logit_bias": {"5": "100"}}, "logit_bias", "numbers"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "between -100 and 100"),
        ({"logit_bias": [5]}, "logit_bias", "object"),
        ({"text": "both"}, "text", "exclude each other"),
        ({"stop": ["x"] * 65}, "stop", "at most 64"),
    ],
)
async def test_a_wrong_request_gets_its_error_in_the_first_object(
    fields: dict[str, Any], field: str, words: str
) -> None:
    async with served(FakeShard()) as (_, port), talking(port, "/") as talk:
        error = await talk.error("GENERATE", **{"prompt": ONCE, "max_tokens": 4, **fields})
        again = await talk.ask("GENERATE", prompt=ONCE, max_tokens=1)

    assert (error["stream_id"], error["field"]) == (1, field)
    assert words in error["error"]
    assert error["retryable"] is False
    assert again[0][1]["finish_reason"] == "length"


@pytest.mark.parametrize("bias", [None, {}, {"99": 100, "100": 100}, {"5": -100.0}])
async def test_biases_reach_the_shard_as_they_are(bias: dict[str, float] | None) -> None:
    shard = FakeShard()
    async with served(shard) as (_, port), talking(port, "/") as talk:
        await talk.ask("GENERATE", prompt=ONCE, max_tokens=1, logit_bias=bias)

    prefill = next(request for method, request in shard.calls if method == "Prefill")
    sent = dict(prefill.batch.requests[0].sampling.logit_bias)
    assert sent == {int(key): value for key, value in (bias or {}).items()}


async def test_fields_that_mean_nothing_without_sampling_change_nothing() -> None:
    shard = FakeShard()
    async with served(shard) as (_, port), talking(port, "/") as talk:
        for stream_id, temperature in enumerate((0.0, 0.7)):
            await talk.ask(
                "GENERATE",
                stream_id,
                prompt=ONCE,
                max_tokens=1,
                temperature=temperature,
                top_k=5,
                top_p=0.5,
                typical_p=0.5,
                min_p=0.1,
                length_penalty=2,
            )

    requests = [
        each for _, call in shard.calls if hasattr(call, "batch") for each in call.batch.requests
    ]
    assert [request.sampling.do_sample for request in requests] == [False, True]
    assert [request.sampling.top_k for request in requests] == [0, 5]


async def test_streams_of_one_socket_come_mixed_and_whole() -> None:
    shard = FakeShard(num_blocks=256)
    served_many = served(shard, max_concurrent_requests=32)
    async with served_many as (_, port), talking(port, "/") as talk:
        for stream_id in range(20):
            prompt = [*ONCE, 2 + stream_id]
            await talk.send("GENERATE", stream_id=stream_id, prompt=prompt, max_tokens=8)
        streams: dict[int, list[dict[str, Any]]] = {index: [] for index in range(20)}
        while any(not each or each[-1]["finish_reason"] is None for each in streams.values()):
            _, fields = await talk.hear()
            streams[fields["stream_id"]].append(fields)
        alone = [
            await talk.ask("GENERATE", 99, prompt=[*ONCE, 2 + stream_id], max_tokens=8)
            for stream_id in range(20)
        ]

    for stream_id, objects in streams.items():
        tokens = [fields["token"] for _, fields in alone[stream_id]]
        assert [each["token"] for each in objects] == tokens


async def test_model_info_is_answered_in_a_list_and_unknown_types_too() -> None:
    async with served(FakeShard()) as (_, port), talking(port, "/") as talk:
        await talk.socket.send('MODEL_INFO {"stream_id": 1, "model": "model", "data": {}}')
        info = await talk.socket.recv()
        await talk.socket.send('FOO {"stream_id": 7}')
        unknown = await talk.socket.recv()

    assert isinstance(info, str)
    assert isinstance(unknown, str)
    assert info.startswith("MSG [{")
    assert json.loads(info[4:])[0]["model_info"]["model"] == "model"
    assert json.loads(unknown[4:]) == [
        {
            "stream_id": 7,
            "error": "Unknown command: FOO",
            "error_type": "unknown_command",
            "retryable": False,
        }
    ]
