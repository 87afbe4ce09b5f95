"""The front of several replicas at the door: who it is, and streams that it brings from elsewhere.

    X-Tandem-Front: SECRET    the stream has its state between its events (`router/http/moving.py`)
    X-Tandem-Continue: N      the body's first N bytes are the state at another one
    X-Tandem-Migrate: any     it goes on here even if this replica would answer otherwise

Other clients' streams have no such state, and none of them may bring one.
"""

import re
import secrets
from hmac import compare_digest

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.engine.adapters import Adapters
from router.http.bodies import BodyReader, ParserThread
from router.http.errors import HttpError
from router.http.moving import END_ID, Begin, MovingStream, StreamState
from router.http.request_record import RequestRecord
from router.http.schema import parse
from router.http.server.access import refuse
from router.request.errors import InvalidRequest, wrong

FRONT_HEADER = "x-tandem-front"
CONTINUE_HEADER = "x-tandem-continue"
_MIGRATE_HEADER = "x-tandem-migrate"
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
# Beside a body: the ids of two million tokens.
MAX_STATE_LEN = 1 << 24


class Migration:
    """ASGI middleware, inside that of the keys.

    `fingerprint` is of all that decides the bytes of an answer beside the request and its adapter,
    which is among `adapters`. Without `secret` nobody is the front. `bodies` has room for
    MAX_STATE_LEN more than a body.
    """

    def __init__(
        self,
        app: ASGIApp,
        bodies: BodyReader,
        parser: ParserThread,
        secret: str | None,
        fingerprint: str,
        adapters: Adapters,
        vocab_size: int,
    ) -> None:
        self._app = app
        self._bodies = bodies
        self._parser = parser
        self._secret = secret
        self._fingerprint = fingerprint
        self._adapters = adapters
        self._vocab_size = vocab_size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        headers = Headers(scope=scope)
        try:
            if self._is_front(headers):
                receive = await self._enter(headers, scope, receive)
            elif CONTINUE_HEADER in headers:
                rule = "is for the front, which knows the server's secret"
                raise HttpError(403, "not_the_front", f"`{CONTINUE_HEADER}` {rule}")
        except InvalidRequest as error:
            refusal = HttpError(400, "validation", str(error), field=error.field)
            await refuse(refusal, scope, receive, send)
        except HttpError as refusal:
            await refuse(refusal, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _is_front(self, headers: Headers) -> bool:
        given = headers.get(FRONT_HEADER)
        if self._secret is None or given is None:
            return False
        return compare_digest(given.encode(), self._secret.encode())

    async def _enter(self, headers: Headers, scope: Scope, receive: Receive) -> Receive:
        """Ties the stream to the request; answers what receives the client's part of the body.

        Raises HttpError, InvalidRequest.
        """
        record = RequestRecord.within(scope)
        assert record is not None, "the access log is around it"
        state_len = headers.get(CONTINUE_HEADER)
        if state_len is None:
            root = secrets.token_hex(16)
            begin = Begin(root=root, asked_s=record.asked_s, fingerprint=self._fingerprint)
            record.move(begin.root, begin.asked_s, MovingStream(begin, None, self._adapters))
            return receive
        body = await self._bodies.read(Request(scope, receive))
        if not _NUMBER.fullmatch(state_len) or int(state_len) > len(body):
            raise wrong(CONTINUE_HEADER, f"must be at most the body's {len(body)} bytes", state_len)
        state = await self._read(body[: int(state_len)])
        takes_any = headers.get(_MIGRATE_HEADER) == "any"
        if state.begin.fingerprint != self._fingerprint and not takes_any:
            raise HttpError(
                409,
                "replica_differs",
                f"the stream began at {state.begin.fingerprint}, and this is {self._fingerprint}: "
                "it would not go on as it began",
            )
        stream = MovingStream(state.begin, state, self._adapters, takes_any=takes_any)
        record.move(state.begin.root, state.begin.asked_s, stream)
        rest = [body[int(state_len) :]]

        async def receive_rest() -> Message:
            if not rest:
                return await receive()
            return {"type": "http.request", "body": rest.pop(), "more_body": False}

        return receive_rest

    async def _read(self, body: bytes) -> StreamState:
        bounds = self._parser.bounds
        state, _ = await self._parser.run(len(body), lambda: parse(body, StreamState, bounds))
        for made_ids in state.out:
            token_ids = made_ids[:-1] if made_ids[-1:] == [END_ID] else made_ids
            if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self._vocab_size:
                rule = f"must be of token ids below {self._vocab_size}, at the end also {END_ID}"
                raise wrong("out", rule, made_ids)
        return state
