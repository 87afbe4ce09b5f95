"""One connection over real sockets, for tests: what is said, and applications that answer it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from router.http.server.protocol import ConnectionLimits, HttpProtocol
from tests.router.http.harness import listening

QUICK = 0.3
PATIENCE_S = 30.0
GET = b"GET /info HTTP/1.1\r\nhost: a\r\n"


def rules(**changes: float) -> ConnectionLimits:
    """Short patience, so that tests are."""
    values = {"head_timeout_s": QUICK, "write_timeout_s": QUICK}
    return ConnectionLimits(**(values | changes))  # type: ignore[arg-type]


async def say(port: int, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """All that is answered to these bytes, sent with pauses, until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = asyncio.ensure_future(asyncio.wait_for(reader.read(), PATIENCE_S))
    for part in parts:
        if answer.done() or writer.is_closing():
            break
        writer.write(part)
        await asyncio.sleep(pause_s)
    try:
        return await answer
    finally:
        writer.close()


def error_of(answer: bytes, status: int) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert b"content-type: application/json" in head
    assert b"x-request-id: " in head
    error = json.loads(body)
    assert isinstance(error, dict)
    return error


@asynccontextmanager
async def hello(limits: ConnectionLimits | None = None) -> AsyncIterator[int]:
    """A server that reads a body and says how long it was."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body_len = 0
        more_body = True
        while more_body:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body_len += len(message["body"])
            more_body = message["more_body"]
        body = str(body_len).encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with listening(app, limits or rules()) as port:
        yield port


def noted(monkeypatch: pytest.MonkeyPatch) -> list[HttpProtocol]:
    """The connections that will be made."""
    protocols: list[HttpProtocol] = []
    made = HttpProtocol.connection_made

    def note(self: HttpProtocol, transport: asyncio.Transport) -> None:
        protocols.append(self)
        made(self, transport)

    monkeypatch.setattr(HttpProtocol, "connection_made", note)
    return protocols


def endless(total_len: int, *, declares: bool = False, piece_len: int = 500) -> ASGIApp:
    """Answers so many bytes: at once with their length, or piece by piece."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        headers = [(b"content-length", b"%d" % total_len)] if declares else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if declares:
            await send({"type": "http.response.body", "body": b"x" * total_len})
            return
        for _ in range(total_len // piece_len):
            await send({"type": "http.response.body", "body": b"x" * piece_len, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    return app
