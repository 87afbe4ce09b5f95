"""What an owner and a worker say to each other: jobs and answers.

    frame:  length of the JSON, 4 bytes | of the data, 8 bytes, big-endian | JSON, UTF-8 | data

JSON and raw bytes, and not pickle: a worker has read hostile input, so its answers must not execute
code.
"""

import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

HEADER = struct.Struct(">IQ")
# What is sent is limited elsewhere; this only detects broken frames.
MAX_FRAME_BYTES = 4 << 30
_MAX_READ = 1 << 20


class Frame(NamedTuple):
    """A message that was received."""

    fields: Any
    data: bytes | bytearray


def frame(fields: Mapping[str, Any], num_data_bytes: int = 0) -> bytes:
    """The beginning of a message: all but its data, which follow."""
    body = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    return HEADER.pack(len(body), num_data_bytes) + body


def receive(channel: socket.socket) -> Frame | None:
    """The next message; None: the channel was closed before."""
    header = _read(channel, HEADER.size)
    if header is None:
        return None
    num_bytes, num_data_bytes = HEADER.unpack(header)
    body = _read(channel, num_bytes)
    data = None if body is None else _read(channel, num_data_bytes)
    return None if body is None or data is None else Frame(json.loads(body), data)


def _read(channel: socket.socket, num_bytes: int) -> bytearray | None:
    received = bytearray()
    while len(received) < num_bytes:
        part = channel.recv(min(num_bytes - len(received), _MAX_READ))
        if not part:
            return None
        received += part
    return received
