"""multipart/form-data (RFC 7578), read as it comes: what is uploaded is never in memory whole."""

import re
from collections.abc import AsyncIterator

from router.http.errors import HttpError

_BOUNDARY = re.compile(r'multipart/form-data\s*;.*?\bboundary="?([^";,]{1,70})"?', re.I)
_NAMES = re.compile(r'[;\s](name|filename)="([^"]*)"')
_MAX_HEAD_LEN = 1 << 14


async def read_form(
    content_type: str, chunks: AsyncIterator[bytes]
) -> AsyncIterator[tuple[str, str, bytes]]:
    """A field's name, its file's name and a piece of its content; each field has one at least.

    Raises HttpError for what is no such form.
    """
    found = _BOUNDARY.match(content_type)
    if found is None:
        message = f"the content-type must be multipart/form-data, got `{content_type[:60]}`"
        raise HttpError(415, "unsupported_media_type", message)
    mark = b"\r\n--" + found[1].encode()
    # So that the first mark is like the others.
    buffer = bytearray(b"\r\n")
    names: dict[str, str] = {}
    async for chunk in chunks:
        buffer += chunk
        while (at := buffer.find(mark)) >= 0:
            if names:
                yield names["name"], names.get("filename", ""), bytes(buffer[:at])
                names = {}
            del buffer[:at]
            head_end = buffer.find(b"\r\n\r\n", len(mark))
            if head_end < 0:
                break
            names = dict(_NAMES.findall(buffer[:head_end].decode(errors="replace")))
            if "name" not in names:
                raise _malformed("a field of it has no name")
            del buffer[: head_end + 4]
        if names:
            # The end of what has come may be the beginning of a mark.
            end = max(0, len(buffer) - len(mark))
            yield names["name"], names.get("filename", ""), bytes(buffer[:end])
            del buffer[:end]
        elif len(buffer) > _MAX_HEAD_LEN:
            raise _malformed("a field of it has no head")
    if names or not buffer.startswith(mark + b"--"):
        raise _malformed("it ends early")


def _malformed(reason: str) -> HttpError:
    return HttpError(400, "validation", f"the body is no multipart/form-data: {reason}")
