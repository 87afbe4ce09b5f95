"""Frames: a type, a space, JSON; and the stream that a frame is about."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from router.http.body import Schema, parse_part
from router.http.server.body import check_depth, check_width
from router.http.server.errors import HttpError
from router.request.errors import InvalidRequest, wrong

_MAX_TYPE_LEN = 40
_UNSUPPORTED_DATA = 1003
_INVALID_DATA = 1007


class NoFrame(Exception):
    """What came is no frame: the socket is to be closed with `code`, and the text as the reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a client: its type, its object, and the object's text."""

    command: str
    payload: Mapping[str, Any]
    text: bytes


def read_frame(text: str | None) -> Frame:
    """The frame of a text message; None stands for a binary one. Raises NoFrame."""
    if text is None:
        raise NoFrame(_UNSUPPORTED_DATA, "a frame is a text message: TYPE, a space, JSON")
    command, space, rest = text.partition(" ")
    if not space or not command.isascii() or not 1 <= len(command) <= _MAX_TYPE_LEN:
        raise NoFrame(_INVALID_DATA, "a frame is TYPE, a space, JSON")
    body = rest.encode()
    try:
        check_width(body)
        payload = orjson.loads(body)
        if not isinstance(payload, dict):
            raise NoFrame(_INVALID_DATA, "the JSON of a frame must be an object")
        check_depth(body, payload)
    except orjson.JSONDecodeError as error:
        raise NoFrame(_INVALID_DATA, f"the frame's JSON is malformed: {error}") from error
    except HttpError as error:
        raise NoFrame(_INVALID_DATA, f"the frame's JSON: {error}") from error
    return Frame(command, payload, body)


def write_frame(command: str, objects: Sequence[str]) -> str:
    """The text message of objects that are JSON by now."""
    return f"{command} [{','.join(objects)}]"


# What is written into answers is read exactly by whoever wrote it.
_RULE = "must be a whole number of at most 64 bits"


class _Streamed(Schema):
    stream_id: int


def stream_id_of(frame: Frame) -> int:
    """Raises InvalidRequest, which names what stands in its place as it was written."""
    stream_id = frame.payload.get("stream_id")
    if type(stream_id) is int:
        return stream_id
    try:
        read = parse_part(frame.text, frame.payload, (), _Streamed).stream_id
    except InvalidRequest as error:
        if "stream_id" not in frame.payload:
            raise
        raise wrong("stream_id", _RULE, stream_id) from error
    raise wrong("stream_id", _RULE, read)
