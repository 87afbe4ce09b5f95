"""Requests that fail alone, by their own row or by a bug: what is logged of it, and their error."""

import logging

from proto.contract import Generation
from router.engine.stream import Stream
from router.request.errors import ConstraintRefused, GenerationFailed, RouterError, RowFailed

_logger = logging.getLogger("router.engine.batcher")


def failed_row(stream: Stream, generation: Generation, reason: str) -> RouterError:
    """Names the request as its client does, and as the shards' logs do.

    Output made before that cannot be gone on with is the client's own affair, and not logged.
    """
    if generation.is_refused:
        return ConstraintRefused(reason, "broken")
    told = {"request_id": stream.request.trace_id, "shard_request_id": stream.request_id}
    _logger.error(
        "request_id=%s failed alone: %s (shard_request_id=%d)",
        stream.request.trace_id,
        reason,
        stream.request_id,
        extra=told,
    )
    return RowFailed(reason)


def failed_by_bug(stream: Stream, error: Exception) -> GenerationFailed:
    """Logs where the bug is."""
    _logger.error("request_id=%s failed by a bug", stream.request.trace_id, exc_info=error)
    return internal(error)


def internal(error: Exception) -> GenerationFailed:
    """What is told of a bug."""
    return GenerationFailed(f"a bug of the server ended it: {type(error).__name__}: {error}")
