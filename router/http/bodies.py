"""Bodies of requests, from bytes to JSON within bounds; JSON answers; the client's disconnect.

    request --BodyReader--> bytes --ParserThread--> parse_json: value

Lone surrogates, NaN and infinities are no JSON here, nor is what is wider or deeper than a bound:
a parser, and whoever validates what it has made, holds the interpreter's lock all the while, so
that every stream of the server waits. The numbers of lists and objects, of texts and of values are
checked before anything is parsed, by counting bytes; the others before anything is validated.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive

from processes.instruments import Counter
from processes.worker_threads import WorkerThreads
from router.http.errors import HttpError

MAX_DEPTH = 64
# Lists and objects, in all.
MAX_CONTAINERS = 1 << 15
# Of one object, and objects or lists in one list.
MAX_KEYS = 1 << 12
MAX_ITEMS = 1 << 12
_MAX_STRINGS = 1 << 16
_MAX_VALUES = 1 << 17


@dataclass(frozen=True, slots=True)
class JsonBounds:
    """How much a text may hold: `max_strings` keys and texts, `max_values` values of any kind."""

    max_strings: int = _MAX_STRINGS
    max_values: int = _MAX_VALUES

    @classmethod
    def of_model(cls, vocab_size: int, num_prompt_ids: int) -> "JsonBounds":
        """Those for a bias of each token, and so many ids of prompts."""
        return cls(
            max_strings=max(_MAX_STRINGS, vocab_size + _MAX_STRINGS // 8),
            max_values=_MAX_VALUES + vocab_size + num_prompt_ids,
        )


DEFAULT_BOUNDS = JsonBounds()
MIN_BODY_LEN = 16_384
# Such bodies are not read. What else stands there by mistake, such as utf-8, changes no byte.
_CODINGS = frozenset({"gzip", "x-gzip", "deflate", "compress", "x-compress", "br", "zstd"})
_MAX_DROPPED_LEN = 1 << 26


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
            raise _too_large(declared, self._max_body_len)
        with self._client_faults():
            return await self._read_bytes(request)

    async def chunks(self, request: Request, max_len: int) -> AsyncGenerator[bytes, None]:
        """A body of any media type as it comes, of at most `max_len` bytes. Raises HttpError."""
        _check_encoding(request.headers.get("content-encoding"))
        clock = asyncio.get_running_loop().time
        body_len = 0
        awaited_len = MIN_BODY_LEN
        left_s = self._timeout_s
        stream = request.stream()
        with self._client_faults():
            while True:
                # What is done with a chunk is no time of the client's.
                begun_s = clock()
                async with asyncio.timeout(left_s):
                    chunk = await anext(stream, None)
                left_s -= clock() - begun_s
                if chunk is None:
                    return
                body_len += len(chunk)
                if body_len > max_len:
                    raise _too_large(str(body_len + await self._drop_rest(stream)), max_len)
                if body_len >= awaited_len:
                    awaited_len = body_len + MIN_BODY_LEN
                    left_s = self._timeout_s
                yield chunk

    @contextmanager
    def _client_faults(self) -> Iterator[None]:
        """A client that leaves or is slow, as HttpError."""
        try:
            yield
        except ClientDisconnect as error:
            raise HttpError(400, "validation", "the body ended early") from error
        except TimeoutError as error:
            self._cuts.inc("slow_body")
            message = f"less than {MIN_BODY_LEN} bytes of the body came within"
            raise HttpError(
                408,
                "slow_sender",
                f"{message} {self._timeout_s:g} s",
                headers={"connection": "close"},
            ) from error

    async def _read_bytes(self, request: Request) -> bytes:
        clock = asyncio.get_running_loop().time
        chunks: list[bytes] = []
        body_len = 0
        awaited_len = MIN_BODY_LEN
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
            found = str(body_len + await self._drop_rest(stream))
            raise _too_large(found, self._max_body_len)
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


def _too_large(found: str, max_len: int) -> HttpError:
    message = f"the body has {found} bytes; at most {max_len} are accepted"
    return HttpError(413, "payload_too_large", message)


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


# Bytes that take about a millisecond.
_IN_PLACE_LEN = 1 << 14
T = TypeVar("T")


class ParserThread:
    """Parses and validates long bodies.

    Two megabytes take a tenth of a second, while which every stream of the server would wait. A
    thread lets the event loop in every few milliseconds; it is one for all, since the loop takes
    turns with each that there is.
    """

    def __init__(self, bounds: JsonBounds) -> None:
        """`bounds` are those of the bodies."""
        self.bounds = bounds
        self._worker = WorkerThreads(1, "parser")

    def start(self) -> None:
        """Starts the thread now. Raises NoThreads."""
        self._worker.start()

    async def run(self, body_len: int, work: Callable[[], T]) -> T:
        """What `work` on so many bytes returns."""
        if body_len <= _IN_PLACE_LEN:
            return work()
        return await self._worker.run(work)


class MalformedJson(HttpError):
    """Text that is no JSON, with the place."""

    def __init__(self, subject: str, text: bytes, error: orjson.JSONDecodeError) -> None:
        super().__init__(400, "validation", f"{subject}: {_reason(text, error)}")


def _reason(body: bytes, error: orjson.JSONDecodeError) -> str:
    try:
        body.decode()
    except UnicodeDecodeError as broken:
        return f"byte {broken.start} is not valid UTF-8"
    return str(error)


_MAX_ALMOST_JSON_LEN = 1 << 16


def parse_json(body: bytes, bounds: JsonBounds = DEFAULT_BOUNDS) -> Any:
    """The JSON value of a body. Raises HttpError (400, with the place)."""
    check_width(body, bounds)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise MalformedJson("the body is not JSON", body, error) from error
    if isinstance(value, dict):
        check_shape(body, value)
    return value


def almost_json(text: bytes, id_field: str) -> dict[str, Any] | None:
    """The object of a text that would be JSON but for NaN, infinities or lone surrogates.

    Python's own `json` writes them. None for any other text, for one whose `id_field` is no whole
    number of 64 bits, and for a long one, which is slow to read.
    """
    if len(text) > _MAX_ALMOST_JSON_LEN:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    number = value.get(id_field) if isinstance(value, dict) else None
    return value if type(number) is int and -(1 << 63) <= number < 1 << 63 else None


# The one object that may have as many keys as the vocabulary has tokens; its values are numbers.
_BIAS = "logit_bias"
# None of a shorter text is beyond a bound, but for its depth.
_SHORT_LEN = 1 << 14
_MAX_QUOTED_LEN = 60
# Bytes that are looked at without letting go of the interpreter.
_PIECE_LEN = 1 << 16
_CONTAINERS = (dict, list)


def check_width(body: bytes, bounds: JsonBounds = DEFAULT_BOUNDS) -> None:
    """Raise HttpError for JSON with too many lists and objects, texts or values, unparsed."""
    # Those in strings are counted too, until there are so many that it matters.
    if body.count(b'"') > 2 * bounds.max_strings:
        num_strings = _without_escapes(body).count(b'"') // 2
        _check_count(num_strings, bounds.max_strings, "keys and texts")
    if _num_openings(body) > MAX_CONTAINERS:
        num_containers = sum(map(_num_openings, _outside_strings(body)))
        _check_count(num_containers, MAX_CONTAINERS, "lists and objects")
    if body.count(b",") >= bounds.max_values:
        num_values = 1 + sum(piece.count(b",") for piece in _outside_strings(body))
        _check_count(num_values, bounds.max_values, "values")


def _check_count(count: int, most: int, what: str) -> None:
    if count > most:
        raise HttpError(400, "validation", f"JSON must have at most {most} {what}. Given: {count}")


def _num_openings(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _without_escapes(body: bytes) -> bytes:
    return body.replace(rb"\\", b"").replace(rb"\"", b"")


def _outside_strings(body: bytes) -> Iterator[bytes]:
    """What is no part of a string, in pieces."""
    plain = _without_escapes(body)
    is_inside = False
    for start in range(0, len(plain), _PIECE_LEN):
        parts = plain[start : start + _PIECE_LEN].split(b'"')
        yield b"".join(parts[is_inside::2])
        is_inside ^= len(parts) % 2 == 0


def check_shape(body: bytes, value: Mapping[str, Any]) -> None:
    """Raise HttpError for a value that is nested too deep, or has an object or a list that is too
    wide; `body` is its text.
    """
    if len(body) <= _SHORT_LEN and _num_openings(body) <= MAX_DEPTH:
        return
    _check_keys(value, None)
    for key, child in value.items():
        if isinstance(child, _CONTAINERS) and key != _BIAS:
            _check_part(child, key)


def _check_part(part: Any, name: str) -> None:
    level = [part]
    for _ in range(MAX_DEPTH - 1):
        below: list[Any] = []
        for parent in level:
            if isinstance(parent, dict):
                _check_keys(parent, name)
                below += [
                    child
                    for key, child in parent.items()
                    if isinstance(child, _CONTAINERS) and key != _BIAS
                ]
            else:
                children = [child for child in parent if isinstance(child, _CONTAINERS)]
                if len(children) > MAX_ITEMS:
                    rule = f"may have at most {MAX_ITEMS} objects or lists in a list"
                    raise _misshapen(name, f"{rule}. Given: {len(children)}")
                below += children
        level = below
        if not level:
            return
    raise _misshapen(name, f"is nested more than {MAX_DEPTH} levels deep")


def _check_keys(parent: Mapping[str, Any], name: str | None) -> None:
    if len(parent) <= MAX_KEYS:
        return
    rule = f"may have at most {MAX_KEYS} keys in an object. Given: {len(parent)}"
    if name is None:
        raise HttpError(400, "validation", f"the JSON {rule}")
    raise _misshapen(name, rule)


def _misshapen(name: str, rule: str) -> HttpError:
    shown = name if len(name) <= _MAX_QUOTED_LEN else name[:_MAX_QUOTED_LEN] + "..."
    return HttpError(400, "validation", f"`{shown}` {rule}", field=name)


def json_response(answer: object, headers: Mapping[str, str] | None = None) -> Response:
    """An answer of 200 in JSON."""
    return Response(orjson.dumps(answer), headers=headers, media_type="application/json")


# Where the scope of a request has a PartWriter.
PART_WRITER = "tandem.parts"


class PartWriter(Protocol):
    """Writes parts of an answer that goes out in chunks, at once: `send` of ASGI is a call of each
    layer for each of them. A layer that reads the parts takes it out of the scope.
    """

    @property
    def is_ready(self) -> bool:
        """Whether the answer has begun, and its client takes more of it now."""

    def write(self, data: bytes) -> None:
        """As `body_part` with more to come, while it is ready."""


def body_part(data: bytes, *, more: bool) -> Message:
    """A part of an answer's body in ASGI."""
    return {"type": "http.response.body", "body": data, "more_body": more}


class ClientLeft(HttpError):
    """The client disconnected before its answer was made. Nobody reads it, but logs hold it."""

    def __init__(self) -> None:
        super().__init__(499, "cancelled", "the client left")


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


async def until_disconnected(receive: Receive) -> None:
    """Returns when the client has left. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancels what still runs and waits for its end; results and errors stay in the tasks."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
