"""A whole front over servers of real HTTP and LMTP whose answers are scripted."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleet.http.front import Front
from fleet.http.front_routes import FrontRoutes
from fleet.http.sockets import FleetSockets, SocketServices
from fleet.metrics import FleetMetrics
from fleet.model_manager import ModelManager
from fleet.model_table import LoadingRules, ModelTable
from fleet.names import ListedModels, ModelNames
from router.http.bodies import DEFAULT_BOUNDS, BodyReader, ParserThread
from router.http.server.access import Access, Cors
from router.http.server.auth import ApiKeyAuth, KeyRing, plain_keys
from router.http.server.listen import HttpServer, bind, bind_unix
from router.http.server.protocol import ConnectionLimits
from tests.fleet.fakes import FakeServers

Talk = Callable[["Upstreams", str, Receive, Send], Awaitable[None]]


@dataclass
class Seen:
    """A request as a model's server got it."""

    model: str
    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


@dataclass
class Upstreams:
    """The models' servers: what they received, and what they do.

    A body with `refuse` is answered by 422. /generate answers who it is; /generate_stream, and a
    body with `stream`, counts up to `num_events`, waiting for `go_on` behind the first;
    /v1/completions sends endless bytes. `talk` serves sockets; `gone` are the models of those
    that were left.
    """

    seen: list[Seen] = field(default_factory=list)
    num_events: int = 3
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    dies: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    gone: list[str] = field(default_factory=list)
    num_sent: int = 0
    talk: Talk | None = None
    heard: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    stored: dict[str, str] = field(default_factory=dict)

    def app(self, model: str) -> ASGIApp:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "websocket":
                assert self.talk is not None
                await receive()
                await send({"type": "websocket.accept"})
                await self.talk(self, model, receive, send)
                return
            body = b""
            while True:
                message = await receive()
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    break
            headers = [(name.decode(), value.decode()) for name, value in scope["headers"]]
            query = scope["query_string"].decode()
            seen = Seen(model, scope["method"], scope["path"], query, headers, body)
            self.seen.append(seen)
            await self._answer(seen, receive, send)

        return serve

    async def _answer(self, seen: Seen, receive: Receive, send: Send) -> None:
        if b'"refuse"' in seen.body:
            await _send_json(send, 422, {"error": "`x` is wrong", "error_type": "validation"})
        elif seen.path == "/generate_stream" or b'"stream":true' in seen.body:
            await self._stream(receive, send)
        elif seen.path == "/v1/completions":
            await self._flood(send)
        elif seen.path.startswith("/v1/responses/"):
            known = self.stored.get(seen.path.rpartition("/")[2]) == seen.model
            await _send_json(send, 200 if known else 404, {"from": seen.model})
        elif seen.path == "/v1/models":
            await _send_json(send, 200, {"data": [{"id": seen.model, "max_model_len": 64}]})
        elif seen.path == "/metrics":
            text = '# HELP t_total T\n# TYPE t_total counter\nt_total{err="x"} 1.0\n'
            await _send(send, 200, text.encode(), [(b"content-type", b"text/plain")])
        else:
            answer = {"from": seen.model, "body": seen.body.decode()}
            await _send_json(
                send, 200, answer, [(b"x-inference-time", b"7"), (b"x-request-id", b"?")]
            )

    async def _stream(self, receive: Receive, send: Send) -> None:
        leaving = asyncio.create_task(_until_disconnect(receive))
        leaving.add_done_callback(lambda _: self.left.set())
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for number in range(self.num_events):
            event = f'data: {{"number":{number}}}\n\n'.encode()
            await send({"type": "http.response.body", "body": event, "more_body": True})
            waits = [asyncio.create_task(each.wait()) for each in (self.go_on, self.dies)]
            await asyncio.wait({*waits, leaving}, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if leaving.done() or self.dies.is_set():
                leaving.cancel()
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        leaving.cancel()

    async def _flood(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while self.num_sent < 64 << 20:
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            self.num_sent += 65_536


@dataclass
class RunningFleet:
    """A front that listens, and what is behind it."""

    url: str
    manager: ModelManager
    servers: FakeServers
    upstreams: Upstreams
    metrics: FleetMetrics
    sockets: FleetSockets
    https: dict[str, HttpServer]

    @property
    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=10)

    async def kill(self, model: str) -> None:
        """The model's server dies in the middle of what it does."""
        self.upstreams.dies.set()
        await asyncio.sleep(0.05)
        self.servers.by_name[model].die("it was ended by SIGKILL")


@asynccontextmanager
async def running_fleet(
    folder: Path,
    models: Sequence[str] = ("a", "b"),
    *,
    names: ModelNames | None = None,
    rules: LoadingRules | None = None,
    load_timeout_s: float = 5.0,
    keys: tuple[str, ...] = (),
    starts: bool = True,
) -> AsyncIterator[RunningFleet]:
    """A front over servers of these models; `starts` False: loads wait for servers.may_start."""
    upstreams, servers = Upstreams(), FakeServers()
    metrics = FleetMetrics(CollectorRegistry())
    manager = ModelManager(ModelTable(rules or LoadingRules()), servers, metrics, load_timeout_s)
    names = names or ListedModels(models)
    if starts:
        servers.may_start.set()
    https: dict[str, HttpServer] = {}
    for model in models:
        servers.sockets[model] = folder / f"{model}.sock"
        https[model] = HttpServer(upstreams.app(model), bind_unix(servers.sockets[model]), 1.0)
    front_routes = FrontRoutes(
        *(manager, names, metrics), version="0.0.1", max_loaded=1, created_s=1, keys=keys
    )
    hello = {"server": "tandem 0.0.1", "max_message_len": 1 << 23, "max_streams": 4}
    parser = ParserThread(DEFAULT_BOUNDS)
    sockets = FleetSockets(SocketServices(manager, names, metrics, hello, parser), keys)
    app: ASGIApp = Front(
        *(manager, names, front_routes, metrics, sockets),
        BodyReader(100_000, 30.0, metrics.connections_cut),
        parser,
    )
    if keys:
        ring = KeyRing(plain_keys(keys))
        app = ApiKeyAuth(app, ring, metrics.rejected, protects_metrics=False)
    front = HttpServer(Access(Cors(app)), bind("127.0.0.1", 0), 1.0, ConnectionLimits())
    # All at a time: each start and stop takes a tenth of a second.
    running = [*https.values(), front]
    await asyncio.gather(*(each.start() for each in running))
    try:
        url = f"http://127.0.0.1:{urlsplit(front.address).port}"
        yield RunningFleet(url, manager, servers, upstreams, metrics, sockets, https)
        upstreams.go_on.set()
        await manager.drain()
    finally:
        for each in running:
            each.stop_at_once()
        await asyncio.gather(*(each.stop() for each in running))


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    length = (b"content-length", str(len(body)).encode())
    start: Message = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def _send_json(
    send: Send, status: int, value: object, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    kind = (b"content-type", b"application/json")
    await _send(send, status, json.dumps(value).encode(), [kind, *(headers or [])])
