"""Random messages: each gets an answer or a close with a reason, and no block is lost."""

import asyncio
import logging

import pytest
from websockets.exceptions import ConnectionClosed

from tests.fakes import FakeShard
from tests.router.http.lmtp.nonsense import Nonsense
from tests.router.http.lmtp.talking import Talk, served, talking
from tests.router.rig import settled

_PING_ID = 999_999
_PATIENCE_S = 20.0


async def ends_well(talk: Talk) -> bool:
    """Whether the server still answers; False: it closed the socket, and messages why."""
    try:
        await talk.send("MODEL_INFO", stream_id=_PING_ID)
        while True:
            _, fields = await talk.hear()
            assert fields.get("error_type") != "internal_error", fields
            if fields["stream_id"] == _PING_ID:
                return True
    except ConnectionClosed as error:
        close = error.rcvd
    assert close is not None, "it hung up"
    assert close.code in (1002, 1003, 1007), close
    assert close.reason
    return False


async def survive(seed: int, num_messages: int, caplog: pytest.LogCaptureFixture) -> int:
    """The number of sockets that it took."""
    caplog.set_level(logging.ERROR, logger="router")
    nonsense = Nonsense(seed)
    num_sockets = 0
    num_sent = 0
    shard = FakeShard(num_blocks=256)
    async with served(shard, max_concurrent_requests=64) as (house, port):
        while num_sent < num_messages:
            num_sockets += 1
            async with talking(port) as talk, asyncio.timeout(_PATIENCE_S):
                is_open = True
                while is_open and num_sent < num_messages:
                    num_sent += 1
                    await talk.socket.send(nonsense.message())
                    is_open = await ends_well(talk)
        await settled(house.rig)
        assert house.rig.scheduler.stats().num_blocks_used == 0
        async with talking(port) as talk:
            messages = await talk.ask("GENERATE", prompt=[3, 4], max_tokens=2)
        assert messages[-1][1]["finish_reason"] == "length"
        assert house.rig.metrics.socket_streams.value() == 0
    assert [record.getMessage() for record in caplog.records] == []
    return num_sockets


async def test_300_messages_by_chance(caplog: pytest.LogCaptureFixture) -> None:
    assert await survive(1, 300, caplog) > 10


@pytest.mark.slow
async def test_3_000_random_messages(caplog: pytest.LogCaptureFixture) -> None:
    assert await survive(2, 3_000, caplog) > 90
