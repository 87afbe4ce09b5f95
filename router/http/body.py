"""Bodies of requests: raw bytes to a checked schema, or the reason why not.

    bytes --length, media type--> bytes --width, JSON, depth--> dict --types--> schema

It knows no schema of its own, and no rule beyond types: those are for `validation.py`. Lone
surrogates, NaN and infinities are no JSON here. Answers 413, 415 and 400 as `HttpError`; wrong
types are an `InvalidRequest`, like every other fault of a parameter.
"""

import json
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request

from router.errors import InvalidRequest
from router.http.errors import HttpError
from router.http.json_bounds import check_depth, check_width

# Such bodies are not read. What else stands there by mistake, such as utf-8, changes no byte.
_CODINGS = frozenset({"gzip", "x-gzip", "deflate", "compress", "x-compress", "br", "zstd"})
_MAX_QUOTED_LEN = 60
_MAX_DROPPED_LEN = 1 << 28
# What the JSON parser reads exactly; beyond it makes floats of whole numbers.
_MIN_WHOLE = -(1 << 63)
_MAX_WHOLE = (1 << 64) - 1
_MIN_BIG_LEN = len(str(-_MIN_WHOLE))


class Schema(BaseModel):
    """A body, or a part of one: exact types, unknown fields ignored, never changed."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", protected_namespaces=())


class _Digits(str):
    """A whole number, unread."""

    __slots__ = ()


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


def parse_part(body: bytes, value: object, place: tuple[int | str, ...], schema: type[S]) -> S:
    """What was parsed from `body` at `place`, as `schema`. Raises InvalidRequest."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise _first_fault(error, body, place) from error


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


def _first_fault(
    error: ValidationError, body: bytes, place: tuple[int | str, ...]
) -> InvalidRequest:
    fault = error.errors(include_url=False)[0]
    loc = (*place, *fault["loc"])
    field = _path(loc)
    if fault["type"] == "missing":
        return InvalidRequest(f"`{field}` is required", field)
    given = fault["input"]
    if fault["type"] == "value_error":
        rule = str(fault["ctx"]["error"])
        # Of a field with parts, the part that breaks the rule.
        given = getattr(fault["ctx"]["error"], "given", given)
    elif fault["type"] == "too_short":
        rule = f"must have at least {fault['ctx']['min_length']} item"
    elif fault["type"] == "model_type":
        rule = "must be an object"
    else:
        rule = fault["msg"].replace("Input should", "must")
    is_rounded = isinstance(given, float) and not _MIN_WHOLE < given < _MAX_WHOLE
    digits = _digits(body, loc) if is_rounded and fault["type"].startswith("int") else None
    if digits is not None:
        rule = f"must be a whole number between {_MIN_WHOLE} and {_MAX_WHOLE}"
        return InvalidRequest(f"`{field}` {rule}. Given: {_cut(digits)}", field)
    return InvalidRequest(f"`{field}` {rule}. Given: {quoted(given)}", field)


def _digits(body: bytes, loc: tuple[int | str, ...]) -> str | None:
    """A whole number as it was written, where the parser made a float of it; else None."""
    # Only for an error's text: slower, but it lets us look at the digits.
    value = json.loads(body, parse_int=_Digits)
    for step in loc:
        # A place may name the branch of a union, which is no place of the body.
        if (isinstance(value, dict) and step in value) or isinstance(value, list):
            value = value[step]  # type: ignore[index]
    if not isinstance(value, _Digits) or len(value) < _MIN_BIG_LEN:
        return None
    return str(value)


def _path(loc: tuple[int | str, ...]) -> str:
    path = ""
    for step in loc:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def quoted(value: Any) -> str:
    """The value as JSON, cut to what a line can hold."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return _cut(orjson.dumps(_cut(value) if isinstance(value, str) else value).decode())


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_QUOTED_LEN else text[:_MAX_QUOTED_LEN] + "..."
