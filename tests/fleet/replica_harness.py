"""Replicas without a model, whose streams break off after any byte, and a front over them."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Receive, Scope, Send

from fleet.metrics import FleetMetrics
from fleet.replica_front import MoveRules, ReplicaFront
from fleet.replica_pool import CheckRules, ReplicaPool
from router.http.bodies import DEFAULT_BOUNDS, BodyReader, ParserThread
from router.http.server.access import Access

SECRET = "a-secret-of-the-front"
NUM_TOKENS = 2
CHOICES = 2


@dataclass
class Asked:
    """A request as a replica got it; `told` is what it goes on from."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    told: dict[str, Any] | None


@dataclass
class FakeReplica:
    """Speaks HTTP/1.1 at a socket. Each of `cuts` breaks an answer's body off behind so many bytes,
    the next one of all replicas'.

    Where `status` is set it answers that to all but /health/ready, whose status is `health`.
    /generate answers who it is, `stored` is what it has; a body with `stream` is an event stream,
    whose tokens are the same at each replica, with the comments of the protocol if it `has_tags`;
    with `hang` it comes to no end.
    """

    name: str
    socket: Path
    cuts: list[int]
    health: int = 200
    is_silent: bool = False
    status: int = 0
    has_tags: bool = True
    fingerprint: str = "f"
    stored: set[str] = field(default_factory=set)
    asked: list[Asked] = field(default_factory=list)
    is_hanging: bool = False
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.writers.discard(writer)
            writer.transport.abort()

    def kill(self) -> None:
        """Break all connections off."""
        for writer in self.writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if self.is_silent:
            await asyncio.sleep(60)
        if path == "/health/ready":
            await _answer(writer, self.health, "text/plain", b"")
            return
        told_len = int(headers.get("x-tandem-continue", 0))
        told = json.loads(body[:told_len]) if told_len else None
        asked = Asked(method, path, headers, body[told_len:], told)
        self.asked.append(asked)
        status = self.status
        kind = "application/json"
        answer = json.dumps({"from": self.name, "body": asked.body.decode()}).encode()
        is_other = told is not None and told["begin"]["fingerprint"] != self.fingerprint
        if is_other and headers.get("x-tandem-migrate") != "any":
            status = 409
        if not status and b"previous" in asked.body and self.name not in self.stored:
            status = 404
        if not status and path.startswith("/v1/responses/"):
            status = 200 if path.rpartition("/")[2] in self.stored else 404
        if path == "/metrics":
            kind = "text/plain"
            answer = b'# HELP t_total T\n# TYPE t_total counter\nt_total{err="x"} 1.0\n'
        if not status and b'"stream"' in asked.body:
            kind = "text/event-stream"
            is_known = self.has_tags and headers.get("x-tandem-front") == SECRET
            answer = stream_of(self.fingerprint, told, with_tags=is_known)
        cut = self.cuts.pop(0) if self.cuts else None
        if b"hang" in asked.body and told is None:
            writer.write(_head(200, kind) + b"%x\r\n%b\r\n" % (len(HELD), HELD))
            self.is_hanging = True
            await asyncio.sleep(60)
        await _answer(writer, status or 200, kind, answer[:cut], is_whole=cut is None)


def _head(status: int, kind: str) -> bytes:
    head = f"HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
    return head.encode()


async def _answer(
    writer: asyncio.StreamWriter, status: int, kind: str, body: bytes, *, is_whole: bool = True
) -> None:
    writer.write(_head(status, kind))
    if body:
        writer.write(b"%x\r\n%b\r\n" % (len(body), body))
    writer.write(b"0\r\n\r\n" if is_whole else b"")
    await writer.drain()
    # What was written arrives before the connection breaks off.
    writer.close()
    await writer.wait_closed()


def stream_of(fingerprint: str, told: dict[str, Any] | None, *, with_tags: bool) -> bytes:
    """Two choices of some tokens each, in turns, and an end; behind what is told already."""
    known = [[], []] if told is None else told["out"]
    begin = {"cached": [None] * CHOICES, "fingerprint": fingerprint}
    parts: list[bytes] = []
    tags = [b": tandem begin " + json.dumps(begin).encode() + b"\n\n"]
    number = 0
    for token in range(NUM_TOKENS):
        for choice in range(CHOICES):
            number += 1
            if token < len(known[choice]):
                # The client has its event: what it was told and what it has are the same.
                assert known[choice][token] == 10 * choice + token
                continue
            parts.append(b"".join(tags) if with_tags else b"")
            parts.append(
                b'data: {"choice":%d,"token":%d,"number":%d}\n\n' % (choice, token, number)
            )
            tags = [b": tandem out %d %d\n\n" % (choice, 10 * choice + token)]
        parts.append(b"".join(tags) if with_tags else b"")
        tags = [b":\n\n"]
    parts.append(b"data: the end\n\ndata: [DONE]\n\n")
    return b"".join(parts)


# Of a stream: its first two events, and that they are.
HELD = stream_of("f", None, with_tags=True).partition(b":\n\n")[0]
WHOLE = stream_of("f", None, with_tags=False)


@dataclass
class RunningFront:
    """A front over fake replicas, and a client of it."""

    replicas: list[FakeReplica]
    cuts: list[int]
    pool: ReplicaPool
    metrics: FleetMetrics
    client: httpx.AsyncClient

    def asked(self) -> list[str]:
        """The replicas that were asked."""
        return [replica.name for replica in self.replicas for _ in replica.asked]

    def replica(self, name: str) -> FakeReplica:
        return next(replica for replica in self.replicas if replica.name == name)

    async def ask(self, path: str = "/v1/chat/completions", **body: object) -> httpx.Response:
        return await self.client.post(path, json=body)


async def no_sockets(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("there are none")


@asynccontextmanager
async def running_front(
    folder: Path,
    names: Sequence[str] = ("a", "b", "c"),
    *,
    rules: MoveRules | None = None,
    checks: CheckRules | None = None,
    sockets: ASGIApp = no_sockets,
) -> AsyncIterator[RunningFront]:
    """Every replica is ready."""
    cuts: list[int] = []
    replicas = [FakeReplica(name, folder / f"{name}.sock", cuts) for name in names]
    servers = [
        await asyncio.start_unix_server(replica.serve, str(replica.socket)) for replica in replicas
    ]
    metrics = FleetMetrics(CollectorRegistry())
    pool = ReplicaPool(metrics, checks or CheckRules(interval_s=0.01))
    pool.replace({replica.name: replica.socket for replica in replicas})
    bodies = BodyReader(100_000, 30.0, metrics.connections_cut)
    parser = ParserThread(DEFAULT_BOUNDS)
    app = ReplicaFront(pool, metrics, sockets, bodies, parser, rules or MoveRules(SECRET))
    transport = httpx.ASGITransport(app=Access(app))
    try:
        async with asyncio.timeout(10):
            while not pool.are_all_ready:
                await asyncio.sleep(0.001)
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
            yield RunningFront(replicas, cuts, pool, metrics, client)
    finally:
        await pool.close()
        for server in servers:
            server.close()
            await server.wait_closed()
