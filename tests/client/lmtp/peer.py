"""The other end of the wire, from a script: a WebSocket server that sends what a test scripts."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, TypeAlias

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

GREETING = {
    "version": 2,
    "server": "scripted 1.0",
    "models": ["scripted"],
    "eos_token_ids": [25],
    "features": ["text"],
    "max_message_len": 10_000,
}
USAGE = {"prompt_tokens": 3, "cached_tokens": 1, "output_tokens": 99}


@dataclass
class Peer:
    """One connection, as the server sees it. `received` are all frames of the client."""

    socket: ServerConnection
    received: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def read(self) -> tuple[str, dict[str, Any]]:
        frame = await self.socket.recv()
        assert isinstance(frame, str)
        kind, _, body = frame.partition(" ")
        self.received.append((kind, json.loads(body)))
        return self.received[-1]

    async def expect(self, kind: str) -> dict[str, Any]:
        """The next frame, which is of this type."""
        found, body = await self.read()
        assert found == kind, (found, body)
        return body

    async def greet(self, **facts: object) -> None:
        body = await self.expect("HELLO")
        assert body["version"] == 2
        hello = {**GREETING, **facts}
        await self.say("MSG", {"stream_id": body["stream_id"], "hello": hello})

    async def first(self, kind: str, **facts: object) -> dict[str, Any]:
        """The first request behind the greeting, which is of this type."""
        await self.greet(**facts)
        return await self.expect(kind)

    async def say(self, kind: str, *objects: dict[str, Any]) -> None:
        await self.socket.send(f"{kind} {json.dumps(objects)}")

    async def token(self, stream_id: int, token_id: int, **more: object) -> None:
        """A token whose text is a letter: 0 is "a"."""
        made = {"stream_id": stream_id, "token": token_id, "logprob": -0.5, "finish_reason": None}
        await self.say("TOKEN", {**made, "text": chr(ord("a") + token_id), **more})

    async def done(self, stream_id: int, text: str, reason: str = "length", **more: object) -> None:
        ended = {"stream_id": stream_id, "finish_reason": reason, "text": text, "tail": ""}
        await self.say("DONE", {**ended, "usage": USAGE, **more})

    async def fail(self, stream_id: int | None, error_type: str, **more: object) -> None:
        fault = {"stream_id": stream_id, "error": "it went wrong", "error_type": error_type}
        await self.say("TOKEN", {**fault, "retryable": False, **more})

    async def letters(self, stream_id: int, first: int, last: int) -> None:
        """Tokens `first` to `last`, the latter excluded."""
        for token_id in range(first, last):
            await self.token(stream_id, token_id)

    async def until_closed(self) -> None:
        """Reads on until the client goes."""
        try:
            while True:
                await self.read()
        except ConnectionClosed:
            pass


Script: TypeAlias = Callable[[Peer], Awaitable[None]]


@dataclass
class Scene:
    """A server under a script. `peers` in the order in which they came."""

    url: str
    peers: list[Peer]
    troubles: list[BaseException]


@asynccontextmanager
async def performing(*scripts: Script, port: int = 0) -> AsyncIterator[Scene]:
    """A server whose n-th connection follows the n-th script, all further ones the last.

    The connection is closed where its script ends. What a script asserts fails the test.
    """
    peers: list[Peer] = []
    troubles: list[BaseException] = []

    async def serve_one(socket: ServerConnection) -> None:
        peer = Peer(socket)
        peers.append(peer)
        try:
            await scripts[min(len(peers), len(scripts)) - 1](peer)
        except* ConnectionClosed:
            pass
        except* (AssertionError, KeyError) as group:
            troubles.extend(group.exceptions)

    async with serve(serve_one, "127.0.0.1", port) as server:
        number = next(iter(server.sockets)).getsockname()[1]
        yield Scene(f"http://127.0.0.1:{number}", peers, troubles)
        server.close()
        await asyncio.wait_for(server.wait_closed(), 30)
    assert troubles == []


async def three_letters(peer: Peer) -> None:
    body = await peer.first("GENERATE")
    await peer.letters(body["stream_id"], 0, 3)
    await peer.done(body["stream_id"], "abc!", seed=7)
    await peer.until_closed()


async def endless(peer: Peer) -> None:
    body = await peer.first("GENERATE")
    await peer.token(body["stream_id"], 0)
    await peer.expect("CANCEL")
    await peer.until_closed()


@contextmanager
def performing_aside(*scripts: Script) -> Iterator[Scene]:
    """`performing`; the scene is only read here."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="peer")
    thread.start()
    scene = performing(*scripts)
    try:
        yield asyncio.run_coroutine_threadsafe(scene.__aenter__(), loop).result(30)
        asyncio.run_coroutine_threadsafe(scene.__aexit__(None, None, None), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
