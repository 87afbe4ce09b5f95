"""The model that a request names: in its body, in its query string, or not at all."""

from starlette.requests import Request

from router.http.body import BodyReader, Schema, parse

_BODILESS = frozenset({"GET", "HEAD", "DELETE"})


class _Named(Schema):
    model: str | None = None


async def read_named(request: Request, bodies: BodyReader) -> tuple[bytes, str | None]:
    """The body, unchanged, and the model's name. Raises HttpError, InvalidRequest."""
    asked = request.query_params.get("model")
    if request.method in _BODILESS:
        return b"", asked
    body = await bodies.read_json(request)
    return body, parse(body, _Named).model or asked
