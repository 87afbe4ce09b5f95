"""Frames of LMTP, read and written: their streams' ids, numbers and error objects as JSON."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from router.http.errors import problem_of
from router.http.schema import Schema, parse_part
from router.http.server.errors import Dialect, HttpError
from router.http.server.json_reader import (
    DEFAULT_BOUNDS,
    JsonBounds,
    MalformedJson,
    almost_json,
    check_shape,
    check_width,
)
from router.request.errors import (
    ConstraintRefused,
    FailedAlone,
    InvalidRequest,
    Refused,
    RouterError,
    RowFailed,
    wrong,
)

# An object to be sent: the type of its frame, and its JSON.
Message: TypeAlias = tuple[str, str]

_MAX_TYPE_LEN = 40
_UNSUPPORTED_DATA = 1003
_INVALID_DATA = 1007
# The log-probability of an impossible token. Clients of version 1 read Python's JSON; others may
# not know infinity.
_MINUS_INFINITY = "-Infinity"
_LEAST_FLOAT = repr(-sys.float_info.max)
_STREAM_ID_RULE = "must be a whole number of at most 64 bits"


class SocketClose(Exception):
    """Why the server closes a socket: with `code`, and the text as the reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a client: its type, its object, and the object's JSON.

    `fault` is why it is refused alone, though its stream is known: another frame is well formed.
    """

    command: str
    payload: Mapping[str, Any]
    text: bytes
    fault: HttpError | None = None


def read_frame(text: str | None, bounds: JsonBounds = DEFAULT_BOUNDS) -> Frame:
    """The frame of a text message; None stands for a binary one. Raises SocketClose."""
    if text is None:
        raise SocketClose(_UNSUPPORTED_DATA, "a frame is a text message: TYPE, a space, JSON")
    command, space, rest = text.partition(" ")
    if not space or not command.isascii() or not 1 <= len(command) <= _MAX_TYPE_LEN:
        raise SocketClose(_INVALID_DATA, "a frame is TYPE, a space, JSON")
    body = rest.encode()
    try:
        check_width(body, bounds)
        payload = orjson.loads(body)
        if not isinstance(payload, dict):
            raise SocketClose(_INVALID_DATA, "the JSON of a frame must be an object")
        check_shape(body, payload)
    except orjson.JSONDecodeError as error:
        fault = MalformedJson("the frame's JSON is malformed", body, error)
        almost = almost_json(body, "stream_id")
        if almost is None:
            raise SocketClose(_INVALID_DATA, str(fault)) from error
        return Frame(command, almost, body, fault)
    except HttpError as error:
        raise SocketClose(_INVALID_DATA, f"the frame's JSON: {error}") from error
    return Frame(command, payload, body)


def write_frame(command: str, objects: Sequence[str]) -> str:
    """The text message of `objects`, each of which is JSON."""
    return f"{command} [{','.join(objects)}]"


class _WithStreamId(Schema):
    stream_id: int


def stream_id_of(frame: Frame) -> int:
    """Raises InvalidRequest, which quotes a wrong value as the client wrote it."""
    stream_id = frame.payload.get("stream_id")
    if type(stream_id) is int:
        return stream_id
    try:
        exact_id = parse_part(frame.text, frame.payload, (), _WithStreamId).stream_id
    except InvalidRequest as error:
        if "stream_id" not in frame.payload:
            raise
        raise wrong("stream_id", _STREAM_ID_RULE, stream_id) from error
    # The JSON parser read a number above 64 bits as a float.
    raise wrong("stream_id", _STREAM_ID_RULE, exact_id)


def number(value: float, *, strictly: bool) -> str:
    """A log-probability as JSON; `strictly`: only numbers that any reader of JSON knows."""
    if math.isfinite(value):
        return repr(value)
    return _LEAST_FLOAT if strictly else _MINUS_INFINITY


def as_json(value: Mapping[str, object]) -> str:
    """An object without infinite numbers as JSON."""
    return orjson.dumps(value).decode()


def error_type_of(error: RouterError | HttpError) -> str:
    """The error type, as in logs, metrics and HTTP answers."""
    return problem_of(error, Dialect.TGI).error_type


def error_fields(error: RouterError | HttpError) -> dict[str, object]:
    """The fields of an error object, but for the stream's id."""
    problem = problem_of(error, Dialect.TGI)
    fields: dict[str, object] = {"error": str(error), "error_type": problem.error_type}
    if isinstance(error, InvalidRequest | HttpError) and error.field is not None:
        fields["field"] = error.field
    if isinstance(error, ConstraintRefused):
        fields["details"] = {"reason": error.reason, **error.details}
    if problem.retry_after_s is not None:
        fields["retry_after_s"] = problem.retry_after_s
    fields["retryable"] = _is_retryable(error)
    return fields


def _is_retryable(error: RouterError | HttpError) -> bool:
    """False for wrong requests, and for those that fail because of their own values."""
    if isinstance(error, HttpError):
        return error.status >= 500
    is_own_fault = isinstance(error, InvalidRequest | RowFailed | FailedAlone)
    return isinstance(error, Refused) or not is_own_fault
