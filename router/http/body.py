"""Bodies of requests: raw bytes to a checked schema, or the reason why not.

    bytes --length, media type--> bytes --width, JSON, depth--> dict --types--> schema

It knows no schema of its own, and no rule beyond types: those are for `validation.py`. Lone
surrogates, NaN and infinities are no JSON here. Answers 413, 415 and 400 as `HttpError`; wrong
types are an `InvalidRequest`, like every other fault of a parameter.
"""

from typing import TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request

from router.http.errors import HttpError
from router.http.faults import Place, first_fault, with_exact_numbers
from router.http.json_bounds import check_depth, check_width
from router.request.error_text import quoted
from router.request.errors import InvalidRequest

# Such bodies are not read. What else stands there by mistake, such as utf-8, changes no byte.
_CODINGS = frozenset({"gzip", "x-gzip", "deflate", "compress", "x-compress", "br", "zstd"})
_MAX_DROPPED_LEN = 1 << 28


class Schema(BaseModel):
    """A body, or a part of one: exact types, unknown fields ignored, never changed."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", protected_namespaces=())


S = TypeVar("S", bound=Schema)


class BodyReader:
    """Reads bodies of at most `max_body_len` bytes."""

    def __init__(self, max_body_len: int) -> None:
        self._max_body_len = max_body_len

    async def read(self, request: Request, schema: type[S]) -> S:
        """The request's body as `schema`. Raises HttpError, InvalidRequest."""
        return parse(await self.read_json(request), schema)

    async def read_json(self, request: Request) -> bytes:
        """The request's body, which says that it is JSON. Raises HttpError."""
        _check_media_type(request.headers.get("content-type"))
        _check_encoding(request.headers.get("content-encoding"))
        return await self._read_bytes(request)

    async def _read_bytes(self, request: Request) -> bytes:
        # A client that asks before it sends is told at once.
        declared = request.headers.get("content-length", "") if "expect" in request.headers else ""
        if declared.isdecimal() and int(declared) > self._max_body_len:
            raise self._too_large(declared)
        # What is too much is read all the same, and dropped: a connection that is closed on a
        # client that still writes takes the answer with it.
        chunks: list[bytes] = []
        body_len = 0
        try:
            async for chunk in request.stream():
                body_len += len(chunk)
                if body_len <= self._max_body_len:
                    chunks.append(chunk)
                elif body_len > self._max_body_len + _MAX_DROPPED_LEN:
                    break
        except ClientDisconnect as error:
            raise HttpError(400, "validation", "the body ended early") from error
        if body_len > self._max_body_len:
            raise self._too_large(str(body_len))
        return b"".join(chunks)

    def _too_large(self, found: str) -> HttpError:
        message = f"the body has {found} bytes; at most {self._max_body_len} are accepted"
        return HttpError(413, "payload_too_large", message)


def parse(body: bytes, schema: type[S]) -> S:
    """The body as `schema`. Raises HttpError (400, with the place), InvalidRequest."""
    check_width(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise HttpError(
            400, "validation", f"the body is not JSON: {_reason(body, error)}"
        ) from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object. Given: {quoted(value)}")
    check_depth(body, value)
    return parse_part(body, value, (), schema)


def parse_part(body: bytes, value: object, place: Place, schema: type[S]) -> S:
    """What was parsed from `body` at `place`, as `schema`. Raises InvalidRequest."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        exact = with_exact_numbers(error, body, place, value)
        if exact is None:
            raise first_fault(error, place) from error
    try:
        return schema.model_validate(exact)
    except ValidationError as error:
        raise first_fault(error, place) from error


def _reason(body: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        body.decode()
    except UnicodeDecodeError as broken:
        return f"byte {broken.start} is not valid UTF-8"
    return str(error)


def _check_media_type(content_type: str | None) -> None:
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type == "application/json" or (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        return
    found = f"`{media_type}`" if media_type else "none"
    raise HttpError(
        415, "unsupported_media_type", f"the content-type must be application/json, got {found}"
    )


def _check_encoding(coding: str | None) -> None:
    if coding and not _CODINGS.isdisjoint(map(str.strip, coding.lower().split(","))):
        raise HttpError(
            415,
            "unsupported_media_type",
            f"the body must be sent as it is, without a content-encoding, got `{coding[:60]}`",
        )
