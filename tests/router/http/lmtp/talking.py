"""A client of LMTP for tests: frames out, frames in, nothing else."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from router.http.server.protocol import ConnectionLimits
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing, listening

Message = tuple[str, dict[str, Any]]
_ENDS = ("DONE", "SCORES", "MSG")


class Talk:
    """One socket. Objects come one by one, whatever frames they were in."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self._objects: list[Message] = []

    async def send(self, command: str, **fields: Any) -> None:
        await self.socket.send(f"{command} {json.dumps(fields)}")

    async def hear(self) -> Message:
        """The next object with its type."""
        while not self._objects:
            text = await self.socket.recv()
            assert isinstance(text, str)
            command, _, body = text.partition(" ")
            fields = json.loads(body)
            assert isinstance(fields, list)
            assert fields
            self._objects += [(command, each) for each in fields]
        return self._objects.pop(0)

    async def stream(self, stream_id: int) -> list[Message]:
        """All objects of a stream, to its end; no other stream may be open."""
        objects = []
        while True:
            command, fields = await self.hear()
            if command == "SYS":
                continue
            assert fields["stream_id"] == stream_id, fields
            objects.append((command, fields))
            if command in _ENDS or "error" in fields:
                return objects
            if self.version == 1 and fields.get("finish_reason") is not None:
                return objects

    async def closed(self) -> tuple[int, str] | None:
        """The code and reason with which the server closes; None if it hangs up."""
        try:
            while True:
                await self.hear()
        except ConnectionClosed as error:
            return None if error.rcvd is None else (error.rcvd.code, error.rcvd.reason)

    version = 1

    async def hello(self) -> dict[str, Any]:
        await self.send("HELLO", stream_id=0, version=2)
        command, fields = await self.hear()
        assert command == "MSG"
        self.version = fields["hello"]["version"]
        hello: dict[str, Any] = fields["hello"]
        return hello

    async def ask(self, command: str, stream_id: int = 1, **fields: Any) -> list[Message]:
        """One frame, and all that is answered to it."""
        await self.send(command, stream_id=stream_id, **fields)
        return await self.stream(stream_id)

    async def error(self, command: str, stream_id: int = 1, **fields: Any) -> dict[str, Any]:
        """The error that is all the answer."""
        objects = await self.ask(command, stream_id, **fields)
        assert len(objects) == 1, objects
        assert "error" in objects[0][1], objects
        return objects[0][1]


@asynccontextmanager
async def talking(port: int, path: str = "/lmtp", **options: Any) -> AsyncIterator[Talk]:
    """A socket to a server that listens."""
    options = {"max_size": None, "ping_interval": None, "close_timeout": 2} | options
    async with connect(f"ws://127.0.0.1:{port}{path}", **options) as socket:
        yield Talk(socket)


@asynccontextmanager
async def served(
    shard: FakeShard, rules: ConnectionLimits | None = None, **house: Any
) -> AsyncIterator[tuple[House, int]]:
    """A whole router that listens; gives its port."""
    async with housing(shard, **house) as built, listening(built.app, rules) as port:
        yield built, port


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, apart from events that gRPC's poller has left for an earlier test's loop."""
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if "PollerCompletionQueue" not in line]
