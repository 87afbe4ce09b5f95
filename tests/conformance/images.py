"""Images without a package: the clients' environments have none."""

import struct
import zlib


def png(red: int) -> bytes:
    """An image of 40 x 60 pixels of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checked

    rows = zlib.compress((b"\0" + bytes([red, 0, 0]) * 40) * 60)
    head = struct.pack(">IIBBBBB", 40, 60, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
