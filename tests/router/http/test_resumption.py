"""Streams that outlive their connections, and the log that keeps their events."""

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from router.http.resumption import EventLog, EventsGone, split_events
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing, listening, open_request, record, unchunked
from tests.router.rig import settled


def events(*numbers: int) -> list[bytes]:
    return [b"data: %d\n\n" % number for number in numbers]


async def test_a_reader_takes_all_that_waits_at_once() -> None:
    log = EventLog()
    reader = log.attach(0)
    log.append(events(0, 1))

    assert await reader.take(1) == b"".join(events(0, 1))


async def test_silence_is_nothing_and_the_end_is_none() -> None:
    log = EventLog()
    reader = log.attach(0)

    assert await reader.take(0.01) == b""
    log.close(is_complete=True)
    assert await reader.take(1) is None
    assert reader.has_all


async def test_what_was_taken_can_be_taken_again() -> None:
    log = EventLog()
    log.append(events(0, 1, 2))
    first = log.attach(0)
    await first.take(1)
    first.close()

    assert await log.attach(1).take(1) == b"".join(events(1, 2))


async def test_what_was_taken_is_kept_within_bounds() -> None:
    log = EventLog(max_len=35)
    reader = log.attach(0)
    for number in range(6):
        log.append(events(number))
        await reader.take(1)
    reader.close()

    with pytest.raises(EventsGone) as gone:
        log.attach(0)
    assert gone.value.first == 3
    assert await log.attach(3).take(1) == b"".join(events(3, 4, 5))


async def test_what_nobody_took_is_never_dropped() -> None:
    log = EventLog(max_len=35)
    log.append(events(*range(10)))

    assert await log.attach(0).take(1) == b"".join(events(*range(10)))


async def test_a_writer_waits_for_its_reader() -> None:
    log = EventLog()
    reader = log.attach(0)
    log.append(events(0))
    writing = asyncio.ensure_future(log.until_taken())
    await asyncio.sleep(0.01)
    assert not writing.done()

    await reader.take(1)

    await asyncio.wait_for(writing, 30)


async def test_without_a_reader_a_writer_goes_on_until_the_log_is_full() -> None:
    log = EventLog(max_len=35)
    reader = log.attach(0)
    reader.close()
    log.append(events(0, 1))
    await asyncio.wait_for(log.until_taken(), 30)
    log.append(events(2, 3))
    writing = asyncio.ensure_future(log.until_taken())
    await asyncio.sleep(0.01)
    assert not writing.done()

    await log.attach(0).take(1)

    await asyncio.wait_for(writing, 30)


async def test_a_second_reader_ends_the_first() -> None:
    left: list[str] = []
    log = EventLog(lambda: left.append("left"))
    first = log.attach(0)
    waiting = asyncio.ensure_future(first.take(5))
    await asyncio.sleep(0)

    second = log.attach(0)

    assert await asyncio.wait_for(waiting, 5) is None
    assert first.is_displaced
    first.close()
    assert left == []
    second.close()
    assert left == ["left"]


def test_comments_are_no_events() -> None:
    data = b"data: 0\n\n:\n\nevent: end\ndata: 1\n\n"

    assert split_events(data) == [b"data: 0\n\n", b"event: end\ndata: 1\n\n"]


GENERATE = "/generate_stream"
BODIES: dict[str, dict[str, Any]] = {
    GENERATE: {"inputs": "hello", "parameters": {"max_new_tokens": 60}},
    "/v1/completions": {"prompt": "hello", "max_tokens": 60, "stream": True},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 60,
        "stream": True,
    },
    "/v1/responses": {"input": "hello", "max_output_tokens": 60, "stream": True},
    "/v1/messages": {
        "model": "model",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 60,
        "stream": True,
    },
}
_EVENT_ID = re.compile(rb"^id: ([0-9a-f]{32}-\d+)\n", re.MULTILINE)
# What differs from one answer to the next.
_OWN = re.compile(
    rb'"(id|item_id)":"[^"]*"|"(created|created_at|completed_at)":\d+'
    rb'|"(cached_tokens|cache_read_input_tokens|input_tokens)":\d+|"work_details":{[^}]*}'
)


def body(path: str) -> bytes:
    return json.dumps(BODIES[path]).encode()


def slow_shard(delay_s: float = 0.002) -> FakeShard:
    shard = FakeShard()
    shard.faults.delay_s = delay_s
    return shard


def ids_of(answer: bytes) -> list[bytes]:
    return _EVENT_ID.findall(answer)


def numbers(ids: list[bytes]) -> list[int]:
    return [int(each.partition(b"-")[2]) for each in ids]


def without_ids(answer: bytes) -> bytes:
    return _OWN.sub(b"", _EVENT_ID.sub(b"", answer))


async def begin(port: int, path: str, num_events: int, **headers: str) -> bytes:
    """The first events of a resumable stream, whose connection then breaks: whole events alone."""
    reader, writer = await open_request(
        port, "POST", path, body(path), x_resumable="true", **headers
    )
    answer = b""
    async with asyncio.timeout(30):
        while len(ids_of(answer)) <= num_events:
            answer += await reader.read(2000)
    writer.transport.abort()
    payload = answer.partition(b"\r\n\r\n")[2]
    text = re.sub(rb"(^|\r\n)[0-9a-f]+\r\n", b"", payload).replace(b"\r\n", b"")
    return text[: text.rfind(b"\n\n") + 2]


async def go_on(port: int, path: str, event_id: bytes, **headers: str) -> bytes:
    return unchunked(
        await record(port, "POST", path, body(path), last_event_id=event_id.decode(), **headers)
    )


def client(port: int) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30)


async def refused(port: int, path: str, event_id: str, **headers: str) -> httpx.Response:
    async with client(port) as asking:
        return await asking.post(
            path, content=body(path), headers={"last-event-id": event_id, **JSON, **headers}
        )


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("path", BODIES)
async def test_each_api_goes_on_where_its_connection_broke(path: str) -> None:
    async with housing(slow_shard()) as house, listening(house.app) as port:
        whole = unchunked(await record(port, "POST", path, body(path)))
        begun = await begin(port, path, 5)
        rest = await go_on(port, path, ids_of(begun)[-1])
        await settled(house.rig)

    ids = ids_of(begun + rest)
    assert numbers(ids) == list(range(len(ids)))
    assert without_ids(begun + rest) == without_ids(whole)


async def test_a_stream_breaks_many_times() -> None:
    async with housing(slow_shard()) as house, listening(house.app) as port:
        answer = await begin(port, GENERATE, 3)
        for _ in range(5):
            reader, writer = await open_request(
                port,
                "POST",
                GENERATE,
                body(GENERATE),
                last_event_id=ids_of(answer)[-1].decode(),
            )
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"text/event-stream" in head
            size = int((await reader.readline()), 16)
            answer += await reader.readexactly(size)
            writer.transport.abort()
        answer += await go_on(port, GENERATE, ids_of(answer)[-1])

    assert numbers(ids_of(answer)) == list(range(60))


async def test_its_events_have_ids_from_the_first_to_the_last() -> None:
    async with housing(slow_shard()) as house, listening(house.app) as port:
        path = "/generate_stream"
        sent = await record(port, "POST", path, body(path), x_resumable="true")

    events = unchunked(sent).split(b"\n\n")[:-1]
    assert len(events) == 60
    assert numbers(ids_of(sent)) == list(range(60))


async def test_without_the_header_no_event_has_an_id() -> None:
    async with housing(slow_shard(0.0)) as house, listening(house.app) as port:
        plain = await record(port, "POST", GENERATE, body(GENERATE))
        declined = await record(port, "POST", GENERATE, body(GENERATE), x_resumable="false")

    assert ids_of(plain) == ids_of(declined) == []


async def test_an_answer_that_is_no_stream_is_as_ever() -> None:
    async with housing(slow_shard(0.0)) as house:
        answer = await house.client.post(
            "/generate", json=BODIES[GENERATE], headers={"x-resumable": "true"}
        )

    assert answer.status_code == 200
    assert answer.json()["generated_text"]


async def test_a_stream_for_which_nobody_comes_back_ends() -> None:
    async with (
        housing(slow_shard(0.02), resume_grace_s=0.1) as house,
        listening(house.app) as port,
    ):
        begun = await begin(port, GENERATE, 2)
        await settled(house.rig)
        answer = await refused(port, GENERATE, ids_of(begun)[-1].decode())

        assert house.rig.metrics.sequence_ends.value("cancelled") == 1
        assert house.rig.scheduler.stats().num_blocks_used == 0
    assert answer.status_code == 404
    assert answer.json()["error_type"] == "stream_unknown"


async def test_a_stream_goes_on_without_its_client_until_its_end() -> None:
    async with housing(slow_shard()) as house, listening(house.app) as port:
        begun = await begin(port, GENERATE, 2)
        await settled(house.rig)
        assert house.rig.metrics.sequence_ends.value("cancelled") == 0
        rest = await go_on(port, GENERATE, ids_of(begun)[-1])

    assert numbers(ids_of(begun + rest)) == list(range(60))


async def test_who_has_all_gets_no_content() -> None:
    async with housing(slow_shard(0.0)) as house, listening(house.app) as port:
        answer = await record(port, "POST", GENERATE, body(GENERATE), x_resumable="true")
        last = await refused(port, GENERATE, ids_of(answer)[-1].decode())

    assert (last.status_code, last.content) == (204, b"")


async def test_a_browser_goes_on_with_a_get() -> None:
    async with housing(slow_shard()) as house, listening(house.app) as port:
        begun = await begin(port, GENERATE, 2)
        rest = unchunked(
            await record(port, "GET", GENERATE, last_event_id=ids_of(begun)[-1].decode())
        )

    assert numbers(ids_of(begun + rest)) == list(range(60))


async def keyed(house: House) -> tuple[httpx.Response, httpx.Response, bytes]:
    async with listening(house.app) as port:
        begun = await begin(port, GENERATE, 2, authorization="Bearer mine")
        event_id = ids_of(begun)[-1]
        other = await refused(port, GENERATE, event_id.decode(), authorization="Bearer theirs")
        elsewhere = await refused(
            port, "/v1/completions", event_id.decode(), authorization="Bearer mine"
        )
        rest = await go_on(port, GENERATE, event_id, authorization="Bearer mine")
        return other, elsewhere, begun + rest


async def test_a_stream_belongs_to_its_key_and_its_path() -> None:
    async with housing(slow_shard(), api_keys=("mine", "theirs")) as house:
        other, elsewhere, answer = await keyed(house)

    assert (other.status_code, elsewhere.status_code) == (404, 404)
    assert elsewhere.json()["error"]["param"] == "last-event-id"
    assert numbers(ids_of(answer)) == list(range(60))


async def test_ids_of_no_stream_are_refused() -> None:
    async with housing(slow_shard(0.0)) as house, listening(house.app) as port:
        for event_id in ("", "7", "x" * 200, "0" * 32 + "-3"):
            answer = await refused(port, GENERATE, event_id)
            assert house.rig.metrics.stream_resumes.value("unknown") >= 1
            assert answer.status_code == 404
            assert "X-Resumable" in answer.json()["error"]


async def test_the_header_is_true_or_false() -> None:
    async with housing(slow_shard(0.0)) as house:
        answer = await house.client.post(
            GENERATE, json=BODIES[GENERATE], headers={"x-resumable": "perhaps"}
        )

    assert answer.status_code == 400
    assert answer.json() == {
        "error": "the header `X-Resumable` must be true or false. Given: 'perhaps'",
        "error_type": "validation",
    }


async def test_two_connections_do_not_share_a_stream() -> None:
    async with housing(slow_shard(0.008)) as house, listening(house.app) as port:
        reader, writer = await open_request(
            port, "POST", GENERATE, body(GENERATE), x_resumable="true"
        )
        answer = b""
        while not ids_of(answer):
            answer += await reader.read(2000)
        rest = await go_on(port, GENERATE, ids_of(answer)[0])
        answer += await reader.read()
        writer.close()

    assert answer.endswith(b": another connection reads on\n\n\r\n0\r\n\r\n")
    assert numbers(ids_of(rest)) == list(range(1, 60))
