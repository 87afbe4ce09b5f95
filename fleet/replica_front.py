"""The front of replicas as an ASGI application: what the router serves, one of them answers.

    own route: health, metrics -----------> answered here
    what changes each (adapters) ---------> all of them
    lists of files and batches -----------> one of those that share a store, and merged
    any other: body -> pieces -> Passage: pick -> forward -> the answer, or on to the next

A request that was cut is sent again where nothing of its answer was passed on. An event stream
goes on behind what was, if its replica sends its state (`fleet/tagged_stream.py`).
"""

import asyncio
import logging
import re
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Send

from fleet.application import FrontApplication
from fleet.errors import (
    FleetError,
    NoReplica,
    NotReached,
    ResponseCut,
    ServerGone,
    ShuttingDown,
    TooManyMoves,
)
from fleet.metrics import FleetMetrics
from fleet.replica_pool import ReplicaPool, Use
from fleet.replicas import prompt_pieces
from fleet.tagged_stream import TaggedStream
from fleet.upstream import (
    Headers,
    StreamedBody,
    UpstreamResponse,
    end_with_error,
    forward,
    has_events,
    returned,
)
from router.http.batches.routes import list_page
from router.http.bodies import (
    BodyReader,
    ParserThread,
    body_part,
    end,
    json_response,
    parse_json,
    unless_disconnected,
    until_disconnected,
)
from router.http.errors import HttpError
from router.http.server.access import AccessRecord
from router.http.server.auth import LOAD_PATH, UNLOAD_PATH

_logger = logging.getLogger("fleet")
# A request that ends three replicas is asked of no fourth.
_MAX_MOVES = 2
_MAX_TRIES = 64
# In which the replica that was cut may come back.
_MOVE_WAIT_S = 60.0
# What those who ask for metrics or lists say of themselves.
_OF_CLIENT = frozenset({b"host", b"authorization", b"x-api-key"})
# Each replica has its own limit; this one is for who sends without an end.
_MAX_UPLOAD_LEN = 1 << 28
_OF_EACH = frozenset({LOAD_PATH, UNLOAD_PATH})
# What one replica may have, and the others have not; ids of files and batches begin with the name
# of the store that has them.
_STORED = re.compile(r"/v1/(?:responses/(?!input_tokens$)|files/|batches/)([^/]*)")
_ID = re.compile(r"(?:file-|file-output-|file-error-|batch_)([0-9a-f]{8})-[0-9a-f]{32}")
_UPLOAD = "/v1/files"
_LISTS = frozenset({_UPLOAD, "/v1/batches"})
_LIMIT = re.compile(r"[1-9]\d{0,3}|10000", re.ASCII)
# Sent again, these would be done twice.
_ONCE = re.compile(r"/v1/(files|batches)$")
_HERE = frozenset({"/health", "/health/ready", "/ping"})
_ALIVE = frozenset({"/health/live", "/health/progress"})


@dataclass(frozen=True, slots=True)
class MoveRules:
    """How a front asks that streams can move: the secret that replicas know, None: it does not;
    and whether they may move to a replica that computes other bits."""

    secret: str | None
    takes_any: bool = False

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Those of each request."""
        if self.secret is None:
            return []
        any_ = [(b"x-tandem-migrate", b"any")] if self.takes_any else []
        return [(b"x-tandem-front", self.secret.encode()), *any_]


class ReplicaFront(FrontApplication):
    """The front of one model's replicas."""

    def __init__(
        self,
        pool: ReplicaPool,
        metrics: FleetMetrics,
        sockets: ASGIApp,
        bodies: BodyReader,
        parser: ParserThread,
        rules: MoveRules,
    ) -> None:
        super().__init__(metrics, sockets)
        self._pool = pool
        self._bodies = bodies
        self._parser = parser
        self._rules = rules

    async def _answer(self, request: Request) -> Response | None:
        """The front's own answer; None: a replica has it. Raises HttpError."""
        path = request.scope["path"]
        if request.method not in ("GET", "HEAD"):
            return await self._ask_each(request) if path in _OF_EACH else None
        if path in _ALIVE:
            return Response()
        if path in _HERE:
            if self._pool.is_draining or not self._pool.ready:
                why = (
                    "is shutting down" if self._pool.is_draining else "has no replica that is ready"
                )
                raise HttpError(503, "healthcheck", f"the server {why}")
            return Response()
        if path in _LISTS:
            return await self._list(request)
        if path != "/metrics":
            return None
        return await self._metrics_page(self._pool.ready, _of_client(request), "replica")

    async def _list(self, request: Request) -> Response | None:
        """The latest of all stores in one list; None: one replica has it whole, or refuses it."""
        stores = self._pool.stores
        limit = request.query_params.get("limit", "20")
        if len(stores) < 2 or not _LIMIT.fullmatch(limit):
            return None
        if not self._pool.are_all_ready:
            raise NoReplica("a replica is away that may have more of the list")
        ready = self._pool.ready
        servers = {store: ready[min(names)] for store, names in stores.items() if names}
        path = f"{request.scope['path']}?limit=10000"
        found = []
        for got in (await self._ask_all(servers, path, _of_client(request))).values():
            if not got.status:
                raise NoReplica("a replica that has more of the list does not answer")
            if got.status != 200:
                return Response(got.body, got.status, media_type="application/json")
            found += orjson.loads(got.body)["data"]
        found.sort(key=lambda each: each["created_at"], reverse=True)
        begin = 0
        if after := request.query_params.get("after"):
            begin = 1 + next((at for at, each in enumerate(found) if each["id"] == after), -1)
            if not begin:
                raise HttpError(404, "not_found", f"there is no `{after[:100]}`")
        behind = begin + int(limit)
        return json_response(list_page(found[begin:behind], has_more=behind < len(found)))

    async def _ask_each(self, request: Request) -> Response:
        """Have every replica do it; the answer is the first failure, or the last success."""
        body = await self._bodies.read(request)
        for address in self._pool.ready.values():
            response = await forward(request, address, body)
            with closing(response):
                try:
                    content = await response.read()
                except ResponseCut as error:
                    raise ServerGone(str(error)) from error
            if response.status != 200:
                break
        else:
            if not self._pool.ready:
                raise NoReplica("no replica of the model is ready")
        headers = {key.decode(): value.decode() for key, value in returned(response.headers)}
        return Response(content, response.status, headers)

    async def _pass_on(self, request: Request, send: Send) -> None:
        if self._pool.is_draining:
            raise ShuttingDown()
        body = await self._body(request)
        pieces: list[bytes] = []
        path = request.scope["path"]
        stored_id = request.headers.get("last-event-id")
        if found := _STORED.match(path):
            stored_id = found[1]
        if isinstance(body, bytes) and body:
            read = partial(_read, body, _salt(request), self._parser)
            pieces, follows = await self._parser.run(len(body), read)
            stored_id = follows or stored_id
        holders = self._holders(path, stored_id)
        passage = Passage(request, send, self._pool, self._metrics, self._rules)
        without = set() if holders is None else self._pool.names - holders
        is_stored = stored_id is not None and holders is None
        await passage.run(body, pieces, without, is_stored=is_stored)

    def _holders(self, path: str, stored_id: str | None) -> set[str] | None:
        """Who alone may have what the id names, or keep an upload; None: any. Raises NoReplica."""
        stores = self._pool.stores
        if path in _LISTS and stored_id is None:
            holders = set().union(*stores.values()) if stores else None
        else:
            named = _ID.fullmatch(stored_id or "")
            holders = None if named is None else stores.get(named[1])
        if holders is not None and not holders:
            raise NoReplica(f"the replica is away that has `{stored_id or path}`")
        return holders

    async def _body(self, request: Request) -> bytes | StreamedBody:
        """The request's body: JSON whole, so that it can be sent again. Raises HttpError."""
        headers = request.headers
        length = headers.get("content-length", "")
        if "json" in headers.get("content-type", "") or "transfer-encoding" in headers:
            return await self._bodies.read(request)
        if not length.isdecimal() or not int(length):
            return b""
        return StreamedBody(int(length), self._bodies.chunks(request, _MAX_UPLOAD_LEN))


def _of_client(request: Request) -> Headers:
    return [each for each in request.scope["headers"] if each[0] in _OF_CLIENT]


def _salt(request: Request) -> bytes:
    """The client's key: replicas share no prefix between keys."""
    headers = request.headers
    key = headers.get("authorization", "") + headers.get("x-api-key", "")
    return key.encode("latin-1")


def _read(body: bytes, salt: bytes, parser: ParserThread) -> tuple[list[bytes], str | None]:
    """A prompt's pieces, and the id of what one replica has from which it goes on.

    What is no JSON object has none; a replica refuses it.
    """
    try:
        fields = parse_json(body, parser.bounds)
    except HttpError:
        return [], None
    if not isinstance(fields, dict):
        return [], None
    stored_id = fields.get("previous_response_id") or fields.get("input_file_id")
    return prompt_pieces(fields, salt), None if stored_id is None else str(stored_id)


class Passage:
    """One request on its way through replicas, until its answer is complete."""

    def __init__(
        self,
        request: Request,
        send: Send,
        pool: ReplicaPool,
        metrics: FleetMetrics,
        rules: MoveRules,
    ) -> None:
        self._request = request
        self._path: str = request.scope["path"]
        self._send = send
        self._pool = pool
        self._metrics = metrics
        self._rules = rules
        self._num_moves = 0
        # Of the answer: whether status and headers were sent, whether it is an event stream.
        self._has_begun = False
        self._has_events = False
        self._last = b""
        self._stream = TaggedStream()

    async def run(
        self,
        body: bytes | StreamedBody,
        pieces: list[bytes],
        without: set[str],
        *,
        is_stored: bool,
    ) -> None:
        """At a replica that is none of `without`. Raises HttpError where no answer has begun."""
        try:
            await self._run(body, pieces, without, is_stored=is_stored)
        except FleetError as error:
            if not self._has_begun:
                raise
            AccessRecord.of(self._request).error_type = "incomplete_generation"
            if self._has_events:
                await end_with_error(self._request, self._last, error, self._send)

    async def _run(
        self,
        body: bytes | StreamedBody,
        pieces: list[bytes],
        without: set[str],
        *,
        is_stored: bool,
    ) -> None:
        refusal: tuple[UpstreamResponse, bytes] | None = None
        for _ in range(_MAX_TRIES):
            try:
                use = await self._use(pieces, without)
            except NoReplica:
                if refusal is None:
                    raise
                if is_stored and not self._pool.are_all_ready:
                    raise NoReplica(
                        "no replica that is ready has it, and one that is away may"
                    ) from None
                break
            with closing(use):
                try:
                    use.response = await self._ask(use, body)
                    is_whole = isinstance(body, bytes)
                    if not is_whole or not self._is_refused(use.response, is_stored=is_stored):
                        await self._send_back(use.response)
                        return
                    refusal = use.response, await use.response.read()
                    without.add(use.name)
                except NotReached as error:
                    self._pool.report_failure(use, error)
                    if not isinstance(body, bytes):
                        raise
                except (ServerGone, ResponseCut) as error:
                    self._pool.report_failure(use, error)
                    self._move(error, is_whole=isinstance(body, bytes))
        if refusal is None or self._has_begun:
            raise NoReplica("no replica of the model could go on with the answer")
        await self._start(refusal[0])
        await self._send(body_part(refusal[1], more=False))

    async def _use(self, pieces: list[bytes], without: set[str]) -> Use:
        """A use of the next replica; a request that was cut waits for one that may come back.

        Raises NoReplica, ClientLeft.
        """
        pool = self._pool
        if not self._num_moves or pool.are_all_ready or pool.is_draining:
            return await pool.use(pieces, without)
        waiting = pool.use(pieces, without, _MOVE_WAIT_S)
        return await unless_disconnected(self._request, waiting)

    async def _ask(self, use: Use, body: bytes | StreamedBody) -> UpstreamResponse:
        """Raises ServerGone, ClientLeft."""
        headers = self._rules.headers()
        if self._stream.has_shown:
            assert isinstance(body, bytes), "a stream is the answer to JSON"
            so_far = self._stream.so_far()
            headers.append((b"x-tandem-continue", b"%d" % len(so_far)))
            body = so_far + body
        return await forward(self._request, use.address, body, headers)

    def _is_refused(self, response: UpstreamResponse, *, is_stored: bool) -> bool:
        """Whether another replica may answer what this one does not."""
        if self._has_begun:
            return response.status != 200
        return response.status == 503 or (response.status == 404 and is_stored)

    async def _send_back(self, response: UpstreamResponse) -> None:
        """Send what is to be sent of a response. Raises ResponseCut."""
        leaving = asyncio.ensure_future(until_disconnected(self._request.receive))
        leaving.add_done_callback(lambda _: response.close())
        try:
            if has_events(response.headers):
                self._has_events = True
                await self._send_events(response)
            elif self._request.method == "POST":
                # It can be asked for again until the first byte is sent.
                content = await response.read()
                await self._start(response)
                await self._send(body_part(content, more=False))
            else:
                async for chunk in response.chunks():
                    await self._start(response)
                    await self._send(body_part(chunk, more=True))
                await self._start(response)
                await self._send(body_part(b"", more=False))
        except ResponseCut:
            if not leaving.done():
                raise
        finally:
            await end(leaving)

    async def _send_events(self, response: UpstreamResponse) -> None:
        async for chunk in response.chunks():
            if passed := self._stream.feed(chunk):
                await self._start(response)
                self._last = passed
                await self._send(body_part(passed, more=True))
        await self._start(response)
        await self._send(body_part(self._stream.finish(), more=False))

    async def _start(self, response: UpstreamResponse) -> None:
        """Send status and headers, once."""
        if not self._has_begun:
            self._has_begun = True
            start = {"type": "http.response.start", "status": response.status}
            await self._send({**start, "headers": returned(response.headers)})

    def _move(self, cut: ServerGone | ResponseCut, *, is_whole: bool) -> None:
        """Make ready for the next replica. Raises FleetError where there may be none."""
        if not self._stream.has_shown:
            self._stream = TaggedStream()
            may_move = self._has_events or not self._has_begun
        else:
            may_move = self._stream.can_move
            self._stream.moved()
        if not may_move or not is_whole or _ONCE.match(self._path):
            raise ServerGone(str(cut)) from cut
        if self._num_moves == _MAX_MOVES:
            raise TooManyMoves(self._num_moves + 1) from cut
        self._num_moves += 1
        self._metrics.moves.inc("stream" if self._has_begun else "whole")
        _logger.warning(
            "request_id=%s goes on elsewhere: %s", AccessRecord.of(self._request).request_id, cut
        )
