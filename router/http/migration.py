"""The front of several replicas at the door: who it is, and streams that it brings from elsewhere.

    X-Tandem-Front: SECRET    the stream tells what another replica needs (`router/http/moving.py`)
    X-Tandem-Continue: N      the body's first N bytes are what another one told
    X-Tandem-Migrate: any     it goes on here even if this replica would answer otherwise

Other clients' streams tell nothing, and none of them may bring one.
"""

import secrets
from hmac import compare_digest

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.http.bodies import BodyReader, ParserThread
from router.http.errors import HttpError
from router.http.moving import END_ID, Begin, MovingStream, Told
from router.http.request_record import RequestRecord
from router.http.schema import parse
from router.http.server.access import refuse
from router.request.errors import InvalidRequest

FRONT_HEADER = "x-tandem-front"
CONTINUE_HEADER = "x-tandem-continue"
_MIGRATE_HEADER = "x-tandem-migrate"
# Beside a body: the ids of two million tokens.
MAX_TOLD_LEN = 1 << 24


class Migration:
    """ASGI middleware, inside that of the keys.

    `fingerprint` is of all that decides the bytes of an answer beside the request. Without `secret`
    nobody is the front. `bodies` has room for MAX_TOLD_LEN more than a body.
    """

    def __init__(
        self,
        app: ASGIApp,
        bodies: BodyReader,
        parser: ParserThread,
        secret: str | None,
        fingerprint: str,
        vocab_size: int,
    ) -> None:
        self._app = app
        self._bodies = bodies
        self._parser = parser
        self._secret = secret
        self._fingerprint = fingerprint
        self._vocab_size = vocab_size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        headers = Headers(scope=scope)
        try:
            if self._is_front(headers):
                receive = await self._enter(headers, scope, receive)
            elif CONTINUE_HEADER in headers:
                raise HttpError(
                    403,
                    "not_the_front",
                    f"`{CONTINUE_HEADER}` is for the front, which knows the server's secret",
                    field=CONTINUE_HEADER,
                )
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
        """Ties the stream to the request; answers what receives the rest. Raises HttpError."""
        record = RequestRecord.within(scope)
        assert record is not None, "the access log is around it"
        if CONTINUE_HEADER not in headers:
            root = secrets.token_hex(16)
            begin = Begin(root=root, asked_s=record.asked_s, fingerprint=self._fingerprint)
            record.move(begin.root, begin.asked_s, MovingStream(begin, None))
            return receive
        body = await self._bodies.read(Request(scope, receive))
        told_len = headers[CONTINUE_HEADER]
        if not (told_len.isascii() and told_len.isdecimal()) or int(told_len) > len(body):
            rule = f"be a number of the body's {len(body)} bytes. Given: {told_len[:40]!r}"
            raise _invalid(f"`{CONTINUE_HEADER}` must {rule}", CONTINUE_HEADER)
        told = await self._read(body[: int(told_len)])
        if told.begin.fingerprint != self._fingerprint and headers.get(_MIGRATE_HEADER) != "any":
            raise HttpError(
                409,
                "replica_differs",
                f"the stream began at {told.begin.fingerprint}, and this is {self._fingerprint}: "
                "it would not go on as it began",
            )
        begin = told.begin
        record.move(begin.root, begin.asked_s, MovingStream(begin, told))
        rest: list[Message] = [
            {"type": "http.request", "body": body[int(told_len) :], "more_body": False}
        ]

        async def receive_rest() -> Message:
            return rest.pop() if rest else await receive()

        return receive_rest

    async def _read(self, body: bytes) -> Told:
        try:
            told, _ = await self._parser.run(
                len(body), lambda: parse(body, Told, self._parser.bounds)
            )
        except InvalidRequest as error:
            raise _invalid(str(error), error.field) from error
        for made_ids in told.out:
            token_ids = made_ids[:-1] if made_ids[-1:] == [END_ID] else made_ids
            if token_ids and not 0 <= min(token_ids) <= max(token_ids) < self._vocab_size:
                rule = f"be of token ids below {self._vocab_size}"
                raise _invalid(f"`out` must {rule}, at the end also {END_ID}", "out")
        return told


def _invalid(message: str, field: str | None) -> HttpError:
    return HttpError(400, "validation", message, field=field)
