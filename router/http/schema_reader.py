"""Reads what clients send as schemas, long bodies beside the event loop."""

from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from router.http.schema import Schema, parse
from router.http.server.body import BodyReader
from router.http.server.parser_thread import ParserThread

S = TypeVar("S", bound=Schema)


class SchemaReader:
    """Reads bodies of requests."""

    def __init__(self, bodies: BodyReader, parser: ParserThread) -> None:
        self._bodies = bodies
        self._parser = parser

    async def read(
        self, request: Request, schema: type[S], check: Callable[[S], object] | None = None
    ) -> S:
        """The body, which `check` has accepted. Raises HttpError, InvalidRequest."""
        read, _ = await self.read_with_bytes(request, schema, check)
        return read

    async def read_with_bytes(
        self, request: Request, schema: type[S], check: Callable[[S], object] | None = None
    ) -> tuple[S, bytes]:
        """As `read`, and the body itself."""
        body = await self._bodies.read(request)

        def parsed() -> S:
            value = parse(body, schema, self._parser.bounds)
            if check is not None:
                check(value)
            return value

        return await self._parser.run(len(body), parsed), body
