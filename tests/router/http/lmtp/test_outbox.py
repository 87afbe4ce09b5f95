"""The queue of messages: in order, TOKENs gathered, bounded."""

import asyncio

import pytest

from router.http.lmtp.streams import Outbox


async def test_tokens_that_are_there_together_are_one_frame() -> None:
    sent: list[str] = []

    async def send(text: str) -> None:
        sent.append(text)

    outbox = Outbox(1000)
    await outbox.put("TOKEN", "1", "2")
    await outbox.put("DONE", "3")
    await outbox.put("DONE", "4")
    await outbox.put("TOKEN", "5")
    running = asyncio.create_task(outbox.run(send))
    await outbox.until_empty()
    outbox.close()
    await running

    assert sent == ["TOKEN [1,2]", "DONE [3]", "DONE [4]", "TOKEN [5]"]


async def test_a_frame_has_its_bounds() -> None:
    sent: list[str] = []

    async def send(text: str) -> None:
        sent.append(text)

    outbox = Outbox(1 << 20)
    await outbox.put("TOKEN", *["x" * 40_000] * 3)
    running = asyncio.create_task(outbox.run(send))
    await outbox.until_empty()
    outbox.close()
    await running

    assert [len(text) for text in sent] == [40_008] * 3


async def test_who_has_more_to_say_than_is_read_waits() -> None:
    reads = asyncio.Semaphore(0)

    async def send(text: str) -> None:
        await reads.acquire()

    outbox = Outbox(10)
    running = asyncio.create_task(outbox.run(send))
    await outbox.put("DONE", "x" * 20)
    await outbox.put("DONE", "y" * 20)
    waiting = asyncio.create_task(outbox.put("DONE", "z"))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    reads.release()
    await asyncio.wait_for(waiting, 30)
    outbox.close()
    reads.release()
    await asyncio.wait_for(running, 30)


async def test_nobody_waits_for_a_socket_that_is_gone() -> None:
    async def send(text: str) -> None:
        raise ConnectionResetError

    outbox = Outbox(10)
    await outbox.put("DONE", "x" * 20)
    waiting = asyncio.create_task(outbox.put("DONE", "y"))
    with pytest.raises(ConnectionResetError):
        await outbox.run(send)

    await asyncio.wait_for(waiting, 30)
    await asyncio.wait_for(outbox.until_empty(), 30)
