"""Messages of Decode at a Unix socket: what gRPC's stream brings, without its threads and queues.

    | length | status | message | length | status | message | ...

A message is one of `generate.proto`, its length in bytes. The status is gRPC's number: 0, but for
the last answer of a connection, whose message is the reason in UTF-8.
"""

import struct
from typing import NamedTuple

_HEADER = struct.Struct("<IB")


class Frame(NamedTuple):
    """One message and its status."""

    status: int
    message: bytes


def frame_bytes(message: bytes, status: int = 0) -> bytes:
    """A frame as it is sent."""
    return _HEADER.pack(len(message), status) + message


class FrameReader:
    """Cuts what a connection brings into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are whole with these bytes."""
        if self._rest:
            data = self._rest + data
        frames: list[Frame] = []
        start = 0
        while len(data) - start >= _HEADER.size:
            message_len, status = _HEADER.unpack_from(data, start)
            begin = start + _HEADER.size
            if len(data) - begin < message_len:
                break
            start = begin + message_len
            frames.append(Frame(status, data[begin:start]))
        self._rest = data[start:]
        return frames
