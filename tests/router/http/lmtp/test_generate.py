"""GENERATE in both versions, and its failures."""

import json
from typing import Any

import pytest
from grpc import StatusCode

from proto import generate_pb2 as pb
from router.http.lmtp.streams import SocketLimits
from router.request.errors import ConstraintRefused
from tests.byte_tokenizer import BOS_ID, EOS_ID, NUM_SPECIAL, byte_ids
from tests.checks import FakeChecks
from tests.fakes import FakeShard
from tests.router.http.lmtp.talking import Message, Talk, served, talking
from tests.router.rig import an_hour_ahead, expected_text, says, settled
from tests.scripted_model import JSON_CALLS

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


IMAGE = {"type": "image_url", "image_url": "data:image/png;base64,AAAA"}


@pytest.mark.parametrize("fields", [{}, {"include_reasoning": True}])
async def test_an_image_of_a_chat_is_refused_where_the_model_does_not_see(
    fields: dict[str, Any],
) -> None:
    messages = [{"role": "user", "content": [IMAGE, {"type": "text", "text": "hi"}]}]
    async with served(FakeShard()) as (_, port), talking(port, "/") as talk:
        await talk.hello()
        error = await talk.error("GENERATE", messages=messages, **fields)

    place = "messages[0].content[0].image_url"
    assert error["field"] == place
    assert error["error"] == f"`{place}` is an image, and this model reads text alone"


@pytest.mark.parametrize(
    ("command", "holes"), [("SCORE", None), ("BEAMS", "holes[0].")], ids=["SCORE", "BEAMS"]
)
async def test_an_image_is_refused_by_name_where_only_texts_are_taken(
    command: str, holes: str | None
) -> None:
    prompt = {"messages": [{"role": "user", "content": [IMAGE]}]}
    fields: dict[str, Any] = (
        {"width": 2, "holes": [prompt]} if holes else {**prompt, "scored": ["yes"]}
    )
    async with served(FakeShard()) as (_, port), talking(port, "/") as talk:
        await talk.hello()
        error = await talk.error(command, **fields)

    assert error["error"].endswith("is an image, which GENERATE alone takes")
    assert error["field"] == f"{holes or ''}messages[0].content[0].image_url"


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


WRONG: list[tuple[Any, ...]] = [
    ({"max_tokens": 200}, "max_tokens", "at most 160"),
    ({"prompt": None}, "prompt", "required"),
    ({"prompt": "text"}, "prompt", "list"),
    ({"model": "another"}, "model", "does not exist"),
    ({"top_logprobs": 1000}, "top_logprobs", "between 0 and 256"),
    ({"logit_bias": {"x": 100}}, "logit_bias", "token ids"),
    ({"logit_bias": {"7": 1, " 7 ": 100}}, "logit_bias", 'Given: " 7 "'),
    ({"logit_bias": {"+7": 100}}, "logit_bias", 'Given: "+7"'),
    ({"logit_bias": {"9" * 5000: 100}}, "logit_bias", "token ids"),
    ({"text": "both"}, "text", "exclude each other"),
    ({"stop": ["x"] * 65}, "stop", "at most 64"),
    # Each under the name that LMTP has for it.
    ({"min_tokens": 5}, "min_tokens", "at most `max_tokens`, which is 4"),
    ({"timeout_s": 0}, "timeout_s", "greater than 0"),
    ({"output": [7] * 4}, "output", "of fewer tokens than `max_tokens`"),
]


async def test_a_wrong_request_gets_its_error_in_the_first_object() -> None:
    async with served(FakeShard()) as (_, port), talking(port, "/") as talk:
        for fields, field, words in WRONG:
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


GREETING = {
    "version",
    "server",
    "models",
    "eos_token_ids",
    "vocab_size",
    "max_input_len",
    "max_total_len",
    "max_message_len",
    "max_streams",
    "features",
}


async def test_the_greeting_says_what_the_server_takes() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        hello = await talk.hello()

    assert hello.keys() >= GREETING
    assert (hello["version"], hello["models"]) == (2, ["fake/model"])
    assert (hello["eos_token_ids"], hello["vocab_size"]) == ([EOS_ID], 258)


@pytest.mark.parametrize(("asked", "given"), [(1, 1), (2, 2), (9, 2)])
async def test_a_client_gets_the_version_that_both_know(asked: int, given: int) -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        messages = await talk.ask("HELLO", 5, version=asked)

    assert messages == [("MSG", {"stream_id": 5, "hello": messages[0][1]["hello"]})]
    assert messages[0][1]["hello"]["version"] == given


async def test_text_goes_in_and_comes_out() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("GENERATE", text="Once upon", max_tokens=5)

    text = expected_text("Once upon", 5)
    assert "".join(fields["text"] for _, fields in messages[:-1]) == text
    assert [fields["is_end"] for _, fields in messages[:-1]] == [False] * 5
    assert all("top_logprobs" not in fields for _, fields in messages)
    assert messages[-1] == (
        "DONE",
        {
            "stream_id": 1,
            "finish_reason": "length",
            "text": text,
            "tail": "",
            "usage": {"prompt_tokens": 9, "cached_tokens": 0, "output_tokens": 5},
        },
    )


async def test_the_end_token_is_marked_and_adds_no_text() -> None:
    async with served(says("Hi", "Once")) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("GENERATE", text="Once")

    assert [(fields["text"], fields["is_end"]) for _, fields in messages[:-1]] == [
        ("H", False),
        ("i", False),
        ("", True),
    ]
    assert (messages[-1][1]["finish_reason"], messages[-1][1]["text"]) == ("eos", "Hi")


async def test_without_a_number_all_the_room_is_taken() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("GENERATE", text="x" * 120)

    assert messages[-1][1]["usage"]["output_tokens"] == 40


async def test_turns_go_through_the_chat_template_and_the_last_of_ours_is_gone_on_with() -> None:
    shard = FakeShard()
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Sure"}]
    async with served(shard) as (_, port), talking(port) as talk:
        await talk.hello()
        await talk.ask("GENERATE", messages=turns[:1], max_tokens=1)
        await talk.ask("GENERATE", messages=turns, max_tokens=1)

    prompts = [
        list(call.batch.requests[0].token_ids)
        for method, call in shard.calls
        if method == "Prefill"
    ]
    assert prompts == [byte_ids("user: hi\n"), byte_ids("user: hi\nassistant: Sure")]


@pytest.mark.parametrize(
    ("fields", "text", "stop"),
    [
        ({"stop": ["wor"]}, "Hello, wor", "wor"),
        ({"stop": ["wor"], "include_stop": False}, "Hello, ", "wor"),
        ({"stop": ["nothing"]}, "Hello, world", None),
        ({"stop_token_ids": byte_ids(",")}, "Hello,", None),
        ({"min_tokens": 3, "max_tokens": 4}, "Hell", None),
    ],
)
async def test_stops_end_the_text_where_they_are(
    fields: dict[str, Any], text: str, stop: str | None
) -> None:
    async with served(says("Hello, world", "Once")) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("GENERATE", text="Once", **fields)

    done = messages[-1][1]
    assert (done["text"], done.get("stop_string")) == (text, stop)
    assert "".join(fields["text"] for _, fields in messages[:-1]) + done["tail"] == text


async def test_a_constraint_is_held_to_and_its_end_says_so() -> None:
    shard = says("yes", "Once")
    checks = FakeChecks()
    constraint = {"type": "choice", "value": ["yes", "no"]}
    async with served(shard, checks=checks) as (_, port), talking(port) as talk:
        await talk.hello()
        messages = await talk.ask("GENERATE", text="Once", constraint=constraint, max_tokens=9)

    assert checks.asked[0][0].spec.text == '["yes","no"]'
    assert messages[-1][1]["constraint_satisfied"] is True
    assert messages[-1][1]["text"] == "yes"


async def test_a_drawn_seed_is_reported() -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        sampled = await talk.ask("GENERATE", text="Once", max_tokens=1, temperature=1.0)
        seeded = await talk.ask("GENERATE", text="Once", max_tokens=1, temperature=1.0, seed=5)
        greedy = await talk.ask("GENERATE", text="Once", max_tokens=1)

    assert [messages[-1][1].get("seed") for messages in (sampled, seeded, greedy)] == [7, 5, None]


THOUGHT = "<think>\nHm.\n</think>"
TURNS = [{"role": "user", "content": "hi"}]
# Of JSON_CALLS, whose prompt of these turns has this text.
ASKED = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def thinker(text: str) -> Any:
    templates = {"default": JSON_CALLS}
    return served(says(text, ASKED), templates=templates, max_total_len=512)


async def chat(talk: Talk, **fields: Any) -> list[dict[str, Any]]:
    asked = {"messages": TURNS, "max_tokens": 60, "include_reasoning": True, **fields}
    return [fields for _, fields in await talk.ask("GENERATE", **asked)]


async def test_a_thought_of_a_chat_comes_beside_its_text() -> None:
    async with thinker(f"{THOUGHT}\n\nHello!") as (_, port), talking(port) as talk:
        await talk.hello()
        *tokens, done = await chat(talk)
        *plain, plain_done = await chat(talk, include_reasoning=None)

    assert (done["reasoning"], done["text"]) == ("Hm.", "Hello!")
    assert "".join(each["text"] for each in tokens) == "Hello!"
    assert "".join(each.get("reasoning", "") for each in tokens) == "Hm."
    places = [place for place, each in enumerate(tokens) if "reasoning" in each]
    # Bytes, which are tokens here; the first ones are not known to open a thought yet.
    assert places[-1] + 1 == len(THOUGHT)
    assert [each["token"] for each in plain] == [each["token"] for each in tokens]
    assert plain_done["text"] == f"{THOUGHT}\n\nHello!"
    assert not any("reasoning" in each for each in [*plain, plain_done])


async def test_a_cut_thought_is_whole_in_the_last_object() -> None:
    async with thinker("<think>\nHm. </thi") as (_, port), talking(port) as talk:
        await talk.hello()
        *tokens, done = await chat(talk)

    assert (done["reasoning"], done["text"]) == ("Hm. </thi", "")
    assert all("reasoning" in each for each in tokens[len("<think>") :])


async def test_a_thought_goes_on_behind_the_tokens_that_it_has() -> None:
    async with thinker(f"{THOUGHT}\n\nHello!") as (_, port), talking(port) as talk:
        await talk.hello()
        *whole, _ = await chat(talk)
        for num_made in range(1, len(whole)):
            output = [each["token"] for each in whole[:num_made]]
            *rest, _ = await chat(talk, output=output)
            told = [(each["text"], each.get("reasoning")) for each in rest]
            assert told == [(each["text"], each.get("reasoning")) for each in whole[num_made:]]


async def test_a_constraint_of_a_chat_holds_behind_its_thought() -> None:
    constraint = {"type": "regex", "value": "Hello!"}
    shard = says(f"{THOUGHT}\n\nHello!", ASKED)
    templates = {"default": JSON_CALLS}
    async with (
        served(shard, templates=templates, max_total_len=512) as (_, port),
        talking(port) as talk,
    ):
        await talk.hello()
        await chat(talk, constraint=constraint)
    prefill = next(call for method, call in shard.calls if method == "Prefill")
    thought = prefill.batch.requests[0].constraint.thought
    assert (thought.opener, thought.closer) == ("<think>", "</think>")


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"messages": None, "text": "Once"}, "for `messages` alone"), ({"text": "Once"}, "alone")],
)
async def test_thoughts_are_told_apart_in_chats_alone(fields: dict[str, Any], words: str) -> None:
    async with thinker("a") as (_, port), talking(port) as talk:
        await talk.hello()
        (error,) = await chat(talk, **fields)
        assert error["field"] == "include_reasoning"
        assert words in error["error"]


async def test_version_1_tells_no_thoughts_apart() -> None:
    async with thinker("a") as (_, port), talking(port) as talk:
        (error,) = await chat(talk)
    assert "version 2" in error["error"]


async def test_what_was_thought_before_reaches_the_template() -> None:
    shard = says("a", ASKED)
    templates = {"default": JSON_CALLS}
    said = {"role": "assistant", "content": "4", "reasoning_content": "Two and two."}
    async with (
        served(shard, templates=templates, max_total_len=512) as (_, port),
        talking(port) as talk,
    ):
        await talk.hello()
        for asked in (True, None):
            await chat(talk, messages=[*TURNS, said, *TURNS], include_reasoning=asked, max_tokens=1)
    prompts = [
        bytes(each - NUM_SPECIAL for each in call.batch.requests[0].token_ids).decode()
        for method, call in shard.calls
        if method == "Prefill"
    ]
    assert [prompt.count("<think>\nTwo and two.\n</think>\n\n4") for prompt in prompts] == [1, 1]


@pytest.mark.parametrize("num_made", [1, 4, 8])
async def test_an_output_goes_on_behind_the_tokens_that_it_has(num_made: int) -> None:
    async with served(FakeShard()) as (_, port), talking(port) as talk:
        await talk.hello()
        whole = [fields for _, fields in await talk.ask("GENERATE", text="Once upon", max_tokens=9)]
        output = [fields["token"] for fields in whole[:num_made]]
        messages = await talk.ask("GENERATE", text="Once upon", max_tokens=9, output=output)

    rest = [fields for _, fields in messages]
    assert [fields["token"] for fields in rest[:-1]] == [
        fields["token"] for fields in whole[num_made:-1]
    ]
    assert (
        "".join(fields["text"] for fields in whole[:num_made]) + rest[-1]["text"]
        == (whole[-1]["text"])
    )
    assert rest[-1]["finish_reason"] == "length"


async def test_an_empty_text_is_the_beginning_of_a_sequence() -> None:
    shard = FakeShard()
    async with served(shard) as (_, port), talking(port) as talk:
        await talk.hello()
        await talk.ask("GENERATE", text="", max_tokens=1)

    prefill = next(request for method, request in shard.calls if method == "Prefill")
    assert list(prefill.batch.requests[0].token_ids) == [BOS_ID]


@pytest.mark.parametrize("says_hello", [False, True])
async def test_time_ends_a_stream_with_what_there_is(says_hello: bool) -> None:
    shard = FakeShard()
    shard.faults.delay_s = 0.02
    asked: dict[str, Any] = {"text": "Once"} if says_hello else {"prompt": byte_ids("Once")}
    async with served(shard, clock=an_hour_ahead(shard)) as (_, port), talking(port) as talk:
        if says_hello:
            await talk.hello()
        messages = await talk.ask("GENERATE", **asked, timeout_s=60, max_tokens=99)

    # The first version of the protocol has no other word for it.
    assert messages[-1][1]["finish_reason"] == ("deadline" if says_hello else "length")
    assert 1 < len(messages) < 90


def failing_at(num_tokens: int) -> FakeShard:
    """A shard whose row fails instead of its token of that index."""
    shard = FakeShard()
    made = 0

    def spoil(answer: pb.StepResponse) -> None:
        nonlocal made
        before = made
        made = made + sum(len(each.tokens) for each in answer.generations)
        if before < num_tokens <= made:
            shard.faults.row_errors[None] = "NaN"

    if num_tokens == 0:
        shard.faults.row_errors[None] = "NaN"
    shard.faults.spoil = spoil
    return shard


async def asked_until_it_fails(talk: Talk) -> list[list[Message]]:
    """As LMQL's client does: after each "length" again, with the longer prompt."""
    prompt = list(ONCE)
    answers = list[list[Message]]()
    while True:
        messages = await talk.ask("GENERATE", len(answers), prompt=prompt, max_tokens=16)
        answers.append(messages)
        if "error" in messages[-1][1]:
            return answers
        prompt += [fields["token"] for _, fields in messages]


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3])
async def test_an_early_failure_is_an_error_that_version_1_sees(num_tokens: int) -> None:
    async with served(failing_at(num_tokens)) as (_, port), talking(port, "/") as talk:
        messages = await talk.ask("GENERATE", prompt=ONCE, max_tokens=16)

    assert len(messages) == num_tokens + 1
    assert messages[-1][1]["error_type"] == "generation"
    assert "NaN" in messages[-1][1]["error"]


@pytest.mark.parametrize("num_tokens", [4, 5, 9])
async def test_a_later_failure_ends_version_1_with_a_good_token(num_tokens: int) -> None:
    shard = failing_at(num_tokens)
    async with served(shard) as (house, port), talking(port, "/") as talk:
        messages = await talk.ask("GENERATE", prompt=ONCE, max_tokens=16)
        shard.faults.spoil = None
        again = await talk.ask("GENERATE", 2, prompt=ONCE, max_tokens=num_tokens)
        await settled(house.rig)

    assert [fields["finish_reason"] for _, fields in messages] == [None] * (num_tokens - 1) + [
        "length"
    ]
    assert [fields["token"] for _, fields in messages] == [fields["token"] for _, fields in again]


async def test_a_client_of_version_1_that_asks_again_gets_the_error() -> None:
    shard = FakeShard()
    made = 0

    def spoil(answer: pb.StepResponse) -> None:
        nonlocal made
        made += len(answer.generations)
        if made == 6:
            shard.faults.fail_for_good("Decode", StatusCode.UNAVAILABLE, "the GPU is gone")
            shard.faults.fail_for_good("Prefill", StatusCode.UNAVAILABLE, "the GPU is gone")

    shard.faults.spoil = spoil
    async with served(shard) as (_, port), talking(port, "/") as talk:
        answers = await asked_until_it_fails(talk)

    assert [len(messages) for messages in answers] == [6, 1]
    assert answers[0][-1][1]["finish_reason"] == "length"
    assert answers[-1][0][1]["retryable"] is False


async def test_version_2_gets_the_error_at_once_and_that_a_retry_is_no_use() -> None:
    shard = failing_at(5)
    async with served(shard) as (house, port), talking(port) as talk:
        await talk.hello()
        row = await talk.ask("GENERATE", text="Once", max_tokens=16)
        await settled(house.rig)  # else the step behind the failed one may meet the next fault
        shard.faults.spoil = None
        shard.faults.fail_for_good("Decode", StatusCode.UNAVAILABLE, "the GPU is gone")
        lost = await talk.ask("GENERATE", text="Once", max_tokens=16)
        again = await talk.ask("GENERATE", text="Once", max_tokens=2)
        await settled(house.rig)

    assert [command for command, _ in row] == ["TOKEN"] * 6
    assert (row[-1][1]["error_type"], row[-1][1]["retryable"]) == ("generation", False)
    assert (lost[-1][1]["error_type"], lost[-1][1]["retryable"]) == ("generation", False)
    assert again[-1][0] == "DONE"


async def test_a_shard_that_fails_with_each_of_them_ends_all_streams_with_their_own_error() -> None:
    shard = FakeShard()
    async with served(shard) as (house, port), talking(port) as talk:
        await talk.hello()
        for stream_id in range(6):
            await talk.send("GENERATE", stream_id=stream_id, text="Once" + str(stream_id))
        while (await talk.hear())[1]["stream_id"] != 5:
            pass
        # Together twice, and then with each of them alone.
        methods = ["Decode"] + ["Prefill"] * 7
        shard.faults.fails.extend((each, StatusCode.UNAVAILABLE, "is gone") for each in methods)
        ended: dict[int, str] = {}
        while len(ended) < 6:
            _, fields = await talk.hear()
            if "error" in fields:
                assert fields["stream_id"] not in ended
                ended[fields["stream_id"]] = fields["error_type"]
        await settled(house.rig)

    assert set(ended.values()) == {"generation"}


async def test_a_full_queue_says_when_to_come_again() -> None:
    shard = FakeShard()
    shard.faults.delay_s = 0.05
    async with served(shard, max_concurrent_requests=1) as (_, port), talking(port) as talk:
        await talk.hello()
        await talk.send("GENERATE", stream_id=1, text="Once", max_tokens=20)
        await talk.hear()
        await talk.send("GENERATE", stream_id=2, text="Once", max_tokens=20)
        while (fields := (await talk.hear())[1])["stream_id"] != 2:
            pass

    assert (fields["error_type"], fields["retryable"]) == ("overloaded", True)
    assert fields["retry_after_s"] > 0


async def test_a_constraint_that_cannot_be_kept_says_why_in_numbers() -> None:
    refusal = ConstraintRefused("it needs 9 tokens", "does_not_fit", {"needed_len": 9})
    checks = FakeChecks(refuse=lambda _: refusal)
    async with served(FakeShard(), checks=checks) as (_, port), talking(port) as talk:
        constraint = {"type": "regex", "value": "a{9}"}
        error = await talk.error("GENERATE", text="Once", constraint=constraint, max_tokens=3)
        unread = await talk.error("GENERATE", text="Once", constraint={"type": "sql", "value": ""})

    assert (error["error_type"], error["field"]) == ("constraint_error", "constraint")
    assert error["details"] == {"reason": "does_not_fit", "needed_len": 9}
    assert unread["field"] == "constraint"


async def test_a_socket_has_so_many_streams_at_a_time() -> None:
    shard = FakeShard()
    shard.faults.delay_s = 0.02
    limits = SocketLimits(max_streams=2)
    async with served(shard, socket_limits=limits) as (_, port), talking(port) as talk:
        await talk.hello()
        for stream_id in (1, 2, 3):
            await talk.send("GENERATE", stream_id=stream_id, text="Once", max_tokens=8)
        ends: list[tuple[int, str | None]] = []
        while len(ends) < 3:
            command, fields = await talk.hear()
            if command == "DONE" or "error" in fields:
                ends.append((fields["stream_id"], fields.get("error_type")))

    assert ends[0] == (3, "overloaded")
    assert sorted(ends[1:]) == [(1, None), (2, None)]
