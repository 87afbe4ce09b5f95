"""Which stream a frame is about."""

from router.http.body import Schema, parse_part
from router.http.lmtp.frames import Frame
from router.request.error_text import wrong
from router.request.errors import InvalidRequest

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
