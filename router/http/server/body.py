"""Bodies of requests as bytes, answers in JSON, and the client's disconnect."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive

from processes.instruments import Counter
from router.http.server.errors import HttpError

T = TypeVar("T")

MIN_BODY_LEN = 16_384
# Such bodies are not read. What else stands there by mistake, such as utf-8, changes no byte.
_CODINGS = frozenset({"gzip", "x-gzip", "deflate", "compress", "x-compress", "br", "zstd"})
_MAX_DROPPED_LEN = 1 << 26


class ClientLeft(HttpError):
    """The client disconnected before its answer was made. Nobody reads it, but logs hold it."""

    def __init__(self) -> None:
        super().__init__(499, "cancelled", "the client left")


class BodyReader:
    """Reads bodies of at most `max_body_len` bytes.

    In every `timeout_s` at least MIN_BODY_LEN of them must come, or the rest; `cuts` counts the
    clients that are slower, by cause.
    """

    def __init__(self, max_body_len: int, timeout_s: float, cuts: Counter) -> None:
        self._max_body_len = max_body_len
        self._timeout_s = timeout_s
        self._cuts = cuts

    async def read(self, request: Request) -> bytes:
        """The request's body, whose media type is JSON. Raises HttpError."""
        _check_media_type(request.headers.get("content-type"))
        _check_encoding(request.headers.get("content-encoding"))
        # A client that asks before it sends (100-continue) is answered at once.
        declared = request.headers.get("content-length", "") if "expect" in request.headers else ""
        if declared.isdecimal() and int(declared) > self._max_body_len:
            raise self._too_large(declared)
        try:
            return await self._read_bytes(request)
        except ClientDisconnect as error:
            raise HttpError(400, "validation", "the body ended early") from error
        except TimeoutError as error:
            self._cuts.inc("slow_body")
            message = f"less than {MIN_BODY_LEN} bytes of the body came within"
            raise HttpError(
                *(408, "slow_sender", f"{message} {self._timeout_s:g} s"),
                headers={"connection": "close"},
            ) from error

    async def _read_bytes(self, request: Request) -> bytes:
        clock = asyncio.get_running_loop().time
        chunks: list[bytes] = []
        body_len, awaited_len = 0, MIN_BODY_LEN
        stream = request.stream()
        async with asyncio.timeout(self._timeout_s) as timeout:
            async for chunk in stream:
                body_len += len(chunk)
                if body_len > self._max_body_len:
                    break
                chunks.append(chunk)
                if body_len >= awaited_len:
                    awaited_len = body_len + MIN_BODY_LEN
                    timeout.reschedule(clock() + self._timeout_s)
        if body_len > self._max_body_len:
            raise self._too_large(str(body_len + await self._drop_rest(stream)))
        return b"".join(chunks)

    async def _drop_rest(self, stream: AsyncGenerator[bytes, None]) -> int:
        """Reads on, for `timeout_s` at most, since a connection that is closed on a client that
        still writes takes the answer with it. Answers how many bytes came.
        """
        dropped_len = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout_s):
                async for chunk in stream:
                    dropped_len += len(chunk)
                    if dropped_len > _MAX_DROPPED_LEN:
                        break
        return dropped_len

    def _too_large(self, found: str) -> HttpError:
        message = f"the body has {found} bytes; at most {self._max_body_len} are accepted"
        return HttpError(413, "payload_too_large", message)


def json_response(answer: object, headers: Mapping[str, str] | None = None) -> Response:
    """An answer of 200 in JSON."""
    return Response(orjson.dumps(answer), headers=headers, media_type="application/json")


def body_part(data: bytes, *, more: bool) -> Message:
    """A part of an answer's body in ASGI."""
    return {"type": "http.response.body", "body": data, "more_body": more}


async def until_disconnected(receive: Receive) -> None:
    """Returns when the client has left. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; cancels it and raises ClientLeft as soon as the client leaves."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(until_disconnected(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft()
        return working.result()
    finally:
        await end(working, leaving)


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancels what still runs and waits for its end; results and errors stay in the tasks."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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
