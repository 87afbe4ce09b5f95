"""A client of LMTP for tests: frames out, frames in, nothing else."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from router.http.server.limits import ConnectionLimits
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing, listening

Said = tuple[str, dict[str, Any]]
_ENDS = ("DONE", "SCORES", "MSG")


class Talk:
    """One socket. Objects come one by one, whatever frames they were in."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self._objects: list[Said] = []

    async def say(self, command: str, **fields: Any) -> None:
        await self.socket.send(f"{command} {json.dumps(fields)}")

    async def hear(self) -> Said:
        """The next object with its type."""
        while not self._objects:
            text = await self.socket.recv()
            assert isinstance(text, str)
            command, _, body = text.partition(" ")
            told = json.loads(body)
            assert isinstance(told, list)
            assert told
            self._objects += [(command, each) for each in told]
        return self._objects.pop(0)

    async def stream(self, stream_id: int) -> list[Said]:
        """All objects of a stream, to its end; no other stream may be open."""
        objects = []
        while True:
            command, told = await self.hear()
            if command == "SYS":
                continue
            assert told["stream_id"] == stream_id, told
            objects.append((command, told))
            if command in _ENDS or "error" in told:
                return objects
            if self.version == 1 and told.get("finish_reason") is not None:
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
        await self.say("HELLO", stream_id=0, version=2)
        command, told = await self.hear()
        assert command == "MSG"
        self.version = told["hello"]["version"]
        hello: dict[str, Any] = told["hello"]
        return hello

    async def ask(self, command: str, stream_id: int = 1, **fields: Any) -> list[Said]:
        """One frame, and all that is answered to it."""
        await self.say(command, stream_id=stream_id, **fields)
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
