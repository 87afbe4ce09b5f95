"""A front and what is behind it, without models: fake servers for its manager, and a whole front
over servers of real HTTP and LMTP whose answers are scripted."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect

from fleet.errors import DidNotStart
from fleet.front import Front
from fleet.metrics import FleetMetrics
from fleet.model_manager import ModelManager
from fleet.model_table import LoadingRules, ModelState, ModelTable
from fleet.names import ListedModels, Model, ModelNames
from fleet.sockets import FleetSockets, SocketServices
from router.http.bodies import DEFAULT_BOUNDS, BodyReader, ParserThread
from router.http.server.access import Access, Cors
from router.http.server.auth import ApiKeyAuth, KeyRing, plain_keys
from router.http.server.listen import HttpServer, bind, bind_unix
from router.http.server.protocol import ConnectionLimits

FRONT = ""


class FakeServer:
    """A server whose end a test sets."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.is_stopped = False
        self.is_stopped_now = False
        self.stop_fault: Exception | None = None
        self.may_stop = asyncio.Event()
        self.may_stop.set()

    @property
    def socket(self) -> Path:
        return self._socket

    async def ended(self) -> str:
        return await asyncio.shield(self._end)

    async def stop(self) -> None:
        await self.may_stop.wait()
        if self.stop_fault is not None:
            raise self.stop_fault
        self.is_stopped = True
        self.die("it was stopped")

    def stop_now(self) -> None:
        self.is_stopped_now = True
        self.may_stop.set()

    def die(self, reason: str) -> None:
        if not self._end.done():
            self._end.set_result(reason)


@dataclass
class FakeServers:
    """Starts servers when `may_start` is set; `sockets` are those of the models.

    `faults` are found by a download, `refusals` by a load; `far` ones have to be downloaded.
    """

    sockets: dict[str, Path] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    far: set[str] = field(default_factory=set)
    downloaded: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    by_name: dict[str, FakeServer] = field(default_factory=dict)
    may_start: asyncio.Event = field(default_factory=asyncio.Event)

    def is_local(self, model: Model) -> bool:
        return model.name not in self.far

    async def download(self, model: Model) -> None:
        self.downloaded.append(model.name)
        await asyncio.sleep(0)
        if model.name in self.faults:
            raise DidNotStart(self.faults[model.name])

    async def start(self, model: Model, num_others: int) -> FakeServer:
        self.started.append(model.name)
        self.others.append(num_others)
        await self.may_start.wait()
        if model.name in self.refusals:
            raise DidNotStart(self.refusals[model.name])
        server = FakeServer(self.sockets.get(model.name, Path("/nowhere")))
        self.by_name[model.name] = server
        return server


def manager_over(
    servers: FakeServers, *, load_timeout_s: float = 5.0, rules: LoadingRules | None = None
) -> ModelManager:
    """A manager of a table with these rules."""
    metrics = FleetMetrics(CollectorRegistry())
    return ModelManager(ModelTable(rules or LoadingRules()), servers, metrics, load_timeout_s)


def model(name: str) -> Model:
    return Model(name, f"/models/{name}")


def states(manager: ModelManager) -> dict[str, ModelState]:
    """The state of every model that is not simply absent."""
    return {entry.name: entry.state for entry in manager.entries()}


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
    /v1/completions sends endless bytes. Sockets are served by a `Speaker`.
    """

    seen: list[Seen] = field(default_factory=list)
    num_events: int = 3
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    num_sent: int = 0
    heard: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    stored: dict[str, str] = field(default_factory=dict)

    def app(self, model: str) -> ASGIApp:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            headers = [(name.decode(), value.decode()) for name, value in scope["headers"]]
            query = scope["query_string"].decode()
            if scope["type"] == "websocket":
                self.seen.append(Seen(model, "GET", scope["path"], query, headers, b""))
                await receive()
                await send({"type": "websocket.accept"})
                await Speaker(self, model, send).run(receive)
                return
            body = b""
            while True:
                message = await receive()
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    break
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
            going_on = asyncio.create_task(self.go_on.wait())
            await asyncio.wait({going_on, leaving}, return_when=asyncio.FIRST_COMPLETED)
            going_on.cancel()
            if leaving.done():
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        leaving.cancel()

    async def _flood(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while self.num_sent < 64 << 20:
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            self.num_sent += 65_536


class Listeners:
    """HTTP servers for a front and its models, whose applications may change.

    To start and stop one takes a tenth of a second, so several fronts use them one by one.
    """

    def __init__(self, folder: Path, models: Sequence[str]) -> None:
        self.sockets = {model: folder / f"{model}.sock" for model in models}
        # By model; the front's own is that of FRONT.
        self.apps: dict[str, ASGIApp] = {}
        self.front = HttpServer(self._app(FRONT), bind("127.0.0.1", 0), 1.0, ConnectionLimits())
        self.servers = {
            model: HttpServer(self._app(model), bind_unix(path), 1.0)
            for model, path in self.sockets.items()
        }

    def cut(self, model: str) -> None:
        """Break off all connections of a model's server, as its end does."""
        for connection in self.servers[model]._server.server_state.connections:
            connection.transport.abort()

    def _app(self, name: str) -> ASGIApp:
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            await self.apps[name](scope, receive, send)

        return serve


@asynccontextmanager
async def listening(folder: Path, models: Sequence[str] = ("a", "b")) -> AsyncIterator[Listeners]:
    built = Listeners(folder, models)
    running = [built.front, *built.servers.values()]
    await asyncio.gather(*(each.start() for each in running))
    try:
        yield built
    finally:
        for each in running:
            each.stop_at_once()
        await asyncio.gather(*(each.stop() for each in running))


@dataclass
class RunningFleet:
    """A front that listens, and what is behind it."""

    url: str
    manager: ModelManager
    servers: FakeServers
    upstreams: Upstreams
    metrics: FleetMetrics
    sockets: FleetSockets
    listeners: Listeners

    @property
    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=10, verify=False)

    async def kill(self, model: str) -> None:
        """The model's server dies in the middle of what it does."""
        self.listeners.cut(model)
        self.servers.by_name[model].die("it was ended by SIGKILL")

    async def until_unused(self, model: str) -> None:
        async with asyncio.timeout(30):
            while self.manager.entry(model).num_users:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def running_fleet(
    listeners: Listeners,
    *,
    names: ModelNames | None = None,
    max_loaded: int = 1,
    load_timeout_s: float = 5.0,
    keys: tuple[str, ...] = (),
    starts: bool = True,
) -> AsyncIterator[RunningFleet]:
    """A front over servers of these models; `starts` False: loads wait for servers.may_start."""
    upstreams = Upstreams()
    servers = FakeServers(sockets=dict(listeners.sockets))
    if starts:
        servers.may_start.set()
    metrics = FleetMetrics(CollectorRegistry())
    table = ModelTable(LoadingRules(max_loaded))
    manager = ModelManager(table, servers, metrics, load_timeout_s)
    names = names or ListedModels(list(listeners.sockets))
    hello = {"server": "tandem 0.0.1", "max_message_len": 1 << 23, "max_streams": 4}
    parser = ParserThread(DEFAULT_BOUNDS)
    sockets = FleetSockets(SocketServices(manager, names, metrics, hello, parser), keys)
    bodies = BodyReader(100_000, 30.0, metrics.connections_cut)
    facts: dict[str, Any] = {"version": "0.0.1", "max_loaded": 1, "created_s": 1}
    app: ASGIApp = Front(manager, names, metrics, sockets, bodies, parser, keys=keys, **facts)
    if keys:
        ring = KeyRing(plain_keys(keys))
        app = ApiKeyAuth(app, ring, metrics.rejected, protects_metrics=False)
    listeners.apps = {model: upstreams.app(model) for model in listeners.sockets}
    listeners.apps[FRONT] = Access(Cors(app))
    url = f"http://127.0.0.1:{urlsplit(listeners.front.address).port}"
    try:
        yield RunningFleet(url, manager, servers, upstreams, metrics, sockets, listeners)
    finally:
        upstreams.go_on.set()
        await manager.drain()


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

    async def closed(self) -> int | None:
        """The code of the close, once it came."""
        await asyncio.wait_for(self.connection.wait_closed(), 30)
        return self.connection.close_code

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


class Speaker:
    """A model's side of one socket, until its client leaves.

    GENERATE is answered by tokens 0, 1, 2 ..., waiting for `go_on` behind `wait_behind`; CLOSE by
    a close with its `code`; all else by the name of the model.
    """

    def __init__(self, upstreams: Upstreams, model: str, send: Send) -> None:
        self._upstreams = upstreams
        self._model = model
        self._send = send
        self._version = 1
        self._streams: dict[int, asyncio.Task[None]] = {}

    async def run(self, receive: Receive) -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            await self._take(str(message["text"]))
        for task in self._streams.values():
            task.cancel()
        self._upstreams.left.set()

    async def _take(self, text: str) -> None:
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
        elif command == "CLOSE":
            close = {"type": "websocket.close", "code": payload["code"], "reason": "as asked"}
            await self._send(close)
        else:
            await self._say("MSG", stream_id, model_info={"model": self._model})

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
        text = json.dumps({"stream_id": stream_id, **fields})
        await self._send({"type": "websocket.send", "text": f"{command} [{text}]"})
