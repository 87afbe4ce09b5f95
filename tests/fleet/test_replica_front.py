"""The front of replicas: who is asked, what is asked again, and streams that go on elsewhere."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from fleet.replica_front import MoveRules
from fleet.replica_pool import CheckRules
from tests.fleet.replica_harness import (
    SECRET,
    WHOLE,
    RunningFront,
    running_front,
    stream_of,
)

TAGGED_LEN = len(stream_of("f", None, with_tags=True))


@pytest_asyncio.fixture
async def front(tmp_path: Path) -> AsyncIterator[RunningFront]:
    async with running_front(tmp_path) as built:
        yield built


def without_comments(answer: httpx.Response) -> bytes:
    """An answer without its signs of life."""
    return answer.content.replace(b":\n\n", b"")


async def test_a_stream_that_is_cut_behind_any_byte_is_the_same(front: RunningFront) -> None:
    for cut in range(TAGGED_LEN):
        front.cuts[:] = [cut]
        answer = await front.ask(stream=True, number=cut)
        assert without_comments(answer) == WHOLE, cut
    moves = front.metrics.moves
    assert moves.value("whole") + moves.value("stream") == TAGGED_LEN
    assert moves.value("stream") > 150
    moved = [asked for replica in front.replicas for asked in replica.asked if asked.told]
    assert {asked.body[:15] for asked in moved} == {b'{"stream":true,'}


@pytest.mark.parametrize("first", [0, 150, 200, 280])
@pytest.mark.parametrize("second", [0, 150, 200])
async def test_a_stream_that_is_cut_twice_is_the_same(
    front: RunningFront, first: int, second: int
) -> None:
    front.cuts[:] = [first, second]
    assert without_comments(await front.ask(stream=True)) == WHOLE
    assert len(front.asked()) == 3


async def test_a_request_that_ends_three_replicas_is_asked_of_no_fourth(tmp_path: Path) -> None:
    async with running_front(tmp_path, "abcd") as front:
        front.cuts[:] = [250, 250, 250]
        answer = await front.ask(stream=True)
        assert len(front.asked()) == 3
        assert b'"code":"replicas_gone"' in answer.content
        assert answer.content.endswith(b"data: [DONE]\n\n")
        front.cuts[:] = [3, 3, 3]
        answer = await front.ask()
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "replicas_gone")
        assert front.metrics.rejected.value("replicas_gone") == 1


async def test_an_answer_that_is_cut_is_asked_for_again(front: RunningFront) -> None:
    front.cuts[:] = [3]
    answer = await front.ask("/generate", inputs="x")
    assert answer.json()["body"] == '{"inputs":"x"}'
    assert len(set(front.asked())) == 2


async def test_what_would_be_done_twice_is_not_asked_for_again(front: RunningFront) -> None:
    front.cuts[:] = [3]
    answer = await front.ask("/v1/batches", input_file_id="x")
    assert (answer.status_code, len(front.asked())) == (503, 1)


async def test_a_replica_that_computes_other_bits_is_passed_over(front: RunningFront) -> None:
    front.replicas[1].fingerprint = "g"
    answer = await cut_at_first(front, [])
    assert without_comments(answer) == WHOLE
    assert front.asked() == ["a", "b", "c"]


async def test_the_replica_that_was_cut_may_be_the_only_one_to_go_on(front: RunningFront) -> None:
    first, *others = front.replicas
    for other in others:
        other.fingerprint = "g"
    assert without_comments(await cut_at_first(front, ["b", "c"])) == WHOLE
    assert front.asked() == ["a", "a", "b", "c"]
    # It comes back as another version.
    await until(lambda: front.pool.are_all_ready)
    first.is_hanging = False
    asking = asyncio.create_task(front.ask(hang=True, stream=True))
    await until(lambda: first.is_hanging)
    first.fingerprint = "i"
    first.kill()
    answer = await asking
    assert answer.content.startswith(b'data: {"choice":0,"token":0,"number":1}\n\n')
    assert b'"code":"no_replica"' in answer.content


async def test_it_may_go_on_with_other_bits_where_that_is_allowed(tmp_path: Path) -> None:
    async with running_front(tmp_path, "ab", rules=MoveRules(SECRET, takes_any=True)) as front:
        front.replicas[0].fingerprint = "g"
        front.cuts[:] = [200]
        assert without_comments(await front.ask(stream=True)) == WHOLE


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/generate_stream", b'"error_type":"model_server_gone"'),
        ("/v1/chat/completions", b"data: [DONE]\n\n"),
        ("/v1/messages", b"event: error\n"),
    ],
)
async def test_a_stream_without_tags_ends_with_an_error_of_its_dialect(
    front: RunningFront, path: str, end: bytes
) -> None:
    for replica in front.replicas:
        replica.has_tags = False
    front.cuts[:] = [100]
    answer = await front.ask(path, stream=True)
    assert answer.content.startswith(WHOLE[:100])
    assert end in answer.content[100:]
    front.cuts[:] = [0]
    assert (await front.ask(path, stream=True)).content == WHOLE


async def test_the_secret_is_the_fronts_and_no_clients(front: RunningFront) -> None:
    headers = {"x-tandem-front": "mine", "x-tandem-continue": "2", "x-tandem-migrate": "any"}
    await front.client.post("/generate", json={}, headers=headers)
    (asked,) = front.replicas[ord(front.asked()[0]) - ord("a")].asked
    assert asked.headers["x-tandem-front"] == SECRET
    assert not {"x-tandem-continue", "x-tandem-migrate"} & asked.headers.keys()


async def test_a_moved_stream_waits_for_the_only_replica_to_come_back(tmp_path: Path) -> None:
    async with running_front(tmp_path, "a") as front:
        (replica,) = front.replicas
        replica.health = 503
        await until(lambda: not front.pool.ready)
        assert (await front.ask()).status_code == 503
        replica.health = 200
        await until(lambda: front.pool.are_all_ready)
        asking = asyncio.create_task(front.ask(hang=True, stream=True))
        await until(lambda: replica.is_hanging)
        replica.health = 503
        replica.kill()
        await until(lambda: front.metrics.moves.value("stream") == 1)
        replica.health = 200
        assert without_comments(await asking) == WHOLE


async def test_the_streams_of_a_replica_that_falls_silent_go_on_elsewhere(tmp_path: Path) -> None:
    checks = CheckRules(interval_s=0.01, timeout_s=0.3, max_silent=2)
    async with running_front(tmp_path, "ab", checks=checks) as front:
        asking = asyncio.create_task(front.ask(hang=True, stream=True))
        await until(lambda: len(front.asked()) == 1)
        front.replica(front.asked()[0]).is_silent = True
        assert without_comments(await asking) == WHOLE
        assert len(set(front.asked())) == 2


async def test_a_conversation_goes_where_it_began_and_other_keys_do_not(
    front: RunningFront,
) -> None:
    turns = [{"role": "user", "content": "x" * 1000}]
    for _ in range(5):
        await front.ask(messages=turns)
        turns.append({"role": "user", "content": "more"})
    assert len(set(front.asked())) == 1
    for number in range(20):
        headers = {"authorization": f"Bearer {number}"}
        await front.client.post("/v1/messages", json={"messages": turns}, headers=headers)
    assert set(front.asked()) == {"a", "b", "c"}
    assert front.metrics.picks.value("sent") == 4


async def test_a_stored_response_is_found_at_the_replica_that_has_it(front: RunningFront) -> None:
    front.replicas[2].stored = {"resp_1", "c"}
    assert (await front.client.get("/v1/responses/resp_1")).json()["from"] == "c"
    assert (await front.client.get("/v1/responses/resp_2")).status_code == 404
    answer = await front.ask("/v1/responses", previous_response_id="resp_1")
    assert answer.json()["from"] == "c"
    front.replicas[0].health = 503
    await until(lambda: not front.pool.are_all_ready)
    # The one that is away may have it.
    away = await front.client.get("/v1/responses/resp_2")
    assert (away.status_code, away.headers["retry-after"]) == (503, "1")
    assert away.json()["error"]["message"].endswith("and one that is away may")


async def test_a_replica_that_refuses_for_now_is_passed_over(front: RunningFront) -> None:
    for replica in front.replicas[:2]:
        replica.status = 503
    for number in range(5):
        assert (await front.ask(inputs=f"{number}")).json()["from"] == "c"
    front.replicas[2].status = 503
    refused = await front.ask()
    assert (refused.status_code, refused.json()["body"]) == (503, "{}")


async def test_an_upload_is_passed_on_as_it_comes(front: RunningFront) -> None:
    files = {"file": ("x.jsonl", b"y" * 200_000)}
    answer = await front.client.post("/v1/files", files=files, data={"purpose": "batch"})
    assert answer.json()["body"].count("y") >= 200_000
    assert (await front.ask(inputs="y" * 200_000)).status_code == 413


async def test_what_is_done_at_each_replica_is_done_at_all(front: RunningFront) -> None:
    answer = await front.ask("/v1/load_lora_adapter", lora_name="x")
    assert (answer.status_code, front.asked()) == (200, ["a", "b", "c"])
    front.replicas[1].status = 404
    assert (await front.ask("/v1/load_lora_adapter")).status_code == 404


async def test_health_is_the_fronts_and_the_rest_the_replicas(front: RunningFront) -> None:
    client = front.client
    for path in ("/health", "/health/ready", "/ping", "/health/live", "/health/progress"):
        assert (await client.get(path)).status_code == 200
    assert front.asked() == []
    for path in ("/", "/info", "/v1/models", "/docs", "/no/such/route"):
        assert "from" in (await client.get(path)).json()
    for replica in front.replicas:
        replica.health = 503
    await until(lambda: not front.pool.ready)
    assert (await client.get("/health")).status_code == 503
    assert (await client.get("/health/live")).status_code == 200
    assert (await client.get("/info")).json()["error_type"] == "no_replica"


async def test_metrics_are_on_one_page_by_replica(front: RunningFront) -> None:
    front.replicas[2].status = 401
    page = (await front.client.get("/metrics")).text
    assert 't_total{replica="a",err="x"} 1.0\nt_total{replica="b",err="x"} 1.0\n' in page
    assert 'replica="c"' not in page
    assert "tandem_fleet_ready_replicas 3.0" in page


async def test_a_front_that_drains_takes_no_requests(front: RunningFront) -> None:
    front.pool.is_draining = True
    assert (await front.ask()).json()["error"]["code"] == "draining"
    assert (await front.client.get("/health/ready")).status_code == 503


async def cut_at_first(front: RunningFront, before: list[str]) -> httpx.Response:
    """The answer to a stream that the first replica begins. It dies, and comes back once those
    `before` it were asked."""
    first = front.replicas[0]
    asking = asyncio.create_task(front.ask(hang=True, stream=True))
    await until(lambda: first.is_hanging)
    first.health = 503
    await until(lambda: "a" not in front.pool.ready)
    first.kill()
    await until(lambda: set(before) <= set(front.asked()))
    first.health = 200 if before else 503
    return await asking


async def until(holds: object) -> None:
    assert callable(holds)
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.001)
