"""Failures, where the client of either version sees them."""

import pytest
from grpc import StatusCode

from proto import generate_pb2 as pb
from router.http.lmtp.streams import SocketLimits
from router.request.errors import ConstraintRefused
from tests.byte_tokenizer import byte_ids
from tests.checks import FakeChecks
from tests.fakes import FakeShard
from tests.router.http.lmtp.talking import Message, Talk, served, talking
from tests.router.rig import settled

ONCE = byte_ids("Once")


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
