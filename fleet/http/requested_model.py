"""What the front reads of a request: the model that it names, and whether it asks for events."""

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from router.http.body import Schema, parse
from router.http.server.body import BodyReader

_BODILESS = frozenset({"GET", "HEAD", "DELETE"})


class _Named(Schema):
    model: str | None = None
    # Whether it is a truth value, the server says.
    stream: Any = None


@dataclass(frozen=True, slots=True)
class Named:
    """A request's body, unchanged; the model's name, of the body or the query string, if any."""

    body: bytes
    model: str | None
    stream: object = None


async def read_named(request: Request, bodies: BodyReader) -> Named:
    """What it names. Raises HttpError, InvalidRequest."""
    asked = request.query_params.get("model")
    if request.method in _BODILESS:
        return Named(b"", asked)
    body = await bodies.read(request)
    named = parse(body, _Named)
    return Named(body, named.model or asked, named.stream)
