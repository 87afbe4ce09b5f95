"""Logs of streams: what a reader gets, what is kept for one that comes back, who waits for whom."""

import asyncio

import pytest

from router.http.resumption import EventLog, EventsGone, split_events


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

    await asyncio.wait_for(writing, 5)


async def test_without_a_reader_a_writer_goes_on_until_the_log_is_full() -> None:
    log = EventLog(max_len=35)
    reader = log.attach(0)
    reader.close()
    log.append(events(0, 1))
    await asyncio.wait_for(log.until_taken(), 5)
    log.append(events(2, 3))
    writing = asyncio.ensure_future(log.until_taken())
    await asyncio.sleep(0.01)
    assert not writing.done()

    await log.attach(0).take(1)

    await asyncio.wait_for(writing, 5)


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
