"""Reads what clients send as schemas, long bodies beside the event loop."""

from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

from router.http.schema import Schema, nearest_field, parse_and_name_unknown
from router.http.server.access import AccessRecord
from router.http.server.body import BodyReader
from router.http.server.parser_thread import ParserThread
from router.request.errors import InvalidRequest

S = TypeVar("S", bound=Schema)


class SchemaReader:
    """Reads bodies of requests.

    Fields that a route does not know are named in the answer, or with `strict_fields` refused.
    """

    def __init__(
        self, bodies: BodyReader, parser: ParserThread, *, strict_fields: bool = False
    ) -> None:
        self._bodies = bodies
        self._parser = parser
        self._strict_fields = strict_fields

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

        def parsed() -> tuple[S, list[str]]:
            value, unknown = parse_and_name_unknown(body, schema, self._parser.bounds)
            if unknown and self._strict_fields:
                near = nearest_field(unknown[0], schema)
                hint = f"; did you mean `{near}`?" if near else ""
                rule = f"`{unknown[0]}` is not a parameter of this route{hint}"
                raise InvalidRequest(rule, unknown[0])
            if check is not None:
                check(value)
            return value, unknown

        value, unknown = await self._parser.run(len(body), parsed)
        AccessRecord.of(request).ignore(unknown)
        return value, body
