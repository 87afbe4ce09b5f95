"""Both ends of LMTP: a client's socket, and the server of a model that counts tokens."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import Receive, Send
from websockets.asyncio.client import ClientConnection, connect

from tests.fleet.harness import RunningFleet, Upstreams


class Socket:
    """A client's side."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def say(self, command: str, **payload: object) -> None:
        await self.connection.send(f"{command} {json.dumps(payload)}")

    async def hear(self) -> tuple[str, dict[str, Any]]:
        text = await asyncio.wait_for(self.connection.recv(), 30)
        assert isinstance(text, str)
        command, _, rest = text.partition(" ")
        (fields,) = json.loads(rest)
        return command, fields

    async def until(self, *commands: str) -> tuple[str, dict[str, Any]]:
        while True:
            command, fields = await self.hear()
            if command in commands:
                return command, fields

    async def greet(self) -> dict[str, Any]:
        await self.say("HELLO", stream_id=1, version=2)
        _, fields = await self.until("MSG")
        hello: dict[str, Any] = fields["hello"]
        return hello


@asynccontextmanager
async def socket(fleet: RunningFleet, path: str = "/lmtp", **headers: str) -> AsyncIterator[Socket]:
    url = fleet.url.replace("http", "ws") + path
    async with connect(url, additional_headers=headers, proxy=None) as connection:
        yield Socket(connection)


async def speak(upstreams: Upstreams, model: str, receive: Receive, send: Send) -> None:
    """Serve one socket, until its client leaves or the server dies.

    GENERATE is answered by tokens 0, 1, 2 ..., and all else by the name of the model.
    """
    speaker = _Speaker(upstreams, model, send)
    dying = asyncio.create_task(upstreams.dies.wait())
    try:
        while True:
            reading = asyncio.ensure_future(_next(receive))
            await asyncio.wait({reading, dying}, return_when=asyncio.FIRST_COMPLETED)
            if dying.done():
                reading.cancel()
                return
            text = reading.result()
            if text is None:
                upstreams.gone.append(model)
                upstreams.left.set()
                return
            await speaker.take(text)
    finally:
        dying.cancel()
        speaker.close()


async def _next(receive: Receive) -> str | None:
    message = await receive()
    return None if message["type"] == "websocket.disconnect" else str(message["text"])


class _Speaker:
    def __init__(self, upstreams: Upstreams, model: str, send: Send) -> None:
        self._upstreams = upstreams
        self._model = model
        self._send = send
        self._version = 1
        self._streams: dict[int, asyncio.Task[None]] = {}

    async def take(self, text: str) -> None:
        command, _, rest = text.partition(" ")
        payload = json.loads(rest)
        stream_id = payload["stream_id"]
        self._upstreams.heard.append((self._model, command, payload))
        if command == "HELLO":
            self._version = payload["version"]
            hello = {"version": self._version, "from": self._model}
            await self._say("MSG", stream_id, hello=hello)
        elif command == "GENERATE":
            generating = self._generate(stream_id, payload, self._version)
            self._streams[stream_id] = asyncio.create_task(generating)
        elif command == "CANCEL":
            if running := self._streams.pop(stream_id, None):
                running.cancel()
                await self._say("DONE", stream_id, finish_reason="cancelled")
        else:
            await self._say("MSG", stream_id, model_info={"model": self._model})

    def close(self) -> None:
        for task in self._streams.values():
            task.cancel()

    async def _generate(self, stream_id: int, payload: dict[str, Any], version: int) -> None:
        for number in range(payload.get("max_tokens", 3)):
            await self._say("TOKEN", stream_id, token=number, finish_reason=None)
            if number == payload.get("wait_behind"):
                await self._upstreams.go_on.wait()
        if version > 1:
            await self._say("DONE", stream_id, finish_reason="length", text=self._model)
        else:
            await self._say("TOKEN", stream_id, token=99, finish_reason="length")

    async def _say(self, command: str, stream_id: int, **fields: object) -> None:
        # Without spaces, as the server writes it: the front looks at how a frame begins.
        text = json.dumps({"stream_id": stream_id, **fields}, separators=(",", ":"))
        await self._send({"type": "websocket.send", "text": f"{command} [{text}]"})
