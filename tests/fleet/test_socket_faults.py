"""Sockets of the front where something goes wrong: by a bug, or by clients that left."""

import asyncio
from pathlib import Path
from typing import Any

from starlette.types import Message

from fleet.names import ListedModels, Model
from tests.fleet.house import fleet_house
from tests.fleet.test_sockets import socket


class BrokenNames(ListedModels):
    """Has a bug wherever it is asked."""

    async def find(self, name: str) -> Model:
        raise ValueError("a bug")

    def listed(self) -> list[str]:
        raise ValueError("a bug")


async def test_a_bug_ends_the_streams_that_it_meets_and_no_others(tmp_path: Path) -> None:
    async with fleet_house(tmp_path, names=BrokenNames(["a"])) as house, socket(house) as client:
        await client.say("GENERATE", stream_id=2, model="a")
        command, told = await client.hear()
        assert (command, told["stream_id"]) == ("TOKEN", 2)
        assert (told["error_type"], told["retryable"]) == ("internal_error", True)
        await client.say("FOO", stream_id=3)
        assert (await client.hear())[1]["error_type"] == "unknown_command"


async def test_a_bug_of_the_socket_itself_closes_it_with_a_reason(tmp_path: Path) -> None:
    async with fleet_house(tmp_path, names=BrokenNames(["a"])) as house, socket(house) as client:
        await client.say("HELLO", stream_id=1, version=2)
        await client.connection.wait_closed()
        assert client.connection.close_code == 1011
        assert client.connection.close_reason == "a bug; the server's log has more"


async def test_a_client_that_is_gone_keeps_the_drain_from_nobody(tmp_path: Path) -> None:
    said: list[Message] = []
    frames = [
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "text": 'HELLO {"stream_id": 1, "version": 2}'},
    ]

    async def receive() -> Message:
        return frames.pop(0) if frames else await asyncio.Future()

    async def send(message: Message) -> None:
        said.append(message)
        if len(said) > 2:
            raise OSError("the client is gone")

    scope: dict[str, Any] = {"type": "websocket", "path": "/lmtp", "headers": [], "state": {}}
    async with fleet_house(tmp_path) as house, socket(house) as client:
        gone = asyncio.create_task(house.sockets(scope, receive, send))
        await client.greet()
        while len(said) < 2:
            await asyncio.sleep(0.01)
        await house.sockets.tell_draining()
        assert (await client.hear())[1]["state"] == "draining"
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)

    assert len(said) == 3
